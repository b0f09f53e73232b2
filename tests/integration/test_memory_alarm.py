"""A worker that leaks: relieved, drained and ended for its supervisor to start again; nobody notices."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from luna_cluster import LunaCluster, get_json
from luna_server import MODEL_NAME, LunaServer, wait_until

EXIT_RESTART = 75
LEAK_MIB = 400  # of a budget of 300
ALARM = "memory_alarm_ms = 1000"


@pytest.fixture(scope="module")
def leak() -> Path:
    if "LUNA_LOGITS" not in os.environ:
        pytest.skip("LUNA_LOGITS is not set: no leak to preload")
    path = Path(os.environ["LUNA_LOGITS"]).resolve().with_name("luna_leak.so")
    assert path.is_file(), f"{path}: no such file"
    return path


def answers(server: LunaServer, n_tokens: int) -> list[str]:
    texts = [""] * 4

    def ask(i: int) -> None:
        body = {"model": MODEL_NAME, "prompt": f"{i}. The sea", "max_tokens": n_tokens, "ignore_eos": True,
                "temperature": 0.7, "seed": i}  # fmt: skip
        status, answer = server.post("/v1/completions", body)
        texts[i] = answer["choices"][0]["text"] if status == 200 else f"{status}: {answer}"

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


def has(cluster: LunaCluster, layout: str) -> bool:
    """The model on two workers."""
    _, page = get_json(cluster.server_port, "/admin/cluster")
    sizes = [len(group) for model in page["models"] for group in model["groups"]]
    return sizes == ([2] if layout == "pipeline" else [1, 1])


@pytest.mark.parametrize("layout", ["pipeline", "replicas"])
def test_a_worker_that_leaks_is_drained_and_started_again(
    luna_bin: Path, run_luna: Callable, model: Path, leak: Path, tmp_path: Path, layout: str
) -> None:
    shards = tmp_path / "shards"
    assert run_luna("split", model, "--num-shards", 2, "--out", shards).returncode == 0
    cluster = LunaCluster(
        luna_bin, shards, tmp_path, 2, min_devices=2, cluster=ALARM,
        model_keys=f'kv_tokens_max = 4096\nlayout = "{layout}"',
    )  # fmt: skip
    when = tmp_path / "leak-now"
    environment = {"LD_PRELOAD": str(leak), "LUNA_LEAK_MIB": str(LEAK_MIB), "LUNA_LEAK_WHEN": str(when)}
    try:
        cluster.start_worker(0, shards)
        leaking = cluster.start_worker(1, shards, environment=environment)
        server = cluster.start_server()
        expected = answers(server, 120)
        # A full cache is health.
        assert server.metric("luna_kv_blocks_cached") > 0
        assert server.metric("luna_cluster_memory_alarms") == 0
        texts: list[list[str]] = []

        def ask() -> None:
            while leaking.process.poll() is None:
                texts.append(answers(server, 120))

        asking = threading.Thread(target=ask)
        when.touch()
        wait_until(lambda: server.metric("luna_cluster_memory_alarms") == 1, 20, "the alarm")
        asking.start()
        assert leaking.process.wait(30) == EXIT_RESTART
        cluster.start_worker(1, shards)
        asking.join()
        assert texts == [expected] * len(texts)
        wait_until(lambda: has(cluster, layout), 30, "a model on both workers")
        log = server.log()
        steps = [line.split("step=")[1].split()[0] for line in log.splitlines() if "memory alarm worker=w1" in line]
        assert steps == ["relieve", "move", "drain", "restart"]
        assert "memory was given back" in leaking.log()
        # Of a pipeline there is one group, of copies another one to move to.
        if layout == "replicas":
            assert server.metric("luna_moves_total") > 0
        assert server.metric("luna_cluster_workers_relieved_total") == 1
        assert server.metric("luna_cluster_workers_restarted_total") == 1
        assert server.metric("luna_cluster_workers_lost_total") == 0
        assert server.metric("luna_cluster_workers_drained_total") == 1
        wait_until(lambda: server.metric("luna_cluster_memory_alarms") == 0, 10, "the end of the alarm")
    finally:
        cluster.stop()
