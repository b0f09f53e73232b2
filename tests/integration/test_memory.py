"""What the KV cache holds and what it may cost: INT8 KV, pruning, the shipped one-device file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from luna_server import MODEL_NAME, LunaServer, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
LONG = "The river ran past the mill, the bridge and the market. " * 60


def complete(server: LunaServer, prompt: str, **fields: object) -> tuple[str, dict]:
    body = {"model": MODEL_NAME, "prompt": prompt, "temperature": 0, "max_tokens": 8}
    status, answer = server.post("/v1/completions", body | fields)
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["usage"]


def n_blocks(server: LunaServer) -> float:
    """Blocks of the whole pool."""
    wait_until(server.is_idle, 30, "nothing runs")
    free = server.metric("luna_kv_blocks_free")
    return free + server.metric("luna_kv_blocks_used")


def test_sol_toml_serves_with_int8_kv_and_the_prefix_cache(
    luna_bin: Path, model: Path, tmp_path: Path
) -> None:
    shipped = (REPOSITORY / "configs" / "sol.toml").read_text(encoding="utf-8")
    changed, n_changes = re.subn(r'(?m)^path = ".*"$', f'path = "{model}"', shipped)
    changed, n_ports = re.subn(r"(?m)^port = 8080$", "port = 0", changed)
    assert (n_changes, n_ports) == (1, 1) and 'kv_cache = "int8"' in shipped
    config = tmp_path / "sol.toml"
    config.write_text(changed, encoding="utf-8")
    server = LunaServer(luna_bin, config)
    try:
        first, _ = complete(server, LONG)
        again, usage = complete(server, LONG)
        assert first == again
        assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] // 2
        wait_until(server.is_idle, 30, "nothing runs")
        assert server.metric("luna_kv_audit_failures_total") == 0
    finally:
        assert server.stop() == 0


def test_int8_kv_holds_nearly_twice_the_tokens_in_the_same_memory(
    start_server: Callable[..., LunaServer],
) -> None:
    pools = {}
    for kv in ("bf16", "int8"):
        server = start_server(model_keys=f'kv_cache = "{kv}"')
        pools[kv] = n_blocks(server)
        text, _ = complete(server, "The capital of France is")
        assert "Paris" in text
        assert server.stop() == 0
    assert 1.85 < pools["int8"] / pools["bf16"] < 2.0, pools


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_a_pruned_prompt_gives_its_blocks_back_at_once(
    start_server: Callable[..., LunaServer], kv: str
) -> None:
    held = {}
    for keep in (100, 30):
        keys = f'kv_cache = "{kv}"\nprune_keep_percent = {keep}\nprefix_cache = false'
        server = start_server(model_keys=keys)
        for n_events, event in enumerate(server.stream(LONG, max_tokens=200), start=1):
            if n_events == 16:
                held[keep] = server.metric("luna_kv_blocks_used")
        assert event["usage"]["prompt_tokens"] > 600 and event["usage"]["completion_tokens"] == 200
        wait_until(server.is_idle, 30, "nothing runs")
        assert server.metric("luna_kv_audit_failures_total") == 0
        assert server.stop() == 0
    assert held[30] < 0.5 * held[100], held
