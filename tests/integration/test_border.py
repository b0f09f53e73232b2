"""Calls over the plugin border: per step one plan, and one submit a device, whatever the step holds.

A model on several devices has as many steps in flight.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable

import pytest
from luna_server import LunaServer, wait_until


def border_calls(server: LunaServer) -> tuple[float, float, float]:
    """(steps, plans, submits), read while nothing runs."""
    wait_until(server.is_idle, 30, "nothing runs")
    return (
        server.metric("luna_steps_total"),
        server.metric("luna_border_calls_total", kind="scheduler"),
        server.metric("luna_border_calls_total", kind="backend"),
    )


@pytest.mark.parametrize("n_devices", [1, 2, 3])
def test_a_step_costs_one_plan_and_one_submit_a_device(
    start_server: Callable[..., LunaServer], n_devices: int
) -> None:
    server = start_server(n_devices=n_devices)
    before = border_calls(server)
    server.chat("word " * 900, max_tokens=2)  # prompts in several chunks
    server.chat("hi", max_tokens=40, ignore_eos=True)
    together = [threading.Thread(target=server.chat, args=(f"hello {i}",), kwargs={"max_tokens": 9}) for i in range(8)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    steps, plans, submits = (after - b for after, b in zip(border_calls(server), before, strict=True))
    assert steps > 40
    assert plans == steps
    assert submits == n_devices * steps
    assert server.metric("luna_steps_in_flight_max") == n_devices
    for i in range(n_devices):
        assert server.metric("luna_device_busy_seconds_total", device=f"cpu{i}") > 0
    assert server.stop() == 0


def test_every_step_leaves_a_record_of_its_time(start_server: Callable[..., LunaServer]) -> None:
    server = start_server(n_devices=2)
    server.chat("hi", max_tokens=20, ignore_eos=True)
    wait_until(server.is_idle, 30, "nothing runs")
    n_steps = int(server.metric("luna_steps_total"))
    with urllib.request.urlopen(f"{server.url}/admin/steps", timeout=10) as answer:
        records = [json.loads(line) for line in answer]
    assert [record["step"] for record in records] == list(range(1, n_steps + 1))
    for record in records:
        parts = sum(record[f"{part}_ns"] for part in ("plan", "prepare", "submit", "devices", "sample"))
        assert 0 < record["busy_ns"] <= record["devices_ns"] + record["submit_ns"]
        assert record["busy_ns"] == max(record["device_busy_ns"])
        assert len(record["device_busy_ns"]) == 2
        assert 1 <= record["in_flight"] <= 2
        assert record["lane"] == (record["step"] - 1) % 2
        assert parts <= record["total_ns"]
    decoding = [record for record in records if record["rows"] == record["seqs"] == record["out_rows"] == 1]
    assert len(decoding) >= 19
    assert server.stop() == 0
