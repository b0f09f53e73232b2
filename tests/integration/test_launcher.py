"""The launcher, as the README tells to use it: quick when nothing changed, its output the command's own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OVERHEAD_S_MAX = 1.0  # 0.3 s is the aim; a busy machine gets room


@pytest.fixture
def launcher(luna_bin: Path) -> Path:
    if luna_bin != ROOT / "build" / "release" / "bin" / "luna":
        pytest.skip("LUNA_BIN is not what the launcher builds")
    return ROOT / "luna"


def test_the_launcher_runs_the_program_and_adds_nothing(launcher: Path, luna_bin: Path) -> None:
    subprocess.run([str(launcher), "version"], check=True, capture_output=True, timeout=1200)  # builds
    begin = time.monotonic()
    launched = subprocess.run([str(launcher), "version"], capture_output=True, timeout=60)
    assert time.monotonic() - begin < OVERHEAD_S_MAX
    direct = subprocess.run([str(luna_bin), "version"], capture_output=True, timeout=60)
    assert (launched.returncode, launched.stdout, launched.stderr) == (0, direct.stdout, b"")


def test_readme_shows_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "./luna serve" in text and "./luna test" in text
