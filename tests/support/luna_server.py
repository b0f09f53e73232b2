"""The real program for integration tests and benchmarks: configuration files, a running server, its metrics."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

READY = re.compile(r"ready on (http://[^\s:]+:(\d+))")
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 45  # above the server's own drain timeout
MODEL_NAME = "main"


def config_text(
    model: Path,
    n_devices: int = 1,
    server: str = "",
    model_keys: str = "",
    policy_keys: str = "",
    n_threads: int = 1,
    memory: str = "600 MiB",
    transport: str = "auto",
    policy: str = "static",
    device_keys: str = "",
) -> str:
    """A configuration with the given model over n CPU devices; n_threads 0: all there are."""
    names = [f"cpu{i}" for i in range(n_devices)]
    devices = "".join(
        f'[[device]]\nname = "{name}"\nbackend = "cpu"\nmemory = "{memory}"\n'
        f"threads = {n_threads}\n{device_keys}\n\n"
        for name in names
    )
    return f"""[server]
host = "127.0.0.1"
port = 0
{server}

{devices}[[model]]
name = "{MODEL_NAME}"
path = "{model}"
devices = {json.dumps(names)}
{model_keys}

[[stage]]
role = "generate"
model = "{MODEL_NAME}"

[scheduler]
policy = "{policy}"

[scheduler.{policy}]
{policy_keys}

[transport]
data = "{transport}"
"""


def draft_model_keys(model: Path) -> str:
    """For config_text(): a second model on the first device that drafts for the first."""
    return f"""
[[model]]
name = "small"
path = "{model}"
devices = ["cpu0"]
kv_tokens_max = 4096

[speculation]
method = "draft"
draft_model = "small"
n_draft_max = 4
"""


class LunaServer:
    """`luna serve`, started and ready. Its standard error goes to a file, its output is read on."""

    def __init__(self, binary: Path, config: Path, arguments: tuple[str, ...] = ()):
        self.log_path_ = config.with_suffix(".log")
        self.output_: list[str] = []
        command = [str(binary), "serve", "--config", str(config), *arguments]
        with open(self.log_path_, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.is_ready_ = threading.Event()
        self.url, self.port = "", 0
        self.key = ""  # for servers with API keys
        threading.Thread(target=self.read_output_, daemon=True).start()
        if not self.is_ready_.wait(START_TIMEOUT_S) or not self.url:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not become ready:\n{self.log()[-3000:]}")

    def read_output_(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output_.append(line)
            found = READY.search(line)
            if found and not self.url:
                self.url, self.port = found[1], int(found[2])
                self.is_ready_.set()
        self.is_ready_.set()  # it ended: the waiting constructor looks at the log

    def log(self) -> str:
        text = self.log_path_.read_text(encoding="utf-8", errors="replace")
        return "".join(self.output_) + text

    def stop(self, stop_signal: signal.Signals = signal.SIGTERM) -> int:
        """Asks the server to end and returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(stop_signal)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"no end {STOP_TIMEOUT_S} s after {stop_signal.name}:\n{self.log()[-3000:]}")

    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        # Here, because benchmarks that ask for no metrics need the standard library alone.
        from prometheus_client.parser import text_string_to_metric_families

        asked = urllib.request.Request(f"{self.url}/metrics", headers=self.authorization())
        with urllib.request.urlopen(asked, timeout=30) as answer:
            text = answer.read().decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the series of a name that carry these labels; it must exist."""
        wanted = set(labels.items())
        values = [v for (n, found), v in self.metrics().items() if n == name and wanted <= set(found)]
        assert values, f"no series {name}{labels}"
        return sum(values)

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024

    def is_idle(self) -> bool:
        return all(
            self.metric(f"luna_{name}") == 0
            for name in ("requests_running", "requests_waiting", "kv_blocks_used")
        )

    def post(self, path: str, body: object, timeout_s: float = 120) -> tuple[int, dict]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            headers = {"Content-Type": "application/json"} | self.authorization()
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def chat(self, text: str, **fields: object) -> tuple[int, dict]:
        body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": text}], "temperature": 0}
        return self.post("/v1/chat/completions", body | fields)

    def stream(self, prompt: str, max_tokens: int, timeout_s: float = 120) -> Iterator[dict]:
        """The events of a streamed greedy completion of so many tokens, the last one with its usage."""
        body = {
            "model": MODEL_NAME,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            headers = {"Content-Type": "application/json"} | self.authorization()
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])
        finally:
            connection.close()


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Polls; for what the outside of a process cannot be told of."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)
