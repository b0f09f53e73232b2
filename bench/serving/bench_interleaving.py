"""A long prompt beside running streams: the gaps between the streams' tokens meanwhile.

Starts a server of its own, lets N streams decode, sends one long prompt, and measures at the client
the time between the tokens of each stream from the long prompt's request to its first token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from luna_server import LunaServer, config_text  # noqa: E402


class Stream:
    """One streamed completion: when each of its tokens came."""

    def __init__(self, port: int, body: dict) -> None:
        self.port, self.body = port, body | {"stream": True, "temperature": 0, "ignore_eos": True}
        self.token_s: list[float] = []
        self.first = asyncio.Event()
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            payload = json.dumps(self.body).encode()
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(payload), payload)
            )
            status = await reader.readline()
            if b" 200 " not in status:
                raise SystemExit(f"{status.decode().strip()} {(await reader.read(600)).decode()}")
            async for line in reader:
                if line.startswith(b"data: [DONE]"):
                    return
                if not line.startswith(b"data: {"):
                    continue
                self.token_s.append(time.monotonic())
                self.first.set()
        finally:
            writer.close()
            self.first.set()


async def measure(options: argparse.Namespace, port: int, round_idx: int) -> dict:
    streams = [
        # With logprobs every token is an event, also one that is only a part of a character.
        Stream(port, {"prompt": f"Story {round_idx}-{i}: once upon a time", "max_tokens": 4000, "logprobs": 0})
        for i in range(options.streams)
    ]
    for stream in streams:
        await stream.first.wait()
    await asyncio.sleep(1.0)
    ids = [1000 + (7 * i + 13 * round_idx + i * i) % 40000 for i in range(options.prompt_tokens)]
    sent = time.monotonic()
    longer = Stream(port, {"prompt": ids, "max_tokens": 1})
    await longer.first.wait()
    first_token = time.monotonic()
    await asyncio.sleep(0.3)
    gaps_ms: list[float] = []
    for stream in streams:
        stream.task.cancel()
        times = stream.token_s
        # A gap counts when any of it lies in the time in which the long prompt is there.
        gaps_ms += [1e3 * (b - a) for a, b in zip(times, times[1:], strict=False) if b > sent and a < first_token]
    await asyncio.gather(*(s.task for s in streams), longer.task, return_exceptions=True)
    return {
        "prompt_s": first_token - sent,
        "n_gaps": len(gaps_ms),
        "gap_ms_median": statistics.median(gaps_ms),
        "gap_ms_p99": statistics.quantiles(gaps_ms, n=100)[98],
        "gap_ms_max": max(gaps_ms),
    }


async def run(options: argparse.Namespace, port: int) -> list[dict]:
    await measure(argparse.Namespace(**vars(options) | {"prompt_tokens": 600}), port, 0)  # costs become known
    rounds = []
    for round_idx in range(1, options.rounds + 1):
        rounds.append(await measure(options, port, round_idx))
        figures = " ".join(f"{name}={value:.1f}" for name, value in rounds[-1].items())
        print(f"round {round_idx}: {figures}", flush=True)
        await asyncio.sleep(0.5)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--luna", required=True, type=Path)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--target-itl-ms", type=int, default=100)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=6000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="1 GiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speculation", choices=("off", "ngram"), default="off")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    speculation = f'[speculation]\nmethod = "{options.speculation}"'
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "luna.toml"
        text = config_text(
            options.model.resolve(),
            model_keys=f"sequences_max = 64\n{speculation}",
            policy_keys=f"target_itl_ms = {options.target_itl_ms}",
            n_threads=options.threads,
            memory=options.memory,
        )
        config.write_text(text, encoding="utf-8")
        server = LunaServer(options.luna, config)
        try:
            rounds = asyncio.run(run(options, server.port))
        finally:
            server.stop()
    worst = max(r["gap_ms_max"] for r in rounds)
    median = statistics.median(r["gap_ms_median"] for r in rounds)
    target = options.target_itl_ms
    print(
        f"target_itl_ms={target}: worst gap {worst:.1f} ms ({worst / target:.2f} x), median gap {median:.1f} ms "
        f"({median / target:.2f} x), {options.prompt_tokens} tokens in "
        f"{statistics.median(r['prompt_s'] for r in rounds):.1f} s"
    )
    if options.json:
        options.json.write_text(json.dumps({"target_itl_ms": target, "rounds": rounds}, indent=1))
    sys.exit(0 if worst <= 2 * target and median <= target else 1)


if __name__ == "__main__":
    main()
