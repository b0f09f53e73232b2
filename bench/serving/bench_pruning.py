"""Measures what pruning after prefill gains: KV blocks held, and time from token to token.

    LUNA_BIN=build/release/bin/luna python3 bench/serving/bench_pruning.py --model m.gguf

Streams with long prompts, all at once, on one device; what counts is the time while all of them
generate. Each round asks every server once, by turns; a server that is not asked sleeps. What
pruning costs in quality: bench/numerics/measure_kv.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from luna_server import LunaServer, config_text, wait_until  # noqa: E402

SEED = 20261130
WORDS = "river stone letter window summer engine paper garden winter market".split()


def make_prompt(n_words: int, rng: random.Random) -> str:
    return "Once upon a time. " + " ".join(rng.choice(WORDS) for _ in range(n_words))


def read_stream(server: LunaServer, prompt: str, n_tokens: int) -> tuple[list[float], int]:
    """(times of the events, tokens of the prompt)."""
    arrivals: list[float] = []
    for event in server.stream(prompt, n_tokens):
        arrivals.append(time.perf_counter())
    return arrivals, event["usage"]["prompt_tokens"]


class Round:
    """What one server showed: blocks a stream, ms a step, tokens of a prompt."""

    def __init__(self, server: LunaServer, prompts: list[str], n_tokens: int):
        with ThreadPoolExecutor(len(prompts)) as threads:
            asked = [threads.submit(read_stream, server, prompt, n_tokens) for prompt in prompts]
            self.n_blocks = 0.0
            while not all(stream.done() for stream in asked):  # the most held: all of them generate
                self.n_blocks = max(self.n_blocks, server.metric("luna_kv_blocks_used"))
                time.sleep(0.25)
        streams = [stream.result()[0] for stream in asked]
        self.n_prompt_tokens = asked[0].result()[1]
        first, last = max(s[0] for s in streams), min(s[-1] for s in streams)
        n_events = [sum(first < at <= last for at in s) for s in streams]
        if min(n_events) < 50:
            sys.exit(f"only {min(n_events)} tokens while all streams generated: --tokens must be larger")
        # Not a median of gaps: on few cores events come bunched, at the ticks of the system's scheduler.
        self.step_ms = 1e3 * (last - first) / statistics.mean(n_events)


def report(rounds: dict[int, list[Round]], kv: str, n_streams: int) -> list[dict]:
    rows = []
    base = statistics.median(r.step_ms for r in next(iter(rounds.values())))
    for keep, found in rounds.items():
        times = [r.step_ms for r in found]
        rows.append(
            {
                "keep_percent": keep,
                "kv": kv,
                "streams": n_streams,
                "prompt_tokens": found[0].n_prompt_tokens,
                "kv_blocks": max(r.n_blocks for r in found),
                "step_ms": statistics.median(times),
                "speed_ratio": base / statistics.median(times),
            }
        )
        print(
            "keep {keep_percent} %, KV {kv}, {streams} prompts of {prompt_tokens}: {kv_blocks:.0f} KV blocks at "
            "most, {step_ms:.2f} ms a step".format(**rows[-1])
            + f" ({min(times):.2f}..{max(times):.2f}), {rows[-1]['speed_ratio']:.2f} x"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--keep", type=int, nargs="+", default=[100, 70, 30])
    parser.add_argument("--kv", choices=("bf16", "int8"), default="bf16")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt-words", type=int, default=1900)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    rng = random.Random(SEED)
    prompts = [make_prompt(arguments.prompt_words, rng) for _ in range(arguments.streams)]
    servers: dict[int, LunaServer] = {}
    rounds: dict[int, list[Round]] = {keep: [] for keep in arguments.keep}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for keep in arguments.keep:
                config = Path(folder) / f"keep{keep}.toml"
                keys = f'kv_cache = "{arguments.kv}"\nprune_keep_percent = {keep}\nprefix_cache = false'
                config.write_text(
                    config_text(arguments.model, model_keys=keys, n_threads=0), encoding="utf-8"
                )
                servers[keep] = LunaServer(Path(os.environ["LUNA_BIN"]), config)
            for _ in range(arguments.rounds):
                for keep, server in servers.items():
                    rounds[keep].append(Round(server, prompts, arguments.tokens))
                    wait_until(server.is_idle, 30, "nothing runs")
        finally:
            for server in servers.values():
                server.stop()
    rows = report(rounds, arguments.kv, arguments.streams)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
