"""Whether throughput holds when more clients come than the machine needs.

Starts a server, finds the number of clients at which it makes most tokens a second, and measures
2, 4 and 8 times as many, by turns with the best, round after round. A point is what the server's
counter of tokens gained over a window in the middle of the load, so neither its beginning nor its
end counts: the crowd that comes at one moment computes its prompts at one time and answers at
another, and a window begins when as many answers have been made as there are clients. No two points
send the same prompts, so none finds the prefixes of another. Prints medians and their ratios to the
best. With the defaults it takes ten minutes, with --journal FILE --limit-s 200 in slices of so many
seconds; --best leaves the search out.
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
from slices import Journal, TimeBox  # noqa: E402

MULTIPLES = (1, 2, 4, 8)
TOKENS = "luna_generation_tokens_total"
seeds = itertools.count(1)


def tokens_per_s(options: argparse.Namespace, server: LunaServer, n_clients: int) -> float:
    """Under a closed loop of so many clients, which are stopped in the middle of their requests."""
    command = [options.luna, "bench", "--url", server.url, "--clients", n_clients, "--requests", 1_000_000,
               "--prompt-tokens", options.prompt_tokens, "--output-tokens", options.output_tokens, "--seed", next(seeds)]
    clients = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        before = server.metric(TOKENS)
        time.sleep(options.settle_s)
        wait_until(
            lambda: server.metric(TOKENS) - before >= n_clients * options.output_tokens, 120, "an answer for each client"
        )
        begin_s, begin = time.monotonic(), server.metric(TOKENS)
        time.sleep(options.window_s)
        end_s, end = time.monotonic(), server.metric(TOKENS)
    finally:
        clients.send_signal(signal.SIGINT)
        clients.wait(60)
    wait_until(server.is_idle, 60, "the server is idle again")
    return (end - begin) / (end_s - begin_s)


def best_concurrency(options: argparse.Namespace, server: LunaServer, journal: Journal) -> int:
    """The fewest clients with which 99 % of the most tokens are made."""
    found = {row["clients"]: row["rate"] for row in journal.of("search")}
    for n_clients in options.clients:
        if n_clients not in found:
            found[n_clients] = journal.add("search", clients=n_clients, rate=tokens_per_s(options, server, n_clients))["rate"]
            print(f"{n_clients:5} clients {found[n_clients]:8.1f} tokens/s", flush=True)
    most = max(found.values())
    return min(n for n, rate in found.items() if rate >= 0.99 * most)


def measure(options: argparse.Namespace, server: LunaServer, journal: Journal, best: int) -> bool:
    """Whether all is done."""
    box = TimeBox(options.limit_s)
    done = {(row["round"], row["multiple"]) for row in journal.of("point")}
    for round_idx in range(options.rounds):
        for multiple in MULTIPLES if round_idx % 2 == 0 else MULTIPLES[::-1]:
            if (round_idx, multiple) in done:
                continue
            if not box.has_room_for(str(multiple), options.window_s + 3 * multiple + 5):
                return False
            began = time.monotonic()
            rate = tokens_per_s(options, server, multiple * best)
            box.took(str(multiple), time.monotonic() - began)
            journal.add("point", round=round_idx, multiple=multiple, rate=rate)
            print(f"round {round_idx} {multiple * best:5} clients {rate:8.1f} tokens/s", flush=True)
    return True


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
    parser.add_argument("--window-s", type=float, default=15.0)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--limit-s", type=float, default=0.0, help="of this invocation; 0: until all is done")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    own = ("luna", "model", "journal", "limit_s", "json")
    journal = Journal(options.journal, {key: value for key, value in vars(options).items() if key not in own})
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
            best = options.best or best_concurrency(options, server, journal)
            is_done = measure(options, server, journal, best)
        finally:
            server.stop()
    rates = {m: [row["rate"] for row in journal.of("point") if row["multiple"] == m] for m in MULTIPLES}
    medians = {multiple: statistics.median(found) for multiple, found in rates.items() if found}
    for multiple, median in medians.items():
        spread = f"{min(rates[multiple]):.1f}..{max(rates[multiple]):.1f}, n {len(rates[multiple])}"
        ratio = median / medians[1]
        print(f"{multiple * best:5} clients {median:8.1f} tokens/s ({spread}), {ratio:.3f} of the best")
    if not is_done:
        print("not all is done: call again with the same journal")
    if options.json:
        options.json.write_text(json.dumps({"best": best, "rates": rates, "medians": medians}), encoding="utf-8")


if __name__ == "__main__":
    main()
