"""Workers that leave in order: others take over first, and no stream notices but for a pause."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from cluster_streams import N_STREAMS, N_WORKERS, Streams, wait_for_all
from luna_cluster import LunaCluster, get_json
from luna_server import wait_until

# Long enough to run on when others have loaded the layers.
LONG = {"max_tokens": 160}


@pytest.fixture(scope="module")
def long_texts(four_workers: LunaCluster) -> list[str]:
    """Of long streams that nothing happens to."""
    return Streams(four_workers.server, **LONG).join()


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
    four_workers: LunaCluster, shards: Path, long_texts: list[str], how: str, i: int
) -> None:
    wait_for_all(four_workers)
    lost = four_workers.server.metric("luna_cluster_workers_lost_total")
    drained = four_workers.server.metric("luna_cluster_workers_drained_total")
    moved = four_workers.server.metric("luna_moves_total")
    worker = four_workers.workers[f"w{i}"]
    streams = Streams.under_way(four_workers.server, **LONG)
    if how == "SIGTERM":
        worker.send_signal(signal.SIGTERM)
    else:
        assert drain(four_workers, f"?worker=w{i}") == 202
    # It ends while the streams go on elsewhere.
    assert worker.process.wait(20) == 0
    assert streams.join() == long_texts
    wait_until(
        lambda: four_workers.server.metric("luna_cluster_workers_drained_total") == drained + 1, 10, "it has left"
    )
    assert four_workers.server.metric("luna_cluster_workers_lost_total") == lost
    # With their KV, though the layers are cut elsewhere now.
    assert four_workers.server.metric("luna_moves_total") > moved
    assert four_workers.server.metric("luna_moves_failed_total") == 0
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


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_kv_goes_to_other_cuts_over_any_transport(
    luna_bin: Path, shards: Path, long_texts: list[str], tmp_path: Path, transport: str
) -> None:
    keys = "kv_tokens_max = 8192"
    cluster = LunaCluster(luna_bin, shards, tmp_path, 3, min_devices=3, model_keys=keys, transport=transport)
    try:
        # Room for the layers of both cuts at once, wherever they lie: else tokens are computed again.
        workers = [cluster.start_worker(i, shards, memory="400 MiB") for i in range(3)]
        server = cluster.start_server()
        streams = Streams.under_way(server, **LONG)
        assert drain(cluster, "?worker=w1") == 202
        assert workers[1].process.wait(20) == 0
        assert streams.join() == long_texts
        assert server.metric("luna_moves_total") > 0
        assert server.metric("luna_kv_audit_failures_total") == 0
    finally:
        cluster.stop()


def prompts_with_much_kv(i: int) -> str:
    return f"Story {i}: " + " ".join(f"the {i * 100 + n}th stone is grey," for n in range(60))


@pytest.mark.parametrize("who", ["source", "target"])
def test_a_worker_lost_while_kv_is_copied_costs_no_request(
    luna_bin: Path, model: Path, tmp_path: Path, who: str
) -> None:
    keys = 'layout = "replicas"\nkv_tokens_max = 8192'
    cluster = LunaCluster(luna_bin, model, tmp_path, 2, min_devices=2, model_keys=keys)
    try:
        workers = [cluster.start_worker(i, model) for i in range(2)]
        server = cluster.start_server()

        prompts = [prompts_with_much_kv(i) for i in range(N_STREAMS)]
        calm = Streams(server, prompts, **LONG).join()
        streams = Streams.under_way(server, prompts, **LONG)
        assert drain(cluster, "?worker=w0") == 202
        wait_until(lambda: server.metric("luna_moved_kv_blocks_total") > 0, 10, "a copy")
        workers[0 if who == "source" else 1].send_signal(signal.SIGKILL)
        if who == "target":  # nobody is left to move to: whoever comes serves
            cluster.start_worker(2, model)
        assert streams.join() == calm
        wait_until(lambda: server.metric("luna_kv_blocks_used") == 0, 10, "free blocks")
        assert server.metric("luna_kv_audit_failures_total") == 0
    finally:
        cluster.stop()


def test_a_worker_that_nobody_can_replace_stays_until_another_comes(
    luna_bin: Path, shards: Path, long_texts: list[str], tmp_path: Path
) -> None:
    small = {"memory": "120 MiB"}  # for half of the model
    cluster = LunaCluster(luna_bin, shards, tmp_path, 2, min_devices=2, model_keys="kv_tokens_max = 2048")
    try:
        first, second = (cluster.start_worker(i, shards, **small) for i in range(2))
        server = cluster.start_server()
        first.send_signal(signal.SIGTERM)
        wait_until(lambda: "nobody can take over what lies here" in first.log(), 20, "the reason in its log")
        assert Streams(server, **LONG).join() == long_texts
        _, page = get_json(cluster.server_port, "/admin/cluster")
        assert not any(worker["draining"] for worker in page["workers"])
        assert "cannot lie on the others" in page["last_kept"]
        cluster.start_worker(2, shards, **small)
        assert first.process.wait(20) == 0
        wait_until(lambda: server.metric("luna_cluster_workers_drained_total") == 1, 10, "it has left")
        # Two are left, and neither can go; who insists goes at once.
        second.send_signal(signal.SIGTERM)
        wait_until(lambda: "nobody can take over what lies here" in second.log(), 20, "the reason in its log")
        second.send_signal(signal.SIGTERM)
        assert second.process.wait(5) == 128 + signal.SIGTERM
    finally:
        cluster.stop()
