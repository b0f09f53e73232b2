"""Hugging Face folders with tiny models, in every format that Luna reads: written here, for tests.

A folder is made from a tiny GGUF model (tests/golden/model): the same weights under the names of
the transformers library, Q and K in the order of training, tokenizer.json from the same vocabulary.
`Layout` packs one weight and says what the packed weight is worth, computed from the codes, so that
the judge (reference_llama.LlamaModel) never sees packed bytes. The packings are written from the
formats' published definitions, apart from the program's own readers and writers:

    AWQ    WQLinear_GEMM.from_linear, AutoAWQ 0.2.9
    GPTQ   QuantLinear.pack, AutoGPTQ 0.7.1
    INT8   "int-quantized" of compressed-tensors
    FP8    values with "weight_scale" (a row) or "weight_scale_inv" (a block of 128 x 128)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from make_tiny_models import (
    CHAT_TEMPLATE, CONTEXT_LENGTH, CONTROL_TOKENS, ROPE_FACTOR, vocabulary,
)  # fmt: skip
from reference_llama import LlamaConfig, LlamaModel

HF_MODULES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "I32": 4}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @staticmethod
    def of(array: np.ndarray, dtype: str) -> "Tensor":
        """array  of a NumPy type that has the dtype's bits"""
        assert array.dtype.itemsize == ITEM_BYTES[dtype], f"{array.dtype} is not {dtype}"
        return Tensor(dtype, array.shape, np.ascontiguousarray(array).tobytes())


@dataclass
class Layout:
    """One format: its `quantization_config`, and how a weight [n_out, n_in] is packed.

    pack  weight -> parts by name, and the packed weight's values in FP32
    """

    name: str
    pack: Callable[[np.ndarray], tuple[dict[str, Tensor], np.ndarray]]
    config: dict | None = None
    hidden_size: int = 128
    feed_forward_size: int = 192


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    header, at = {}, 0
    for name, tensor in tensors.items():
        end = at + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.data)


def trained_order(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of Q or K from GGUF's interleaved pairs to halves, as transformers rotate them."""
    n_out, n_in = weight.shape
    pairs = weight.reshape(n_heads, n_out // n_heads // 2, 2, n_in)
    return pairs.swapaxes(1, 2).reshape(n_out, n_in)


def interleaved_order(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """The way back."""
    n_out, n_in = weight.shape
    halves = weight.reshape(n_heads, 2, n_out // n_heads // 2, n_in)
    return halves.swapaxes(1, 2).reshape(n_out, n_in)


def heads_of(name: str, config: LlamaConfig) -> int | None:
    """The heads of a weight whose rows GGUF stores in another order."""
    return {"attn_q": config.n_heads, "attn_k": config.n_kv_heads}.get(name.split(".")[-2])


def hf_name(name: str) -> str:
    """"blk.0.attn_q.weight" -> "model.layers.0.self_attn.q_proj.weight"."""
    module, part = name.rsplit(".", 1)
    if not module.startswith("blk."):
        return f"{HF_MODULES[module]}.{part}"
    _, layer, of_layer = module.split(".", 2)
    return f"model.layers.{layer}.{HF_MODULES[of_layer]}.{part}"


def config_json(config: LlamaConfig, ffn_size: int, tied: bool, llama3: bool) -> dict:
    """What `config.json` of a transformers Llama has."""
    rope = config.rope
    scaling = None
    if llama3:  # the numbers of make_tiny_models.llama3_freq_factors()
        scaling = {"rope_type": "llama3", "factor": ROPE_FACTOR, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0,
                   "original_max_position_embeddings": int(CONTEXT_LENGTH / ROPE_FACTOR)}  # fmt: skip
    elif rope.scaling == "linear":
        scaling = {"rope_type": "linear", "factor": rope.factor}
    elif rope.scaling == "yarn":
        scaling = {"rope_type": "yarn", "factor": rope.factor,
                   "original_max_position_embeddings": rope.original_context_length}  # fmt: skip
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": config.hidden_size, "intermediate_size": ffn_size,
        "num_hidden_layers": config.n_layers, "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads, "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length, "rms_norm_eps": config.norm_eps,
        "rope_theta": rope.freq_base, "rope_scaling": scaling, "vocab_size": config.vocab_size,
        "tie_word_embeddings": tied, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
    }  # fmt: skip


def tokenizer_json() -> dict:
    """The tiny models' vocabulary as the tokenizers library writes it."""
    tokens, _, merges = vocabulary()
    added = [{"id": tokens.index(text), "content": text, "special": True, "single_word": False,
              "lstrip": False, "rstrip": False, "normalized": False}
             for text in CONTROL_TOKENS]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0", "added_tokens": added, "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, {**byte_level, "use_regex": True}]},
        "decoder": {**byte_level, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False,
                  "vocab": {text: i for i, text in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in merges]},
    }  # fmt: skip


def make_hf_folder(folder: Path, gguf: Path, layout: Layout, n_files: int = 1) -> LlamaModel:
    """Writes the model of a GGUF file as a folder; answers what its weights are worth.

    The layout packs the matrices of the layers; embedding, head and norms stay FP32.
    """
    model = LlamaModel.load(gguf)
    worth: dict[str, np.ndarray] = {}
    tensors: dict[str, Tensor] = {}
    for name, values in model.tensors.items():
        if name == "rope_freqs.weight":  # the program computes them from rope_scaling
            worth[name] = values
            continue
        heads = heads_of(name, model.config) if name.startswith("blk.") else None
        trained = values if heads is None else trained_order(values, heads)
        if values.ndim == 2 and name.startswith("blk."):
            parts, values = layout.pack(trained)
            worth[name] = values if heads is None else interleaved_order(values, heads)
        else:
            parts = {"weight": Tensor.of(trained.astype("<f4"), "F32")}
            worth[name] = values
        module = hf_name(name).rsplit(".", 1)[0]
        tensors |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    folder.mkdir(parents=True)
    tied = "output.weight" not in model.tensors
    ffn_size = model.tensors["blk.0.ffn_gate.weight"].shape[0]
    config = config_json(model.config, ffn_size, tied, "rope_freqs.weight" in model.tensors)
    if layout.config is not None:
        config["quantization_config"] = layout.config
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
                    "chat_template": CHAT_TEMPLATE}))  # fmt: skip
    write_weights(folder, tensors, n_files)
    return LlamaModel(model.config, worth)


def write_weights(folder: Path, tensors: dict[str, Tensor], n_files: int) -> None:
    if n_files == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = sorted(tensors)
    weight_map = {}
    for i in range(n_files):
        file = f"model-{i + 1:05}-of-{n_files:05}.safetensors"
        own = names[i::n_files]
        weight_map |= dict.fromkeys(own, file)
        write_safetensors(folder / file, {name: tensors[name] for name in own})
    index = {"metadata": {"total_size": sum(len(t.data) for t in tensors.values())},
             "weight_map": weight_map}  # fmt: skip
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
