"""Whether throughput holds when more clients come than the machine needs.

Starts a server, finds the number of clients at which it makes most tokens a second, and measures
2, 4 and 8 times as many, by turns with the best, round after round. A point is what the server's
counter of tokens gained over a window in the middle of the load, so neither its beginning nor its
end counts; no two points send the same prompts, so none finds the prefixes of another. Prints medians
and their ratios to the best. With the defaults it takes four minutes; --best leaves the search out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from luna_server import LunaServer, config_text, wait_until  # noqa: E402

MULTIPLES = (1, 2, 4, 8)
seeds = itertools.count(1)


def tokens_per_s(options: argparse.Namespace, server: LunaServer, n_clients: int) -> float:
    """Under a closed loop of so many clients, which are stopped in the middle of their requests."""
    command = [options.luna, "bench", "--url", server.url, "--clients", n_clients, "--requests", 1_000_000,
               "--prompt-tokens", options.prompt_tokens, "--output-tokens", options.output_tokens, "--seed", next(seeds)]
    clients = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(options.settle_s)
        begin_s, begin = time.monotonic(), server.metric("luna_generation_tokens_total")
        time.sleep(options.window_s)
        end_s, end = time.monotonic(), server.metric("luna_generation_tokens_total")
    finally:
        clients.send_signal(signal.SIGINT)
        clients.wait(60)
    wait_until(server.is_idle, 60, "the server is idle again")
    return (end - begin) / (end_s - begin_s)


def best_concurrency(options: argparse.Namespace, server: LunaServer) -> int:
    """The fewest clients with which 99 % of the most tokens are made."""
    found = {}
    for n_clients in options.clients:
        found[n_clients] = tokens_per_s(options, server, n_clients)
        print(f"{n_clients:5} clients {found[n_clients]:8.1f} tokens/s", flush=True)
    most = max(found.values())
    return min(n for n, rate in found.items() if rate >= 0.99 * most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--luna", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--policy", default="flowsplit")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of a device; 0: all cores")
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 16, 32, 64], help="among which the best is looked for")
    parser.add_argument("--best", type=int, help="clients of the best point, where it is known")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settle-s", type=float, default=2.5)
    parser.add_argument("--window-s", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    n_most = MULTIPLES[-1] * (options.best or max(options.clients))
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "luna.toml"
        config.write_text(
            config_text(
                options.model,
                n_devices=options.devices,
                n_threads=options.threads,
                server=f"requests_max = {n_most}",
                policy=options.policy,
            ),
            encoding="utf-8",
        )
        server = LunaServer(options.luna, config)
        try:
            best = options.best or best_concurrency(options, server)
            rates: dict[int, list[float]] = {multiple: [] for multiple in MULTIPLES}
            for round_idx in range(options.rounds):
                order = MULTIPLES if round_idx % 2 == 0 else MULTIPLES[::-1]
                for multiple in order:
                    rates[multiple].append(tokens_per_s(options, server, multiple * best))
        finally:
            server.stop()
    medians = {multiple: statistics.median(rates[multiple]) for multiple in MULTIPLES}
    for multiple in MULTIPLES:
        spread = f"{min(rates[multiple]):.1f}..{max(rates[multiple]):.1f}"
        ratio = medians[multiple] / medians[1]
        print(f"{multiple * best:5} clients {medians[multiple]:8.1f} tokens/s ({spread}), {ratio:.3f} of the best")
    if options.json:
        options.json.write_text(json.dumps({"best": best, "rates": rates, "medians": medians}), encoding="utf-8")


if __name__ == "__main__":
    main()
