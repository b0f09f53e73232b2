"""examples/: plugins of every kind outside the tree, built from the installed sdk alone, that serve."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as QuantType

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden" / "model")]
from luna_server import LunaServer, config_text  # noqa: E402
from make_tiny_models import Spec, make_tiny_model  # noqa: E402
from reference_llama import LlamaModel  # noqa: E402
from test_numerics import (  # noqa: E402, F401 - the fixture `driver`
    CPU_I12, REFERENCE, REFERENCE_LOGIT_ERROR_MAX, TINY_RELATIVE_ERROR_MAX, LogitsDriver, driver,
    tiny_token_ids,
)  # fmt: skip
from test_sdk import prefix, run  # noqa: E402, F401 - the fixture `prefix`

EXAMPLES = TESTS.parent / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
KINDS = ("scheduler", "role", "quant", "transport", "backend")


class Built:
    """The examples, each built once, in a copy outside of the tree."""

    def __init__(self, folder: Path, prefix: Path):  # noqa: F811
        self.folder_ = folder
        self.prefix = prefix

    def folder(self, name: str, compiler: str = "g++") -> Path:
        """Where the example's plugin lies."""
        source = self.folder_ / compiler / name
        build = source / "build"
        if not build.is_dir():
            shutil.copytree(EXAMPLES / name, source)
            run(["cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                 f"-DCMAKE_CXX_COMPILER={compiler}"], source, self.prefix)  # fmt: skip
            run(["cmake", "--build", "build"], source, self.prefix)
        return build


@pytest.fixture(scope="module")
def built(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:  # noqa: F811
    return Built(tmp_path_factory.mktemp("examples"), prefix)


def test_there_are_two_of_every_kind_and_each_is_described() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for kind in KINDS:
        assert sum(name.startswith(kind + "_") for name in NAMES) >= 2, kind
    for name in NAMES:
        assert (EXAMPLES / name / "README.md").read_text(encoding="utf-8").startswith(f"# {name}\n")
        assert f"`{name}`" in page


@pytest.mark.parametrize("name", NAMES)
def test_an_example_passes_its_own_test_and_every_rule(name: str, built: Built) -> None:
    said = run(["ctest", "--test-dir", str(built.folder(name)), "--output-on-failure"], EXAMPLES, built.prefix)
    assert "100% tests passed, 0 tests failed out of 2" in said


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("name", NAMES)
def test_an_example_exports_one_symbol(name: str, compiler: str, built: Built) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    library = built.folder(name, compiler) / f"{name}.so"
    symbols = run(["nm", "--dynamic", "--defined-only", str(library)], EXAMPLES, built.prefix)
    assert [line.split()[-1] for line in symbols.splitlines()] == ["luna_plugin_query"]


@pytest.fixture
def serve(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], Iterator[LunaServer]]:
    """Serves with an example's plugin; the server must end with status 0."""

    @contextmanager
    def serving(name: str, config: str) -> Iterator[LunaServer]:
        monkeypatch.setenv("LUNA_PLUGIN_PATH", str(built.folder(name)))
        path = tmp_path / "luna.toml"
        path.write_text(config, encoding="utf-8")
        server = LunaServer(built.prefix / "bin" / "luna", path)
        try:
            yield server
        finally:
            assert server.stop() == 0, server.log()

    return serving


def text_of(server: LunaServer, prompt: str, **fields: object) -> str:
    status, answer = server.chat(prompt, **fields)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def plain_answer(prefix: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:  # noqa: F811
    """What the program alone answers; no example may change it, unless that is what it is for."""
    path = tmp_path_factory.mktemp("plain") / "luna.toml"
    path.write_text(config_text(model), encoding="utf-8")
    server = LunaServer(prefix / "bin" / "luna", path)
    try:
        return text_of(server, "Name three colours.", max_tokens=24)
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("policy", ["shortest", "express"])
def test_a_scheduler_serves(policy: str, serve: Callable, model: Path, plain_answer: str) -> None:
    with serve(f"scheduler_{policy}", config_text(model, policy=policy)) as server:
        assert text_of(server, "Name three colours.", max_tokens=24) == plain_answer


def with_stage(config: str, stage: str) -> str:
    """A further stage behind the one that generates."""
    return config.replace("[scheduler]\n", f"[[stage]]\n{stage}\n\n[scheduler]\n", 1)


def test_redact_takes_out_what_matches(serve: Callable, model: Path, plain_answer: str) -> None:
    word = re.search(r"[A-Za-z]{4,}", plain_answer)[0]
    stage = f'role = "redact"\npatterns = ["{word}"]\nreplacement = "#"'
    with serve("role_redact", with_stage(config_text(model), stage)) as server:
        text = text_of(server, "Name three colours.", max_tokens=24)
        assert text == plain_answer.replace(word, "#")
        # A client that reads as it comes gets the same.
        streamed = "".join(event["choices"][0].get("text", "") for event in server.stream("One, two,", 24)
                           if event["choices"])  # fmt: skip
        assert streamed and word not in streamed


def test_redact_refuses_what_is_no_pattern_when_the_server_starts(serve: Callable, model: Path) -> None:
    stage = 'role = "redact"\npatterns = ["("]'
    with pytest.raises(AssertionError, match="patterns: '\\(' is no regular expression"):
        with serve("role_redact", with_stage(config_text(model), stage)):
            pass


def test_rewrite_asks_the_model_again(serve: Callable, model: Path, plain_answer: str) -> None:
    stage = 'role = "rewrite"\nmodel = "smollm2"\ninstruction = "Repeat:"\nmax_tokens = 12'
    config = config_text(model)
    stage = stage.replace("smollm2", re.search(r'role = "generate"\nmodel = "(.*?)"', config)[1])
    with serve("role_rewrite", with_stage(config, stage)) as server:
        status, answer = server.chat("Name three colours.", max_tokens=24)
        assert status == 200, answer
        text = answer["choices"][0]["message"]["content"]
        assert text.strip() and text != plain_answer


@pytest.mark.parametrize(("name", "quant_type"), [("tq2", QuantType.TQ2_0), ("mxfp4", QuantType.MXFP4)])
def test_a_format_is_computed_and_served(
    name: str, quant_type: QuantType, built: Built, serve: Callable, driver: LogitsDriver,  # noqa: F811
    tmp_path: Path
) -> None:  # fmt: skip
    spec = Spec(f"tiny_{name}", quant_type, embedding_type=QuantType.Q8_0, hidden_size=256, feed_forward_size=256)
    path = make_tiny_model(tmp_path, spec)
    ids = tiny_token_ids()
    plugins = ["--plugins", str(built.folder(f"quant_{name}"))]
    expected = LlamaModel.load(path).logits(ids)  # the package gguf decodes
    reference = driver.logits(path, REFERENCE + plugins, ids)
    assert np.abs(reference - expected).max() <= REFERENCE_LOGIT_ERROR_MAX
    error = driver.logits(path, CPU_I12 + plugins, ids) - reference
    assert np.sqrt(np.mean(error**2)) / reference.std() <= TINY_RELATIVE_ERROR_MAX
    with serve(f"quant_{name}", config_text(path)) as server:
        assert text_of(server, "the cat and in to", max_tokens=8)


@pytest.mark.parametrize("transport", ["logging", "slow"])
def test_a_transport_serves_between_two_devices(
    transport: str, serve: Callable, model: Path, plain_answer: str
) -> None:
    config = config_text(model, n_devices=2, transport=transport)
    with serve(f"transport_{transport}", config) as server:
        assert text_of(server, "Name three colours.", max_tokens=24) == plain_answer
    if transport == "logging":
        sent = re.findall(r"ends: sent (\d+) messages of (\d+) bytes", server.log())
        assert any(int(n) >= 24 and int(n_bytes) > int(n) for n, n_bytes in sent), server.log()


def test_a_decorator_names_the_plugin_that_it_does_not_find(serve: Callable, model: Path) -> None:
    config = config_text(model, n_devices=2, transport="logging")
    with pytest.raises(AssertionError, match=r'inner = "nobody": .*/transport_nobody.so: cannot open'):
        with serve("transport_logging", config + '\n[transport.logging]\ninner = "nobody"\n'):
            pass


def test_the_plain_backend_serves(serve: Callable, model: Path, plain_answer: str) -> None:
    config = config_text(model, memory="1500 MiB").replace('backend = "cpu"', 'backend = "plain"')
    config = config.replace("threads = 1\n", "")
    with serve("backend_plain", config) as server:
        # FP32 activations: the first words agree with the 12 bits of the default.
        text = text_of(server, "Name three colours.", max_tokens=8)
        assert text.strip() and text.split()[0] == plain_answer.split()[0]


def test_the_meter_serves_and_says_how_fast(serve: Callable, model: Path, plain_answer: str) -> None:
    config = config_text(model).replace('backend = "cpu"', 'backend = "meter"')
    with serve("backend_meter", config) as server:
        assert text_of(server, "Name three colours.", max_tokens=24) == plain_answer
    assert re.search(r"\d+ steps of [\d.]+ rows: [\d.]+ ms a step, [\d.]+ GFLOP/s", server.log()), server.log()
