"""A model on the devices of workers, processes of their own: any start order, the same answers, who is refused."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from luna_cluster import LunaCluster, get_json, wait_for_status
from luna_server import MODEL_NAME, LunaServer, wait_until

PROMPTS = ("The moon is", "In the beginning", "Write a poem about the sea:", "1, 2, 3, 4,")


@pytest.fixture
def make_cluster(luna_bin: Path, tmp_path: Path) -> Iterator[Callable[..., LunaCluster]]:
    made: list[LunaCluster] = []

    def make(model: Path, n_workers: int, **config: object) -> LunaCluster:
        made.append(LunaCluster(luna_bin, model, tmp_path, n_workers, **config))
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop()


def answers(server: LunaServer, **fields: object) -> list[str]:
    """To all prompts at the same time, in their order."""
    texts = [""] * len(PROMPTS)

    def ask(i: int) -> None:
        body = {"model": MODEL_NAME, "prompt": PROMPTS[i], "max_tokens": 24, "ignore_eos": True}
        status, answer = server.post("/v1/completions", body | fields)
        texts[i] = answer["choices"][0]["text"] if status == 200 else f"{status}: {answer}"

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


GREEDY = {"temperature": 0}
SEEDED = {"temperature": 0.8, "seed": 7, "presence_penalty": 0.5}  # the penalty asks for whole rows of logits


@pytest.fixture(scope="module")
def expected(start_server: Callable[..., LunaServer]) -> tuple[list[str], list[str]]:
    """Of one process with one device."""
    server = start_server()
    both = answers(server, **GREEDY), answers(server, **SEEDED)
    assert server.stop() == 0
    return both


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_workers_answer_as_one_process_does(
    make_cluster: Callable[..., LunaCluster], shards: Path, expected: tuple, transport: str
) -> None:
    cluster = make_cluster(shards, 2, min_devices=2, transport=transport)
    workers = [cluster.start_worker(i, shards) for i in range(2)]  # before the server: they try again
    server = cluster.start_server()
    assert answers(server, **GREEDY) == expected[0]
    assert answers(server, **SEEDED) == expected[1]
    status, page = get_json(server.port, "/admin/cluster")
    assert status == 200 and [w["name"] for w in page["workers"]] == ["w0", "w1"]
    assert server.metric("luna_cluster_devices") == 2
    carrier = "shm" if transport == "auto" else "tcp"
    assert f"transport={carrier}" in workers[0].log()
    assert server.stop() == 0
    assert [worker.stop() for worker in workers] == [0, 0]


def test_the_server_waits_and_says_for_what(
    make_cluster: Callable[..., LunaCluster], shards: Path, expected: tuple
) -> None:
    cluster = make_cluster(shards, 4, min_devices=4)
    server: list[LunaServer] = []
    starting = threading.Thread(target=lambda: server.append(cluster.start_server()))
    starting.start()
    body = wait_for_status(cluster.server_port, "waiting")
    assert body["detail"].startswith("0 of 4 devices have joined")
    for i in (2, 0, 3):
        cluster.start_worker(i, shards)
    wait_until(lambda: "3 of 4" in wait_for_status(cluster.server_port, "waiting")["detail"], 20, "three devices")
    assert get_json(cluster.server_port, "/health/live")[0] == 200
    assert get_json(cluster.server_port, "/health/ready")[0] == 503
    cluster.start_worker(1, shards)
    starting.join()
    assert answers(server[0], **GREEDY) == expected[0]
    layers = [cluster.workers[f"w{i}"].log().split("layers=")[1].split()[0] for i in range(4)]
    assert layers[0].startswith("0..") and layers[3].endswith("..30"), layers


def test_a_worker_with_another_token_or_model_is_refused_with_the_reason(
    make_cluster: Callable[..., LunaCluster], shards: Path, tmp_path: Path
) -> None:
    cluster = make_cluster(shards, 1)
    other = tmp_path / "other-token"
    other.write_text("another secret of more than sixteen bytes")
    stranger = cluster.start_worker(0, shards, token_file=other)
    starting = threading.Thread(target=cluster.start_server)
    starting.start()
    wait_until(lambda: "the token is another one" in stranger.log(), 20, "the stranger's log")
    _, page = get_json(cluster.server_port, "/admin/cluster")
    assert page["workers"] == [] and page["refused"] >= 1
    right = cluster.start_worker(1, shards)
    starting.join()
    assert right.process.poll() is None and stranger.process.poll() is None  # both keep trying


def test_a_waiting_server_ends_in_order(make_cluster: Callable[..., LunaCluster], shards: Path) -> None:
    cluster = make_cluster(shards, 1)
    process = subprocess.Popen(
        [str(cluster.binary), "serve", "--config", str(cluster.config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_status(cluster.server_port, "waiting")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def hostile_bytes() -> list[bytes]:
    def head(version: int, kind: int, n_bytes: int) -> bytes:
        return struct.pack("<IHHQII", 0x4C54434C, version, kind, 0, n_bytes, 0)

    return [
        b"GET / HTTP/1.1\r\nHost: luna\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        head(9, 1, 0),
        head(3, 1, 0xFFFFFFFF),
        head(3, 6, 100) + bytes(100),  # join, without a word before
        head(3, 3, 32) + bytes(32),  # a proof of nothing
        head(3, 1, 36) + bytes(36) + head(3, 3, 32) + bytes(32),  # a wrong proof
        bytes(5000),
    ]


def test_hostile_frames_are_refused_and_nobody_else_notices(
    make_cluster: Callable[..., LunaCluster], shards: Path, expected: tuple
) -> None:
    cluster = make_cluster(shards, 1)
    cluster.start_worker(0, shards)
    server = cluster.start_server()
    before = server.metric("luna_cluster_refused_total")
    attacks = hostile_bytes()
    for attack in attacks:
        with socket.create_connection(("127.0.0.1", cluster.port), timeout=10) as connection:
            connection.sendall(attack)
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):  # until it is closed
                    pass
    wait_until(
        lambda: server.metric("luna_cluster_refused_total") == before + len(attacks), 10, "all refused"
    )
    assert answers(server, **GREEDY) == expected[0]
    assert server.metric("luna_cluster_workers") == 1
