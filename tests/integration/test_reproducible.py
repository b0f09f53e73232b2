"""The same tokens and the same logits, to the bit, whatever else happens: on the real model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from luna_server import config_text, draft_model_keys

PROMPT = (
    "The lighthouse keeper counted the ships that passed in the night, and wrote each of them down: "
    "its lights, its course, the weather and what the sea sounded like. In the morning he read the "
    "list to his daughter, who drew the ships as she thought they must have looked. "
)
N_TOKENS = 12
DRAWN = ["--temperature", "0.9", "--top-p", "0.95", "--seed", "5"]


def verify(run_luna: Callable, *arguments: object) -> list[dict]:
    done = run_luna(
        "generate", "--verify-reproducible", "--json", "--raw", "--max-tokens", N_TOKENS, *arguments, PROMPT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["reproducible"] is True
    return answer["settings"]


@pytest.mark.parametrize("sampling", [[], DRAWN], ids=["greedy", "sampled"])
def test_no_way_of_computing_changes_a_bit(
    run_luna: Callable, model: Path, tmp_path: Path, sampling: list[str]
) -> None:
    """Batches, chunks, the prefix cache and drafts within a process; threads, devices and transports between processes."""
    processes = {
        "one thread": {},
        "two threads": {"threads": 2},
        "two devices": {"n_devices": 2},
        "shared memory": {"n_devices": 2, "transport": "shm"},
        "tcp": {"n_devices": 2, "transport": "tcp"},
        "three devices": {"n_devices": 3},
        "two replicas": {"n_devices": 2, "model_keys": 'layout = "replicas"'},
        "tensor split of two": {"n_devices": 2, "model_keys": 'layout = "tensor"'},  # 2 and 1 KV heads
        "tensor split of three": {"n_devices": 3, "model_keys": 'layout = "tensor"'},
        "two pipelines": {"n_devices": 4, "model_keys": 'groups = [["cpu0", "cpu1"], ["cpu2", "cpu3"]]'},
        "no prefix cache": {"model_keys": "prefix_cache = false"},
        "draft model": {"model_keys": draft_model_keys(model)},
    }
    answers = {}
    for name, keys in processes.items():
        threads = keys.pop("threads", 1)
        n_groups = {"two replicas": 2, "two pipelines": 2}.get(name, 1)
        n_steps = keys.get("n_devices", 1) // n_groups  # of a group, in flight
        if name.startswith("tensor"):
            n_steps = 1  # on all devices at once
        path = tmp_path / f"{name}.toml"
        text = config_text(model, **keys).replace("threads = 1", f"threads = {threads}")
        path.write_text(text, encoding="utf-8")
        settings = {row["setting"]: row for row in verify(run_luna, "--config", path, *sampling)}
        assert all(row["same"] for row in settings.values())
        # The other is in its step, or in one that another device computes meanwhile, as parts of its
        # own prompt may be: which it comes in only where there is another.
        assert settings["alone"]["steps_in_flight"] == 1
        if n_groups == 1:
            assert max(settings["beside 1"]["beside"], settings["beside 1"]["steps_in_flight"] - 1) >= 1
        assert settings["beside 63"]["beside"] > 31 // n_steps // n_groups
        assert settings["beside 63"]["steps_in_flight"] == n_steps
        assert settings["chunks of 7"]["prompt_steps"] > 5
        assert (settings["prefix hit"]["cached_tokens"] > 0) == (name != "no prefix cache")
        assert settings["alone"]["drafted_tokens"] == 0
        if name == "draft model":
            assert settings["drafts"]["drafted_tokens"] > 0
            assert settings["drafts beside 6"]["drafted_tokens"] > 0
        answers[name] = (settings["alone"]["tokens"], settings["alone"]["logits_hash"])
    assert len(answers["one thread"][0]) > 1  # a drawn answer may end before N_TOKENS
    assert all(answer == answers["one thread"] for answer in answers.values()), answers


def test_the_table_names_every_setting(run_luna: Callable, model: Path) -> None:
    done = run_luna("generate", "--verify-reproducible", "--model", model, "--max-tokens", 4, "Hello")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["setting", "tokens"]
    assert [line.split("  ")[0] for line in lines[1:4]] == ["alone", "alone again", "beside 1"]
    assert all(line.endswith("same") for line in lines[1:-1])
    assert lines[-1].startswith("reproducible:")
