"""The prefix cache as clients and operators see it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from luna_server import LunaServer, wait_until

LONG = "Once there was a river that ran the wrong way. " * 12


def ask(server: LunaServer, text: str, **fields: object) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt came from the cache."""
    status, answer = server.chat(text, max_tokens=8, **fields)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_repeated_prompts_are_cached_and_answer_the_same(server: LunaServer) -> None:
    first, n_first = ask(server, LONG)
    again, n_again = ask(server, LONG)
    other, n_other = ask(server, LONG + "Why?")
    assert n_first < 64 < n_again and n_other > 64  # the template's beginning may be known already
    assert first == again and other
    assert server.metric("luna_cached_tokens_total") >= n_again + n_other
    assert server.metric("luna_prefix_hits_total") >= 2
    wait_until(server.is_idle, 30, "nothing runs")
    assert server.metric("luna_kv_blocks_cached") > 0
    assert server.metric("luna_kv_audit_failures_total") == 0


def test_salts_keep_prompts_apart(server: LunaServer) -> None:
    plain, _ = ask(server, LONG)
    salted, n_salted = ask(server, LONG, cache_salt="mine")
    again, n_again = ask(server, LONG, cache_salt="mine")
    assert n_salted == 0 < n_again
    assert plain == salted == again
    for salt in ("", "x" * 129, 7):
        status, answer = server.chat("hi", cache_salt=salt)
        assert status == 400 and answer["error"]["param"] == "cache_salt", answer


def test_many_clients_with_one_beginning_get_what_each_gets_alone(server: LunaServer) -> None:
    questions = [f"{LONG}Question {i}: what did the river say?" for i in range(12)]
    alone = [ask(server, question, cache_salt=f"alone {i}")[0] for i, question in enumerate(questions)]
    together: dict[int, tuple[str, int]] = {}

    def run(i: int) -> None:
        together[i] = ask(server, questions[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[i][0] for i in range(len(questions))] == alone
    assert sum(cached > 64 for _, cached in together.values()) >= len(questions) - 1


@pytest.mark.parametrize(
    ("keys", "n_other_tenant"),
    [("prefix_cache = false", 0), ('prefix_cache_scope = "tenant"', 0), ("", 1)],
    ids=["off", "a tenant", "all"],
)
def test_the_settings_say_who_finds_what(
    start_server: Callable[..., LunaServer], tmp_path: Path, keys: str, n_other_tenant: int
) -> None:
    key_file = tmp_path / "keys"
    tenants = ("tenant-a-0123456789", "tenant-b-0123456789")
    key_file.write_text("\n".join(tenants) + "\n")
    key_file.chmod(0o600)
    server = start_server(server=f'api_keys_file = "{key_file}"', model_keys=keys)

    def cached(key: str) -> int:
        server.key = key
        status, answer = server.chat(LONG, max_tokens=2)
        assert status == 200, answer
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(tenants[0]) == 0
    assert (cached(tenants[0]) > 0) == (keys != "prefix_cache = false")
    assert (cached(tenants[1]) > 64) == bool(n_other_tenant)
    assert server.stop() == 0
