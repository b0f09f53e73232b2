"""The golden cases: what went wrong in other inference servers, each one asked of this program.

A case is run by the checks of tests/golden/cases/run.py. Value tables (kind `unit`) belong to unit
tests; here is only seen that some unit test names each of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import run as runner
from luna_server import MODEL_NAME, LunaServer, config_text

TESTS = Path(__file__).resolve().parents[1]
CASES = TESTS / "golden" / "cases"
KEY = "luna-test-key-Q7"

NOT_YET = {
    "API-TOOL-1": "a forced tool call is refused until built",
    "API-SCHEMA-1": "response_format is refused until built",
    "API-UTF8-1": "it forces its answer by response_format, which is refused until built",
    "UNIT-KVQ-1": "no quantized KV cache yet",
    "UNIT-GPTQ-1": "no GPTQ format yet",
    "UNIT-AWQ-1": "no AWQ format yet",
    "DIST-KILL-1": "no worker processes yet",
    "DIST-HEALTH-1": "no worker processes yet",
    "DIST-ORPHAN-1": "no worker processes yet",
    "UNIT-HELLO-1": "no worker processes yet",
    "UNIT-THREADS-1": "no worker processes yet",
    "UNIT-DEVICE-1": "no device numbers beyond one backend yet",
    "BENCH-TOK-1": "no bench command yet",
    "BENCH-TTFT-1": "no bench command yet",
    "BENCH-FAIL-1": "no bench command yet",
    "UNIT-PCTL-1": "no bench command yet",
}


def load_cases() -> list[dict]:
    lines = [
        line
        for name in ("cases.jsonl", "tokenizer.jsonl", "template.jsonl")
        for line in (CASES / name).read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    return [case for case in map(json.loads, lines) if case["id"] not in NOT_YET]


ALL = load_cases()
RUN = [case for case in ALL if case["check"]["kind"] != "unit"]
TABLES = [case for case in ALL if case["check"]["kind"] == "unit"]


@pytest.fixture(scope="module")
def case_server(start_server: Callable[..., LunaServer], tmp_path_factory: pytest.TempPathFactory) -> LunaServer:
    """As people run it where a browser asks: on all cores, with a key, and other origins allowed."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"{KEY}\n", encoding="utf-8")
    keys.chmod(0o600)
    return start_server(n_threads=0, server=f'api_keys_file = "{keys}"\ncors_origins = ["*"]')


@pytest.fixture(scope="module")
def options(
    luna_bin: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> argparse.Namespace:
    base = tmp_path_factory.mktemp("base") / "good.toml"
    base.write_text(config_text(model).replace("port = 0", "port = 8080"), encoding="utf-8")
    return argparse.Namespace(
        luna=str(luna_bin), model_file=str(model), model=MODEL_NAME, key=None, base_config=str(base), off=set(),
        serve=f"{luna_bin} serve --config {{config}} --port {{port}}",
    )


@pytest.mark.parametrize("case", RUN, ids=[case["id"] for case in RUN])
def test_case(case: dict, options: argparse.Namespace, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = None
    chosen = argparse.Namespace(**vars(options))
    is_server_case = "server" in case.get("needs", [])
    if is_server_case:
        url, chosen.key = request.getfixturevalue("case_server").url, KEY
    helper = runner.Helper(chosen, url, None, str(tmp_path))
    try:
        runner.KINDS[case["check"]["kind"]](helper, case)
    except runner.Skip as skip:
        pytest.skip(str(skip))
    if is_server_case:
        helper.alive("after the case")


@pytest.mark.parametrize("case_id", [case["id"] for case in TABLES])
def test_a_unit_test_checks_the_value_table(case_id: str) -> None:
    sources = (TESTS / "unit").rglob("*.cpp")
    assert any(case_id in source.read_text(encoding="utf-8") for source in sources)
