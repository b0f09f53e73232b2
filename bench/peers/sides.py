"""Luna and its peers: how each is started, with which settings, and asked for a row."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from measures import http_figures, load_arguments, median_figures, offline_figures, run_luna_bench
from rows import Row

START_TIMEOUT_S = 400
STOP_TIMEOUT_S = 30
# A process that uses less of a core than this is at rest. One that polls while it waits never is.
QUIET_RATIO, QUIET_INTERVAL_S, QUIET_TIMEOUT_S = 0.1, 0.5, 20
PREFILL_REPEATS = 3  # within one sample, since they are short; their median is the sample


@dataclass(frozen=True)
class Machine:
    """What all sides share."""

    luna: Path
    model: Path
    hf_folder: Path  # the same weights as a Hugging Face folder in BF16
    n_threads: int
    folder: Path  # for files of this run


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Resident:
    """A process that stays while others are measured, stopped (SIGSTOP) meanwhile."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str] | None = None, **pipes):
        self.command_ = command
        with log.open("wb") as errors:
            # Its own process group: what it starts is stopped and ended with it.
            self.process = subprocess.Popen(
                command, stderr=errors, env={**os.environ, **(environment or {})}, process_group=0, **pipes
            )
        self.log_ = log

    def signal_(self, number: int) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def cpu_s_(self) -> float:
        """What the processes of the group have computed so far."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(fields[2]) == self.process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def come_to_rest(self) -> None:
        """Waits for what goes on in the background after a start (memory for the KV cache, say): paused
        half way, it would go on beside the first sample."""
        before = self.cpu_s_()
        for _ in range(int(QUIET_TIMEOUT_S / QUIET_INTERVAL_S)):
            time.sleep(QUIET_INTERVAL_S)
            now = self.cpu_s_()
            if now - before <= QUIET_RATIO * QUIET_INTERVAL_S:
                return
            before = now

    def pause(self) -> None:
        self.signal_(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal_(signal.SIGCONT)

    def stop(self) -> None:
        self.go_on()
        self.signal_(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.signal_(signal.SIGKILL)
            self.process.wait()

    def failure(self) -> str:
        tail = self.log_.read_text(encoding="utf-8", errors="replace")[-2000:]
        return f"{' '.join(self.command_)} ended or was silent:\n{tail}"


class HttpServer:
    """A server asked by `luna bench`; ready when /v1/models or /health answers."""

    def __init__(self, machine: Machine, name: str, command: list[str], port: int, environment=None):
        self.machine_, self.url_ = machine, f"http://127.0.0.1:{port}"
        log = machine.folder / f"{re.sub('[^A-Za-z0-9]+', '-', name)}.log"
        self.resident = Resident(command, log, environment, stdout=subprocess.DEVNULL)
        end = time.monotonic() + START_TIMEOUT_S
        while not self.answers_():
            if time.monotonic() > end or self.resident.process.poll() is not None:
                self.resident.stop()
                raise RuntimeError(self.resident.failure())
            time.sleep(0.2)
        self.resident.come_to_rest()
        self.resident.pause()

    def answers_(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url_}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def measure(self, row: Row) -> dict[str, float]:
        return http_figures(row, self.machine_.luna, self.url_, self.machine_.folder)


class Driver:
    """An engine without a server, in its own environment, asked by lines of JSON."""

    def __init__(self, machine: Machine, name: str, command: list[str], environment=None):
        log = machine.folder / f"{re.sub('[^A-Za-z0-9]+', '-', name)}.log"
        self.resident = Resident(
            command, log, environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.read_()  # it is ready
        self.ask_({"sequences": 1, "prompt_tokens": 64, "generated_tokens": 4})  # not counted
        self.resident.come_to_rest()
        self.resident.pause()

    def read_(self):
        line = self.resident.process.stdout.readline()
        if not line:
            self.resident.stop()
            raise RuntimeError(self.resident.failure())
        return json.loads(line)

    def ask_(self, work: dict) -> list[list[float]]:
        self.resident.process.stdin.write(json.dumps(work) + "\n")
        self.resident.process.stdin.flush()
        return self.read_()

    def measure(self, row: Row) -> dict[str, float]:
        repeats = PREFILL_REPEATS if row.kind == "prefill" else 1
        return median_figures([offline_figures(row, self.ask_(row.work())) for _ in range(repeats)])


class LlamaTools:
    """llama-bench and llama-batched-bench: a process a sample, nothing stays."""

    resident = None

    def __init__(self, machine: Machine, tools: Path, options: list[str]):
        self.machine_, self.tools_, self.options_ = machine, tools, options

    def run_(self, tool: str, arguments: list[str]) -> list[dict]:
        command = [str(self.tools_ / tool), "-m", str(self.machine_.model)]
        command += ["-t", str(self.machine_.n_threads), *self.options_, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-2000:]}"
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def measure(self, row: Row) -> dict[str, float]:
        if row.sequences > 1:
            # 16 more than the sum, since some versions count one token more.
            n_context = row.sequences * (row.prompt_tokens + row.generated_tokens + 16)
            work = ["-npp", row.prompt_tokens, "-ntg", row.generated_tokens, "-npl", row.sequences]
            work += ["-c", n_context, "-b", 2048, "-ub", 512, "--output-format", "jsonl"]
            (figures,) = self.run_("llama-batched-bench", work)
            return {"tokens/s": figures["speed_tg"]}
        context = row.prompt_tokens if row.prompt_tokens > 1 else 0
        work = ["-p", 0, "-n", row.generated_tokens, "-d", context]
        if row.kind == "prefill":
            work = ["-p", row.prompt_tokens, "-n", 0]
        repeats = PREFILL_REPEATS if row.kind == "prefill" else 1
        (figures,) = self.run_("llama-bench", [*work, "-r", repeats, "-o", "jsonl"])
        return {"tokens/s": statistics.median(figures["samples_ts"])}


class LunaSide:
    """Luna. Offline: `luna bench` with the model in its own process, a process a sample. Over HTTP:
    `luna serve`, asked as the peers' servers are."""

    def __init__(self, machine: Machine):
        self.machine_ = machine
        self.server_: HttpServer | None = None

    def config_(self, numerics: str, port: int) -> Path:
        path = self.machine_.folder / f"luna-{numerics}.toml"
        path.write_text(
            f'[server]\nhost = "127.0.0.1"\nport = {port}\n\n[[device]]\nname = "a0"\nbackend = "cpu"\n'
            f'memory = "2 GiB"\nthreads = {self.machine_.n_threads}\n\n[[model]]\nname = "main"\n'
            f'path = "{self.machine_.model}"\ndevices = ["a0"]\nnumerics = "{numerics}"\nsequences_max = 128\n\n'
            '[[stage]]\nrole = "generate"\nmodel = "main"\n\n[scheduler]\npolicy = "static"\n',
            encoding="utf-8",
        )
        return path

    def start_server(self) -> None:
        if self.server_ is None:
            port = free_port()
            command = [str(self.machine_.luna), "serve", "--config", str(self.config_("i12", port))]
            self.server_ = HttpServer(self.machine_, "luna serve", command, port)
            self.server_.resident.pause()

    @staticmethod
    def n_warm_up_(row: Row) -> int:
        """Requests of a second or two: a fresh process is slower, a peer's process stays. A batch gets
        another batch."""
        if row.sequences > 1:
            return row.sequences
        return max(2, 4096 // (row.prompt_tokens + 10 * row.generated_tokens))

    def measure(self, row: Row) -> dict[str, float]:
        if row.kind == "http":
            assert self.server_ is not None
            self.server_.resident.go_on()
            try:
                return self.server_.measure(row)
            finally:
                self.server_.resident.pause()
        n = PREFILL_REPEATS if row.kind == "prefill" else row.sequences
        arguments = ["--config", str(self.config_(row.numerics, 0)), *load_arguments(row, n), "--token-times"]
        arguments += ["--warm-up", str(self.n_warm_up_(row))]
        result = run_luna_bench(self.machine_.luna, arguments, self.machine_.folder)
        requests = [r for r in result["requests"] if not r["warm_up"]]
        assert all(r["completion_tokens"] == row.generated_tokens for r in requests), requests
        times = [
            [(at - r["intended_ms"] * (row.sequences == 1)) / 1000 for at in r["token_times_ms"]]
            for r in requests
        ]
        if row.sequences > 1:
            return offline_figures(row, times)
        return median_figures([offline_figures(row, [t]) for t in times])

    def stop(self) -> None:
        if self.server_:
            self.server_.resident.stop()
