"""Long requests over eight small devices, alone and beside short streams.

  bench_long_requests.py --luna BIN --model GGUF [--long 100] [--beside 20] [--journal FILE --limit-s 90] [--json FILE]

One server with 8 CPU devices of one thread, a copy of the model on each and KV room for 1,088 tokens: a
request of 7,900 to 8,192 tokens lies on seven of them at least. By turns, --long and --beside times:
  alone   a long request, nothing else there
  short   16 clients, each with a short request after the other, for some seconds
  both    the long request of the same number beside those clients
Told: requests that failed, texts that differ between alone and both, how many devices held the request,
the time of a long request from sending to its end, the gaps between the tokens of the short ones (beside:
those that touch the time of a long request), and the server's own audit of its KV. With --limit-s an
invocation ends before a piece that would not end in time, and the next one goes on from the journal;
`in a row` then tells how many ran on one server. A long request takes 10 s and more on two cores.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from luna_server import MODEL_NAME, LunaServer, config_text, wait_until  # noqa: E402
from slices import Journal, TimeBox, percentile, spread  # noqa: E402
from timed_stream import TimedStream  # noqa: E402

N_DEVICES = 8
KV_TOKENS = 1088  # of a device: 34 blocks, the most below 1,100
PARTITION_BLOCKS = 8  # 256 tokens, the least that lies on a device which is not the request's own
LONG_TOKENS = (7900, 8192)  # prompt and answer
LONG_RATIO_MAX = 1.5
ITL_CHANGE_MAX = 0.10
AUDITS = ("luna_kv_audit_failures_total", "luna_plan_rejected_total", "luna_preemptions_total")


def token_ids(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(1000, 41000) for _ in range(n)]


class ShortClient(threading.Thread):
    """A short request after the other on one connection, until it is told to stop."""

    def __init__(self, port: int, seed: int, args: argparse.Namespace, stop: threading.Event):
        super().__init__(daemon=True)
        self.port, self.args, self.stop_, self.rng = port, args, stop, random.Random(seed)
        self.gaps: list[tuple[float, float]] = []  # between two tokens: from, to
        self.n_requests, self.error = 0, ""

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            while not self.stop_.is_set() and not self.error:
                self.one_request(connection)
                self.stop_.wait(self.args.pause_s)
        except (OSError, http.client.HTTPException) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            connection.close()

    def one_request(self, connection: http.client.HTTPConnection) -> None:
        body = {
            "model": MODEL_NAME, "prompt": token_ids(self.rng, self.args.short_prompt), "temperature": 0,
            "max_tokens": self.args.short_output, "ignore_eos": True, "stream": True,
            "logprobs": 0,  # so that a token that is a part of a character is an event as well
        }  # fmt: skip
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            self.error = f"{answer.status}: {answer.read()[:200]!r}"
            return
        before = None
        for line in answer:
            if line.startswith(b'data: {"error'):
                self.error = line.decode()
            if line.startswith(b"data: {"):
                now = time.time()
                if before is not None:
                    self.gaps.append((before, now))
                before = now
        self.n_requests += 1


class ShortLoad:
    def __init__(self, port: int, seed: int, args: argparse.Namespace):
        self.stop_ = threading.Event()
        self.clients = [ShortClient(port, seed * 1000 + i, args, self.stop_) for i in range(args.streams)]
        for client in self.clients:
            client.start()

    def end(self) -> None:
        self.stop_.set()
        for client in self.clients:
            client.join()

    def gaps_ms(self, begin: float, end: float) -> list[float]:
        """Of tokens between which some of this time lies."""
        return [1e3 * (b - a) for client in self.clients for a, b in client.gaps if b > begin and a < end]

    def figures(self, begin: float, end: float) -> dict:
        gaps = self.gaps_ms(begin, end)
        return {
            "requests": sum(client.n_requests for client in self.clients),
            "failed": [client.error for client in self.clients if client.error],
            "gaps": len(gaps),
            "itl_ms_median": statistics.median(gaps) if gaps else None,
            "itl_ms_p95": percentile(gaps, 95) if gaps else None,
            "itl_ms_max": max(gaps, default=None),
        }


class Holders(threading.Thread):
    """The most devices on which partitions lay at one time while it ran."""

    def __init__(self, server: LunaServer):
        super().__init__(daemon=True)
        self.server, self.most, self.ended = server, 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.2):
            with urllib.request.urlopen(f"{self.server.url}/admin/groups", timeout=30) as answer:
                used = [json.loads(line)["kv_blocks_used"] for line in answer]
            self.most = max(self.most, sum(n >= PARTITION_BLOCKS for n in used))

    def stop(self) -> int:
        self.ended.set()
        self.join()
        return self.most


def ask_long(server: LunaServer, i: int, args: argparse.Namespace, n_tokens: int | None = None) -> dict:
    """The i-th long request; what is told of it."""
    rng = random.Random(args.seed * 100_003 + i)
    n_tokens = n_tokens or rng.randint(*LONG_TOKENS)
    prompt = token_ids(rng, n_tokens - args.long_output)
    stream = TimedStream(server.port, {"prompt": prompt, "max_tokens": args.long_output, "temperature": 0})
    holders = Holders(server)
    holders.start()
    stream.run()
    return {
        "i": i,
        "tokens": n_tokens,
        "sent": stream.sent,
        "seconds": stream.ended - stream.sent,
        "first_token_s": stream.times[0] - stream.sent if stream.times else None,
        "holders": holders.stop(),
        "failed": stream.error,
        "text": stream.text,
    }


def make_server(args: argparse.Namespace, folder: Path) -> LunaServer:
    config = folder / "luna.toml"
    config.write_text(
        config_text(
            args.model.resolve(),
            n_devices=N_DEVICES,
            device_keys="share_weights = true",
            memory=args.memory,
            server="requests_max = 64",
            model_keys=f'layout = "replicas"\nkv_tokens_max = {KV_TOKENS}\nprefix_cache = false',
            policy="flowsplit",
            policy_keys=args.policy_keys.replace(",", "\n"),
        ),
        encoding="utf-8",
    )
    return LunaServer(args.luna, config)


class Slice:
    """What one server measures, until all is done or the time is over."""

    def __init__(self, server: LunaServer, journal: Journal, box: TimeBox, args: argparse.Namespace):
        self.server, self.journal, self.box, self.args = server, journal, box, args

    def run(self) -> bool:
        """Whether all is done."""
        self.warm_up()
        counts = {name: self.server.metric(name) for name in AUDITS}
        n_before = len(self.journal.of("alone")) + len(self.journal.of("both"))
        is_done = all(self.one(what, i) for what, i in self.wanted())
        wait_until(self.server.is_idle, 60, "no sequence and no KV block is left")
        self.journal.add(
            "server",
            long_requests=len(self.journal.of("alone")) + len(self.journal.of("both")) - n_before,
            **{name: self.server.metric(name) - count for name, count in counts.items()},
        )
        return is_done

    def wanted(self) -> list[tuple[str, int]]:
        """In their order: the few beside are spread over the many alone."""
        found, n_beside = [], 0
        for i in range(self.args.long):
            found.append(("alone", i))
            if (i + 1) * self.args.beside >= (n_beside + 1) * self.args.long:
                found += [("short", n_beside), ("both", i)]
                n_beside += 1
        return found

    def one(self, what: str, i: int) -> bool:
        if any(row["i"] == i for row in self.journal.of(what)):
            return True
        if not self.box.has_room_for(what, {"alone": 15, "short": self.args.short_s + 2, "both": 40}[what]):
            return False
        began = time.monotonic()
        row = self.journal.add(what, **getattr(self, what)(i))
        self.box.took(what, time.monotonic() - began)
        shown = {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}
        print(*(f"{key}={value}" for key, value in shown.items() if key not in ("sent", "text")), flush=True)
        return True

    def warm_up(self) -> None:
        """So that the policy knows what steps and copies cost."""
        load = ShortLoad(self.server.port, 0, self.args)
        time.sleep(1.0)
        load.end()
        warm = ask_long(self.server, -1, self.args, 2 * KV_TOKENS)
        assert not warm["failed"], warm["failed"]

    def alone(self, i: int) -> dict:
        return ask_long(self.server, i, self.args)

    def short(self, i: int) -> dict:
        load = ShortLoad(self.server.port, 1 + i, self.args)
        time.sleep(1.0)  # until all of them run
        begin = time.time()
        time.sleep(self.args.short_s)
        end = time.time()
        load.end()
        return {"i": i} | load.figures(begin, end)

    def both(self, i: int) -> dict:
        load = ShortLoad(self.server.port, 1000 + i, self.args)
        time.sleep(1.0)
        found = ask_long(self.server, i, self.args)
        load.end()
        short = load.figures(found["sent"], found["sent"] + found["seconds"])
        return found | {"short": short, "failed": found["failed"] or "; ".join(short["failed"])}


def summed_up(journal: Journal) -> dict:
    alone, short, both, servers = (journal.of(what) for what in ("alone", "short", "both", "server"))
    alone_s, both_s = [row["seconds"] for row in alone], [row["seconds"] for row in both]
    itl_alone = [row["itl_ms_median"] for row in short if row["gaps"]]
    itl_beside = [row["short"]["itl_ms_median"] for row in both if row["short"]["gaps"]]
    texts = {row["i"]: row["text"] for row in alone}
    found = {
        "long_requests": len(alone) + len(both),
        "in_a_row_most": max((row["long_requests"] for row in servers), default=0),
        "failed": sum(bool(row["failed"]) for row in alone + short + both),
        "texts_that_differ": sum(row["text"] != texts[row["i"]] for row in both if not row["failed"]),
        "holders_least": min((row["holders"] for row in alone + both), default=0),
        "audits": {name: sum(row[name] for row in servers) for name in AUDITS},
        "long_alone_s": alone_s,
        "long_beside_s": both_s,
        "itl_alone_ms": itl_alone,
        "itl_beside_ms": itl_beside,
    }
    if alone_s and both_s:
        found["long_p95_ratio"] = percentile(both_s, 95) / percentile(alone_s, 95)
    if itl_alone and itl_beside:
        found["itl_median_ratio"] = statistics.median(itl_beside) / statistics.median(itl_alone)
    return found


def tell(found: dict) -> None:
    print(f"{found['long_requests']} long requests, {found['in_a_row_most']} in a row on one server at most, "
          f"failed {found['failed']}, texts that differ {found['texts_that_differ']}, "
          f"on {found['holders_least']} devices or more")  # fmt: skip
    print("the server's counts:", " ".join(f"{name}={n:.0f}" for name, n in found["audits"].items()))
    print("long, alone:   ", spread(found["long_alone_s"], "s"))
    print("long, beside:  ", spread(found["long_beside_s"], "s"))
    print("short ITL, alone (medians of windows):  ", spread(found["itl_alone_ms"], "ms"))
    print("short ITL, beside (medians of windows): ", spread(found["itl_beside_ms"], "ms"))
    if "long_p95_ratio" in found:
        print(f"long P95 beside / alone: {found['long_p95_ratio']:.2f} (bar {LONG_RATIO_MAX})")
    if "itl_median_ratio" in found:
        print(f"short median ITL beside / alone: {found['itl_median_ratio']:.2f} (bar {1 + ITL_CHANGE_MAX})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--luna", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--long", type=int, default=100, help="long requests alone")
    parser.add_argument("--beside", type=int, default=20, help="of them, once more beside short streams")
    parser.add_argument("--long-output", type=int, default=32, help="tokens of a long request's answer")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--short-prompt", type=int, default=8)
    parser.add_argument("--short-output", type=int, default=24)
    parser.add_argument("--short-s", type=float, default=6.0, help="length of a window of short streams alone")
    parser.add_argument("--pause-s", type=float, default=0.0, help="of a short client between two requests")
    parser.add_argument("--memory", default="600 MiB", help="of a device")
    parser.add_argument("--policy-keys", default="", help="of [scheduler.flowsplit], by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--limit-s", type=float, default=0.0, help="of this invocation; 0: until all is done")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    own = ("luna", "model", "journal", "limit_s", "json")
    journal = Journal(args.journal, {key: value for key, value in vars(args).items() if key not in own})
    box = TimeBox(args.limit_s)
    with tempfile.TemporaryDirectory() as folder:
        server = make_server(args, Path(folder))
        try:
            is_done = Slice(server, journal, box, args).run()
        finally:
            server.stop()
    found = summed_up(journal)
    tell(found)
    if not is_done:
        print("not all is done: call again with the same journal")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    sys.exit(0 if is_done else 3)


if __name__ == "__main__":
    main()
