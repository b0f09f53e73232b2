"""Workers that leave in order: others take over first, and no stream notices but for a pause."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from cluster_streams import N_WORKERS, Streams, wait_for_all
from luna_cluster import LunaCluster, get_json
from luna_server import wait_until


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
    four_workers: LunaCluster, shards: Path, calm_texts: list[str], how: str, i: int
) -> None:
    wait_for_all(four_workers)
    lost = four_workers.server.metric("luna_cluster_workers_lost_total")
    drained = four_workers.server.metric("luna_cluster_workers_drained_total")
    worker = four_workers.workers[f"w{i}"]
    streams = Streams.under_way(four_workers.server)
    if how == "SIGTERM":
        worker.send_signal(signal.SIGTERM)
    else:
        assert drain(four_workers, f"?worker=w{i}") == 202
    # It ends while the streams go on elsewhere.
    assert worker.process.wait(20) == 0
    assert streams.join() == calm_texts
    wait_until(
        lambda: four_workers.server.metric("luna_cluster_workers_drained_total") == drained + 1, 10, "it has left"
    )
    assert four_workers.server.metric("luna_cluster_workers_lost_total") == lost
    groups = [line["devices"] for line in group_lines(four_workers)]
    assert groups == [[f"w{other}/0" for other in range(N_WORKERS) if other != i]]
    four_workers.start_worker(i, shards)


def group_lines(cluster: LunaCluster) -> list[dict]:
    """/admin/groups, which lists what is there now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.server_port}/admin/groups", timeout=10) as answer:
        return [json.loads(line) for line in answer.read().splitlines()]


def test_who_may_be_drained(four_workers: LunaCluster) -> None:
    assert drain(four_workers, "?worker=w9") == 404
    assert drain(four_workers, "") == 400
    assert drain(four_workers, "?worker=%zz") == 400
    assert drain(four_workers, "?worker=w0", Origin="http://elsewhere.example") == 403
    assert get_json(four_workers.server_port, "/admin/drain?worker=w0")[0] == 405
    _, page = get_json(four_workers.server_port, "/admin/cluster")
    assert not any(worker["draining"] for worker in page["workers"])


def test_the_last_worker_ends_what_it_has_begun(
    luna_bin: Path, shards: Path, calm_texts: list[str], tmp_path: Path
) -> None:
    cluster = LunaCluster(luna_bin, shards, tmp_path, 1, model_keys="kv_tokens_max = 8192")
    try:
        worker = cluster.start_worker(0, shards)
        cluster.start_server()
        streams = Streams.under_way(cluster.server)
        worker.send_signal(signal.SIGTERM)
        assert streams.join() == calm_texts
        assert worker.process.wait(20) == 0
    finally:
        cluster.stop()
