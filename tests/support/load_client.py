"""A client of load tests: one streamed chat after the other, of random length, some left in their middle."""

from __future__ import annotations

import http.client
import json
import random
import time

from luna_server import MODEL_NAME

WORDS = ("river", "7", "über", "🙂", "def", "moon")
READ_TIMEOUT_S = 120  # a stream that stands still this long is an error


class LoadClient:
    """run() for a thread of its own: until `end` (of the monotonic clock) or the first error."""

    def __init__(self, port: int, seed: int, end: float, n_words_max: int = 300, n_tokens_max: int = 96):
        self.port_, self.rng_, self.end_ = port, random.Random(seed), end
        self.n_words_max_, self.n_tokens_max_ = n_words_max, n_tokens_max
        self.n_whole, self.n_left = 0, 0
        self.errors: list[str] = []

    def run(self) -> None:
        while time.monotonic() < self.end_ and not self.errors:
            try:
                self.one_request()
            except Exception as error:  # noqa: BLE001  # a thread's failure is told by who started it
                self.errors.append(f"{type(error).__name__}: {error}")

    def one_request(self) -> None:
        words = " ".join(self.rng_.choice(WORDS) for _ in range(self.rng_.randint(1, self.n_words_max_)))
        body = {
            "model": MODEL_NAME, "stream": True, "messages": [{"role": "user", "content": words}],
            "max_tokens": self.rng_.randint(1, self.n_tokens_max_), "temperature": self.rng_.choice([0, 0.8]),
            "seed": self.rng_.getrandbits(31),
        }  # fmt: skip
        leave_after = self.rng_.randint(0, 12) if self.rng_.random() < 0.3 else None
        connection = http.client.HTTPConnection("127.0.0.1", self.port_, timeout=READ_TIMEOUT_S)
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
