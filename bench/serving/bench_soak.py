"""Minutes of everything at once: what is left of it in memory, in the KV cache and in answers.

  bench_soak.py --luna BIN --model GGUF [--minutes 30] [--slice-s 150] [--journal FILE --limit-s 170] [--json FILE]

Two servers side by side. One has its model on four workers, which are killed, stopped and continued, or
stopped and killed, one after the other. The other has two groups of devices with room for 512 tokens each,
and gets requests of up to 1,000, which lie on both. On both: clients with answers and prompts of random
length, a third of which leave in the middle, and greedy probes whose texts must stay what they were.

A slice begins with a warm-up (the same load, one of each fault), then all is idle and the memory of every
process and the state of the KV caches are the baseline; at its end, idle again, they are compared with it.
Bars: no request failed that its client did not leave, no probe's text differs, every KV block is given back,
no audit failed, and no process holds over 24 MiB more than at the baseline. --slice-s 0 makes it one slice.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from load_client import READ_TIMEOUT_S, LoadClient  # noqa: E402
from luna_cluster import LunaCluster, get_json  # noqa: E402
from luna_server import MODEL_NAME, LunaServer, config_text, wait_until  # noqa: E402
from slices import Journal  # noqa: E402

N_WORKERS = 4
GROUP_TOKENS = 512
GROWTH_BYTES_MAX = 24 << 20  # what an allocator keeps of the most that was there at one time
STOPPED_S = 2.0  # longer than a worker may say nothing
FAULTS = ("killed", "stopped", "stopped and killed")
SHORT_PROBE = "In the beginning"
WIDE_PROBE = "The sea is wide and the ship is small. " * 70  # over 600 tokens


def held_bytes(pid: int) -> int:
    """What lies in memory and no file stands behind: pages of files come and go with the cache."""
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(int(kib) << 10 for kib in re.findall(r"(?:RssAnon|RssShmem):\s+(\d+) kB", status))


class Probe(threading.Thread):
    """A greedy request again and again: its texts, of which there should be one."""

    def __init__(self, server: LunaServer, prompt: str, pause_s: float):
        super().__init__(daemon=True)
        self.server, self.prompt, self.pause_s = server, prompt, pause_s
        self.n_asked, self.texts, self.errors = 0, set(), []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(self.pause_s):
            body = {
                "model": MODEL_NAME, "prompt": self.prompt, "max_tokens": 48, "temperature": 0, "ignore_eos": True,
            }  # fmt: skip
            try:
                status, answer = self.server.post("/v1/completions", body)
            except OSError as error:
                self.errors.append(str(error))
                return
            self.n_asked += 1
            if status == 200:
                self.texts.add(answer["choices"][0]["text"])
            else:
                self.errors.append(f"{status}: {answer}")


class Soak:
    """Both servers, what they are asked and what is done to them."""

    def __init__(self, args: argparse.Namespace, shards: Path, folder: Path):
        self.args, self.shards = args, shards
        self.faults = itertools.cycle(itertools.product(range(N_WORKERS), FAULTS))
        self.n_faults = 0
        self.cluster = LunaCluster(
            args.luna, shards, folder, N_WORKERS, min_devices=N_WORKERS, model_keys="kv_tokens_max = 8192"
        )
        self.groups: LunaServer | None = None
        self.probes: list[Probe] = []
        config = folder / "groups.toml"
        config.write_text(
            config_text(
                args.model.resolve(),
                n_devices=2,
                policy="flowsplit",
                model_keys=f'layout = "replicas"\nkv_tokens_max = {GROUP_TOKENS}',
            ),
            encoding="utf-8",
        )
        self.groups_config = config

    def start(self) -> None:
        for i in range(N_WORKERS):
            self.cluster.start_worker(i, self.shards)
        self.cluster.start_server()
        self.groups = LunaServer(self.args.luna, self.groups_config)
        self.probes = [
            Probe(self.cluster.server, SHORT_PROBE, 1.0),
            Probe(self.groups, SHORT_PROBE, 1.0),
            Probe(self.groups, WIDE_PROBE, 3.0),
        ]
        for probe in self.probes:
            probe.start()

    def stop(self) -> None:
        self.cluster.stop()
        if self.groups:
            self.groups.stop(signal.SIGKILL)

    def has_all(self) -> bool:
        _, page = get_json(self.cluster.server_port, "/admin/cluster")
        return any(len(group) == N_WORKERS for model in page.get("models", ()) for group in model["groups"])

    def fault(self) -> None:
        """The next one; what it takes away is brought back."""
        i, how = next(self.faults)
        wait_until(self.has_all, 60, "a model on all workers")
        worker = self.cluster.workers[f"w{i}"]
        self.n_faults += 1
        if how != "killed":
            worker.send_signal(signal.SIGSTOP)
            time.sleep(STOPPED_S)
        if how == "stopped":
            worker.send_signal(signal.SIGCONT)
            return
        worker.send_signal(signal.SIGKILL)
        worker.process.wait()
        self.cluster.start_worker(i, self.shards)

    def load(self, seconds: float, seed: int, n_faults_least: int) -> dict:
        """Clients on both servers for that long, faults meanwhile."""
        end = time.monotonic() + seconds
        servers = (self.cluster.server, self.groups)
        clients = [
            LoadClient(server.port, seed * 1000 + n, end, n_words_max=250 if server is servers[0] else 350)
            for n, server in enumerate(itertools.chain.from_iterable([s] * self.args.clients for s in servers))
        ]
        threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        n_before = self.n_faults
        while time.monotonic() < end - self.args.fault_s or self.n_faults - n_before < n_faults_least:
            time.sleep(self.args.fault_s)
            self.fault()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()) + READ_TIMEOUT_S)
        return {
            "whole": sum(client.n_whole for client in clients),
            "left": sum(client.n_left for client in clients),
            "failed": [error for client in clients for error in client.errors]
            + [f"{t} did not end" for t in threads if t.is_alive()],
            "faults": self.n_faults - n_before,
        }

    def settle(self) -> dict:
        """Waits until nothing is asked and everybody is there; what is held then."""
        wait_until(self.has_all, 60, "a model on all workers")
        for probe in self.probes:
            probe.ended.set()
            probe.join()
        wait_until(self.cluster.server.is_idle, 60, "the cluster's server is idle")
        wait_until(self.groups.is_idle, 60, "the groups' server is idle")
        time.sleep(1.0)  # until the last connections are closed
        pids = {name: worker.process.pid for name, worker in self.cluster.workers.items()}
        pids |= {"server": self.cluster.server.process.pid, "groups": self.groups.process.pid}
        held = {name: held_bytes(pid) for name, pid in pids.items()}
        for name, n_bytes in self.spare_bytes().items():
            held[name] -= n_bytes
        blocks = {
            name: {
                "used": server.metric("luna_kv_blocks_used"),
                "usable": server.metric("luna_kv_blocks_free") + server.metric("luna_kv_blocks_cached"),
            }
            for name, server in (("server", self.cluster.server), ("groups", self.groups))
        }
        return {"held_bytes": held, "blocks": blocks}

    def spare_bytes(self) -> dict[str, int]:
        """Of workers, for layers that they packed ahead: these come and go with placements."""
        _, page = get_json(self.cluster.server_port, "/admin/cluster")
        return {worker["name"]: worker["memory"]["spare_bytes"] for worker in page["workers"]}

    def probe_again(self) -> list[Probe]:
        """Probes of the same prompts; those before have ended."""
        before = self.probes
        self.probes = [Probe(p.server, p.prompt, p.pause_s) for p in before]
        for probe in self.probes:
            probe.start()
        return before


def run_slice(args: argparse.Namespace, seconds: float, seed: int, shards: Path, folder: Path) -> dict:
    soak = Soak(args, shards, folder)
    try:
        soak.start()
        warm = soak.load(args.warm_s, seed * 2, len(FAULTS))
        baseline = soak.settle()
        before = soak.probe_again()
        found = soak.load(seconds, seed * 2 + 1, 1)
        end = soak.settle()
        found["seconds"] = seconds
        found["failed"] += warm["failed"] + [e for p in before + soak.probes for e in p.errors]
        found["probes"] = sum(p.n_asked for p in before + soak.probes)
        found["probe_texts"] = [len(a.texts | b.texts) for a, b in zip(before, soak.probes)]
        found["growth_mib"] = {
            name: round((held - baseline["held_bytes"][name]) / 2**20, 1) for name, held in end["held_bytes"].items()
        }
        found["held_mib"] = {name: held >> 20 for name, held in end["held_bytes"].items()}
        found["blocks"], found["blocks_baseline"] = end["blocks"], baseline["blocks"]
        servers = (soak.cluster.server, soak.groups)
        found["audit_failures"] = sum(s.metric("luna_kv_audit_failures_total") for s in servers)
        found["plans_rejected"] = sum(s.metric("luna_plan_rejected_total") for s in servers)
        found["kv_moves"] = soak.groups.metric("luna_kv_moves_total")
        found["lost"] = soak.cluster.server.metric("luna_cluster_workers_lost_total")
        return found
    finally:
        soak.stop()


def misses(row: dict) -> list[str]:
    found = [f"{len(row['failed'])} requests failed: {row['failed'][0]}"] if row["failed"] else []
    if any(n != 1 for n in row["probe_texts"]):
        found.append(f"texts of probes: {row['probe_texts']}")
    if row["blocks"] != row["blocks_baseline"] or any(b["used"] for b in row["blocks"].values()):
        found.append(f"KV blocks {row['blocks']}, at the baseline {row['blocks_baseline']}")
    if row["audit_failures"] or row["plans_rejected"]:
        found.append(f"{row['audit_failures']} audits failed, {row['plans_rejected']} plans refused")
    found += [f"{name} grew by {mib} MiB" for name, mib in row["growth_mib"].items() if mib > GROWTH_BYTES_MAX >> 20]
    if not row["kv_moves"]:
        found.append("nothing was sliced")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--luna", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0, help="of load after warm-ups, all slices together")
    parser.add_argument("--slice-s", type=float, default=150.0, help="of load in a slice; 0: all in one")
    parser.add_argument("--warm-s", type=float, default=25.0)
    parser.add_argument("--fault-s", type=float, default=6.0, help="between two faults")
    parser.add_argument("--clients", type=int, default=6, help="of each server")
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--limit-s", type=float, default=0.0, help="of this invocation; 0: until all is done")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    own = ("luna", "model", "minutes", "slice_s", "journal", "limit_s", "json")
    journal = Journal(args.journal, {key: value for key, value in vars(args).items() if key not in own})
    began = time.monotonic()

    def seconds_left() -> float:
        return 60 * args.minutes - sum(row["seconds"] for row in journal.of("slice"))

    while seconds_left() > 0.5:
        seconds = min(seconds_left(), args.slice_s or seconds_left())
        # What comes with a slice: start, warm-up with its faults, settling twice.
        if args.limit_s and time.monotonic() - began + seconds + args.warm_s + 25 > args.limit_s:
            break
        with tempfile.TemporaryDirectory() as folder:
            shards = Path(folder) / "shards"
            subprocess.run(
                [args.luna, "split", args.model, "--num-shards", str(N_WORKERS), "--out", shards],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            found = run_slice(args, seconds, len(journal.of("slice")), shards, Path(folder))
        row = journal.add("slice", **found)
        print(*(f"{key}={value}" for key, value in row.items() if key not in ("what", "blocks_baseline")))
        print("missed:", "; ".join(misses(row)) or "nothing", flush=True)
    rows = journal.of("slice")
    n_missed = sum(bool(misses(row)) for row in rows)
    print(
        f"{sum(row['seconds'] for row in rows) / 60:.1f} of {args.minutes} minutes in {len(rows)} slices: "
        f"{sum(row['whole'] for row in rows)} answers, {sum(row['left'] for row in rows)} left by their clients, "
        f"{sum(row['probes'] for row in rows)} probes, {sum(row['faults'] for row in rows)} faults, "
        f"{sum(row['kv_moves'] for row in rows):.0f} slices moved; "
        f"largest growth {max((max(row['growth_mib'].values()) for row in rows), default=0.0)} MiB; "
        f"slices that missed a bar: {n_missed}"
    )
    if args.json:
        args.json.write_text(json.dumps({"rows": rows}, indent=1), encoding="utf-8")
    sys.exit(3 if seconds_left() > 0.5 else 1 if n_missed else 0)


if __name__ == "__main__":
    main()
