"""A GGUF file of a Llama model as a Hugging Face folder in BF16, for peers that cannot read the GGUF.

  make_hf_folder.py MODEL.gguf FOLDER

Weights are the file's own values, dequantized and rounded to BF16 (a peer that computes in BF16 would
round them so); nothing is trained or requantized. Needs the packages gguf, numpy.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def hf_name(name: str) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if layer is None or layer[2] not in LAYER_NAMES:
        raise ValueError(f"{name}: not a tensor of a Llama model")
    return f"model.layers.{layer[1]}.{LAYER_NAMES[layer[2]]}.weight"


def unpermuted(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """GGUF keeps the rows of q and k with a head's rotated pairs side by side; the folder's two halves."""
    n_rows, width = rows.shape
    pairs = rows.reshape(n_heads, n_rows // n_heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(n_rows, width)


def bf16_bytes(values: np.ndarray) -> bytes:
    """Round to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def write_safetensors(tensors: dict[str, np.ndarray], path: Path) -> None:
    header, parts, offset = {}, [], 0
    for name, values in tensors.items():
        parts.append(bf16_bytes(values))
        end = offset + len(parts[-1])
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.writelines(parts)


class Fields:
    """The file's key-value pairs."""

    def __init__(self, reader: GGUFReader):
        self.fields_ = reader.fields

    def get(self, key: str, default=None):
        return self.fields_[key].contents() if key in self.fields_ else default


def config(fields: Fields, is_tied: bool) -> dict:
    def llama(key: str):
        return fields.get(f"llama.{key}")

    n_heads = llama("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": is_tied,
        "hidden_size": llama("embedding_length"), "intermediate_size": llama("feed_forward_length"),
        "num_hidden_layers": llama("block_count"), "num_attention_heads": n_heads,
        "num_key_value_heads": llama("attention.head_count_kv") or n_heads,
        "max_position_embeddings": llama("context_length"), "rope_theta": llama("rope.freq_base") or 10000.0,
        "rms_norm_eps": llama("attention.layer_norm_rms_epsilon"),
        "vocab_size": len(fields.get("tokenizer.ggml.tokens")),
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
    }


def tokenizer(fields: Fields) -> dict:
    """tokenizer.json of a byte-level BPE vocabulary; token types 3 and 4 are control and user-defined."""
    tokens = fields.get("tokenizer.ggml.tokens")
    types = fields.get("tokenizer.ggml.token_type")
    added = [
        {"id": i, "content": tokens[i], "special": types[i] == 3, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i in range(len(tokens)) if types[i] in (3, 4)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": fields.get("tokenizer.ggml.merges")},
    }


def convert(source: Path, folder: Path) -> None:
    reader = GGUFReader(source)
    fields = Fields(reader)
    if fields.get("general.architecture") != "llama":
        raise ValueError(f"{source}: architecture {fields.get('general.architecture')}, not llama")
    n_heads = fields.get("llama.attention.head_count")
    heads_of = {"attn_q": n_heads, "attn_k": fields.get("llama.attention.head_count_kv") or n_heads}
    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads_of:
            values = unpermuted(values, heads_of[kind])
        tensors[hf_name(tensor.name)] = values
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(tensors, folder / "model.safetensors")
    is_tied = "lm_head.weight" not in tensors
    tokens = fields.get("tokenizer.ggml.tokens")
    eos = tokens[fields.get("tokenizer.ggml.eos_token_id")]
    texts = {
        "config.json": config(fields, is_tied), "tokenizer.json": tokenizer(fields),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos,
                                  "chat_template": fields.get("tokenizer.chat_template")},
    }
    for name, value in texts.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
