"""`luna split` and `luna verify` on the real model: what is written, who can read it, and what it gives."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from luna_server import config_text

SHARDS = (1, 2, 3, 7)
MEMORY_BYTES_MAX = 64 << 20  # the model has 94 MB: the program, and some pieces of the file
PEAK_OF_A_COMMAND = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.fixture(scope="module")
def folders(run_luna: Callable, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The model in 1, 2, 3 and 7 shards."""
    root = tmp_path_factory.mktemp("shards")
    for n in SHARDS:
        done = run_luna("split", model, "--num-shards", n, "--out", root / str(n))
        assert done.returncode == 0, done.stderr
    return {n: root / str(n) for n in SHARDS}


def fields_of(reader: GGUFReader) -> dict[str, object]:
    return {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}


def test_the_gguf_package_reads_every_shard(folders: dict[int, Path], model: Path) -> None:
    n = 3
    whole = GGUFReader(model)
    source = {tensor.name: tensor for tensor in whole.tensors}
    expected, seen = fields_of(whole), set()
    for i in range(n):
        shard = GGUFReader(folders[n] / f"shard_{i}.gguf")
        fields = fields_of(shard)
        own = {key: fields.pop(key) for key in list(fields) if key.startswith("luna.shard.")}
        assert fields == expected
        assert own["luna.shard.index"] == i and own["luna.shard.count"] == n
        assert own["luna.shard.source_sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
        for tensor in shard.tensors:
            right = source[tensor.name]
            assert tensor.tensor_type == right.tensor_type and list(tensor.shape) == list(right.shape)
            assert np.array_equal(tensor.data, right.data), tensor.name
            if tensor.name.startswith("blk."):
                first, count = own["luna.shard.first_layer"], own["luna.shard.n_layers"]
                assert first <= int(tensor.name.split(".")[1]) < first + count
            seen.add(tensor.name)
    assert seen == set(source)


@pytest.mark.parametrize("n", SHARDS)
def test_the_manifest_tells_the_files_as_they_are(folders: dict[int, Path], n: int) -> None:
    manifest = json.loads((folders[n] / "manifest.json").read_text(encoding="utf-8"))
    assert sorted(path.name for path in folders[n].iterdir()) == sorted(
        ["manifest.json"] + [f"shard_{i}.gguf" for i in range(n)]
    )
    for shard in manifest["shards"]:
        data = (folders[n] / shard["file"]).read_bytes()
        assert len(data) == shard["bytes"] and hashlib.sha256(data).hexdigest() == shard["sha256"]
    sizes = [shard["bytes"] for shard in manifest["shards"]]
    assert max(sizes) < 2.2 * sum(sizes) / n  # the embedding and its copy stand at the ends


@pytest.mark.parametrize("n_devices", [1, 2])
def test_tokens_and_logits_are_those_of_the_file(
    run_luna: Callable, folders: dict[int, Path], model: Path, tmp_path: Path, n_devices: int
) -> None:
    answers = {}
    for n, path in {0: model, **folders}.items():
        config = tmp_path / f"{n}.toml"
        config.write_text(config_text(Path(f"{path}/" if n else path), n_devices=n_devices), encoding="utf-8")
        for seed in (None, 7):
            sampling = ["--temperature", 1, "--seed", seed] if seed else ["--temperature", 0]
            done = run_luna("generate", "--config", config, "--max-tokens", 24, "--json", *sampling, "A tale:")
            assert done.returncode == 0, done.stderr
            answers[n, seed] = json.loads(done.stdout)["text"]
    for n in SHARDS:
        assert [answers[n, seed] for seed in (None, 7)] == [answers[0, seed] for seed in (None, 7)]


def test_logits_are_those_of_the_file(folders: dict[int, Path], model: Path, tmp_path: Path) -> None:
    if "LUNA_LOGITS" not in os.environ:
        pytest.skip("LUNA_LOGITS is not set: no driver to ask for logits")
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps([1, 504, 260, 905, 43, 28, 260, 1357]), encoding="utf-8")
    logits = {}
    for n, path in {0: model, **folders}.items():
        out = tmp_path / f"{n}.f32"
        subprocess.run(
            [os.environ["LUNA_LOGITS"], "--model", path, "--backend", "cpu", "--tokens", ids, "--out", out],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        logits[n] = out.read_bytes()
    assert len(logits[0]) > 8 * 4 and all(logits[n] == logits[0] for n in SHARDS)


def test_a_folder_is_a_model_for_the_other_commands(
    run_luna: Callable, folders: dict[int, Path], model: Path
) -> None:
    by_file, by_folder = (run_luna("tokenize", "--model", it, text="Hello there") for it in (model, folders[3]))
    assert by_file.returncode == by_folder.returncode == 0 and by_file.stdout == by_folder.stdout
    shown = run_luna("inspect", folders[3])
    assert shown.returncode == 0 and "shard_2.gguf" in shown.stdout and "30 layers" in shown.stdout
    named = run_luna("generate", "--model", "3", "--max-tokens", 2, "Hi", cwd=folders[3].parent)
    assert named.returncode == 0, named.stderr


def test_verify_names_the_damaged_tensor(run_luna: Callable, folders: dict[int, Path], tmp_path: Path) -> None:
    assert run_luna("verify", folders[7]).returncode == 0
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in folders[7].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    victim = folder / "shard_4.gguf"
    tensor = next(t for t in GGUFReader(victim).tensors if t.name.endswith("ffn_up.weight"))
    data = bytearray(victim.read_bytes())
    data[tensor.data_offset + 1000] ^= 0x10
    victim.write_bytes(data)
    done = run_luna("verify", folder, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and not report["ok"]
    assert [(fault["kind"], fault["shard"], fault["tensor"]) for fault in report["faults"]] == [
        ("damaged", 4, tensor.name)
    ]
    loaded = run_luna("generate", "--model", f"{folder}/", "--max-tokens", 1, "Hi")
    assert loaded.returncode == 1 and tensor.name in loaded.stderr and "shard 4 of 7" in loaded.stderr
    victim.unlink()
    loaded = run_luna("generate", "--model", f"{folder}/", "--max-tokens", 1, "Hi")
    assert loaded.returncode == 1 and "shard_4.gguf: not there" in loaded.stderr


def test_ctrl_c_leaves_a_whole_folder_or_none(luna_bin: Path, model: Path, tmp_path: Path) -> None:
    """The signal comes when the first file is begun; a split that was faster still is whole."""
    folder = tmp_path / "out"
    process = subprocess.Popen(
        [luna_bin, "split", model, "--num-shards", "30", "--out", folder],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None and not any(folder.glob("*.partial")):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    if process.returncode == 0:
        assert (folder / "manifest.json").exists()
    else:
        assert process.returncode == 1 and "stopped" in stderr and not folder.exists()


def test_memory_stays_small(luna_bin: Path, model: Path, tmp_path: Path) -> None:
    for command in (["split", model, "--num-shards", "3", "--out", tmp_path / "out"], ["verify", tmp_path / "out"]):
        # A process begins with its parent's peak: this one is too large to ask.
        done = subprocess.run(
            [sys.executable, "-c", PEAK_OF_A_COMMAND, luna_bin, *map(str, command)],
            capture_output=True, check=True, text=True, timeout=60,
        )  # fmt: skip
        peak = int(done.stdout) * 1024
        assert peak < MEMORY_BYTES_MAX, (command[0], peak)


def test_a_disk_that_fills_is_told_and_cleaned(luna_bin: Path, model: Path, tmp_path: Path) -> None:
    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = subprocess.run(
        [luna_bin, "split", model, "--num-shards", "2", "--out", tmp_path / "out"],
        capture_output=True, text=True, preexec_fn=limit_files, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and "cannot be written" in done.stderr
    assert not (tmp_path / "out").exists()
