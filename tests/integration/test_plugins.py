"""Plugins as files: what each exports, and what a bad one does to the program's start."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from luna_server import config_text, wait_until

START_TIMEOUT_S = 60
SHIPPED = ["backend_cpu", "backend_reference", "quant_awq", "quant_dense", "quant_gguf",
           "quant_gptq", "quant_int8", "role_generate", "role_intent", "role_postprocess",
           "scheduler_edf", "scheduler_fair", "scheduler_flowsplit", "scheduler_srf",
           "scheduler_static", "transport_inproc", "transport_shm", "transport_tcp"]
# Owner and descriptor sizes, type 1, owner "Luna" padded: what precedes the note's payload.
NOTE_HEAD = struct.pack("<I", 5)
NOTE_OWNER = struct.pack("<I", 1) + b"Luna\0\0\0\0"


@pytest.fixture
def installed(luna_bin: Path, tmp_path: Path) -> Path:
    """A copy of the program with its plugins, as an installation has them; a test may spoil it."""
    root = tmp_path / "installed"
    (root / "bin").mkdir(parents=True)
    shutil.copy2(luna_bin, root / "bin" / "luna")
    source = luna_bin.parents[1] / "lib" / "luna" / "plugins"
    (root / "lib" / "luna").mkdir(parents=True)
    shutil.copytree(source, root / "lib" / "luna" / "plugins")
    return root


def plugin(root: Path, name: str) -> Path:
    return root / "lib" / "luna" / "plugins" / f"{name}.so"


def serve(root: Path, model: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    config = tmp_path / "luna.toml"
    config.write_text(config_text(model), encoding="utf-8")
    return subprocess.run(
        [str(root / "bin" / "luna"), "serve", "--config", str(config)], capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=START_TIMEOUT_S,
    )


def assert_start_stopped(done: subprocess.CompletedProcess[str], *reasons: str) -> None:
    assert done.returncode == 1, f"exit {done.returncode}: {done.stderr[-2000:]}"
    for reason in reasons:
        assert reason in done.stderr, done.stderr[-2000:]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_plugin_exports_exactly_one_symbol(luna_bin: Path, name: str) -> None:
    path = plugin(luna_bin.parents[1], name)
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", str(path)], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in listing.stdout.splitlines()] == ["luna_plugin_query"]


def test_a_removed_plugin_stops_the_start_and_shows_what_is_there(
    installed: Path, model: Path, tmp_path: Path
) -> None:
    plugin(installed, "scheduler_static").unlink()
    assert_start_stopped(serve(installed, model, tmp_path), "static", "lib/luna/plugins")


@pytest.mark.parametrize("part", [0, 1, 4])
def test_a_truncated_plugin_stops_the_start_with_its_path(
    installed: Path, model: Path, tmp_path: Path, part: int
) -> None:
    path = plugin(installed, "backend_cpu")
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[: len(whole) * part // 8])
    assert_start_stopped(serve(installed, model, tmp_path), "backend_cpu.so", "cpu")


def test_a_plugin_of_another_abi_stops_the_start_with_both_versions(
    installed: Path, model: Path, tmp_path: Path
) -> None:
    path = plugin(installed, "role_generate")
    content = bytearray(path.read_bytes())
    at = content.index(NOTE_OWNER)
    assert content[at - 8 : at - 4] == NOTE_HEAD
    struct.pack_into("<I", content, at + len(NOTE_OWNER) + 4, 77)  # abi_major, after struct_size
    path.unlink()
    path.write_bytes(content)
    assert_start_stopped(serve(installed, model, tmp_path), "role_generate.so", "77")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("throws_in_constructor", "zoo"),
        ("throws_in_create", "thrown by create"),
        ("fails_in_create", "no such device here"),
        ("hangs_in_constructor", "zoo"),
        ("hangs_in_create", "zoo"),
    ],
)
def test_a_policy_that_breaks_its_start_stops_the_programs(
    luna_bin: Path, model: Path, tmp_path: Path, fault: str, reason: str
) -> None:
    zoo = luna_bin.parents[1] / "tests" / "zoo" / fault
    if not zoo.is_dir():
        pytest.skip(f"{zoo} is not built")
    config = tmp_path / "luna.toml"
    config.write_text(config_text(model).replace('"static"', '"zoo"'), encoding="utf-8")
    done = subprocess.run(
        [str(luna_bin), "--plugin-dir", str(zoo), "serve", "--config", str(config)],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=START_TIMEOUT_S,
    )
    assert_start_stopped(done, reason)


def test_while_a_start_takes_long_the_port_answers_probes(
    luna_bin: Path, model: Path, tmp_path: Path
) -> None:
    """A plugin that hangs keeps the program loading until its watchdog ends it."""
    zoo = luna_bin.parents[1] / "tests" / "zoo" / "hangs_in_create"
    if not zoo.is_dir():
        pytest.skip(f"{zoo} is not built")
    config = tmp_path / "luna.toml"
    config.write_text(config_text(model).replace('"static"', '"zoo"'), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [str(luna_bin), "--plugin-dir", str(zoo), "serve", "--config", str(config), "--port", str(port)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )

    def status(path: str, method: str = "GET") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        finally:
            connection.close()

    def answers() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            return status("/health/live") == 200
        return False

    try:
        wait_until(answers, 10, "the port answers while the program loads")
        assert status("/health/ready") == 503
        assert status("/v1/models") == 503
        assert status("/v1/chat/completions", "POST") == 503
        assert server.poll() is None
    finally:
        server.kill()
        server.wait()


def test_plugins_list_and_info_describe_what_ships(run_luna: Callable) -> None:
    listing = run_luna("plugins", "list")
    assert listing.returncode == 0
    for name in ("cpu", "reference", "static", "generate", "intent", "postprocess", "gguf", "inproc", "tcp"):
        assert name in listing.stdout
        info = run_luna("plugins", "info", name)
        assert info.returncode == 0 and name in info.stdout


def test_plugins_why_tells_the_reason_of_a_refusal(run_luna: Callable, tmp_path: Path) -> None:
    assert run_luna("plugins", "why", "cpu").returncode == 0
    text = tmp_path / "text.so"
    text.write_text("not a library")
    done = run_luna("plugins", "why", text)
    assert done.returncode == 1 and "text.so" in done.stdout + done.stderr
