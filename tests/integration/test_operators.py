"""What an operator says of plugins: which serve, whom to trust, what to do when a policy keeps failing."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from luna_server import LunaServer, config_text

START_TIMEOUT_S = 60


@pytest.fixture
def config(model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "luna.toml"
    path.write_text(config_text(model), encoding="utf-8")
    return path


@pytest.fixture
def installed(luna_bin: Path, tmp_path: Path) -> Path:
    """A copy of the program, so that its plugins can be checked and spoilt."""
    root = tmp_path / "installed"
    (root / "bin").mkdir(parents=True)
    shutil.copy2(luna_bin, root / "bin" / "luna")
    (root / "lib" / "luna").mkdir(parents=True)
    shutil.copytree(luna_bin.parents[1] / "lib" / "luna" / "plugins", root / "lib" / "luna" / "plugins")
    return root


def zoo(luna_bin: Path, fault: str) -> Path:
    folder = luna_bin.parents[1] / "tests" / "zoo" / fault
    if not folder.is_dir():
        pytest.skip(f"{folder} is not built")
    return folder


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rows(checked: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return {row["stage"]: row for row in json.loads(checked.stdout)["pipeline"]}


def test_check_prints_who_serves_each_place(run_luna: Callable, config: Path) -> None:
    done = run_luna("check", config)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["stage", "plugin", "file", "version", "needed", "offered", "verdict"]
    for stage, plugin in [("device[0] cpu0", "cpu"), ("stage[0]", "generate"), ("scheduler.policy", "static")]:
        row = next(line for line in lines if line.startswith(stage))
        assert f" {plugin} " in row and row.endswith("ok") and ".so" in row
    assert lines[-1] == "the configuration is right"


def test_check_as_json_names_what_is_missing_and_refused(
    run_luna: Callable, luna_bin: Path, config: Path
) -> None:
    done = run_luna("check", "--json", config, "--set", "scheduler.policy=statik")
    assert done.returncode == 1
    found = rows(done)
    assert found["scheduler.policy"]["verdict"] == "not found"
    assert "statik" in found["scheduler.policy"]["reason"] and "static" in found["scheduler.policy"]["reason"]
    assert found["stage[0]"] == {**found["stage[0]"], "plugin": "generate", "verdict": "ok", "reason": ""}
    assert found["stage[0]"]["needed"].startswith("luna.role/") and "ABI" in found["stage[0]"]["offered"]
    newer = zoo(luna_bin, "newer_minor")
    done = run_luna("--plugin-dir", newer, "check", "--json", config, "--set", "scheduler.policy=zoo")
    assert done.returncode == 1
    policy = rows(done)["scheduler.policy"]
    assert policy["verdict"] == "refused" and ".99" in policy["needed"] and ".99" not in policy["offered"]


def test_set_swaps_the_policy(
    start_server: Callable[..., LunaServer], run_luna: Callable, config: Path
) -> None:
    assert rows(run_luna("check", "--json", config, "--set", "scheduler.policy=srf"))["scheduler.policy"]["plugin"] == "srf"
    server = start_server("--set", "scheduler.policy=srf", "--set", "scheduler.srf.aging=2.0", policy="static")
    status, body = server.chat("What is the sea?", max_tokens=5)
    assert status == 200, body
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("scheduler.policy", "must be KEY=VALUE"),
        ("scheduler.polcy=srf", "unknown key 'polcy' in scheduler"),
        ("server.port=70000", "server.port = 70000: must be"),
        ("scheduler.srf.aging=old", "scheduler.srf.aging"),
        ("model[3].path=x", "the last is model[0]"),
        ("log.level=\x1b[2J", "control characters"),
    ],
)
def test_a_wrong_set_stops_serve_and_check_with_its_key(
    run_luna: Callable, config: Path, text: str, says: str
) -> None:
    for command in (["serve", "--config", config], ["check", config]):
        done = run_luna(*command, "--set", text)
        assert done.returncode == 1 and says in done.stderr, done.stderr
        assert "\x1b" not in done.stderr


def test_a_worker_takes_set_for_what_it_reads(run_luna: Callable) -> None:
    worker = ["worker", "--join", "127.0.0.1:1", "--memory", "64 MiB"]
    done = run_luna(*worker, "--set", "scheduler.policy=srf")
    assert done.returncode == 1 and "a worker reads [plugins], [transport] and [log] only" in done.stderr
    done = run_luna(*worker, "--set", "plugins.require_checked=true")
    assert done.returncode == 1 and "there is no record" in done.stderr


def test_a_pin_holds_or_stops_the_start(run_luna: Callable, config: Path, luna_bin: Path) -> None:
    pin = f"plugins.sha256.static={sha256(luna_bin.parents[1] / 'lib/luna/plugins/scheduler_static.so')}"
    done = run_luna("check", "--json", config, "--set", pin)
    assert done.returncode == 0 and rows(done)["scheduler.policy"]["verdict"] == "ok (pinned)"
    wrong = "0" * 64
    done = run_luna("serve", "--config", config, "--set", f"plugins.sha256.static={wrong}")
    assert done.returncode == 1
    assert f'plugins.sha256.static = "{wrong}", the file has ' in done.stderr
    done = run_luna("check", "--json", config, "--set", f"plugins.sha256.statik={wrong}")
    assert done.returncode == 1 and "nothing is held to it" in done.stdout


def test_only_checked_plugins_are_loaded(installed: Path, config: Path) -> None:
    program = str(installed / "bin" / "luna")
    folder = installed / "lib" / "luna" / "plugins"

    def luna(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, timeout=START_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )

    wanted = ("--set", "plugins.require_checked=true")
    done = luna("check", "--json", config, *wanted)
    assert done.returncode == 1
    policy = rows(done)["scheduler.policy"]
    assert policy["verdict"] == "refused" and "there is no record" in policy["reason"]
    assert "luna plugins check --record" in policy["reason"]

    # Formats that the model does not need go, so that fewer are to be checked.
    needed = {"backend_cpu", "quant_gguf", "quant_dense", "role_generate", "scheduler_static"}
    for plugin in folder.glob("*.so"):
        if plugin.stem not in needed:
            plugin.unlink()
            continue
        done = luna("plugins", "check", "--record", plugin)
        assert done.returncode == 0, done.stdout[-2000:]
        assert f"sha256 {sha256(plugin)}\n" in plugin.with_suffix(".lunacheck").read_text()
    done = luna("check", "--json", config, *wanted)
    assert done.returncode == 0, done.stdout
    assert all(row["verdict"] == "ok (checked)" for row in rows(done).values())

    static = folder / "scheduler_static.so"
    static.write_bytes(static.read_bytes() + b"\0")
    done = luna("serve", "--config", config, *wanted)
    assert done.returncode == 1 and "is of another file" in done.stderr


def test_a_check_that_fails_takes_an_older_record_back(luna_bin: Path, run_luna: Callable, tmp_path: Path) -> None:
    plugin = tmp_path / "policy.so"
    shutil.copy2(zoo(luna_bin, "names_no_row") / "zoo_names_no_row.so", plugin)
    record = plugin.with_suffix(".lunacheck")
    record.write_text("lunacheck 1\n")
    done = run_luna("plugins", "check", "--record", plugin)
    assert done.returncode == 1
    assert "verdict broken\n" in record.read_text()
    done = run_luna("plugins", "check", "--record", "--only", "A", plugin)
    assert done.returncode == 1 and "--record: is of all cases" in done.stderr


QUESTIONS = [f"Tell me {n} things about the number {n}." for n in range(2, 10)]


def answers(server: LunaServer) -> list[str]:
    """All asked at once."""
    texts = [""] * len(QUESTIONS)

    def ask(i: int) -> None:
        status, body = server.chat(QUESTIONS[i], max_tokens=24)
        assert status == 200, body
        texts[i] = body["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(QUESTIONS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


@pytest.fixture(scope="module")
def calm_answers(start_server: Callable[..., LunaServer]) -> list[str]:
    server = start_server()
    texts = answers(server)
    assert server.metric("luna_policy_replacements_total") == 0
    assert server.stop() == 0
    return texts


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("turns_illegal", "unknown_row"), ("stands_still", "changes_nothing"), ("late_plan", "late")],
)
def test_a_policy_that_keeps_failing_is_replaced_under_requests(
    start_server: Callable[..., LunaServer], luna_bin: Path, calm_answers: list[str], fault: str, reason: str
) -> None:
    server = start_server(
        "--set", f'plugins.paths=["{zoo(luna_bin, fault)}"]', "--set", 'scheduler.fallback=["static"]',
        "--set", "scheduler.plan_budget_ms=15", policy="zoo",
    )
    assert answers(server) == calm_answers
    assert server.metric("luna_policy_replacements_total") == 1
    counted = "luna_plans_late_total" if reason == "late" else "luna_plan_rejected_total"
    assert server.metric(counted) >= 8
    assert f"policy replaced policy=zoo by=static reason={reason}" in server.log()
    assert server.metric("luna_kv_audit_failures_total") == 0
    assert server.stop() == 0


def test_without_a_fallback_a_late_policy_is_told_of_and_serves_on(
    start_server: Callable[..., LunaServer], luna_bin: Path, calm_answers: list[str]
) -> None:
    server = start_server(
        "--set", 'plugins.paths=["{}"]'.format(zoo(luna_bin, "late_plan")), "--set", "scheduler.plan_budget_ms=15",
        policy="zoo",
    )
    assert answers(server) == calm_answers
    assert server.metric("luna_plans_late_total") >= 8
    assert server.metric("luna_policy_replacements_total") == 0
    assert server.log().count("plan late policy=zoo") == 1
    assert server.stop() == 0
