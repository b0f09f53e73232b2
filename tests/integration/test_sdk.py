"""A plugin outside the tree, from the installed sdk alone: as docs/plugins.md says, and for every kind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from luna_server import LunaServer, config_text

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "plugins.md"
BUILD_TIMEOUT_S = 600
PLUGINS = Path("lib/luna/plugins")


@pytest.fixture(scope="module")
def prefix(luna_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The component sdk as it is installed, and the program with its plugins beside it."""
    build = luna_bin.parents[1]
    if not (build / "bin" / "luna-check").is_file():
        pytest.skip(f"{build}/bin/luna-check is not built")
    root = tmp_path_factory.mktemp("prefix")
    subprocess.run(
        ["cmake", "--install", str(build), "--component", "sdk", "--prefix", str(root)],
        check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S,
    )
    shutil.copy2(luna_bin, root / "bin" / "luna")
    (root / PLUGINS).parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(build / PLUGINS, root / PLUGINS)
    return root


def environment(prefix: Path) -> dict[str, str]:
    """What a shell of an author has: the installed programs first, nothing of the tree."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LUNA_", "CMAKE_"))}
    env |= {"PATH": f"{prefix / 'bin'}:{env['PATH']}", "PREFIX": str(prefix), "LUNA_PREFIX": str(prefix)}
    if shutil.which("ninja"):
        env["CMAKE_GENERATOR"] = "Ninja"
    return env


def run(command: list[str], folder: Path, prefix: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(prefix), capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=BUILD_TIMEOUT_S,
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def steps_of_page() -> str:
    """The shell block of the page's first section, as it stands."""
    section = PAGE.read_text(encoding="utf-8").split("## From nothing to a running policy")[1]
    return re.search(r"```sh\n(.*?)```", section, re.S)[1]


@pytest.fixture(scope="module")
def followed(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the page was followed to the letter."""
    folder = tmp_path_factory.mktemp("author")
    began = time.monotonic()
    said = run(["sh", "-e", "-c", steps_of_page()], folder, prefix)
    print(f"the page took {time.monotonic() - began:.1f} s")
    assert "mine (org.example.scheduler.mine): passed" in said
    assert "scheduler 'mine' 0.1.0: First come, first served." in said
    yield folder


def test_the_page_makes_a_scheduler_that_passes_every_case(followed: Path) -> None:
    source = (followed / "mine" / "src" / "mine.cpp").read_text(encoding="utf-8")
    code = [line for line in source.splitlines() if line.strip() and not line.strip().startswith("//")]
    assert len(code) <= 30, f"{len(code)} lines"


def test_the_scheduler_of_the_page_serves(
    followed: Path, prefix: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUNA_PLUGIN_PATH", str(followed / "mine" / "build"))
    config = tmp_path / "luna.toml"
    config.write_text(config_text(model, policy="mine"), encoding="utf-8")
    server = LunaServer(prefix / "bin" / "luna", config)
    try:
        status, answer = server.chat("Say hello.", max_tokens=8)
        assert status == 200, answer
        assert answer["usage"]["completion_tokens"] > 0
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("kind", ["scheduler", "role", "quant", "transport", "backend"])
def test_every_template_passes_its_ci_as_it_is_written(kind: str, prefix: Path, tmp_path: Path) -> None:
    run(["luna", "plugins", "new", kind, "two_words", "--id", "com.example.two"], tmp_path, prefix)
    said = run(["./ci.sh"], tmp_path / "two_words", prefix)
    assert "100% tests passed, 0 tests failed out of 2" in said
    report = tmp_path / "report.xml"
    library = tmp_path / "two_words" / "build" / f"{kind}_two_words.so"
    run(["luna-check", str(library), "--junit", str(report)], tmp_path, prefix)
    assert 'failures="0" skipped="0"' in report.read_text(encoding="utf-8")


def test_the_role_of_the_template_answers_a_request(
    prefix: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(["luna", "plugins", "new", "role", "consonants"], tmp_path, prefix)
    run(["./ci.sh"], tmp_path / "consonants", prefix)
    monkeypatch.setenv("LUNA_PLUGIN_PATH", str(tmp_path / "consonants" / "build"))
    config = tmp_path / "luna.toml"
    stage = 'role = "consonants"\nleft_out = "aeiou"'
    config.write_text(config_text(model).replace('role = "generate"', stage), encoding="utf-8")
    server = LunaServer(prefix / "bin" / "luna", config)
    try:
        status, answer = server.chat("Name three colours.", max_tokens=24, temperature=0)
        assert status == 200, answer
        text = answer["choices"][0]["message"]["content"]
        assert text.strip() and not set(text) & set("aeiou"), text
    finally:
        assert server.stop() == 0


def test_the_validator_tells_a_broken_plugin_and_the_host_refuses_it_too(
    luna_bin: Path, run_luna, prefix: Path, tmp_path: Path
) -> None:
    zoo = luna_bin.parents[1] / "tests" / "zoo"
    if not zoo.is_dir():
        pytest.skip(f"{zoo} is not built")
    for fault, rule in [("extra_export", "B2"), ("hangs_in_plan", "U4"), ("too_many_tokens", "S2")]:
        done = run_luna("plugins", "check", zoo / fault / f"zoo_{fault}.so", "--limit", "2", "--only",
                        "A" if rule == "B2" else "E.scheduler.legal")
        assert done.returncode == 1, done.stdout
        assert f"rule {rule}:" in done.stdout
