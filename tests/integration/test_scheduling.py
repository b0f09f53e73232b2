"""Who is served, when and how: decided by counts and orders, never by the clock of the test."""

from __future__ import annotations

import http.client
import json
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from luna_server import MODEL_NAME, LunaServer, wait_until

KEYS = ("luna-test-key-of-a", "luna-test-key-of-b", "luna-test-key-of-c")
ENDLESS = {"max_tokens": 4000, "ignore_eos": True}


class Stream:
    """One streamed completion, read on a thread of its own."""

    def __init__(self, server: LunaServer, prompt: str | list[int], key: str = "", **fields: object):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        body = {"model": MODEL_NAME, "prompt": prompt, "stream": True, "temperature": 0, "ignore_eos": True} | fields
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self.connection.request("POST", "/v1/completions", json.dumps(body), headers)
        self.status, self.headers, self.error = 0, {}, None
        self.n_events = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        try:
            answer = self.connection.getresponse()
            self.status, self.headers = answer.status, dict(answer.getheaders())
            if answer.status != 200:
                self.error = json.loads(answer.read())["error"]
                return
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    self.error = event.get("error", self.error)
                    self.n_events += 1
        except (OSError, ValueError, http.client.HTTPException):
            pass  # closed by the test
        finally:
            self.ended.set()

    def close(self) -> None:
        if self.connection.sock is not None:
            self.connection.sock.shutdown(2)
        self.thread.join(30)


def queue_length(server: LunaServer) -> int:
    return int(server.metric("luna_requests_waiting"))


@contextmanager
def only_seat_taken(server: LunaServer, key: str = "") -> Iterator[None]:
    """One stream that runs until the block ends; what comes meanwhile waits."""
    holder = Stream(server, "Once upon a time", key, **ENDLESS)
    wait_until(lambda: holder.n_events > 0, 60, "the holder runs")
    try:
        yield
    finally:
        holder.close()


class Finishers:
    """Requests in the queue one by one, and the order in which they were answered."""

    def __init__(self, server: LunaServer):
        self.server = server
        self.order: list[str] = []
        self.threads: list[threading.Thread] = []

    def add(self, name: str, key: str = "", **fields: object) -> None:
        before = queue_length(self.server)
        stream = Stream(self.server, f"Tell {name}", key, max_tokens=4, **fields)

        def wait() -> None:
            stream.ended.wait(120)
            assert stream.status == 200, (name, stream.error)
            self.order.append(name)

        self.threads.append(threading.Thread(target=wait, daemon=True))
        self.threads[-1].start()
        wait_until(lambda: queue_length(self.server) == before + 1, 30, f"{name} waits")

    def join(self) -> list[str]:
        for thread in self.threads:
            thread.join(120)
        return self.order


def policy_keys(**keys: object) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


@pytest.fixture
def one_seat(start_server: Callable[..., LunaServer]) -> Iterator[LunaServer]:
    server = start_server(model_keys="sequences_max = 1", policy_keys=policy_keys(ageing_ms=600_000))
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.txt"
    path.write_text("\n".join(KEYS), encoding="utf-8")
    path.chmod(0o600)
    return path


def test_higher_priorities_are_served_first(one_seat: LunaServer) -> None:
    finishers = Finishers(one_seat)
    with only_seat_taken(one_seat):
        for name, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 7)):
            finishers.add(name, priority=priority)
    assert finishers.join() == ["high", "first", "second", "low"]


def test_a_flood_of_one_key_does_not_hold_up_another(
    start_server: Callable[..., LunaServer], keys_file: Path
) -> None:
    server = start_server(server=f'api_keys_file = "{keys_file}"', model_keys="sequences_max = 1")
    server.key = KEYS[2]
    finishers = Finishers(server)
    with only_seat_taken(server, KEYS[0]):
        for i in range(5):
            finishers.add(f"a{i}", KEYS[0])
        finishers.add("b0", KEYS[1])
        finishers.add("b1", KEYS[1])
    order = finishers.join()
    assert order[0] == "b0", order
    assert order.index("b1") <= 2, order
    assert [name for name in order if name[0] == "a"] == [f"a{i}" for i in range(5)]
    assert server.stop() == 0


def test_a_full_server_answers_429_and_says_when_to_come_again(start_server: Callable[..., LunaServer]) -> None:
    server = start_server(server="requests_max = 2")
    running = [Stream(server, f"Story {i}", **ENDLESS) for i in range(2)]
    wait_until(lambda: all(s.n_events for s in running), 60, "both run")
    refused = Stream(server, "too many", max_tokens=1)
    assert refused.ended.wait(30)
    assert refused.status == 429
    assert refused.error["type"] == "rate_limit_error" and refused.error["code"] == "rate_limit_exceeded"
    assert "at most 2" in refused.error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    for stream in running:
        stream.close()
    wait_until(server.is_idle, 30, "the places are free")
    assert server.chat("Hi", max_tokens=2)[0] == 200
    assert server.stop() == 0


def test_one_key_cannot_take_the_places_of_others(start_server: Callable[..., LunaServer], keys_file: Path) -> None:
    server = start_server(server=f'api_keys_file = "{keys_file}"\nrequests_max = 8')
    flood = [Stream(server, f"Story {i}", KEYS[0], **ENDLESS) for i in range(4)]
    wait_until(lambda: all(s.n_events for s in flood), 60, "they run")
    refused = Stream(server, "one more", KEYS[0], max_tokens=1)
    assert refused.ended.wait(30)
    assert refused.status == 429 and "kept for other keys" in refused.error["message"]
    for key in KEYS[1:]:
        other = Stream(server, "Hi", key, max_tokens=2)
        assert other.ended.wait(60) and other.status == 200
    for stream in flood:
        stream.close()
    assert server.stop() == 0


def test_who_would_wait_too_long_is_refused_by_the_policy(start_server: Callable[..., LunaServer]) -> None:
    server = start_server(model_keys="sequences_max = 1", policy_keys=policy_keys(max_queue_ms=300))
    with only_seat_taken(server):
        refused = Stream(server, "in vain", max_tokens=1)
        assert refused.ended.wait(60)
        assert refused.status == 429, refused.error
        told = re.search(r"would wait longer .*: an estimated (\d+) ms, at most 300 ms", refused.error["message"])
        assert told and int(told[1]) >= 300, refused.error
        assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert server.chat("Hi", max_tokens=2)[0] == 200
    assert server.stop() == 0


def test_what_cannot_be_answered_in_time_ends_with_408(one_seat: LunaServer) -> None:
    with only_seat_taken(one_seat):
        late = Stream(one_seat, "in vain", max_tokens=1, deadline_ms=100)
        assert late.ended.wait(60)
        assert late.status == 408 and late.error["type"] == "timeout_error", late.error


def test_too_big_is_refused_with_the_numbers(one_seat: LunaServer) -> None:
    refused = Stream(one_seat, [1000] * 9000, max_tokens=1)
    assert refused.ended.wait(60)
    assert refused.status == 400 and refused.error["code"] == "context_length_exceeded"
    assert "9000" in refused.error["message"] and "8192" in refused.error["message"]


def test_streams_go_on_in_every_step_of_a_long_prompt(start_server: Callable[..., LunaServer]) -> None:
    server = start_server(policy_keys=policy_keys(target_itl_ms=20))
    streams = [Stream(server, f"Story {i}", **ENDLESS) for i in range(4)]
    wait_until(lambda: all(s.n_events > 20 for s in streams), 60, "costs are known")
    longer = Stream(server, [1000 + i * 7 % 5000 for i in range(700)], max_tokens=1)
    assert longer.ended.wait(120)
    with urllib.request.urlopen(f"{server.url}/admin/steps", timeout=30) as answer:
        steps = [json.loads(line) for line in answer]
    prompt_steps = [step for step in steps if step["seqs"] == 5]
    assert sum(step["rows"] - 4 for step in prompt_steps) == 700, "a stream was left out"
    # A step holds 512 tokens: without the target there would be two, the first of them full.
    assert max(step["rows"] for step in prompt_steps) < 512
    assert len(prompt_steps) > 2
    for stream in streams:
        stream.close()
    assert server.stop() == 0
