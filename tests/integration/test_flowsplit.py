"""FlowSplit over two groups: answers are those of one device, both groups work, wrong settings say so."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from luna_server import LunaServer, config_text

TEXTS = [f"Tell me {i} things about the sea." for i in range(12)]


def answers(server: LunaServer) -> list[str]:
    """Of all texts, asked at once."""
    found = [""] * len(TEXTS)

    def ask(i: int) -> None:
        status, body = server.chat(TEXTS[i], max_tokens=24)
        assert status == 200, body
        found[i] = body["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(TEXTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_two_groups_answer_as_one_device(start_server: Callable[..., LunaServer]) -> None:
    alone = start_server(n_devices=1)
    expected = answers(alone)
    assert alone.stop() == 0
    server = start_server(n_devices=2, model_keys='layout = "replicas"', policy="flowsplit")
    assert answers(server) == expected
    assert server.metric("luna_plan_rejected_total") == 0
    busy = [server.metric("luna_device_busy_seconds_total", device=f"cpu{i}") for i in range(2)]
    assert min(busy) > 0.2 * max(busy), busy
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("low = 0.9\nhigh = 0.6", "must be at least low"),
        ("dynamic_roles = true", "roles run on the pipeline's thread"),
        ("role_weights = {generate = 0.4, postprocess = 0.6}", "roles run on the pipeline's thread"),
        ("interval_ms = 0", "interval_ms"),
    ],
)
def test_settings_that_would_do_nothing_stop_the_start(
    run_luna: Callable[..., subprocess.CompletedProcess[str]], model: Path, tmp_path: Path, keys: str, says: str
) -> None:
    config = tmp_path / "luna.toml"
    config.write_text(config_text(model, policy="flowsplit", policy_keys=keys), encoding="utf-8")
    done = run_luna("serve", "--config", config)
    assert done.returncode == 1
    assert says in done.stderr
