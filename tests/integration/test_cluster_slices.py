"""Requests larger than any worker: copies of the model on several workers attend for each other, the texts are those
of one process, and workers that are lost cost no request."""

from __future__ import annotations

import json
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from luna_cluster import LunaCluster, get_json
from luna_server import MODEL_NAME, LunaServer, wait_until

# Of a worker: three partitions of 256 tokens.
ROOM_TOKENS = 768
KEYS = f'layout = "replicas"\nkv_tokens_max = {ROOM_TOKENS}'
# The first has about 1,200 tokens.
PROMPTS = [
    "The sea is wide and the ship is small. " * 120 + "So the captain said:",
    "Once upon a time",
    "The sky above the harbour",
]
N_TOKENS = 48


class Requests:
    """All prompts at the same time."""

    def __init__(self, server: LunaServer, **fields: object):
        self.texts = [""] * len(PROMPTS)
        self.threads = [threading.Thread(target=self.run_, args=(server, i, fields)) for i in range(len(PROMPTS))]
        for thread in self.threads:
            thread.start()

    def run_(self, server: LunaServer, i: int, fields: dict) -> None:
        body = {"model": MODEL_NAME, "prompt": PROMPTS[i], "max_tokens": N_TOKENS, "temperature": 0}
        status, answer = server.post("/v1/completions", body | {"ignore_eos": True} | fields)
        self.texts[i] = answer["choices"][0]["text"] if status == 200 else f"{status}: {answer}"

    def join(self) -> list[str]:
        for thread in self.threads:
            thread.join()
        return self.texts


@pytest.fixture(scope="module")
def texts(start_server: Callable[..., LunaServer]) -> list[str]:
    """Of one device that holds all."""
    alone = start_server(n_devices=1, model_keys="kv_tokens_max = 4096")
    found = Requests(alone).join()
    assert alone.stop() == 0
    return found


@pytest.fixture
def make_cluster(luna_bin: Path, model: Path, tmp_path: Path) -> Iterator[Callable[..., LunaCluster]]:
    made: list[LunaCluster] = []

    def make(n_workers: int, worker: dict | None = None, **config: object) -> LunaCluster:
        config = {"model_keys": KEYS, "policy": "flowsplit", "min_devices": n_workers} | config
        cluster = LunaCluster(luna_bin, model, tmp_path, n_workers, **config)
        made.append(cluster)
        for i in range(n_workers):
            cluster.start_worker(i, model, **(worker or {}))
        cluster.start_server()
        return cluster

    yield make
    for cluster in made:
        cluster.stop()


def groups_of(cluster: LunaCluster) -> list[dict]:
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.server_port}/admin/groups", timeout=10) as answer:
        return [json.loads(line) for line in answer.read().splitlines()]


def expect_clean_books(server: LunaServer) -> None:
    wait_until(lambda: server.metric("luna_kv_blocks_used") == 0, 20, "free blocks")
    assert server.metric("luna_kv_audit_failures_total") == 0
    assert server.metric("luna_plan_rejected_total") == 0


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_request_larger_than_a_worker_gets_the_text_of_one_process(
    make_cluster: Callable[..., LunaCluster], texts: list[str], transport: str
) -> None:
    cluster = make_cluster(3, transport=transport)
    server = cluster.server
    assert Requests(server).join() == texts
    assert server.metric("luna_kv_moves_total") > 0
    assert server.metric("luna_preemptions_total") == 0
    # What the guests answered has come back with what their part weighed.
    assert sum(group["guest_attention"] for group in groups_of(cluster)) > 0
    expect_clean_books(server)
    assert "request lies on one group" not in server.log()
    status, refused = server.post("/v1/completions", {"model": MODEL_NAME, "prompt": PROMPTS[0] * 3, "max_tokens": 8})
    assert status == 400
    assert "KV blocks" in refused["error"]["message"]


def test_the_memory_of_the_workers_decides(make_cluster: Callable[..., LunaCluster], texts: list[str]) -> None:
    """Room is what --memory leaves beside weights, a step and the messages of two others."""
    small = {"memory": "163 MiB"}
    cluster = make_cluster(3, worker=small, model_keys='layout = "replicas"')
    server = cluster.server
    n_blocks = [group["kv_blocks_free"] for group in groups_of(cluster)]
    assert max(n_blocks) * 32 < 1200 < sum(n_blocks) * 32, n_blocks
    assert Requests(server).join() == texts
    assert server.metric("luna_kv_moves_total") > 0
    expect_clean_books(server)


def attention_of(cluster: LunaCluster) -> dict[str, float]:
    """What each worker has answered as a guest so far."""
    return {group["devices"][0].split("/")[0]: group["guest_attention"] for group in groups_of(cluster)}


def guests_of(cluster: LunaCluster, before: dict[str, float]) -> list[str]:
    """Workers that have answered for others since, hold blocks and run nothing themselves. Blocks alone are not enough:
    their slice may be on the way still, and nobody's loss."""
    attention = attention_of(cluster)
    holders = {
        group["devices"][0].split("/")[0]
        for group in groups_of(cluster)
        if group["kv_blocks_used"] > 0 and group["running"] == 0
    }
    return sorted(name for name in holders if attention[name] > before[name])


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_lost_guest_costs_no_request(
    make_cluster: Callable[..., LunaCluster], model: Path, texts: list[str], how: str
) -> None:
    cluster = make_cluster(4)
    server = cluster.server
    assert Requests(server).join() == texts
    wait_until(lambda: server.metric("luna_kv_blocks_used") == 0, 20, "free blocks")
    before = attention_of(cluster)
    requests = Requests(server)
    guests: list[str] = []
    wait_until(lambda: guests.extend(guests_of(cluster, before)) or len(guests) > 0, 60, "a guest")
    guest = cluster.workers[guests[0]]
    guest.send_signal(signal.Signals[how])
    assert requests.join() == texts
    assert server.metric("luna_preemptions_total") > 0
    expect_clean_books(server)
    # It comes back, and holds slices again.
    if how == "SIGKILL":
        guest.process.wait()
        cluster.start_worker(int(guest.name[1:]), model)
    else:
        guest.send_signal(signal.SIGCONT)
    wait_until(lambda: len(groups_of(cluster)) == 4, 60, "four groups")
    moved = server.metric("luna_kv_moves_total")
    assert Requests(server).join() == texts
    assert server.metric("luna_kv_moves_total") > moved
    expect_clean_books(server)
    assert "holds no slices of others" not in server.log()
    _, page = get_json(cluster.server_port, "/admin/cluster")
    assert page["lost"] == 1
