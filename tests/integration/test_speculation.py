"""Answers with drafts are those without, to the last log-probability; they only take fewer steps."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from luna_server import LunaServer, config_text, draft_model_keys, wait_until

LIST = "The inventory of the museum:\n" + "".join(
    f"- object number {i}: a small clay vessel, found near the river, in good condition\n" for i in range(1, 9)
)
REQUESTS = [
    {"prompt": LIST, "max_tokens": 60, "temperature": 0, "logprobs": 3},
    {"prompt": LIST, "max_tokens": 60, "temperature": 0.8, "seed": 7, "logprobs": 1, "n": 2},
    {"prompt": LIST, "max_tokens": 60, "temperature": 0.3, "seed": 1, "top_p": 0.9, "frequency_penalty": 0.3},
    {"prompt": LIST, "max_tokens": 60, "temperature": 0, "stop": ["river, in"]},
    {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 1, "seed": 3},
]


def answers(server: LunaServer, together: bool) -> list[list[dict]]:
    def ask(body: dict) -> list[dict]:
        status, answer = server.post("/v1/completions", body)
        assert status == 200, answer
        return answer["choices"]

    if not together:
        return [ask(body) for body in REQUESTS]
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        return list(pool.map(ask, REQUESTS))


def test_drafts_change_no_answer(start_server: Callable[..., LunaServer]) -> None:
    plain = start_server(model_keys='\n[speculation]\nmethod = "off"')
    expected = answers(plain, together=False)
    n_steps = plain.metric("luna_steps_total")
    assert plain.metric("luna_draft_tokens_total") == 0
    assert plain.stop() == 0

    server = start_server(model_keys='\n[speculation]\nmethod = "ngram"\nngram_min = 1')
    assert answers(server, together=False) == expected
    accepted = server.metric("luna_draft_tokens_accepted_total")
    assert 20 < accepted <= server.metric("luna_draft_tokens_total")
    assert server.metric("luna_steps_total") < n_steps - 20
    assert answers(server, together=True) == expected
    wait_until(server.is_idle, 30, "nothing runs")
    assert server.metric("luna_kv_audit_failures_total") == 0
    assert server.metric("luna_plan_rejected_total") == 0
    assert server.stop() == 0


def test_a_draft_model_changes_no_answer(start_server: Callable[..., LunaServer], model: Path) -> None:
    """The model drafts for itself: that never pays, so it is only tried now and then."""
    plain = start_server(model_keys='\n[speculation]\nmethod = "off"')
    expected = answers(plain, together=False)
    assert plain.stop() == 0

    server = start_server(model_keys=draft_model_keys(model))
    assert answers(server, together=False) == expected
    assert server.metric("luna_draft_steps_total") > 0
    assert 0 < server.metric("luna_draft_tokens_accepted_total") <= server.metric("luna_draft_tokens_total")
    assert answers(server, together=True) == expected
    wait_until(server.is_idle, 30, "nothing runs")
    for name in ("luna_draft_failures_total", "luna_draft_kv_blocks_used"):
        assert server.metric(name) == 0
    assert server.metric("luna_kv_audit_failures_total") == 0
    assert server.metric("luna_plan_rejected_total") == 0
    with urllib.request.urlopen(f"{server.url}/v1/models", timeout=10) as answer:
        assert [row["id"] for row in json.load(answer)["data"]] == ["main"]
    assert server.stop() == 0


def test_a_draft_model_that_does_not_fit_is_refused_with_the_numbers(
    run_luna: Callable, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "luna.toml"
    keys = draft_model_keys(model).replace("kv_tokens_max = 4096", "kv_tokens_max = 4096\nsequences_max = 4096")
    path.write_text(config_text(model, model_keys=keys).replace("600 MiB", "150 MiB"), encoding="utf-8")
    done = run_luna("generate", "--config", path, "Hello")
    assert done.returncode != 0
    assert "model small: device cpu0: weights" in done.stderr or "model main: device cpu0: weights" in done.stderr
    assert "are left of its budget of 150.0 MiB" in done.stderr
