"""How a model lies on its devices: chosen by prediction, placed by measured speed, refused with a reason."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from luna_server import config_text


def check(run_luna: Callable, path: Path, text: str, cache: Path) -> dict:
    path.write_text(text, encoding="utf-8")
    done = run_luna("check", "--json", path, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
    return json.loads(done.stdout)


def test_check_says_what_auto_takes_and_why(run_luna: Callable, model: Path, tmp_path: Path) -> None:
    keys = 'layout = "auto"\nexpected = {prompt = 40, reused = 0, output = 60, users = 5}'
    found = check(run_luna, tmp_path / "auto.toml", config_text(model, n_devices=2, model_keys=keys), tmp_path)
    assert found["errors"] == []
    (sentence,) = found["notes"]
    assert re.match(r"model 'main': layout = \"auto\" takes (pipeline|replicas|tensor), ", sentence)
    assert "for 5 users with 40 new tokens and 60 of answer" in sentence
    for layout in ("pipeline", "replicas", "tensor"):
        assert re.search(layout + r" [0-9.]+ requests/s \(", sentence), sentence
    # What was measured is kept for the next start.
    assert len(list((tmp_path / "luna" / "speeds").glob("*.json"))) == 1


def test_a_copy_that_fits_no_device_is_no_choice(run_luna: Callable, model: Path, tmp_path: Path) -> None:
    text = config_text(model, n_devices=2, model_keys='layout = "auto"\nsequences_max = 8')
    text = re.sub(r'memory = "[^"]*"', 'memory = "88 MiB"', text)
    found = check(run_luna, tmp_path / "tight.toml", text, tmp_path)
    assert found["errors"] == []
    assert "replicas cannot be (device 0 has 88.0 MiB" in found["notes"][0]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ('layout = "tensor"', "each needs a KV head, and the model has 3"),
        ('layout = "tensor"\nlayers = [8, 8, 7, 7]', "layers: has no effect beside"),
        ('layout = "tensor"\nprune_keep_percent = 50', "prune_keep_percent below 100"),
    ],
)
def test_a_tensor_split_that_cannot_be_says_why(
    run_luna: Callable, model: Path, tmp_path: Path, keys: str, reason: str
) -> None:
    path = tmp_path / "tensor.toml"
    path.write_text(config_text(model, n_devices=4, model_keys=keys), encoding="utf-8")
    done = run_luna("generate", "--config", path, "--max-tokens", 1, "Hello")
    assert done.returncode == 1
    assert reason in done.stderr
