"""Every family of models, from both kinds of file to logits, against the `transformers` library.

The golden logits were computed once by `make_family_golden.py`; the models are made here from the
same seeds. `backend_reference` and `backend_cpu` are held to them for a prompt in one piece, and a
prompt in pieces, down to single tokens, gives the bits of the whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden" / "model")]
from luna_server import config_text  # noqa: E402
from test_numerics import (  # noqa: E402, F401 - the fixture `driver`
    CPU_I12, REFERENCE, REFERENCE_LOGIT_ERROR_MAX, TINY_RELATIVE_ERROR_MAX, LogitsDriver, driver,
)  # fmt: skip
from tiny_families import (  # noqa: E402
    FAMILIES, N_TOKENS, POSITIONS, Family, token_ids, write_folder, write_gguf,
)  # fmt: skip

GOLDEN = load_file(TESTS / "golden" / "model" / "family_logits.safetensors")
KINDS = ("gguf", "folder")
NO_TENSOR_SPLIT = ("qwen2", "phi3", "mixtral", "qwen3moe")


def write_model(tmp_path: Path, family: Family, kind: str) -> Path:
    if kind == "gguf":
        return write_gguf(tmp_path / f"{family.name}.gguf", family)
    return write_folder(tmp_path / family.name, family)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_logits_are_those_of_transformers(
    driver: LogitsDriver, family: Family, kind: str, tmp_path: Path  # noqa: F811
) -> None:
    model = write_model(tmp_path, family, kind)
    expected = GOLDEN[family.name]
    ids = token_ids()
    reference = driver.logits(model, REFERENCE, ids)[list(POSITIONS)]
    worst = np.abs(reference - expected).max()
    cpu = driver.logits(model, CPU_I12, ids)[list(POSITIONS)]
    relative_error = np.sqrt(np.mean((cpu - expected) ** 2)) / expected.std()
    print(f"{family.name}, {kind}: reference {worst:.2e}, cpu {relative_error:.2e}")
    assert worst <= REFERENCE_LOGIT_ERROR_MAX
    assert relative_error <= TINY_RELATIVE_ERROR_MAX


@pytest.mark.parametrize("backend", (REFERENCE, CPU_I12, [*CPU_I12, "--kv", "int8"]),
                         ids=("reference", "cpu", "cpu-int8"))  # fmt: skip
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_prompt_in_pieces_gives_the_bits_of_the_whole(
    driver: LogitsDriver, family: Family, backend: list[str], tmp_path: Path  # noqa: F811
) -> None:
    model = write_model(tmp_path, family, "gguf")
    ids = token_ids()
    whole = driver.logits(model, [*backend, "--rows-per-step", str(N_TOKENS)], ids)
    for n_rows in (1, 7, 64):
        pieces = driver.logits(model, [*backend, "--rows-per-step", str(n_rows)], ids)
        assert np.array_equal(whole.view(np.uint32), pieces.view(np.uint32)), f"{n_rows} rows"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_devices_share_a_model_or_say_why_not(
    run_luna: Callable, family: Family, tmp_path: Path
) -> None:
    model = write_model(tmp_path, family, "gguf")
    answers = []
    for n_devices, keys in ((1, ""), (2, ""), (2, 'layout = "tensor"')):
        config = tmp_path / "luna.toml"
        config.write_text(config_text(model, n_devices=n_devices, model_keys=keys), encoding="utf-8")
        prompt = "the cat and in to " * 8  # longer than a window
        done = run_luna("generate", "--config", config, prompt, "--max-tokens", 24,
                        "--temperature", 1, "--seed", 7)  # fmt: skip
        name = family.name.removesuffix("_long")
        if keys and name in NO_TENSOR_SPLIT:
            assert done.returncode == 1
            assert f"a tensor split of a {name} model" in done.stderr
            continue
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    assert answers[0].strip()
    assert all(answer == answers[0] for answer in answers)
