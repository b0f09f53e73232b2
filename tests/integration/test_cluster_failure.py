"""A worker that is killed or stopped: its layers go to the others, and no stream notices but for a pause."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from luna_cluster import LunaCluster, get_json
from luna_server import MODEL_NAME, LunaServer, wait_until

N_WORKERS = 4
N_STREAMS = 8
N_TOKENS = 64
LOST = re.compile(r"\[(\d+-\d+-\d+ \d+:\d+:\d+\.\d+)\] \[cluster\] \[warning\] worker lost name=(\w+)")


@pytest.fixture(scope="module")
def shards(run_luna: Callable, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards") / "four"
    done = run_luna("split", model, "--num-shards", N_WORKERS, "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def cluster(luna_bin: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LunaCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    made = LunaCluster(luna_bin, shards, folder, N_WORKERS, min_devices=N_WORKERS, model_keys="kv_tokens_max = 8192")
    for i in range(N_WORKERS):
        made.start_worker(i, shards)
    made.start_server()
    yield made
    made.stop()


def body_of(i: int) -> dict:
    sampling = {"temperature": 0} if i % 2 == 0 else {"temperature": 0.9, "seed": 100 + i}
    return {
        "model": MODEL_NAME,
        "prompt": f"Chapter {i}. Once upon a time",
        "max_tokens": N_TOKENS,
        "ignore_eos": True,
        **sampling,
    }


class Streams:
    """All requests at the same time."""

    def __init__(self, server: LunaServer):
        self.texts = [""] * N_STREAMS
        self.threads = [threading.Thread(target=self.run_, args=(server, i)) for i in range(N_STREAMS)]
        for thread in self.threads:
            thread.start()

    def run_(self, server: LunaServer, i: int) -> None:
        status, answer = server.post("/v1/completions", body_of(i))
        self.texts[i] = answer["choices"][0]["text"] if status == 200 else f"{status}: {answer}"

    def join(self) -> list[str]:
        for thread in self.threads:
            thread.join()
        return self.texts


@pytest.fixture(scope="module")
def expected(cluster: LunaCluster) -> list[str]:
    return Streams(cluster.server).join()


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


def has_all(cluster: LunaCluster) -> bool:
    _, page = get_json(cluster.server_port, "/admin/cluster")
    return any(len(group) == N_WORKERS for model in page["models"] for group in model["groups"])


@pytest.mark.parametrize(
    "how, i", [("SIGKILL", i) for i in range(N_WORKERS)] + [("SIGSTOP", 0), ("SIGSTOP", N_WORKERS - 1)]
)
def test_a_lost_worker_costs_no_request(cluster: LunaCluster, shards: Path, expected: list[str], how: str, i: int) -> None:
    wait_until(lambda: has_all(cluster), 30, "a model on all workers")
    streams = Streams(cluster.server)
    started = cluster.server.metric("luna_generation_tokens_total")
    wait_until(
        lambda: cluster.server.metric("luna_generation_tokens_total") > started + 5 * N_STREAMS, 30, "some tokens"
    )
    worker = cluster.workers[f"w{i}"]
    at = time.time()
    worker.send_signal(signal.Signals[how])
    # How soon is measured by bench/serving/bench_recovery.py.
    print(f"{how} found after {seconds_to_find(cluster, worker.name, at):.3f} s")
    assert streams.join() == expected
    if how == "SIGKILL":
        worker.process.wait()
        cluster.start_worker(i, shards)
    else:
        worker.send_signal(signal.SIGCONT)


def test_a_worker_lost_while_the_layers_of_another_are_loaded(
    cluster: LunaCluster, shards: Path, expected: list[str]
) -> None:
    wait_until(lambda: has_all(cluster), 30, "a model on all workers")
    planned = cluster.workers["w2"].log().count("shard planned")
    streams = Streams(cluster.server)
    started = cluster.server.metric("luna_generation_tokens_total")
    wait_until(
        lambda: cluster.server.metric("luna_generation_tokens_total") > started + 5 * N_STREAMS, 30, "some tokens"
    )
    cluster.workers["w1"].send_signal(signal.SIGKILL)
    wait_until(lambda: cluster.workers["w2"].log().count("shard planned") > planned, 20, "a plan for the others")
    cluster.workers["w2"].send_signal(signal.SIGKILL)
    assert streams.join() == expected
    # What the lost ones and the placement between held is free again.
    wait_until(lambda: cluster.server.metric("luna_kv_blocks_used") == 0, 10, "free blocks")
    assert cluster.server.metric("luna_kv_audit_failures_total") == 0
    for i in (1, 2):
        cluster.workers[f"w{i}"].process.wait()
        cluster.start_worker(i, shards)
    wait_until(lambda: has_all(cluster), 30, "a model on all workers")
    assert Streams(cluster.server).join() == expected
