"""Transport tcp between hosts: two network namespaces with a cable between them that can be pulled."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HOSTS = ("luna-a", "luna-b")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
PARTITION_S = 10
ANSWER_S = 30


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def driver() -> Path:
    if "LUNA_LOGITS" not in os.environ:
        pytest.skip("LUNA_LOGITS is not set: no drivers to run")
    path = Path(os.environ["LUNA_LOGITS"]).resolve().with_name("luna_transport_peer")
    assert path.is_file(), f"{path}: no such file"
    return path


@pytest.fixture
def hosts() -> Iterator[None]:
    """Two namespaces and a pair of virtual Ethernet devices."""
    if shutil.which("ip") is None:
        pytest.skip("the command ip is not here: no network namespaces")
    try:
        ip("netns", "add", HOSTS[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    try:
        ip("netns", "add", HOSTS[1])
        ip("link", "add", "eth-a", "netns", HOSTS[0], "type", "veth", "peer", "name", "eth-b", "netns", HOSTS[1])
        for host, device, address in zip(HOSTS, ("eth-a", "eth-b"), ADDRESSES, strict=True):
            ip("-n", host, "address", "add", f"{address}/24", "dev", device)
            ip("-n", host, "link", "set", device, "up")
            ip("-n", host, "link", "set", "lo", "up")
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)


class Rank:
    """One process of the pair, on its host."""

    def __init__(self, driver: Path, rank: int, *settings: str):
        command = ["ip", "netns", "exec", HOSTS[rank], str(driver), "transport_tcp", str(rank)]
        command += [f"host={ADDRESSES[rank]}", *settings]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self.line().split()[1]

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
        assert ready, f"no answer within {ANSWER_S} s"
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def pair(driver: Path, hosts: None, tmp_path: Path) -> Iterator[tuple[Rank, Rank]]:
    token = tmp_path / "token"
    token.write_text("a token for two hosts\n", encoding="utf-8")
    ranks = []
    try:
        for rank in (0, 1):
            ranks.append(Rank(driver, rank, f"token_file={token}"))
        ranks[0].say(f"connect {ranks[1].address}")
        ranks[1].say(f"connect {ranks[0].address}")
        yield ranks[0], ranks[1]
    finally:
        for rank in ranks:
            rank.end()


def test_ranks_on_two_hosts_survive_a_pulled_cable(pair: tuple[Rank, Rank]) -> None:
    first, _ = pair
    first.say("echo 200 5000")
    assert first.line() == "echoed"
    first.say("echo 3 8000000")
    assert first.line() == "echoed"
    ip("-n", HOSTS[0], "link", "set", "eth-a", "down")
    first.say("echo 50 200000")
    time.sleep(PARTITION_S)  # the length of the partition is what is tested
    ip("-n", HOSTS[0], "link", "set", "eth-a", "up")
    assert first.line() == "echoed"


def test_a_host_that_is_gone_is_reported(pair: tuple[Rank, Rank]) -> None:
    first, second = pair
    first.say("echo 10 5000")
    assert first.line() == "echoed"
    second.end()
    first.say("echo 1 5000")
    assert first.line() == "status -6"
