"""A server and its workers started in every order, and a worker that joins and leaves under load.

  bench_start_order.py --luna BIN --model GGUF [--workers 4] [--orders N] [--streams 16] [--json FILE]

For each order all processes are started one right after the other; reported is the time from the start
of the last one to the first token of a request, and whether its text is that of the first order. Then one
worker less and clients that ask again and again until they are told to end, half of them greedy, half
seeded: the last worker joins in the middle of that, which takes from its start to the first token that it
had a part in, and later leaves (SIGTERM), which takes until the first token after its end. Bars: 5 s, no
request failed, no text different from the undisturbed one.
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
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from bench_recovery import Stream, has_all  # noqa: E402
from luna_cluster import LunaCluster  # noqa: E402
from luna_server import wait_until  # noqa: E402

JOIN_S = 5.0
SERVER = "server"
PATIENCE_S = 60.0


class Client(threading.Thread):
    """Sends the i-th request again and again."""

    def __init__(self, port: int, i: int, n_tokens: int):
        super().__init__(daemon=True)
        self.port, self.i, self.n_tokens = port, i, n_tokens
        self.streams: list[Stream] = []
        self.told_to_end = threading.Event()

    def run(self) -> None:
        while not self.told_to_end.is_set():
            self.streams.append(Stream(self.port, self.i, self.n_tokens))
            self.streams[-1].run()

    def first_token_after(self, moment: float) -> float | None:
        return min((t for s in list(self.streams) for t in list(s.times) if t > moment), default=None)


class Load:
    """Clients at work as long as the block runs; then each ends its request."""

    def __init__(self, port: int, args: argparse.Namespace):
        self.clients = [Client(port, i, args.tokens) for i in range(args.streams)]

    def __enter__(self) -> Load:
        for client in self.clients:
            client.start()
        self.wait_for_tokens_after(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.told_to_end.set()
        for client in self.clients:
            client.join()

    def wait_for_tokens_after(self, moment: float) -> float:
        """Until each client has had one; when the first of them came."""
        wait_until(lambda: all(c.first_token_after(moment) for c in self.clients), PATIENCE_S, "tokens of all clients")
        return min(c.first_token_after(moment) for c in self.clients)

    def streams(self) -> list[Stream]:
        return [s for c in self.clients for s in c.streams]


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


def undisturbed_texts(port: int, args: argparse.Namespace) -> list[str]:
    streams = [Stream(port, i, args.tokens) for i in range(args.streams)]
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join()
    failed = [stream.error for stream in streams if stream.error]
    if failed:
        raise SystemExit(f"the undisturbed run failed: {failed[0]}")
    return [stream.text for stream in streams]


def row_of(what: str, load: Load, texts: list[str], took_s: float) -> dict:
    """What the clients saw of it."""
    streams = load.streams()
    return {
        "what": what,
        "requests": len(streams),
        "failed": sum(bool(s.error) for s in streams),
        "different": sum(s.text != texts[c.i] for c in load.clients for s in c.streams),
        "longest_gap_s": round(max(s.longest_gap() for s in streams), 2),
        "took_s": round(took_s, 2),
    }


def join_and_leave_under_load(args: argparse.Namespace, shards: Path, folder: Path) -> list[dict]:
    cluster = make_cluster(args, shards, folder, args.workers - 1)
    last = args.workers - 1
    try:
        for i in range(last):
            cluster.start_worker(i, shards)
        server = cluster.start_server()
        texts = undisturbed_texts(server.port, args)
        with Load(server.port, args) as joining:
            began = time.time()
            cluster.start_worker(last, shards)
            wait_until(lambda: has_all(cluster, args.workers), PATIENCE_S, "a model on all workers")
            # Whatever comes from now on was computed by all of them.
            join_s = joining.wait_for_tokens_after(time.time()) - began
        with Load(server.port, args) as leaving:
            began = time.time()
            worker = cluster.workers[f"w{last}"]
            worker.send_signal(signal.SIGTERM)
            status = worker.process.wait(PATIENCE_S)
            leave_s = leaving.wait_for_tokens_after(time.time()) - began
        if status != 0:
            raise SystemExit(f"the worker that left ended with status {status}")
        return [
            row_of("join under load", joining, texts, join_s),
            row_of("leave under load", leaving, texts, leave_s),
        ]
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
            *join_and_leave_under_load(args, shards, folder / "load"),
        ]
    for row in rows:
        print(" ".join(f"{key}={value}" for key, value in row.items()), f"(bar {JOIN_S} s)")
    rows_missed = [
        row["what"]
        for row in rows
        if row.get("failed", 0) or row["different"] or row.get("took_s", row.get("worst_s")) > JOIN_S
    ]
    print("bars missed:", ", ".join(rows_missed) if rows_missed else "none")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
