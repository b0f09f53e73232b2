"""FlowSplit over two groups: answers are those of one device, both groups work, wrong settings say so."""

from __future__ import annotations

import json
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
        ("dynamic_roles = true", "nothing to share"),
        ("role_weights = {generate = 0.4, intent = 0.6}", "no [[stage]] has the role 'intent'"),
        ("role_weights = {generate = 1.4}", "role_weights.generate"),
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


def test_a_request_larger_than_a_group_gets_the_text_of_one_device(start_server: Callable[..., LunaServer]) -> None:
    """Two groups with room for 512 tokens each; the long prompt has over 600."""
    prompts = ["The sea is wide and the ship is small. " * 70, "Once upon a time", "The sky above the harbour"]

    def ask(server: LunaServer) -> list[str]:
        texts = [""] * len(prompts)

        def one(i: int) -> None:
            body = {"model": "main", "prompt": prompts[i], "max_tokens": 24, "temperature": 0, "ignore_eos": True}
            status, answer = server.post("/v1/completions", body)
            assert status == 200, answer
            texts[i] = answer["choices"][0]["text"]

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return texts

    alone = start_server(n_devices=1, model_keys="kv_tokens_max = 2048")
    expected = ask(alone)
    assert alone.stop() == 0
    server = start_server(
        n_devices=2, model_keys='layout = "replicas"\nkv_tokens_max = 512', policy="flowsplit"
    )
    assert ask(server) == expected
    assert server.metric("luna_kv_moves_total") > 0
    assert server.metric("luna_plan_rejected_total") == 0
    assert server.metric("luna_preemptions_total") == 0
    status, refused = server.post("/v1/completions", {"model": "main", "prompt": prompts[0] * 2, "max_tokens": 24})
    assert status == 400
    assert "KV blocks" in refused["error"]["message"]
    assert server.stop() == 0
    streaming = start_server(
        n_devices=2,
        model_keys='layout = "replicas"\nkv_tokens_max = 512',
        policy="flowsplit",
        policy_keys="streaming_mode = true",
    )
    status, refused = streaming.post("/v1/completions", {"model": "main", "prompt": prompts[0], "max_tokens": 24})
    assert status == 400
    assert "there are 16" in refused["error"]["message"]
    assert streaming.stop() == 0


def test_plugins_info_tells_what_the_reason_codes_mean(run_luna: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_luna("plugins", "info", "flowsplit")
    assert done.returncode == 0, done.stderr
    for words in ("256 least_time", "264 spread", "265 wide", "SLICE", "reasons of its actions"):
        assert words in done.stdout, words
    rows = json.loads(run_luna("plugins", "info", "--json", "flowsplit").stdout)[0]["reasons"]
    assert {row["code"] for row in rows} >= {2, *range(256, 266)}
    assert all(row["name"] and row["meaning"] and row["verb"] for row in rows)
    assert json.loads(run_luna("plugins", "info", "--json", "static").stdout)[0]["reasons"] == []
