"""Minutes of many clients at once, some of whom leave early: no error, no leak, clean books.

LUNA_LOAD_SECONDS  how long (default 180);  LUNA_TEST_SEED  the lengths and the leavers
"""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from collections.abc import Callable

from luna_server import MODEL_NAME, LunaServer, wait_until

N_STREAMS = 64
SECONDS = float(os.environ.get("LUNA_LOAD_SECONDS", "180"))
SEED = int(os.environ.get("LUNA_TEST_SEED", "20261129"))
# What may come after the warm part: allocator slack of 64 connections, not a leak.
RSS_GROWTH_BYTES_MAX = 24 << 20
READ_TIMEOUT_S = 120  # a stream that stands still this long is an error


class Client:
    """One client after the other on one thread: prompts and answers of random length."""

    def __init__(self, server: LunaServer, seed: int, end: float):
        self.server_, self.rng_, self.end_ = server, random.Random(seed), end
        self.n_whole, self.n_left = 0, 0
        self.errors: list[str] = []

    def run(self) -> None:
        while time.monotonic() < self.end_ and not self.errors:
            try:
                self.one_request()
            except Exception as error:  # noqa: BLE001  # a thread's failure is told by the test
                self.errors.append(f"{type(error).__name__}: {error}")

    def one_request(self) -> None:
        words = " ".join(self.rng_.choice(["river", "7", "über", "🙂", "def", "moon"]) for _ in range(self.rng_.randint(1, 300)))
        body = {
            "model": MODEL_NAME, "stream": True, "messages": [{"role": "user", "content": words}],
            "max_tokens": self.rng_.randint(1, 96), "temperature": self.rng_.choice([0, 0.8]),
            "seed": self.rng_.getrandbits(31),
        }
        leave_after = self.rng_.randint(0, 12) if self.rng_.random() < 0.3 else None
        connection = http.client.HTTPConnection("127.0.0.1", self.server_.port, timeout=READ_TIMEOUT_S)
        try:
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            if leave_after == 0:
                self.n_left += 1
                return
            answer = connection.getresponse()
            assert answer.status == 200, f"status {answer.status}: {answer.read()[:300]!r}"
            self.read_stream(answer, leave_after)
        finally:
            connection.close()

    def read_stream(self, answer: http.client.HTTPResponse, leave_after: int | None) -> None:
        n_events, finish = 0, None
        while line := answer.readline():
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]\n":
                assert finish in ("stop", "length"), f"[DONE] after finish_reason {finish}"
                self.n_whole += 1
                return
            event = json.loads(line[6:])
            assert "error" not in event, event
            finish = event["choices"][0]["finish_reason"] or finish
            n_events += 1
            if n_events == leave_after:
                self.n_left += 1
                return
        raise AssertionError(f"the stream ended without [DONE] after {n_events} events")


def test_64_streams_for_minutes_give_no_error_no_leak_and_clean_books(
    start_server: Callable[..., LunaServer],
) -> None:
    print(f"LUNA_TEST_SEED={SEED} LUNA_LOAD_SECONDS={SECONDS}")
    server = start_server(n_devices=2)
    begin = time.monotonic()
    clients = [Client(server, SEED + i, begin + SECONDS) for i in range(N_STREAMS)]
    threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    threads[0].join(SECONDS / 3)
    warm_rss_bytes = server.rss_bytes()
    for thread in threads:
        thread.join(SECONDS + READ_TIMEOUT_S)
    errors = [error for client in clients for error in client.errors]
    assert not errors, f"{len(errors)} clients failed, the first: {errors[0]}"
    assert not any(thread.is_alive() for thread in threads), "a client never ended"
    n_whole, n_left = sum(c.n_whole for c in clients), sum(c.n_left for c in clients)
    print(f"{n_whole} whole answers, {n_left} left early")
    assert n_whole >= N_STREAMS and n_left > 0
    wait_until(server.is_idle, 30, "all sequences and KV blocks are gone")
    assert server.metric("luna_kv_audit_failures_total") == 0
    assert server.metric("luna_requests_total", code="server_error") == 0
    growth = server.rss_bytes() - warm_rss_bytes
    print(f"resident memory: {warm_rss_bytes >> 20} MiB warm, growth {growth / 2**20:.1f} MiB")
    assert growth <= RSS_GROWTH_BYTES_MAX
    assert server.stop() == 0
