"""How the server ends: signals drain it, a port that is taken stops its start."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from luna_server import MODEL_NAME, LunaServer, config_text, wait_until

# Longer than the steps a drain needs to begin, far shorter than the drain timeout.
N_TOKENS = 60


def read_stream(port: int, n_tokens: int, events: list[bytes], first: threading.Event) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {
        "model": MODEL_NAME, "stream": True, "max_tokens": n_tokens, "temperature": 0,
        "messages": [{"role": "user", "content": "x"}], "logit_bias": {"260": 100},
    }
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    while line := answer.readline():
        if line.startswith(b"data: "):
            events.append(line[6:].strip())
            first.set()


@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_answers_end_and_exits_with_0(
    start_server: Callable[..., LunaServer], stop_signal: signal.Signals
) -> None:
    server = start_server()
    events: list[bytes] = []
    first = threading.Event()
    reader = threading.Thread(target=read_stream, args=(server.port, N_TOKENS, events, first))
    reader.start()
    assert first.wait(60)
    assert server.stop(stop_signal) == 0
    reader.join(10)
    assert not reader.is_alive(), "the stream hangs after the server's end"
    assert events[-1] == b"[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"


def test_a_second_signal_ends_it_at_once(start_server: Callable[..., LunaServer]) -> None:
    server = start_server(server="drain_timeout_ms = 600000")
    events: list[bytes] = []
    first = threading.Event()
    reader = threading.Thread(target=read_stream, args=(server.port, 7000, events, first))
    reader.start()
    assert first.wait(60)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: refuses(server.port), 15, "new connections are refused while it drains")
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(15)
    reader.join(10)
    assert not reader.is_alive()


def refuses(port: int) -> bool:
    """Whether the server takes no new work: no connection, or not ready."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/health")
        return connection.getresponse().status == 503
    except OSError:
        return True


def test_a_port_in_use_stops_the_start_with_its_number(
    run_luna: Callable, model: Path, tmp_path: Path
) -> None:
    config = tmp_path / "luna.toml"
    config.write_text(config_text(model), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_luna("serve", "--config", config, "--port", port)
        assert done.returncode == 1
        assert str(port) in done.stderr and "in use" in done.stderr


def test_host_and_port_options_win_over_the_file(start_server: Callable[..., LunaServer]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = start_server("--listen", f"127.0.0.1:{port}")
    assert server.port == port
    assert server.stop() == 0
