"""validate_output_consistency: answers that were sliced are computed once more while nobody waits, and compared."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable

from luna_server import LunaServer, wait_until

# Room for 2,048 tokens in each of two groups; one that is half full gives KV away.
SLICED = {
    "n_devices": 2,
    "policy": "flowsplit",
    "policy_keys": "low = 0.5\nhigh = 0.5\nidle = 0.01\ninterval_ms = 1",
}
MODEL_KEYS = 'layout = "replicas"\nkv_tokens_max = 2048\n'


def ask_a_long_question(server: LunaServer) -> None:
    status, body = server.chat("Tell me more about the sea. " * 180, max_tokens=64)
    assert status == 200, body
    wait_until(server.is_idle, 30, "nothing runs")
    assert server.metric("luna_kv_moves_total") > 0, "nothing was sliced"


def checks(server: LunaServer) -> dict[str, object]:
    with urllib.request.urlopen(f"{server.url}/admin/checks", timeout=10) as answer:
        return json.loads(answer.read())


def test_sliced_answers_are_found_to_be_right(start_server: Callable[..., LunaServer]) -> None:
    server = start_server(**SLICED, model_keys=MODEL_KEYS + "validate_output_consistency = 100")
    ask_a_long_question(server)
    wait_until(lambda: checks(server)["checked"] > 0 and checks(server)["waiting"] == 0, 60, "answers were checked")
    found = checks(server)
    assert found["percent"] == 100
    assert found["mismatches"] == 0, found
    assert server.metric("luna_output_checks_total") == found["checked"]
    assert server.metric("luna_output_mismatches_total") == 0
    assert server.metric("luna_kv_audit_failures_total") == 0
    assert server.stop() == 0


def test_off_nothing_is_computed_again(start_server: Callable[..., LunaServer]) -> None:
    server = start_server(**SLICED, model_keys=MODEL_KEYS)
    ask_a_long_question(server)
    n_steps = server.metric("luna_steps_total")
    found = checks(server)
    assert (found["percent"], found["waiting"], found["checked"]) == (0, 0, 0)
    assert server.metric("luna_steps_total") == n_steps
    assert server.stop() == 0
