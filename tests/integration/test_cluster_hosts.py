"""Workers on two hosts, each a network namespace, with a cable between them that can be pulled."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from luna_cluster import LunaCluster
from luna_server import MODEL_NAME, LunaServer, wait_until
from test_hosts import ADDRESSES, HOSTS, hosts, ip  # noqa: F401

N_STREAMS = 4
# Runs where the server is: asks for all at once and prints the texts and what the page says.
CLIENT = """
import json, sys, threading, urllib.request
port, bodies = int(sys.argv[1]), json.loads(sys.argv[2])
texts = [""] * len(bodies)
def ask(i):
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(bodies[i]).encode(),
                                   {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=90) as answer:
            texts[i] = json.loads(answer.read())["choices"][0]["text"]
    except OSError as error:
        texts[i] = str(error)
threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
for thread in threads: thread.start()
for thread in threads: thread.join()
with urllib.request.urlopen(f"http://127.0.0.1:{port}/admin/cluster", timeout=30) as answer:
    page = json.loads(answer.read())
print(json.dumps([texts, page]))
"""


def bodies(n_tokens: int) -> list[dict]:
    return [
        {"model": MODEL_NAME, "prompt": f"{i}. A ship", "max_tokens": n_tokens, "ignore_eos": True, "seed": i,
         "temperature": 0.8 * (i % 2)}
        for i in range(N_STREAMS)
    ]  # fmt: skip


def program_on(host: str, luna_bin: Path, folder: Path) -> Path:
    path = folder / f"luna-on-{host}"
    path.write_text(f'#!/bin/sh\nexec ip netns exec {host} {luna_bin} "$@"\n')
    path.chmod(0o755)
    return path


def ask_on(host: str, port: int, asked: list[dict]) -> tuple[list[str], dict]:
    command = ["ip", "netns", "exec", host, sys.executable, "-c", CLIENT, str(port), json.dumps(asked)]
    texts, page = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return texts, page


@pytest.fixture
def cluster(luna_bin: Path, run_luna: Callable, model: Path, hosts: None, tmp_path: Path) -> Iterator[LunaCluster]:  # noqa: F811
    shards = tmp_path / "shards"
    assert run_luna("split", model, "--num-shards", 2, "--out", shards).returncode == 0
    programs = [program_on(host, luna_bin, tmp_path) for host in HOSTS]
    made = LunaCluster(
        programs[0], shards, tmp_path, 2, min_devices=2, cluster=f'host = "{ADDRESSES[0]}"',
        model_keys="kv_tokens_max = 4096",
    )  # fmt: skip
    try:
        for i in (0, 1):
            made.binary = programs[i]
            made.start_worker(i, shards, host=ADDRESSES[0])
        made.binary = programs[0]
        made.start_server()
        yield made
    finally:
        made.stop()


def test_two_hosts_answer_as_one_process_does_and_survive_a_pulled_cable(
    cluster: LunaCluster, start_server: Callable[..., LunaServer]
) -> None:
    alone = start_server()
    expected = [alone.post("/v1/completions", body)[1]["choices"][0]["text"] for body in bodies(64)]
    assert alone.stop() == 0
    texts, page = ask_on(HOSTS[0], cluster.server_port, bodies(64))
    assert texts == expected
    assert [len(group) for model in page["models"] for group in model["groups"]] == [2]
    assert "transport=tcp" in cluster.workers["w1"].log()
    # The host at the other end is cut off while requests run: the near one takes over.
    seen: list[tuple[list[str], dict]] = []
    asking = threading.Thread(target=lambda: seen.append(ask_on(HOSTS[0], cluster.server_port, bodies(64))))
    asking.start()
    ip("-n", HOSTS[0], "link", "set", "eth-a", "down")
    asking.join()
    assert seen[0][0] == expected
    ip("-n", HOSTS[0], "link", "set", "eth-a", "up")

    def is_whole() -> bool:
        _, now = ask_on(HOSTS[0], cluster.server_port, [])
        return any(len(group) == 2 for model in now["models"] for group in model["groups"])

    wait_until(is_whole, 30, "both hosts again")
    assert ask_on(HOSTS[0], cluster.server_port, bodies(64))[0] == expected
