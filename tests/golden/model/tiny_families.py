"""Tiny models of every family with random weights, as Hugging Face folders and as GGUF files.

A family is its config.json and its weights under the names of the `transformers` library, drawn
from seeds with NumPy and rounded to BF16, so that no backend rounds them again. `write_folder` and
`write_gguf` write the same model; the GGUF's names, keys and changes of weights (heads permuted,
norms plus one) are those of llama.cpp's converter. `make_family_golden.py` beside this file asks
`transformers` for the logits, once; they lie in `family_logits.safetensors`.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from make_tiny_models import CHAT_TEMPLATE, CONTROL_TOKENS, vocabulary

SEED = 20261201
N_VOCAB = len(vocabulary()[0])
N_TOKENS = 300  # crosses a partition of 256 positions
# What the golden file holds logits of: around borders of blocks, windows and partitions.
POSITIONS = (0, 1, 31, 32, 39, 40, 63, 64, 100, 255, 256, 257, 299)

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Family:
    """One model. `config` is its config.json, `gguf_keys` what its GGUF says beside sizes."""

    name: str
    config: dict
    gguf_architecture: str
    gguf_keys: dict = field(default_factory=dict)
    layer: tuple[str, ...] = ()  # modules of a layer beside those of a Llama
    without: tuple[str, ...] = ()  # modules of a Llama that it has not
    gguf_names: dict[str, str] = field(default_factory=dict)  # modules by name, where others
    experts: tuple[str, ...] = ()  # modules of gate, up and down of an expert, by its number
    n_experts: int = 0
    norms_less_one: bool = False
    permutes_heads: bool = False

    @property
    def n_layers(self) -> int:
        return self.config["num_hidden_layers"]

    @property
    def head_dim(self) -> int:
        return self.config.get("head_dim") or (
            self.config["hidden_size"] // self.config["num_attention_heads"])


def base_config(model_type: str, class_name: str, **fields) -> dict:
    config = {
        "model_type": model_type, "architectures": [class_name], "vocab_size": N_VOCAB,
        "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "tie_word_embeddings": False, "rope_theta": 10000.0, "eos_token_id": 2,
        "bos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    return {key: value for key, value in (config | fields).items() if value is not None}


WINDOW = 40  # crosses a block of 32 positions


def layer_types(n_layers: int, period: int) -> list[str]:
    return ["full_attention" if i % period == period - 1 else "sliding_attention"
            for i in range(n_layers)]  # fmt: skip


GEMMA = dict(hidden_act=None, hidden_activation="gelu_pytorch_tanh", sliding_window=WINDOW,
             tie_word_embeddings=True)  # fmt: skip
GEMMA_NORMS = ("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight")
GEMMA_NAMES = {"post_attention_layernorm": "post_attention_norm",
               "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}  # fmt: skip
PHI = dict(head_dim=None, hidden_size=128)
LONGROPE = {"type": "longrope", "short_factor": [1.0 + 0.05 * i for i in range(16)],
            "long_factor": [1.0 + 0.5 * i for i in range(16)]}  # fmt: skip
PHI_FAMILY = dict(
    layer=("self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight"),
    without=("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
             "mlp.gate_proj.weight", "mlp.up_proj.weight"),
    gguf_names={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
)  # fmt: skip
DENSE_FFN = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
QWEN_BIASES = tuple(f"self_attn.{part}_proj.bias" for part in "qkv")
HEAD_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")

FAMILIES = (
    Family("llama", base_config("llama", "LlamaForCausalLM"), "llama", permutes_heads=True),
    Family("qwen2", base_config("qwen2", "Qwen2ForCausalLM", head_dim=None, hidden_size=128,
                                use_sliding_window=False, sliding_window=64,
                                rope_theta=1000000.0, tie_word_embeddings=True),
           "qwen2", layer=QWEN_BIASES),
    Family("qwen3", base_config("qwen3", "Qwen3ForCausalLM", rope_theta=1000000.0), "qwen3",
           layer=HEAD_NORMS),
    Family("mistral", base_config("mistral", "MistralForCausalLM", sliding_window=WINDOW), "llama",
           {"attention.sliding_window": WINDOW}, permutes_heads=True),
    Family("gemma2", base_config(
        "gemma2", "Gemma2ForCausalLM", num_hidden_layers=4, layer_types=layer_types(4, 2),
        query_pre_attn_scalar=20, attn_logit_softcapping=5.0, final_logit_softcapping=2.0, **GEMMA),
           "gemma2", {"attention.sliding_window": WINDOW, "attn_logit_softcapping": 5.0,
                      "final_logit_softcapping": 2.0, "attention.scale": 20**-0.5},
           layer=GEMMA_NORMS, gguf_names=GEMMA_NAMES, norms_less_one=True),
    Family("gemma3", base_config(
        "gemma3_text", "Gemma3ForCausalLM", num_hidden_layers=7, layer_types=layer_types(7, 6),
        query_pre_attn_scalar=32, rope_theta=1000000.0, rope_local_base_freq=10000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0}, **GEMMA),
           "gemma3", {"attention.sliding_window": WINDOW, "rope.scaling.type": "linear",
                      "rope.scaling.factor": 8.0},
           layer=(*HEAD_NORMS, *GEMMA_NORMS), gguf_names=GEMMA_NAMES, norms_less_one=True),
    Family("phi3", base_config("phi3", "Phi3ForCausalLM", sliding_window=WINDOW, **PHI,
                               original_max_position_embeddings=512, rope_scaling=LONGROPE),
           "phi3", {"attention.sliding_window": WINDOW,
                    "rope.scaling.original_context_length": 512, "rope.scaling.attn_factor": 1.0},
           **PHI_FAMILY),
    Family("phi3_long", base_config("phi3", "Phi3ForCausalLM", **PHI, max_position_embeddings=1024,
                                    original_max_position_embeddings=128, rope_scaling=LONGROPE),
           "phi3", {"rope.scaling.original_context_length": 128,
                    "rope.scaling.attn_factor": math.sqrt(1 + math.log(8) / math.log(128))},
           **PHI_FAMILY),
    Family("mixtral", base_config("mixtral", "MixtralForCausalLM", num_local_experts=4,
                                  num_experts_per_tok=2),
           "llama", {"expert_count": 4, "expert_used_count": 2}, permutes_heads=True,
           experts=("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3",
                    "block_sparse_moe.experts.{}.w2"), n_experts=4,
           layer=("block_sparse_moe.gate.weight",), without=DENSE_FFN,
           gguf_names={"block_sparse_moe.gate": "ffn_gate_inp"}),
    Family("qwen3moe", base_config("qwen3_moe", "Qwen3MoeForCausalLM", num_experts=6,
                                   num_experts_per_tok=3, moe_intermediate_size=64,
                                   norm_topk_prob=True, decoder_sparse_step=1),
           "qwen3moe", {"expert_count": 6, "expert_used_count": 3,
                        "expert_feed_forward_length": 64},
           experts=("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj",
                    "mlp.experts.{}.down_proj"), n_experts=6,
           layer=(*HEAD_NORMS, "mlp.gate.weight"), without=DENSE_FFN,
           gguf_names={"mlp.gate": "ffn_gate_inp"}),
)  # fmt: skip

LLAMA_LAYER = (
    "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
    "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
    "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
)  # fmt: skip
GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
GAINS = {"q_proj": 1.5, "o_proj": 2.0, "down_proj": 2.0, "w2": 2.0, "gate": 3.0}


def bf16(values: np.ndarray) -> np.ndarray:
    """FP32 values rounded to those that BF16 has."""
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype("<u4").view("<f4")


def shape_of(family: Family, module: str) -> tuple[int, ...]:
    c = family.config
    hidden, ffn, head_dim = c["hidden_size"], c["intermediate_size"], family.head_dim
    q, kv = c["num_attention_heads"] * head_dim, c["num_key_value_heads"] * head_dim
    part = module.rsplit(".", 2)[-2]
    if ".experts." in module:
        width = c.get("moe_intermediate_size", ffn)
        return (hidden, width) if part in ("w2", "down_proj") else (width, hidden)
    if part == "gate":
        return (family.n_experts, hidden)
    n_rows = {"q_proj": q, "k_proj": kv, "v_proj": kv}.get(part)
    if module.endswith(".bias"):
        return (n_rows,)
    if part in ("q_norm", "k_norm"):
        return (head_dim,)
    if "norm" in part:
        return (hidden,)
    return {"o_proj": (hidden, q), "gate_proj": (ffn, hidden), "up_proj": (ffn, hidden),
            "down_proj": (hidden, ffn), "embed_tokens": (N_VOCAB, hidden),
            "lm_head": (N_VOCAB, hidden), "qkv_proj": (q + 2 * kv, hidden),
            "gate_up_proj": (2 * ffn, hidden)}.get(part) or (n_rows, hidden)  # fmt: skip


def names_of(family: Family) -> list[str]:
    modules = [m for m in LLAMA_LAYER if m not in family.without] + list(family.layer)
    modules += [f"{m.format(e)}.weight" for m in family.experts for e in range(family.n_experts)]
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    names += [f"model.layers.{i}.{m}" for i in range(family.n_layers) for m in modules]
    return names + ([] if family.config["tie_word_embeddings"] else ["lm_head.weight"])


def draw(family: Family, name: str) -> np.ndarray:
    """Each tensor has its own seed, so that none depends on another's order."""
    rng = np.random.default_rng(zlib.crc32(f"{SEED}/{family.name}/{name}".encode()))
    shape = shape_of(family, name)
    drawn = rng.standard_normal(shape)
    part = name.rsplit(".", 2)[-2]
    if name.endswith(".bias"):
        return 0.5 * drawn
    if "norm" in part:
        return (0.0 if family.norms_less_one else 1.0) + 0.15 * drawn
    if part == "embed_tokens":  # Gemma scales what it reads by sqrt(hidden_size)
        return (0.1 if family.norms_less_one else 0.3) * drawn
    return GAINS.get(part, 1.0) / math.sqrt(shape[-1]) * drawn


def weights_of(family: Family) -> Weights:
    """By the names of the transformers library."""
    return {name: bf16(draw(family, name)) for name in names_of(family)}


def token_ids() -> list[int]:
    return np.random.default_rng(SEED).integers(0, N_VOCAB, N_TOKENS).tolist()


def write_folder(folder: Path, family: Family) -> Path:
    """config.json, weights in BF16 and the vocabulary, as the transformers library has them."""
    from hf_folder import Tensor, tokenizer_json, write_safetensors

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(family.config, indent=2))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}))
    tensors = {name: Tensor.of((w.view("<u4") >> 16).astype("<u2"), "BF16")
               for name, w in weights_of(family).items()}  # fmt: skip
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def gguf_name(family: Family, name: str) -> str:
    if name.startswith("blk."):
        return name
    module, part = name.rsplit(".", 1)
    layer = ""
    if module.startswith("model.layers."):
        number, module = module.removeprefix("model.layers.").split(".", 1)
        layer = f"blk.{number}."
    return f"{layer}{(GGUF_NAMES | family.gguf_names)[module]}.{part}"


def stacked_experts(family: Family, weights: Weights) -> Weights:
    """The weights with each layer's experts in one tensor [n_experts, n_out, n_in] of GGUF's name."""
    names = dict(zip(family.experts, ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")))
    stacks = {}
    for layer in range(family.n_layers):
        for module, ours in names.items():
            parts = [weights[f"model.layers.{layer}.{module.format(e)}.weight"]
                     for e in range(family.n_experts)]  # fmt: skip
            stacks[f"blk.{layer}.{ours}.weight"] = np.stack(parts)
    return {n: w for n, w in weights.items() if ".experts." not in n} | stacks


def permuted(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of each head so that rotary pairs are neighbours."""
    heads = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(weight.shape)


def add_vocabulary(writer: GGUFWriter) -> None:
    tokens, types, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(CONTROL_TOKENS.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_gguf(path: Path, family: Family) -> Path:
    """The same model as llama.cpp's converter writes it, in FP32."""
    c, arch = family.config, family.gguf_architecture
    writer = GGUFWriter(path, arch)
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(family.n_layers)
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(family.head_dim)
    writer.add_value_length(family.head_dim)
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    for key, value in family.gguf_keys.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{arch}.{key}", value)
    add_vocabulary(writer)
    scaling = c.get("rope_scaling") or {}
    for kind in ("long", "short"):
        if f"{kind}_factor" in scaling:
            factors = np.array(scaling[f"{kind}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)
    for name, weight in stacked_experts(family, weights_of(family)).items():
        if family.permutes_heads and ("q_proj" in name or "k_proj" in name):
            weight = permuted(weight, family.head_dim)
        if family.norms_less_one and "norm" in name:
            weight = weight + np.float32(1.0)
        writer.add_tensor(gguf_name(family, name), weight.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
