"""Copies of a model on several groups of devices: one server, the answers of one device."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable

import pytest
from luna_server import LunaServer, wait_until

LAYOUTS = {
    "replicas": {"n_devices": 2, "model_keys": 'layout = "replicas"'},
    "pipelines": {"n_devices": 4, "model_keys": 'groups = [["cpu0", "cpu1"], ["cpu2", "cpu3"]]'},
}


def answers(server: LunaServer, n: int) -> list[str]:
    """Greedy answers to n questions asked at once."""
    texts = [""] * n

    def ask(i: int) -> None:
        status, body = server.chat(f"Tell me about the number {i}.", max_tokens=24)
        texts[i] = body["choices"][0]["message"]["content"] if status == 200 else f"status {status}: {body}"

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_groups_share_the_work_and_answer_alike(start_server: Callable[..., LunaServer], layout: str) -> None:
    one = start_server()
    expected = answers(one, 12)
    assert one.stop() == 0
    server = start_server(**LAYOUTS[layout])
    assert answers(server, 12) == expected
    wait_until(server.is_idle, 30, "nothing runs")
    with urllib.request.urlopen(f"{server.url}/admin/groups", timeout=10) as answer:
        groups = [json.loads(line) for line in answer]
    n_devices = LAYOUTS[layout]["n_devices"]
    assert [group["group"] for group in groups] == [0, 1]
    assert sum((group["devices"] for group in groups), []) == [f"cpu{i}" for i in range(n_devices)]
    for group in groups:
        assert group["steps"] > 10
        assert group["running"] == group["waiting"] == group["kv_blocks_used"] == 0
        assert server.metric("luna_group_steps_total", group=str(group["group"])) == group["steps"]
    assert sum(group["steps"] for group in groups) == server.metric("luna_steps_total")
    for i in range(n_devices):
        assert server.metric("luna_device_busy_seconds_total", device=f"cpu{i}") > 0
    assert server.metric("luna_kv_audit_failures_total") == 0
    assert server.stop() == 0
