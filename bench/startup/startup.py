#!/usr/bin/env python3
"""Time from the start of a server to its first token, and its peak memory: Luna's and llama-server's.

Both serve the same file with room for the same tokens of 8-bit KV on as many threads, one start
after the other, in turns; medians of all rounds. The clock starts before the process does and ends
with the first streamed token of a request that is sent as soon as the server says it is ready. Peak
memory is the kernel's VmHWM of the process, read after a prompt of a thousand words.

    bench/startup/startup.py --luna build/release/bin/luna --model MODEL.gguf \\
        [--llama-server PATH] [--rounds 7] [--threads 2] [--kv-tokens 16384] [--kv int8]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from luna_server import LunaServer, config_text  # noqa: E402

READY_LIMIT_S = 120.0
POLL_S = 0.002
LONG_PROMPT = "word " * 1000


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def first_token_s(port: int, prompt: str, start: float) -> float:
    """Seconds from `start` to the first event of a streamed completion; reads it to its end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_LIMIT_S)
    body = {"model": "main", "prompt": prompt, "max_tokens": 4, "stream": True, "temperature": 0}
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
    )
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {answer.read()[:300]!r}")
    line = answer.readline()
    while line and not line.startswith(b"data:"):
        line = answer.readline()
    seconds = time.monotonic() - start
    answer.read()
    return seconds


def is_up(port: int, path: str) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False


def figures(port: int, pid: int, start: float) -> dict[str, float]:
    """Of a server that began at `start` and has just become ready."""
    ready_s = time.monotonic() - start
    token_s = first_token_s(port, "Once upon a time", start)
    first_token_s(port, LONG_PROMPT, start)
    return {"ready_s": ready_s, "token_s": token_s, "peak_bytes": peak_bytes(pid)}


def measure_luna(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    config = folder / "luna.toml"
    keys = f'kv_cache = "{args.kv}"\nkv_tokens_max = {args.kv_tokens}'
    text = config_text(args.model, model_keys=keys, n_threads=args.threads, memory="4 GiB")
    config.write_text(text, encoding="utf-8")
    start = time.monotonic()
    server = LunaServer(args.luna, config)
    try:
        return figures(server.port, server.process.pid, start)
    finally:
        server.stop()


def measure_llama(args: argparse.Namespace) -> dict[str, float]:
    port = free_port()
    command = llama_command(args, port)
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_up(port, "/health"):
            if process.poll() is not None or time.monotonic() - start > READY_LIMIT_S:
                raise RuntimeError(f"it does not become ready: {command}")
            time.sleep(POLL_S)
        return figures(port, process.pid, start)
    finally:
        process.terminate()
        process.wait()


def llama_command(args: argparse.Namespace, port: int) -> list[str]:
    kv = "q8_0" if args.kv == "int8" else args.kv
    return [
        *(str(args.llama_server), "-m", str(args.model), "--port", str(port)),
        *("-t", str(args.threads), "-c", str(args.kv_tokens), "-np", "8"),
        *("-ctk", kv, "-ctv", kv, "-fa", "on"),
    ]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the server under way, too
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--luna", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--kv-tokens", type=int, default=16384)
    parser.add_argument("--kv", choices=["int8", "bf16"], default="int8")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.model = args.model.resolve()
    runs: dict[str, list[dict[str, float]]] = {"luna": []}
    if args.llama_server:
        runs["llama-server"] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            runs["luna"].append(measure_luna(args, Path(folder)))
            if args.llama_server:
                runs["llama-server"].append(measure_llama(args))
    rows = {}
    for name, samples in runs.items():
        row = {key: statistics.median(s[key] for s in samples) for key in samples[0]}
        rows[name] = row
        spread = [s["token_s"] for s in samples]
        print(
            f"{name:13} first token {row['token_s']:.3f} s ({min(spread):.3f} to {max(spread):.3f})"
            f"  ready {row['ready_s']:.3f} s  peak {row['peak_bytes'] / 1e9:.3f} GB"
        )
    if "llama-server" in rows:
        ours, peer = rows["luna"], rows["llama-server"]
        print(
            f"luna / llama-server: first token {ours['token_s'] / peer['token_s']:.2f}, "
            f"peak {ours['peak_bytes'] / peer['peak_bytes']:.2f}"
        )
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "rounds": args.rounds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
