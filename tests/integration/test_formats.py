"""Hugging Face folders in every format, from the file to logits and to answers.

The judge never sees packed bytes: tests/support/hf_layouts.py packs each weight and says what the
packed weight is worth; NumPy computes the model with that. `backend_reference` is held to NumPy,
`backend_cpu` to `backend_reference`, as on GGUF files (test_numerics.py).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden" / "model")]
from hf_folder import Layout, Tensor, hf_name, make_hf_folder  # noqa: E402
from hf_layouts import LAYOUTS, awq, dense, gptq, int8  # noqa: E402
from luna_server import LunaServer, config_text  # noqa: E402
from make_tiny_models import SPECS, Spec, make_tiny_model  # noqa: E402
from reference_llama import LlamaModel  # noqa: E402
from test_numerics import (  # noqa: E402, F401 - the fixture `driver`
    CPU_I12, REFERENCE, REFERENCE_LOGIT_ERROR_MAX, TINY_RELATIVE_ERROR_MAX, LogitsDriver, driver,
    tiny_token_ids,
)  # fmt: skip


def tiny_spec(layout: Layout, **other: object) -> Spec:
    return Spec("tiny_" + layout.name, hidden_size=layout.hidden_size,
                feed_forward_size=layout.feed_forward_size, **other)  # fmt: skip


def made(tmp_path: Path, layout: Layout, n_files: int = 1, **spec: object) -> tuple[Path, LlamaModel]:
    """The folder of a tiny model in a format, and the model that its weights are worth."""
    gguf = make_tiny_model(tmp_path, tiny_spec(layout, **spec))
    folder = tmp_path / layout.name
    return folder, make_hf_folder(folder, gguf, layout, n_files)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_backends_compute_what_the_packed_weights_are_worth(
    driver: LogitsDriver, layout: Layout, tmp_path: Path  # noqa: F811
) -> None:
    folder, judge = made(tmp_path, layout)
    ids = tiny_token_ids()
    expected = judge.logits(ids)
    reference = driver.logits(folder, REFERENCE, ids)
    assert np.abs(reference - expected).max() <= REFERENCE_LOGIT_ERROR_MAX
    error = driver.logits(folder, CPU_I12, ids) - reference
    relative_error = np.sqrt(np.mean(error**2)) / reference.std()
    print(f"{layout.name}: relative error {relative_error:.2e}")
    assert relative_error <= TINY_RELATIVE_ERROR_MAX


@pytest.mark.parametrize("spec", [s for s in SPECS if "rope" in s.name or "own_head" in s.name],
                         ids=lambda spec: spec.name)  # fmt: skip
def test_heads_and_rope_scaling_are_read_from_config_json(
    driver: LogitsDriver, spec: Spec, tmp_path: Path  # noqa: F811
) -> None:
    folder = tmp_path / "folder"
    judge = make_hf_folder(folder, make_tiny_model(tmp_path, spec), dense("F32"), n_files=3)
    ids = tiny_token_ids()
    error = np.abs(driver.logits(folder, REFERENCE, ids) - judge.logits(ids))
    assert error.max() <= REFERENCE_LOGIT_ERROR_MAX


def test_a_folder_answers_what_its_gguf_file_answers(run_luna: Callable, tmp_path: Path) -> None:
    gguf = make_tiny_model(tmp_path, SPECS[1])
    assert SPECS[1].name == "tiny_f32"
    make_hf_folder(tmp_path / "folder", gguf, dense("F32"), n_files=2)
    answers = []
    for model in (gguf, tmp_path / "folder"):
        done = run_luna("generate", "--model", model, "the cat and in to", "--max-tokens", 24,
                        "--temperature", 0)  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    assert answers[0] == answers[1]
    assert answers[0].strip()


def test_inspect_shows_a_folder(run_luna: Callable, tmp_path: Path) -> None:
    folder, _ = made(tmp_path, awq(64), n_files=2)
    shown = json.loads(run_luna("inspect", "--json", folder).stdout)
    assert shown["model"]["n_layers"] == 2
    assert shown["model"]["n_tokens"] > 256
    names = {tensor["name"] for tensor in shown["tensors"]}
    assert {"blk.0.attn_q.qweight", "blk.0.attn_q.qzeros", "blk.0.attn_q.scales"} <= names
    keys = {key["key"]: key.get("value") for key in shown["keys"]}
    assert keys["quantization_config.quant_method"] == "awq"


# What is done to a right folder, and what the message must name.
def edit_config(**fields: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "-"}))

    return edit


def edit_quantization(**fields: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] |= fields
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def edit_index(**weight_map: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"] |= weight_map
        path.write_text(json.dumps(index))

    return edit


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - 8)


SECOND = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
QUERY = "model.layers.0.self_attn.q_proj"
BROKEN = [
    ("no_config", remove("config.json"), ["manifest.json", "config.json"]),
    ("config_no_json", write("config.json", "{"), ["config.json", "JSON"]),
    ("no_layers", edit_config(num_hidden_layers="-"), ["config.json", "num_hidden_layers"]),
    ("layers_text", edit_config(num_hidden_layers="2"), ["num_hidden_layers", '"2"', "1.."]),
    ("layers_negative", edit_config(num_hidden_layers=-2), ["num_hidden_layers = -2"]),
    ("more_layers", edit_config(num_hidden_layers=3), ["model.layers.2.", "missing"]),
    ("fewer_layers", edit_config(num_hidden_layers=1), ["model.layers.1."]),
    ("kv_heads", edit_config(num_key_value_heads=3), ["num_key_value_heads = 3", "divide"]),
    ("family", edit_config(model_type="gpt_neox"), ["model_type", "gpt_neox", "llama"]),
    ("task", edit_config(architectures=["LlamaForSequenceClassification"]), ["architectures"]),
    ("act", edit_config(hidden_act="gelu"), ["hidden_act", "gelu"]),
    ("window", edit_config(sliding_window=16), ["sliding_window = 16"]),
    ("rope", edit_config(rope_scaling={"rope_type": "dynamic"}), ["rope_scaling", "dynamic"]),
    ("longrope", edit_config(rope_scaling={"rope_type": "longrope"}), ["rope_scaling.long_factor"]),
    ("rope_factor", edit_config(rope_scaling={"rope_type": "linear"}), ["rope_scaling.factor"]),
    ("eps", edit_config(rms_norm_eps=0), ["rms_norm_eps = 0"]),
    ("vocab", edit_config(vocab_size=299), ["vocab_size = 299", "model.embed_tokens.weight"]),
    ("untied", edit_config(tie_word_embeddings=False), ["tie_word_embeddings", "lm_head.weight"]),
    ("hidden", edit_config(hidden_size=64), ["model.embed_tokens.weight", "expected [300, 64]"]),
    ("eos", edit_config(eos_token_id="x"), ["config.json", "eos_token_id"]),
    ("generation", write("generation_config.json", '{"eos_token_id": -1}'),
     ["generation_config.json", "eos_token_id"]),
    ("generation_id", write("generation_config.json", '{"eos_token_id": 99999}'), ["99999"]),
    ("no_weights", lambda f: [p.unlink() for p in f.glob("*.safetensors*")], [INDEX]),
    ("no_tokenizer", remove("tokenizer.json"), ["tokenizer.json"]),
    ("index_no_map", write(INDEX, "{}"), [INDEX, "weight_map"]),
    ("index_outside", edit_index(**{QUERY + ".weight": "../x.safetensors"}), [QUERY, "../x"]),
    ("index_absolute", edit_index(**{QUERY + ".weight": "/etc/passwd"}), [QUERY, "passwd"]),
    ("file_missing", remove(SECOND), [SECOND, INDEX]),
    ("tensor_missing", edit_index(ghost=SECOND), [SECOND, "ghost"]),
    ("file_cut", cut(SECOND), [SECOND, "data_offsets"]),
    ("file_empty", write(SECOND, ""), [SECOND, "header length"]),
]  # fmt: skip


@pytest.mark.parametrize("name, damage, named", BROKEN, ids=[case[0] for case in BROKEN])
def test_broken_folders_are_refused_by_file_and_field(
    run_luna: Callable, tmp_path: Path, name: str, damage: Callable[[Path], None], named: list[str]
) -> None:
    folder, _ = made(tmp_path, dense("BF16"), n_files=2)
    damage(folder)
    done = run_luna("generate", "--model", f"{folder}/", "the", "--max-tokens", 1)
    assert done.returncode == 1, done.stderr
    for word in named:
        assert word in done.stderr, done.stderr


BROKEN_FORMATS = [
    ("awq_gemv", awq(64), edit_quantization(version="gemv"), ["version", "gemv", "gemm"]),
    ("awq_bits", awq(64), edit_quantization(bits=8), ["bits = 8"]),
    ("awq_group", awq(64), edit_quantization(group_size=128), ["group_size = 128", "groups of 64"]),
    ("awq_method", awq(64), edit_quantization(quant_method="other"), ["qweight I32", "asked"]),
    ("gptq_bits", gptq(4, 64), edit_quantization(bits=5), ["bits = 5"]),
    ("gptq_other_bits", gptq(4, 64), edit_quantization(bits=8), ["qzeros"]),
    ("gptq_format", gptq(4, 64), edit_quantization(checkpoint_format="marlin"), ["marlin"]),
    ("gptq_dynamic", gptq(4, 64), edit_quantization(dynamic={"x": {"bits": 8}}), ["dynamic"]),
    ("gptq_group", gptq(4, 64), edit_quantization(group_size=32), ["groups"]),
]  # fmt: skip


@pytest.mark.parametrize("name, layout, damage, named", BROKEN_FORMATS, ids=[c[0] for c in BROKEN_FORMATS])
def test_formats_that_differ_from_their_configuration_are_refused(
    run_luna: Callable, tmp_path: Path, name: str, layout: Layout, damage: Callable, named: list[str]
) -> None:
    folder, _ = made(tmp_path, layout)
    damage(folder)
    done = run_luna("generate", "--model", f"{folder}/", "the", "--max-tokens", 1)
    assert done.returncode == 1, done.stderr
    for word in named:
        assert word in done.stderr, done.stderr


def test_a_bias_is_refused_and_not_left_out(run_luna: Callable, tmp_path: Path) -> None:
    layout = dense("F32")
    plain = layout.pack

    def with_bias(weight: np.ndarray):
        parts, worth = plain(weight)
        bias = np.ones(weight.shape[0], "<f4")
        return parts | {"bias": Tensor.of(bias, "F32")}, worth

    layout.pack = with_bias
    folder, _ = made(tmp_path, layout)
    done = run_luna("generate", "--model", f"{folder}/", "the", "--max-tokens", 1)
    assert done.returncode == 1
    assert "self_attn.q_proj.bias" in done.stderr


def test_a_part_that_no_format_knows_is_refused(run_luna: Callable, tmp_path: Path) -> None:
    layout = int8(64)
    plain = layout.pack

    def with_order(weight: np.ndarray):
        parts, worth = plain(weight)
        order = np.arange(weight.shape[1], dtype="<i4")
        return parts | {"weight_g_idx": Tensor.of(order, "I32")}, worth

    layout.pack = with_order
    folder, _ = made(tmp_path, layout)
    done = run_luna("generate", "--model", f"{folder}/", "the", "--max-tokens", 1)
    assert done.returncode == 1
    assert "weight_g_idx" in done.stderr


def test_safetensors_without_their_folder_say_what_to_do(run_luna: Callable, tmp_path: Path) -> None:
    folder, _ = made(tmp_path, dense("F32"))
    alone = tmp_path / "alone.safetensors"
    shutil.copy(folder / "model.safetensors", alone)
    done = run_luna("generate", "--model", alone, "the", "--max-tokens", 1)
    assert done.returncode == 1
    assert "config.json" in done.stderr


# A format that the program has never heard of: three values, five of them in a byte.
def ternary() -> Layout:
    def pack(weight: np.ndarray):
        n_out, n_in = weight.shape
        scale = (2.0 * np.abs(weight).mean(axis=1)).astype("<f4")
        digits = np.clip(np.rint(weight / scale[:, None]), -1, 1).astype(np.int64) + 1
        padded = np.zeros((n_out, -(-n_in // 5) * 5), np.int64)
        padded[:, :n_in] = digits
        packed = (padded.reshape(n_out, -1, 5) * 3 ** np.arange(5)).sum(axis=2).astype(np.uint8)
        parts = {"trits": Tensor("U8", packed.shape, packed.tobytes()),
                 "amount": Tensor.of(scale, "F32"),
                 "n_inputs": Tensor.of(np.array([n_in], "<i4"), "I32")}  # fmt: skip
        return parts, ((digits - 1) * scale[:, None].astype(np.float64)).astype(np.float32)

    return Layout("ternary", pack, {"quant_method": "ternary"})


def test_a_format_added_at_run_time_needs_no_other_change(
    driver: LogitsDriver, run_luna: Callable, tmp_path: Path  # noqa: F811
) -> None:
    added = Path(os.environ["LUNA_LOGITS"]).parent / "formats"
    folder, judge = made(tmp_path, ternary())
    ids = tiny_token_ids()
    reference = driver.logits(folder, [*REFERENCE, "--plugins", str(added)], ids)
    assert np.abs(reference - judge.logits(ids)).max() <= REFERENCE_LOGIT_ERROR_MAX
    error = driver.logits(folder, [*CPU_I12, "--plugins", str(added)], ids) - reference
    assert np.sqrt(np.mean(error**2)) / reference.std() <= TINY_RELATIVE_ERROR_MAX
    asked = ["generate", "--model", f"{folder}/", "the", "--max-tokens", 2]
    without = run_luna(*asked)
    assert without.returncode == 1
    assert "trits U8" in without.stderr
    with_it = run_luna(*asked, env=os.environ | {"LUNA_PLUGIN_PATH": str(added)})
    assert with_it.returncode == 0, with_it.stderr


def test_names_go_both_ways() -> None:
    assert hf_name("blk.10.ffn_down.weight") == "model.layers.10.mlp.down_proj.weight"
    assert hf_name("output.weight") == "lm_head.weight"


def test_a_folder_is_served(start_server: Callable, tmp_path: Path, luna_bin: Path) -> None:
    folder, _ = made(tmp_path, int8(64), n_files=2)
    config = tmp_path / "luna.toml"
    config.write_text(config_text(folder), encoding="utf-8")
    server = LunaServer(luna_bin, config)
    try:
        status, answer = server.chat("the", max_tokens=4)
        assert status == 200, answer
        assert answer["choices"][0]["message"]["role"] == "assistant"
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("layout", [awq(64), gptq(4, 64, act_order=True), int8(None)], ids=lambda it: it.name)
def test_devices_share_a_folder_by_layers_and_by_rows(
    run_luna: Callable, tmp_path: Path, layout: Layout
) -> None:
    folder, _ = made(tmp_path, layout, n_files=2)
    answers = []
    for n_devices, keys in ((1, ""), (2, ""), (2, 'layout = "tensor"')):
        config = tmp_path / "luna.toml"
        config.write_text(config_text(folder, n_devices=n_devices, model_keys=keys), encoding="utf-8")
        done = run_luna("generate", "--config", config, "the cat and in to", "--max-tokens", 12,
                        "--temperature", 0)  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    assert answers[0] == answers[1] == answers[2]
