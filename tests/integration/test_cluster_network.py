"""A network in trouble between a server and one of its workers: what docs/cluster.md promises happens."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_streams import Streams, wait_for_all
from luna_cluster import LunaCluster
from luna_server import wait_until
from relay import Relay

PARTITION_S = 10
FROZEN_S = 3  # three times what a worker may say nothing


@pytest.fixture(scope="module")
def relayed(
    luna_bin: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LunaCluster, Relay]]:
    """Two workers, the second of which reaches the server by a relay."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = LunaCluster(luna_bin, shards, folder, 2, min_devices=2, model_keys="kv_tokens_max = 8192")
    relay = Relay(cluster.port)
    try:
        cluster.start_worker(0, shards)
        cluster.start_worker(1, shards, port=relay.port)
        cluster.start_server()
        yield cluster, relay
    finally:
        relay.close()
        cluster.stop()


@pytest.fixture(scope="module")
def texts(relayed: tuple[LunaCluster, Relay]) -> list[str]:
    """That nothing happened to."""
    return Streams(relayed[0].server).join()


def n_lost(cluster: LunaCluster) -> float:
    return cluster.server.metric("luna_cluster_workers_lost_total")


def is_as_before(cluster: LunaCluster, texts: list[str]) -> bool:
    """The worker is used again, without having been started again, and nothing is left of the trouble."""
    wait_for_all(cluster)
    assert all(worker.process.poll() is None for worker in cluster.workers.values())
    assert Streams(cluster.server).join() == texts
    wait_until(cluster.server.is_idle, 10, "free blocks")
    return cluster.server.metric("luna_kv_audit_failures_total") == 0


def test_ten_seconds_of_silence_cost_no_request(relayed: tuple[LunaCluster, Relay], texts: list[str]) -> None:
    cluster, relay = relayed
    wait_for_all(cluster)
    before = n_lost(cluster)
    streams = Streams.under_way(cluster.server)
    relay.be_silent()
    began = time.monotonic()
    try:
        assert streams.join() == texts  # while the worker is away
        assert n_lost(cluster) == before + 1
        assert Streams(cluster.server).join() == texts
        time.sleep(max(0.0, PARTITION_S - (time.monotonic() - began)))  # its length is what is tested
    finally:
        relay.pass_again()
    assert is_as_before(cluster, texts)
    assert n_lost(cluster) == before + 1


@pytest.mark.parametrize("side", ["server", "client"])
def test_a_half_open_connection_costs_no_request(
    relayed: tuple[LunaCluster, Relay], texts: list[str], side: str
) -> None:
    """`side` is told that the connection has ended; the other one has to find out."""
    cluster, relay = relayed
    wait_for_all(cluster)
    before = n_lost(cluster)
    streams = Streams.under_way(cluster.server)
    relay.forget(side)
    wait_until(lambda: n_lost(cluster) == before + 1, 10, "the worker is lost")
    assert streams.join() == texts
    assert is_as_before(cluster, texts)
    assert n_lost(cluster) == before + 1


def test_a_server_that_stood_still_goes_on_with_its_streams(
    relayed: tuple[LunaCluster, Relay], texts: list[str]
) -> None:
    """Its workers have given it up meanwhile, and come back."""
    cluster, _ = relayed
    wait_for_all(cluster)
    streams = Streams.under_way(cluster.server)
    cluster.server.process.send_signal(signal.SIGSTOP)
    time.sleep(FROZEN_S)  # its length is what is tested
    cluster.server.process.send_signal(signal.SIGCONT)
    assert streams.join() == texts
    assert is_as_before(cluster, texts)
