"""`luna quantize`: what it writes is read by the packages that define the formats, and by Luna.

Q4_0, Q4_1 and Q8_0 are the bits of the `gguf` package, on random and on adversarial numbers. That
package cannot make Q4_K, so its error is held against bounds. Folders are unpacked here, apart from
the program's own readers.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize
from safetensors import safe_open

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden" / "model")]
from hf_folder import hf_name, heads_of, interleaved_order, make_hf_folder  # noqa: E402
from hf_layouts import AWQ_ORDER, dense  # noqa: E402
from make_tiny_models import Spec, make_tiny_model  # noqa: E402
from reference_llama import LlamaModel  # noqa: E402
from test_numerics import (  # noqa: E402, F401 - the fixture `driver`
    REFERENCE, REFERENCE_LOGIT_ERROR_MAX, LogitsDriver, driver, tiny_token_ids,
)  # fmt: skip

SPEC = Spec("tiny_big", hidden_size=256, feed_forward_size=256, own_head=True)
HALF_MAX = 65504.0


def adversarial(shape: tuple[int, int]) -> np.ndarray:
    """Blocks of zeros, of one number, of ties, of ramps, of one outlier, of the smallest and largest."""
    values = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    blocks = values.reshape(-1, 32)
    ramp = np.arange(32, dtype=np.float32)
    for i, block in enumerate(blocks):
        match i % 12:
            case 0:
                block[:] = 0.0
            case 1:
                block[:] = 1.5
            case 2:
                block[:] = -1.5
            case 3:
                block[:] = (ramp - 16) / 2
            case 4:
                block[:] = ramp % 2
            case 5:
                block[i % 32] = 1000.0
            case 6:
                block[i % 32] = -1000.0
            case 7:
                block[:] = np.abs(block)
            case 8:
                block[:] = -np.abs(block)
            case 9:
                block *= 1e-6  # scales are denormals of FP16
            case 10:
                block *= HALF_MAX
            case 11:
                block[:] = (ramp + 0.5) * 2**-4
    return values


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GGUF model in FP32; two of its weights are adversarial."""
    path = make_tiny_model(tmp_path_factory.mktemp("plain"), SPEC)
    reader = GGUFReader(path, "r+")
    for tensor in reader.tensors:
        if tensor.name in ("blk.0.ffn_up.weight", "blk.1.attn_v.weight"):
            tensor.data[:] = adversarial(tensor.data.shape)
    del reader
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folder")
    make_hf_folder(root / "plain", make_tiny_model(root, SPEC), dense("F32"), n_files=2)
    return root / "plain"


def quantized(run_luna: Callable, source: Path, kind: str, out: Path, *more: object) -> dict:
    done = run_luna("quantize", source, "--type", kind, "--out", out, "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
def test_gguf_types_are_the_bits_of_the_gguf_package(
    run_luna: Callable, plain: Path, tmp_path: Path, kind: str
) -> None:
    report = quantized(run_luna, plain, kind, tmp_path / "out.gguf")
    made = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "out.gguf").tensors}
    n_equal = 0
    for tensor in GGUFReader(plain).tensors:
        own = made[tensor.name]
        if tensor.data.ndim == 1:
            assert own.data.tobytes() == tensor.data.tobytes()
            continue
        is_layer = tensor.name.startswith("blk.")
        wanted = GGMLQuantizationType[(kind if is_layer else "q8_0").upper()]
        assert own.tensor_type == wanted
        assert own.data.tobytes() == quantize(tensor.data, wanted).tobytes(), tensor.name
        n_equal += 1
    assert report["n_weights"] == n_equal == 16
    assert report["bytes"] == (tmp_path / "out.gguf").stat().st_size


def test_q4_k_keeps_within_its_step_and_below_the_error_of_q4_1(
    run_luna: Callable, plain: Path, tmp_path: Path
) -> None:
    quantized(run_luna, plain, "q4_k", tmp_path / "out.gguf")
    made = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "out.gguf").tensors}
    for tensor in GGUFReader(plain).tensors:
        if tensor.data.ndim == 1 or not tensor.name.startswith("blk."):
            continue
        own = made[tensor.name]
        assert own.tensor_type == GGMLQuantizationType.Q4_K
        values = dequantize(own.data, GGMLQuantizationType.Q4_K)
        assert np.isfinite(values).all()
        if tensor.name in ("blk.0.ffn_up.weight", "blk.1.attn_v.weight"):
            continue
        plain_q4_1 = quantize(tensor.data, GGMLQuantizationType.Q4_1)
        other = dequantize(plain_q4_1, GGMLQuantizationType.Q4_1)
        error = np.sqrt(np.mean((values - tensor.data) ** 2))
        error_q4_1 = np.sqrt(np.mean((other - tensor.data) ** 2))
        assert error <= 1.02 * error_q4_1, f"{tensor.name}: {error} against {error_q4_1}"
        spread = np.ptp(tensor.data.reshape(-1, 32), axis=1).max()
        assert np.abs(values - tensor.data).max() <= spread / 15


@pytest.mark.parametrize("kind", ["q4_0", "q8_0", "q4_k"])
def test_a_quantized_file_runs(run_luna: Callable, plain: Path, tmp_path: Path, kind: str) -> None:
    quantized(run_luna, plain, kind, tmp_path / "out.gguf")
    done = run_luna("generate", "--model", tmp_path / "out.gguf", "the", "--max-tokens", 4)
    assert done.returncode == 0, done.stderr
    again = run_luna("quantize", tmp_path / "out.gguf", "--type", "q8_0", "--out", tmp_path / "2.gguf")
    assert again.returncode == 0, again.stderr


def nibbles(words: np.ndarray) -> np.ndarray:
    return (words.astype("<i4").view("<u4")[..., None] >> (4 * np.arange(8, dtype="<u4"))) & 15


def unpacked(parts: dict[str, np.ndarray], kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Values [n_out, n_in] of a packed weight, and the scale of each value."""
    if kind == "int8":
        n_in = parts["weight"].shape[1]
        scale = np.repeat(parts["weight_scale"].astype(np.float32), n_in // parts["weight_scale"].shape[1], 1)
        return parts["weight"].astype(np.float32) * scale, scale
    scale = parts["scales"].astype(np.float32).T  # [n_out, n_groups]
    if kind == "awq":
        codes = nibbles(parts["qweight"])[..., np.argsort(AWQ_ORDER)].reshape(parts["qweight"].shape[0], -1).T
        zeros = nibbles(parts["qzeros"])[..., np.argsort(AWQ_ORDER)].reshape(parts["qzeros"].shape[0], -1).T
        groups = np.arange(codes.shape[1]) // (codes.shape[1] // scale.shape[1])
    else:
        words = parts["qweight"]  # [n_in / 8, n_out]
        codes = nibbles(words).transpose(1, 0, 2).reshape(words.shape[1], -1)
        zeros = nibbles(parts["qzeros"]).reshape(parts["qzeros"].shape[0], -1).T + 1
        groups = parts["g_idx"]
    by_value = scale[:, groups]
    return by_value * (codes.astype(np.float32) - zeros[:, groups].astype(np.float32)), by_value


@pytest.mark.parametrize("kind, group", [("awq", 128), ("awq", 64), ("gptq", 128), ("gptq", 96),
                                         ("gptq", 0), ("int8", 0), ("int8", 64)])  # fmt: skip
def test_folders_are_read_by_safetensors_and_by_luna(
    run_luna: Callable, driver: LogitsDriver, folder: Path, tmp_path: Path, kind: str, group: int  # noqa: F811
) -> None:
    out = tmp_path / "out"
    report = quantized(run_luna, folder, kind, out, "--group", group)
    assert report["n_weights"] == 14
    assert not list(out.glob("*.partial"))
    index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    parts: dict[str, np.ndarray] = {}
    for file in set(index.values()):
        with safe_open(out / file, "numpy") as opened:
            parts |= {name: opened.get_tensor(name) for name in opened.keys()}
    assert set(parts) == set(index)
    model = LlamaModel.load(folder.parent / "tiny_big.gguf")
    worth = dict(model.tensors)
    for name, values in model.tensors.items():
        if values.ndim == 1 or not name.startswith("blk."):
            continue
        module = hf_name(name).rsplit(".", 1)[0] + "."
        own = {key[len(module):]: value for key, value in parts.items() if key.startswith(module)}
        packed, scale = unpacked(own, kind)
        heads = heads_of(name, model.config)
        worth[name] = packed if heads is None else interleaved_order(packed, heads)
        steps = scale if heads is None else interleaved_order(scale, heads)
        miss = np.abs(worth[name] - values)
        # Half a step; a whole one at the ends, where the rounded zero shifts the range of codes.
        assert (miss <= 1.01 * steps).all(), name
        assert np.mean(miss <= 0.501 * steps) > 0.9, name
    ids = tiny_token_ids()
    expected = LlamaModel(model.config, worth).logits(ids)
    assert np.abs(driver.logits(out, REFERENCE, ids) - expected).max() <= REFERENCE_LOGIT_ERROR_MAX
    done = run_luna("generate", "--model", out, "the", "--max-tokens", 4)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what, arguments, named", [
    ("folder", ["--type", "q4_0"], ["is a folder"]),
    ("plain", ["--type", "awq"], ["is GGUF"]),
    ("plain", ["--type", "q3_x"], ["q3_x", "q4_k"]),
    ("folder", ["--type", "awq", "--group", "96"], ["groups of 96", "_proj.weight"]),
    ("folder", ["--type", "gptq", "--group", "12"], ["--group 12"]),
])  # fmt: skip
def test_what_cannot_be_is_refused_and_leaves_nothing(
    run_luna: Callable, plain: Path, folder: Path, tmp_path: Path, what: str, arguments: list, named: list
) -> None:
    source = plain if what == "plain" else folder
    done = run_luna("quantize", source, *arguments, "--out", tmp_path / "out")
    assert done.returncode == 1
    for word in named:
        assert word in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_replaced_only_when_asked(run_luna: Callable, plain: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("mine")
    done = run_luna("quantize", plain, "--type", "q8_0", "--out", out)
    assert done.returncode == 1 and "--force" in done.stderr
    assert out.read_text() == "mine"
    quantized(run_luna, plain, "q8_0", out, "--force")
    assert out.stat().st_size > 1000


@pytest.mark.parametrize("kind", ["q8_0", "int8"])
def test_a_full_disk_leaves_nothing(
    luna_bin: Path, plain: Path, folder: Path, tmp_path: Path, kind: str
) -> None:
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    source = plain if kind == "q8_0" else folder
    done = subprocess.run(
        [luna_bin, "quantize", source, "--type", kind, "--out", tmp_path / "out"],
        capture_output=True, text=True, preexec_fn=limit_files, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert not list(tmp_path.iterdir())


def test_a_stop_leaves_a_whole_file_or_none(luna_bin: Path, model: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [luna_bin, "quantize", model, "--type", "q4_0", "--out", tmp_path / "out.gguf"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None and not list(tmp_path.glob("*.partial")):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=60)
    if process.returncode == 0:
        assert (tmp_path / "out.gguf").exists()
    else:
        assert process.returncode == 1 and "stopped" in text, text
        assert not list(tmp_path.iterdir())


CALIBRATION = "the cat and in to the on at the re of an ed al or is it en ou the " * 12


@pytest.mark.parametrize("kind", ["awq", "gptq", "q4_0", "q4_k"])
def test_a_calibration_text_makes_rounding_cost_less_where_inputs_differ_in_size(
    run_luna: Callable, driver: LogitsDriver, tmp_path: Path, kind: str  # noqa: F811
) -> None:
    """Some channels of every norm are large, as in trained models; the tokens judged are others."""
    gguf = make_tiny_model(tmp_path, SPEC)
    reader = GGUFReader(gguf, "r+")
    for tensor in reader.tensors:
        if tensor.name.endswith("_norm.weight") and tensor.name.startswith("blk."):
            tensor.data[5:250:40] *= 12.0
    del reader
    plain = tmp_path / "plain"
    make_hf_folder(plain, gguf, dense("F32"))
    if kind.startswith("q"):
        plain = gguf
    (tmp_path / "text.txt").write_text(CALIBRATION)
    ids = tiny_token_ids()
    base = driver.logits(plain, REFERENCE, ids)
    errors = []
    for more in ([], ["--calibration", tmp_path / "text.txt"]):
        out = tmp_path / f"out{len(more)}.gguf"
        report = quantized(run_luna, plain, kind, out, "--group", 64, *more)
        assert report["n_weights"] == (16 if plain == gguf else 14)
        errors.append(np.sqrt(np.mean((driver.logits(out, REFERENCE, ids) - base) ** 2)))
    print(f"{kind}: error {errors[0]:.3f} rounded to nearest, {errors[1]:.3f} by AWQ")
    assert errors[1] < 0.9 * errors[0]


def test_a_calibration_that_says_nothing_is_refused(run_luna: Callable, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the")
    for kind, named in (("awq", "32 or more"), ("int8", "32 or more")):
        done = run_luna("quantize", folder, "--type", kind, "--group", 64, "--out", tmp_path / "out",
                        "--calibration", tmp_path / "text.txt")  # fmt: skip
        assert done.returncode == 1 and named in done.stderr, done.stderr
        assert not (tmp_path / "out").exists()
