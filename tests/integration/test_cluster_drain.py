"""Workers that leave in order: others take over first, and no stream notices but for a pause."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from luna_cluster import LunaCluster, get_json
from luna_server import wait_until
from test_cluster_failure import N_STREAMS, N_WORKERS, Streams, has_all


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


@pytest.fixture(scope="module")
def expected(cluster: LunaCluster) -> list[str]:
    return Streams(cluster.server).join()


def streams_under_way(cluster: LunaCluster) -> Streams:
    started = cluster.server.metric("luna_generation_tokens_total")
    streams = Streams(cluster.server)
    wait_until(
        lambda: cluster.server.metric("luna_generation_tokens_total") > started + 5 * N_STREAMS, 30, "some tokens"
    )
    return streams


def drain(cluster: LunaCluster, query: str, **headers: str) -> int:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{cluster.server_port}/admin/drain{query}", method="POST", headers=headers
    )
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("how, i", [("SIGTERM", 0), ("POST", 1), ("POST", 2), ("SIGTERM", 3)])
def test_a_drained_worker_costs_no_request(
    cluster: LunaCluster, shards: Path, expected: list[str], how: str, i: int
) -> None:
    wait_until(lambda: has_all(cluster), 30, "a model on all workers")
    lost = cluster.server.metric("luna_cluster_workers_lost_total")
    drained = cluster.server.metric("luna_cluster_workers_drained_total")
    worker = cluster.workers[f"w{i}"]
    streams = streams_under_way(cluster)
    if how == "SIGTERM":
        worker.send_signal(signal.SIGTERM)
    else:
        assert drain(cluster, f"?worker=w{i}") == 202
    # It ends while the streams go on elsewhere.
    assert worker.process.wait(20) == 0
    assert streams.join() == expected
    wait_until(
        lambda: cluster.server.metric("luna_cluster_workers_drained_total") == drained + 1, 10, "it has left"
    )
    assert cluster.server.metric("luna_cluster_workers_lost_total") == lost
    groups = [line["devices"] for line in group_lines(cluster)]
    assert groups == [[f"w{other}/0" for other in range(N_WORKERS) if other != i]]
    cluster.start_worker(i, shards)


def group_lines(cluster: LunaCluster) -> list[dict]:
    """/admin/groups, which lists what is there now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.server_port}/admin/groups", timeout=10) as answer:
        return [json.loads(line) for line in answer.read().splitlines()]


def test_who_may_be_drained(cluster: LunaCluster) -> None:
    assert drain(cluster, "?worker=w9") == 404
    assert drain(cluster, "") == 400
    assert drain(cluster, "?worker=%zz") == 400
    assert drain(cluster, "?worker=w0", Origin="http://elsewhere.example") == 403
    assert get_json(cluster.server_port, "/admin/drain?worker=w0")[0] == 405
    _, page = get_json(cluster.server_port, "/admin/cluster")
    assert not any(worker["draining"] for worker in page["workers"])


def test_the_last_worker_ends_what_it_has_begun(luna_bin: Path, shards: Path, expected: list[str], tmp_path: Path) -> None:
    cluster = LunaCluster(luna_bin, shards, tmp_path, 1, model_keys="kv_tokens_max = 8192")
    try:
        worker = cluster.start_worker(0, shards)
        cluster.start_server()
        streams = streams_under_way(cluster)
        worker.send_signal(signal.SIGTERM)
        assert streams.join() == expected
        assert worker.process.wait(20) == 0
    finally:
        cluster.stop()
