"""A server and its workers started in every order, and a worker that joins and leaves under load.

  bench_start_order.py --luna BIN --model GGUF [--workers 4] [--orders N] [--streams 16] [--json FILE]

For each order all processes are started one right after the other; reported is the time from the start
of the last one to the first token of a request, and whether its text is that of the first order. Then one
worker less, streams, and the last one joins in their middle: the time from its start to a token that it
had a part in; then it is drained. Bars: 5 s, no request failed, no text different.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from bench_recovery import Stream, has_all  # noqa: E402
from luna_cluster import LunaCluster  # noqa: E402
from luna_server import wait_until  # noqa: E402

JOIN_S = 5.0
SERVER = "server"


def make_cluster(args: argparse.Namespace, shards: Path, folder: Path, min_devices: int) -> LunaCluster:
    folder.mkdir()
    return LunaCluster(
        args.luna, shards, folder, args.workers, min_devices=min_devices, model_keys="kv_tokens_max = 8192"
    )


def first_token(port: int) -> Stream:
    """A request that is sent again until it is answered."""
    while True:
        stream = Stream(port, 0, 8)
        stream.run()
        if not stream.error:
            return stream
        time.sleep(0.01)


def start_in_order(args: argparse.Namespace, shards: Path, folder: Path, order: tuple[str, ...]) -> tuple[float, str]:
    cluster = make_cluster(args, shards, folder, args.workers)
    server = None
    try:
        for name in order:
            started = time.time()
            if name == SERVER:
                server = subprocess.Popen(
                    [str(args.luna), "serve", "--config", str(cluster.config)],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
            else:
                cluster.start_worker(int(name), shards)
        stream = first_token(cluster.server_port)
        return stream.times[0] - started, stream.text
    finally:
        if server:
            server.kill()
            server.wait()
        cluster.stop()


def join_under_load(args: argparse.Namespace, shards: Path, folder: Path) -> dict:
    cluster = make_cluster(args, shards, folder, args.workers - 1)
    last = args.workers - 1
    try:
        for i in range(last):
            cluster.start_worker(i, shards)
        server = cluster.start_server()

        def streams(act) -> list[Stream]:
            running = [Stream(server.port, i, args.tokens) for i in range(args.streams)]
            for stream in running:
                stream.start()
            wait_until(lambda: all(len(s.times) > 3 for s in running), 120, "tokens of all streams")
            act(running)
            for stream in running:
                stream.join()
            return running

        calm = streams(lambda running: None)
        joined: list[float] = []

        def join(running: list[Stream]) -> None:
            began = time.time()
            cluster.start_worker(last, shards)
            wait_until(lambda: has_all(cluster, args.workers), 60, "a model on all workers")
            placed = time.time()
            wait_until(lambda: any(s.times[-1] > placed for s in running), 60, "a token")
            joined.append(min(s.times[-1] for s in running if s.times[-1] > placed) - began)

        def leave(running: list[Stream]) -> None:
            cluster.workers[f"w{last}"].send_signal(signal.SIGTERM)
            cluster.workers[f"w{last}"].process.wait(60)

        row = {"what": "join under load"}
        for what, act in (("join", join), ("leave", leave)):
            disturbed = streams(act)
            row[f"{what}_failed"] = sum(bool(s.error) for s in disturbed)
            row[f"{what}_different"] = sum(s.text != c.text for s, c in zip(disturbed, calm))
            row[f"{what}_longest_gap_s"] = round(max(s.longest_gap() for s in disturbed), 2)
        row["join_s"] = round(joined[0], 2)
        return row
    finally:
        cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--luna", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--orders", type=int, default=0, help="of all, drawn by chance (default: all)")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    orders = list(itertools.permutations([SERVER, *map(str, range(args.workers))]))
    if args.orders:
        orders = random.Random(args.seed).sample(orders, args.orders)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shards = folder / "shards"
        subprocess.run(
            [args.luna, "split", args.model, "--num-shards", str(args.workers), "--out", shards],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        results = [start_in_order(args, shards, folder / str(n), order) for n, order in enumerate(orders)]
        times = sorted(took for took, _ in results)
        rows = [
            {
                "what": "start order",
                "orders": len(orders),
                "median_s": round(times[len(times) // 2], 2),
                "worst_s": round(times[-1], 2),
                "different": sum(text != results[0][1] for _, text in results),
            },
            join_under_load(args, shards, folder / "load"),
        ]
    for row in rows:
        print(" ".join(f"{key}={value}" for key, value in row.items()), f"(bar {JOIN_S} s)")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
