"""Roles whose models share a device: memory and time by weights that stay or follow the load."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from luna_server import LunaServer, config_text, wait_until


def small_model(model: Path) -> str:
    """Keys behind the first model: a second copy on the same device, which the first stage uses."""
    return f"""
[[model]]
name = "small"
path = "{model}"
devices = ["cpu0"]

[[stage]]
role = "intent"
model = "small"
labels = ["code", "talk"]
default_label = "talk"
"""


def weights(server: LunaServer) -> dict[str, float]:
    with urllib.request.urlopen(f"{server.url}/admin/roles", timeout=10) as answer:
        rows = [json.loads(line) for line in answer]
    return {row["role"]: row["weight"] for row in rows}


def test_weights_divide_memory_and_are_told(start_server: Callable[..., LunaServer], model: Path) -> None:
    server = start_server(
        model_keys=small_model(model),
        policy="flowsplit",
        policy_keys="role_weights = {generate = 0.7, intent = 0.3}",
    )
    status, body = server.chat("Hello", max_tokens=8)
    assert status == 200, body
    assert weights(server) == pytest.approx({"generate": 0.7, "intent": 0.3}, abs=0.001)
    for role, of_model, weight in (("generate", "main", 0.7), ("intent", "small", 0.3)):
        assert server.metric("luna_role_weight", role=role, model=of_model) == pytest.approx(weight, abs=0.001)
    wait_until(server.is_idle, 30, "nothing runs")
    states = ("used", "cached", "free")
    blocks = {
        name: sum(server.metric(f"luna_kv_blocks_{state}", model=name) for state in states)
        for name in ("main", "small")
    }
    # 600 MiB, of which each copy's weights take about 100 MiB.
    assert blocks["main"] > 3 * blocks["small"] > 0, blocks
    assert server.stop() == 0


def test_dynamic_roles_follow_the_load(start_server: Callable[..., LunaServer], model: Path) -> None:
    server = start_server(
        model_keys=small_model(model), policy="flowsplit", policy_keys="dynamic_roles = true"
    )
    assert weights(server) == pytest.approx({"generate": 0.5, "intent": 0.5}, abs=0.001)
    is_over = threading.Event()

    def keep_asking() -> None:
        while not is_over.is_set():
            status, body = server.chat("Tell me about the sea.", max_tokens=100)
            assert status == 200, body

    threads = [threading.Thread(target=keep_asking) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        # Hardly any of the time goes into one token of a label.
        wait_until(lambda: weights(server)["generate"] > 0.7, 60, "the weight followed")
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert sum(weights(server).values()) == pytest.approx(1.0, abs=0.01)
    assert server.stop() == 0


def test_models_on_other_devices_have_nothing_to_share(
    run_luna: Callable[..., subprocess.CompletedProcess[str]], model: Path, tmp_path: Path
) -> None:
    config = tmp_path / "luna.toml"
    keys = small_model(model).replace('["cpu0"]', '["cpu1"]')
    text = config_text(model, n_devices=2, model_keys=keys, policy="flowsplit", policy_keys="dynamic_roles = true")
    config.write_text(text.replace('devices = ["cpu0", "cpu1"]', 'devices = ["cpu0"]'), encoding="utf-8")
    done = run_luna("serve", "--config", config)
    assert done.returncode == 1
    assert "nothing to share" in done.stderr
