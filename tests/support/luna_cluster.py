"""A server whose model lies on workers, as processes of their own: for integration tests and benchmarks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from luna_server import MODEL_NAME, LunaServer

STOP_TIMEOUT_S = 30


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def cluster_config_text(
    model: Path,
    cluster_port: int,
    server_port: int = 0,
    token_file: Path | None = None,
    min_devices: int = 1,
    server: str = "",
    cluster: str = "",
    model_keys: str = "",
    transport: str = "auto",
    policy: str = "static",
) -> str:
    token = f'token_file = "{token_file}"' if token_file else ""
    return f"""[server]
host = "127.0.0.1"
port = {server_port}
{server}

[cluster]
port = {cluster_port}
min_devices = {min_devices}
{token}
{cluster}

[[model]]
name = "{MODEL_NAME}"
path = "{model}"
devices = ["*"]
{model_keys}

[[stage]]
role = "generate"
model = "{MODEL_NAME}"

[scheduler]
policy = "{policy}"

[transport]
data = "{transport}"
"""


class LunaWorker:
    """`luna worker`, whatever the controller does. Its log goes to a file."""

    def __init__(
        self,
        binary: Path,
        folder: Path,
        port: int,
        name: str,
        shard_path: Path,
        token_file: Path | None = None,
        devices: str = "cpu:0",
        memory: str = "300 MiB",
        threads: int = 1,
        more: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        host: str = "127.0.0.1",
    ):
        self.name = name
        self.log_path = folder / f"{name}.log"
        command = [
            str(binary), "worker", "--join", f"{host}:{port}", "--name", name, "--devices", devices,
            "--memory", memory, "--threads", str(threads), "--shard-path", str(shard_path), *more,
        ]  # fmt: skip
        if token_file:
            command += ["--token-file", str(token_file)]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | (environment or {})
            )

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"worker {self.name} did not end:\n{self.log()[-3000:]}")


def get_json(port: int, path: str) -> tuple[int, dict]:
    """Status 0: nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
    except OSError:
        return 0, {}


def wait_for_status(port: int, status: str, timeout_s: float = 30) -> dict:
    """Until /health/ready says so; what it says then."""
    end = time.monotonic() + timeout_s
    body: dict = {}
    while time.monotonic() < end:
        _, body = get_json(port, "/health/ready")
        if body.get("status") == status:
            return body
        time.sleep(0.02)
    raise AssertionError(f"not {status} within {timeout_s} s: {body}")


class LunaCluster:
    """A server and its workers; ends them all."""

    def __init__(self, binary: Path, model: Path, folder: Path, n_workers: int, **config: object):
        self.binary, self.folder = binary, folder
        self.port = free_port()
        self.token_file = folder / "token"
        self.token_file.write_text("a secret of more than sixteen bytes\n")
        self.server_port = free_port()
        self.config = folder / "luna.toml"
        self.config.write_text(
            cluster_config_text(model, self.port, self.server_port, self.token_file, **config)
        )
        self.n_workers = n_workers
        self.workers: dict[str, LunaWorker] = {}
        self.server: LunaServer | None = None

    def start_worker(self, i: int, shard_path: Path, **options: object) -> LunaWorker:
        name = f"w{i}"
        options.setdefault("token_file", self.token_file)
        options.setdefault("more", ("--first-cpu", str(i)))
        port = options.pop("port", self.port)
        self.workers[name] = LunaWorker(self.binary, self.folder, port, name, shard_path, **options)
        return self.workers[name]

    def start_server(self) -> LunaServer:
        self.server = LunaServer(self.binary, self.config)
        return self.server

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.stop(signal.SIGKILL)
        if self.server:
            self.server.stop(signal.SIGKILL)
