"""`luna bench` against the real server and in its own process: counts, files, the end by Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from luna_server import LunaServer, config_text, wait_until

N_REQUESTS, N_OUTPUT = 6, 8


def load(*more: object) -> list[str]:
    arguments = ["--requests", N_REQUESTS, "--prompt-tokens", 40, "--output-tokens", N_OUTPUT, *more]
    return [str(argument) for argument in arguments]


def check(path: Path, n_prompt: int) -> dict:
    """The report counts every request, and each as the server did."""
    report = json.loads(path.read_text(encoding="utf-8"))
    summary = report["summary"]
    assert (summary["requests"], summary["failed_requests"], report["errors"]) == (N_REQUESTS, 0, {})
    assert summary["requests_without_usage"] == 0
    assert summary["output_tokens"] == N_REQUESTS * N_OUTPUT
    assert summary["prompt_tokens"] == N_REQUESTS * n_prompt
    measured = [r for r in report["requests"] if not r["warm_up"]]
    assert len(measured) == N_REQUESTS
    for request in measured:
        assert request["intended_ms"] <= request["sent_ms"] <= request["first_token_ms"]
        assert request["first_token_ms"] <= request["last_token_ms"] <= request["end_ms"]
    return report


def test_closed_loop_against_the_server(
    server: LunaServer, run_luna: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    before = server.metric("luna_requests_total")
    files = ["--json", tmp_path / "b.json", "--plot", tmp_path / "b.svg", "--token-times"]
    done = run_luna(
        "bench", "--url", server.url, *load("--clients", 3, "--warm-up", 2, "--ttft-limit-ms", 60000), *files
    )
    assert done.returncode == 0, done.stderr
    report = check(tmp_path / "b.json", 40)
    assert report["summary"]["warm_up_requests"] == 2
    assert report["summary"]["requests_within_limits"] == N_REQUESTS
    assert server.metric("luna_requests_total") - before == N_REQUESTS + 2
    for word in ("TTFT", "ITL", "TPOT", "E2E", "goodput", "output tokens a second"):
        assert word in done.stdout
    xml.etree.ElementTree.parse(tmp_path / "b.svg")


def test_open_loop_with_text_prompts(
    server: LunaServer, run_luna: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    message = {"messages": [{"role": "user", "content": "Name a river."}]}
    prompts.write_text('"The moon"\n' + json.dumps(message) + "\n", encoding="utf-8")
    done = run_luna(
        "bench", "--url", server.url, "--rate", 20, "--requests", 4, "--output-tokens", 4, "--prompts", prompts,
        "--seed", 1, "--json", tmp_path / "b.json",
    )
    assert done.returncode == 0, done.stderr
    assert "again and again" in done.stderr
    report = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    assert report["summary"]["output_tokens"] == 16
    assert report["run"]["seed"] == 1


def test_in_its_own_process(
    run_luna: Callable[..., subprocess.CompletedProcess[str]], model: Path, tmp_path: Path
) -> None:
    config = tmp_path / "luna.toml"
    config.write_text(config_text(model), encoding="utf-8")
    done = run_luna("bench", "--config", config, *load("--clients", 2), "--json", tmp_path / "b.json")
    assert done.returncode == 0, done.stderr
    check(tmp_path / "b.json", 40)


def test_errors_of_the_server_are_counted_and_the_status_tells(
    server: LunaServer, run_luna: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_luna("bench", "--url", server.url, "--requests", 3, "--served-model", "nothing")
    assert done.returncode == 1
    assert "error, 3 times: HTTP 404" in done.stdout
    nobody = run_luna("bench", "--url", "http://127.0.0.1:1", "--served-model", "m", "--requests", 2)
    assert nobody.returncode == 1
    assert "error, 2 times: connect: " in nobody.stdout


@pytest.mark.parametrize("url", ["ftp://x", "https://x"])
def test_refuses_other_urls(run_luna: Callable[..., subprocess.CompletedProcess[str]], url: str) -> None:
    done = run_luna("bench", "--url", url)
    assert done.returncode == 1
    assert url in done.stderr


def test_ctrl_c_reports_what_came_till_then(server: LunaServer, luna_bin: Path, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    command = [luna_bin, "bench", "--url", server.url, "--clients", 2, "--requests", 100000, "--prompt-tokens", 8]
    command += ["--output-tokens", 4, "--json", path]
    before = server.metric("luna_requests_total")
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True)
    wait_until(lambda: server.metric("luna_requests_total") >= before + 6, 60, "six requests")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "ended early" in out
    summary = json.loads(path.read_text(encoding="utf-8"))["summary"]
    assert summary["requests"] >= 4
    assert summary["failed_requests"] == 0
    wait_until(server.is_idle, 30, "the cut requests are gone")
