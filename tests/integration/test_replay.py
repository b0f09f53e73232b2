"""Plans of a real session, recorded and asked for again: equal, or the first that is not."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from luna_server import LunaServer, config_text

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module", params=["static", "flowsplit"])
def recording(
    start_server: Callable[..., LunaServer], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """Prompts of several chunks beside short ones and an abort, on two devices: as a pipeline with two
    steps in flight, and as two groups. No target bounds a step, so that the default one would have
    cut prompts that these plans take whole, however fast the machine is."""
    file = tmp_path_factory.mktemp("replay") / "session.plans"
    server = start_server(
        "--record-plans",
        str(file),
        n_devices=2,
        model_keys="step_tokens_max = 2048" + ('\nlayout = "replicas"' if request.param == "flowsplit" else ""),
        policy=request.param,
        policy_keys="target_itl_ms = 0",
    )
    streams = [server.stream("Once upon a time", 300) for _ in range(2)]
    for stream in streams:
        next(stream)
    together = [
        threading.Thread(target=server.chat, args=("word " * (5 + 900 * (i % 3)),), kwargs={"max_tokens": 20 + 4 * i})
        for i in range(9)
    ]
    for thread in together:
        thread.start()
    for _ in range(5):
        next(streams[0])
    streams[0].close()
    for thread in together:
        thread.join()
    streams[1].close()
    assert server.stop() == 0
    return file


def test_a_session_is_replayed_equally(run_luna: Run, recording: Path) -> None:
    ran = run_luna("replay", recording, "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads(ran.stdout)
    # How many there are depends on how the requests meet.
    assert told["equal"] and told["plans"] > 10 and told["end"] == "stopped"
    assert told["policy"] == told["recorded_policy"]
    again = run_luna("replay", recording)
    assert f"{told['plans']} plans, all equal" in again.stdout
    assert told["chain"] in again.stdout


def test_a_changed_file_is_refused(run_luna: Run, recording: Path, tmp_path: Path) -> None:
    content = bytearray(recording.read_bytes())
    content[len(content) // 2] ^= 1
    changed = tmp_path / "changed.plans"
    changed.write_bytes(content)
    ran = run_luna("replay", changed)
    assert ran.returncode == 1
    assert "the chain of hashes is broken" in ran.stderr
    changed.write_bytes(b"not a recording")
    ran = run_luna("replay", changed)
    assert ran.returncode == 1
    assert "not a recording of plans" in ran.stderr


def test_a_file_that_was_cut_off_is_replayed_as_far_as_it_goes(
    run_luna: Run, recording: Path, tmp_path: Path
) -> None:
    content = recording.read_bytes()
    cut = tmp_path / "cut.plans"
    cut.write_bytes(content[: len(content) * 2 // 3])
    ran = run_luna("replay", cut, "--json")
    told = json.loads(ran.stdout)
    assert ran.returncode == 0 and told["equal"] and told["end"] == "cut_off" and told["plans"] > 20


def test_other_settings_show_the_first_plan_that_differs(run_luna: Run, recording: Path) -> None:
    """The same policy with its defaults: asked for by its full id, it does not get the recorded settings."""
    policy = json.loads(run_luna("replay", recording, "--json").stdout)["policy"]
    ran = run_luna("replay", recording, "--policy", f"org.luna.scheduler.{policy}", "--json")
    told = json.loads(ran.stdout)
    assert ran.returncode == 1 and not told["equal"]
    assert told["different_plan"] >= 0 and "now" in told["difference"]


def test_a_file_that_cannot_be_written_stops_the_start(run_luna: Run, tmp_path: Path, model: Path) -> None:
    config = tmp_path / "luna.toml"
    config.write_text(config_text(model), encoding="utf-8")
    ran = run_luna("serve", "--config", config, "--record-plans", tmp_path / "none" / "x.plans")
    assert ran.returncode == 1
    assert "cannot be created" in ran.stderr
