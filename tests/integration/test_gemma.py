"""Gemma 3 270M, the second real model: K-quants, a vocabulary over characters, windows, GeGLU.

LUNA_TEST_GEMMA names the GGUF file; without it the user's cache is looked up, where
`./luna pull gemma-3-270m` puts it, and without both the tests are skipped.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support")]
import text_reference as ref  # noqa: E402
from logit_metrics import Comparison  # noqa: E402
from luna_server import MODEL_NAME, LunaServer, config_text  # noqa: E402
from test_numerics import CPU_I12, REFERENCE, LogitsDriver, driver  # noqa: E402, F401 - the fixture

FILE = "gemma-3-270m-q4_k_m.gguf"
TEXT = (
    "The moon is the only natural satellite of the Earth. It orbits our planet at a distance of about "
    "384,000 kilometres, and one turn takes it a little over 27 days. The same side always faces us, "
    "because the tides have slowed its rotation until a day there was as long as a month. Its light is "
    "that of the sun, thrown back by dust and rock; when the Earth stands between the two, the moon "
    "grows dark and red. People have walked on it twelve times, between 1969 and 1972."
)
TEXTS = (
    TEXT, "", " ", "  two  spaces\n\nand   three\t\ttabs", "Grüße, 世界! ça va? 🌍🚀", "x" * 300,
    "def f(x):\n    return {'a': [1, 2.5e-3]}\n", "<start_of_turn>user\nhi<end_of_turn>\n", "▁▁ mark",
    "1234567890 + 99 = ?", "\u0000\u0001 \u2028 ᚠᛇᚻ 𒀀",
)  # fmt: skip


@pytest.fixture(scope="module")
def gemma() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "luna" / "models"
    path = Path(os.environ.get("LUNA_TEST_GEMMA", cache / "gemma-3-270m" / FILE))
    if not path.is_file():
        pytest.skip(f"{path}: not there, and LUNA_TEST_GEMMA is not set")
    return path


class PieceMerger:
    """SentencePiece's BPE written down plainly: the best pair of neighbours, again and again."""

    def __init__(self, path: Path):
        fields = GGUFReader(path).fields
        value = lambda key: fields[f"tokenizer.ggml.{key}"].contents()  # noqa: E731
        self.tokens, types, scores = value("tokens"), value("token_type"), value("scores")
        self.scores = {t: s for t, s, kind in zip(self.tokens, scores, types) if kind == 1}
        self.ids = {t: i for i, t in reversed(list(enumerate(self.tokens))) if types[i] == 1}
        self.added = sorted((t for t, kind in zip(self.tokens, types) if kind in (3, 4)),
                            key=len, reverse=True)  # fmt: skip
        self.added_ids = {t: self.tokens.index(t) for t in self.added}
        self.byte_ids = {int(t[3:5], 16): i for i, t in enumerate(self.tokens) if types[i] == 6}

    def encode(self, text: str) -> list[int]:
        ids, plain, at = [], "", 0
        while at < len(text):
            found = next((t for t in self.added if text.startswith(t, at)), None)
            if found is None:
                plain += text[at]
                at += 1
                continue
            ids += self.merge(plain) + [self.added_ids[found]]
            plain, at = "", at + len(found)
        return ids + self.merge(plain)

    def merge(self, text: str) -> list[int]:
        symbols = list(text.replace(" ", "▁"))
        while True:
            pairs = [(-self.scores[a + b], i) for i, (a, b) in enumerate(zip(symbols, symbols[1:]))
                     if a + b in self.scores]  # fmt: skip
            if not pairs:
                break
            i = min(pairs)[1]
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        ids = []
        for symbol in symbols:
            known = self.ids.get(symbol)
            ids += [known] if known is not None else [self.byte_ids[b] for b in symbol.encode()]
        return ids


def test_ids_are_those_of_a_plain_merger(gemma: Path) -> None:
    merger = PieceMerger(gemma)
    actual = ref.luna_lines("tokenize", "--model", str(gemma), values=list(TEXTS))
    for text, ids in zip(TEXTS, actual, strict=True):
        assert ids == merger.encode(text), repr(text)


def test_cpu_backend_predicts_like_reference(driver: LogitsDriver, gemma: Path) -> None:  # noqa: F811
    ids = [2, *PieceMerger(gemma).encode(TEXT)]
    base = driver.logits(gemma, REFERENCE, ids)
    comparison = Comparison()
    comparison.add(base, driver.logits(gemma, CPU_I12, ids), ids)
    print(f"KL {comparison.mean_kl:.3e}, perplexity {comparison.perplexity:.3f} against "
          f"{comparison.base_perplexity:.3f}, top-1 equal {100 * comparison.same_top1_ratio:.2f} %")
    assert comparison.base_perplexity < 20.0  # English that the model knows well
    assert abs(comparison.perplexity / comparison.base_perplexity - 1.0) < 0.02
    pieces = driver.logits(gemma, [*CPU_I12, "--rows-per-step", "7"], ids)
    whole = driver.logits(gemma, [*CPU_I12, "--rows-per-step", "256"], ids)
    assert np.array_equal(whole.view(np.uint32), pieces.view(np.uint32))


def test_it_is_served_by_two_devices_and_knows_a_capital(
    gemma: Path, luna_bin: Path, tmp_path: Path
) -> None:
    config = tmp_path / "luna.toml"
    config.write_text(config_text(gemma, n_devices=2, memory="900 MiB"), encoding="utf-8")
    server = LunaServer(luna_bin, config)
    try:
        status, answer = server.post("/v1/completions", {
            "model": MODEL_NAME, "prompt": "Italy: Rome\nGermany: Berlin\nFrance:", "max_tokens": 4,
            "temperature": 0})  # fmt: skip
        assert status == 200, answer
        assert "Paris" in answer["choices"][0]["text"]
    finally:
        assert server.stop() == 0
