"""Workers killed and stopped one after the other under streams: what clients see of it.

  bench_recovery.py --luna BIN --model GGUF [--streams 200] [--tokens 96] [--workers 4] [--kv-tokens N] [--json FILE]

One server, N workers of one thread each, one pipeline over them. First all streams undisturbed, half of
them greedy, half seeded; then, for each worker and for SIGKILL and SIGSTOP, the same streams with that
signal in the middle, and the worker brought back afterwards; SIGTERM drains. Reported a row, each with its
bar: requests that failed, texts that differ from the undisturbed run's, time from the signal to the loss
being noticed, the longest interval without a token from any stream, the longest gap of one stream. That
gap's bar is the time to notice and 1.3 times what the tokens computed anew take at the rate of prefilling
on all workers, which is measured first; of a drain, what all tokens that had KV then would take.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from luna_cluster import LunaCluster, get_json  # noqa: E402
from luna_server import MODEL_NAME, wait_until  # noqa: E402
from timed_stream import TimedStream  # noqa: E402

FOUND_S = {"SIGKILL": 0.2, "SIGSTOP": 1.5, "SIGTERM": 0.0}
KV_BLOCK_TOKENS = 32  # the default
SILENCE_S = 3.0  # without a token from any stream
LOST = re.compile(r"\[(\d+-\d+-\d+ \d+:\d+:\d+\.\d+)\] \[cluster\] \[warning\] worker lost name=(\w+)")


class Stream(TimedStream):
    """The i-th of the streams: greedy or seeded, by turns."""

    def __init__(self, port: int, i: int, n_tokens: int, n_words: int = 0):
        sampling = {"temperature": 0} if i % 2 == 0 else {"temperature": 0.9, "seed": i}
        prompt = f"Story {i}. " + f"{i} stones. " * n_words + "Once upon a time there was a"
        super().__init__(port, {"prompt": prompt, "max_tokens": n_tokens} | sampling)


def run_streams(port: int, args: argparse.Namespace, disturb=None) -> list[Stream]:
    streams = [Stream(port, i, args.tokens, args.words) for i in range(args.streams)]
    for stream in streams:
        stream.start()
    if disturb:
        wait_until(lambda: sum(len(s.times) for s in streams) > args.streams * 4, 120, "tokens of all streams")
        disturb()
    for stream in streams:
        stream.join()
    return streams


def prefill_tokens_per_s(server, n_streams: int = 8, n_words: int = 100) -> float:
    """Of prompts that share nothing."""
    def ask(i: int) -> None:
        text = f"{i} " + " ".join(f"{i * n_words + j}" for j in range(n_words))
        server.post("/v1/completions", {"model": MODEL_NAME, "prompt": text, "max_tokens": 1, "ignore_eos": True})

    before, began = server.metric("luna_prompt_tokens_total"), time.time()
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(n_streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (server.metric("luna_prompt_tokens_total") - before) / (time.time() - began)


def found_at(cluster: LunaCluster, name: str, since: float) -> float:
    for stamp, lost in LOST.findall(cluster.server.log()):
        at = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S.%f").timestamp()
        if lost == name and at >= since - 0.01:
            return at
    return float("nan")


def has_all(cluster: LunaCluster, n: int) -> bool:
    _, page = get_json(cluster.server_port, "/admin/cluster")
    return any(len(group) == n for model in page["models"] for group in model["groups"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--luna", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--words", type=int, default=0, help="that make the prompts longer, some 3 tokens each")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kv-tokens", type=int, default=32768)
    parser.add_argument("--how", default="SIGKILL,SIGSTOP", help="of these and SIGTERM")
    parser.add_argument("--which", default="", help="numbers of workers, by commas (default: each)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    which = [int(i) for i in args.which.split(",")] if args.which else list(range(args.workers))
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shards = folder / "shards"
        subprocess.run(
            [args.luna, "split", args.model, "--num-shards", str(args.workers), "--out", shards],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        keys = f"kv_tokens_max = {args.kv_tokens}\nsequences_max = {min(args.streams, 256)}"
        cluster = LunaCluster(
            args.luna, shards, folder, args.workers, min_devices=args.workers, model_keys=keys,
            server=f"requests_max = {2 * args.streams}",
        )  # fmt: skip
        try:
            for i in range(args.workers):
                cluster.start_worker(i, shards, memory="700 MiB")
            server = cluster.start_server()
            args.prefill_rate = prefill_tokens_per_s(server)
            print(f"prefill: {args.prefill_rate:.0f} tokens/s")
            began = time.time()
            calm = run_streams(server.port, args)
            took = time.time() - began
            print(f"undisturbed: {args.streams} streams, {args.tokens} tokens each, {took:.1f} s, "
                  f"longest gap {max(s.longest_gap() for s in calm):.2f} s, failed {sum(bool(s.error) for s in calm)}")
            for how in args.how.split(","):
                for i in which:
                    rows.append(disturb_once(cluster, args, calm, how, i, shards))
        finally:
            cluster.stop()
    missed = [f"{row['how']} {row['worker']}: {', '.join(row['misses'])}" for row in rows if row["misses"]]
    print("bars missed:", "; ".join(missed) if missed else "none")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows}, indent=1))


def mean_ms(before: dict, after: dict, histogram: str) -> float:
    """Of what a histogram observed between two looks; nan: nothing."""
    total, n = (
        sum(v for (name, _), v in after.items() if name == f"{histogram}_{part}")
        - sum(v for (name, _), v in before.items() if name == f"{histogram}_{part}")
        for part in ("sum", "count")
    )
    return round(1000 * total / n, 2) if n else float("nan")


def disturb_once(
    cluster: LunaCluster, args: argparse.Namespace, calm: list[Stream], how: str, i: int, shards: Path
) -> dict:
    wait_until(lambda: has_all(cluster, args.workers), 60, "a model on all workers")
    worker = cluster.workers[f"w{i}"]
    at: list[float] = []
    recomputed = cluster.server.metric("luna_recomputed_tokens_total")

    held: list[float] = []
    moves = cluster.server.metric("luna_moves_total")
    before = cluster.server.metrics()

    def disturb() -> None:
        held.append(KV_BLOCK_TOKENS * cluster.server.metric("luna_kv_blocks_used"))
        at.append(time.time())
        worker.send_signal(signal.Signals[how])

    streams = run_streams(cluster.server.port, args, disturb)
    times = sorted(t for s in streams for t in s.times)
    recomputed = cluster.server.metric("luna_recomputed_tokens_total") - recomputed
    found = found_at(cluster, worker.name, at[0]) - at[0] if how != "SIGTERM" else 0.0
    row = {
        "how": how,
        "worker": worker.name,
        "failed": sum(bool(s.error) for s in streams),
        "different": sum(s.text != c.text for s, c in zip(streams, calm)),
        "found_s": round(found, 3),
        "silence_s": round(max((b - a for a, b in zip(times, times[1:])), default=0.0), 2),
        "longest_gap_s": round(max(s.longest_gap() for s in streams), 2),
        "recomputed_tokens": int(recomputed),
        "held_tokens": int(held[0]),
        "moves": int(cluster.server.metric("luna_moves_total") - moves),
        "move_pause_ms": mean_ms(before, cluster.server.metrics(), "luna_move_pause_seconds"),
        "step_ms": mean_ms(before, cluster.server.metrics(), "luna_step_seconds"),
    }
    anew = held[0] if how == "SIGTERM" else recomputed
    bars = {
        "failed": 0,
        "different": 0,
        "found_s": FOUND_S[how],
        "silence_s": SILENCE_S,
        "longest_gap_s": round(found + 1.3 * anew / args.prefill_rate, 2),
    }
    row["bars"] = bars
    row["misses"] = [key for key, bar in bars.items() if not row[key] <= bar]
    told = ("held_tokens", "recomputed_tokens", "moves", "move_pause_ms", "step_ms")
    print(how, worker.name, *(f"{key}={row[key]}" for key in told),
          *(f"{key}={row[key]} (bar {bar})" for key, bar in bars.items()), flush=True)  # fmt: skip
    for s in [s for s in streams if s.error][:3]:
        print("  ", s.error)
    if how != "SIGSTOP":
        worker.process.wait()
        cluster.start_worker(i, shards, memory="700 MiB")
    else:
        worker.send_signal(signal.SIGCONT)
    return row


if __name__ == "__main__":
    main()
