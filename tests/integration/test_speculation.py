"""Answers with drafts are those without, to the last log-probability; they only take fewer steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from luna_server import LunaServer, wait_until

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
