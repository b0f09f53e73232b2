"""A worker that is killed or stopped: its layers go to the others, and no stream notices but for a pause."""

from __future__ import annotations

import re
import signal
import time
from datetime import datetime
from pathlib import Path

import pytest
from cluster_streams import N_WORKERS, Streams, wait_for_all
from luna_cluster import LunaCluster
from luna_server import wait_until

LOST = re.compile(r"\[(\d+-\d+-\d+ \d+:\d+:\d+\.\d+)\] \[cluster\] \[warning\] worker lost name=(\w+)")


def seconds_to_find(cluster: LunaCluster, name: str, since: float) -> float:
    """From a moment to the line in the server's log that says that the worker is lost."""
    found: list[float] = []

    def is_said() -> bool:
        for stamp, lost in LOST.findall(cluster.server.log()):
            at = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S.%f").timestamp()
            if lost == name and at >= since - 0.01:
                found.append(at)
        return bool(found)

    wait_until(is_said, 10, f"{name} is lost")
    return found[0] - since


@pytest.mark.parametrize(
    "how, i", [("SIGKILL", i) for i in range(N_WORKERS)] + [("SIGSTOP", 0), ("SIGSTOP", N_WORKERS - 1)]
)
def test_a_lost_worker_costs_no_request(
    four_workers: LunaCluster, shards: Path, calm_texts: list[str], how: str, i: int
) -> None:
    wait_for_all(four_workers)
    streams = Streams.under_way(four_workers.server)
    worker = four_workers.workers[f"w{i}"]
    at = time.time()
    worker.send_signal(signal.Signals[how])
    # How soon is measured by bench/serving/bench_recovery.py.
    print(f"{how} found after {seconds_to_find(four_workers, worker.name, at):.3f} s")
    assert streams.join() == calm_texts
    if how == "SIGKILL":
        worker.process.wait()
        four_workers.start_worker(i, shards)
    else:
        worker.send_signal(signal.SIGCONT)


def test_a_worker_lost_while_the_layers_of_another_are_loaded(
    four_workers: LunaCluster, shards: Path, calm_texts: list[str]
) -> None:
    wait_for_all(four_workers)
    planned = four_workers.workers["w2"].log().count("shard planned")
    streams = Streams.under_way(four_workers.server)
    four_workers.workers["w1"].send_signal(signal.SIGKILL)
    wait_until(lambda: four_workers.workers["w2"].log().count("shard planned") > planned, 20, "a plan for the others")
    four_workers.workers["w2"].send_signal(signal.SIGKILL)
    assert streams.join() == calm_texts
    # What the lost ones and the placement between held is free again.
    wait_until(lambda: four_workers.server.metric("luna_kv_blocks_used") == 0, 10, "free blocks")
    assert four_workers.server.metric("luna_kv_audit_failures_total") == 0
    for i in (1, 2):
        four_workers.workers[f"w{i}"].process.wait()
        four_workers.start_worker(i, shards)
    wait_for_all(four_workers)
    assert Streams(four_workers.server).join() == calm_texts
