"""One streamed completion at a client: its text, and when each piece of it came."""

from __future__ import annotations

import http.client
import json
import threading
import time

from luna_server import MODEL_NAME


class TimedStream(threading.Thread):
    """Sends `body` as a streamed completion; `error` is empty where it ended in order."""

    def __init__(self, port: int, body: dict):
        super().__init__(daemon=True)
        self.port, self.text, self.times, self.error = port, "", [], ""
        self.body = {"model": MODEL_NAME, "ignore_eos": True, "stream": True} | body
        self.sent, self.ended = 0.0, 0.0

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            self.sent = time.time()
            connection.request(
                "POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"}
            )
            self.read_(connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.ended = time.time()
            connection.close()

    def read_(self, answer: http.client.HTTPResponse) -> None:
        if answer.status != 200:
            self.error = f"{answer.status}: {answer.read()[:200]!r}"
            return
        for line in answer:
            if line.startswith(b"data: [DONE]"):
                return
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                self.error = str(event["error"])
                return
            self.text += event["choices"][0]["text"] if event["choices"] else ""
            self.times.append(time.time())
        self.error = "the stream ended without [DONE]"

    def longest_gap(self) -> float:
        return max((b - a for a, b in zip(self.times, self.times[1:])), default=0.0)
