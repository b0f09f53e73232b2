"""An independent Llama in NumPy: FP32 arithmetic on the decoded weights of a GGUF file.

It is the judge of `backend_reference`, so it shares no line and no idea of speed with it: the whole
prompt is run at once, attention is one dense causal matrix, nothing is cached. The weights are
decoded by the `gguf` package. Covered: grouped-query attention, RoPE over interleaved pairs (the
order in which GGUF stores `llama` Q and K rows) with linear, `rope_freqs.weight` (llama3) and YaRN
scaling, RMSNorm, SwiGLU, optional projection biases, tied and own head.

    python3 tests/support/reference_llama.py --model m.gguf --tokens ids.json --out logits.f32

`ids.json` is a JSON list of token ids; `--out x.f32` gets raw little-endian float32, row-major
[n_tokens, vocab_size], and `--out x.npy` the same array in NumPy's format.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


@dataclass(frozen=True)
class RopeConfig:
    """How positions become angles; names follow the GGUF keys."""

    n_dims: int
    freq_base: float
    scaling: str = "none"  # none | linear | yarn
    factor: float = 1.0
    original_context_length: int = 0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class LlamaConfig:
    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    context_length: int
    rope: RopeConfig


@dataclass(frozen=True)
class Linear:
    """A decoded weight matrix, and its bias where the file has one."""

    weight: np.ndarray  # [n_out, n_in], float32
    bias: np.ndarray | None  # [n_out]


class Arithmetic:
    """The points at which a backend may round; this base class rounds nowhere."""

    def linear_input(self, x: np.ndarray) -> np.ndarray:
        return x

    def query(self, q: np.ndarray) -> np.ndarray:
        return q

    def key(self, k: np.ndarray) -> np.ndarray:
        return k

    def value(self, v: np.ndarray) -> np.ndarray:
        return v

    def probability(self, p: np.ndarray) -> np.ndarray:
        return p


class GgufFields:
    """Metadata of one file by key, with and without a default."""

    def __init__(self, reader: GGUFReader):
        self.reader_ = reader

    def get(self, key: str, default=None):
        entry = self.reader_.fields.get(key)
        return default if entry is None else entry.contents()

    def need(self, key: str):
        value = self.get(key)
        if value is None:
            raise ValueError(f"{key}: missing from the file's metadata")
        return value


def read_config(reader: GGUFReader, vocab_size: int) -> LlamaConfig:
    """Reads the hyper-parameters; refuses what the forward pass below does not compute."""
    fields = GgufFields(reader)
    architecture = fields.need("general.architecture")
    if architecture != "llama":
        raise ValueError(f"general.architecture = {architecture!r}: only 'llama' is computed here")
    if int(fields.get("llama.expert_count", 0)) > 0:
        raise ValueError("llama.expert_count > 0: mixtures of experts are not computed here")
    hidden_size = int(fields.need("llama.embedding_length"))
    n_heads = int(fields.need("llama.attention.head_count"))
    head_dim = int(fields.get("llama.attention.key_length", hidden_size // n_heads))
    context_length = int(fields.get("llama.context_length", 0))
    scaling = fields.get("llama.rope.scaling.type", "none")
    factor = float(fields.get("llama.rope.scaling.factor", 1.0))
    if "llama.rope.scaling.type" not in reader.fields and factor != 1.0:
        scaling = "linear"  # what a factor without a type means
    if scaling not in ("none", "linear", "yarn"):
        raise ValueError(f"llama.rope.scaling.type = {scaling!r}: not none, linear or yarn")
    original = int(fields.get("llama.rope.scaling.original_context_length", context_length))
    rope = RopeConfig(
        n_dims=int(fields.get("llama.rope.dimension_count", head_dim)),
        freq_base=float(fields.get("llama.rope.freq_base", 10000.0)),
        scaling=scaling,
        factor=factor,
        original_context_length=original,
        attn_factor=float(fields.get("llama.rope.scaling.attn_factor", 1.0)),
        beta_fast=float(fields.get("llama.rope.scaling.yarn_beta_fast", 32.0)),
        beta_slow=float(fields.get("llama.rope.scaling.yarn_beta_slow", 1.0)),
    )
    return LlamaConfig(
        n_layers=int(fields.need("llama.block_count")),
        hidden_size=hidden_size,
        n_heads=n_heads,
        n_kv_heads=int(fields.get("llama.attention.head_count_kv", n_heads)),
        head_dim=head_dim,
        vocab_size=vocab_size,
        norm_eps=float(fields.need("llama.attention.layer_norm_rms_epsilon")),
        context_length=context_length,
        rope=rope,
    )


def yarn_extrapolation_share(rope: RopeConfig) -> np.ndarray:
    """Share of the unscaled angle per pair, 1 for fast to 0 for slow pairs (YaRN, section 3.2)."""

    def pair_of_rotations(n_rotations: float) -> float:
        turns = rope.original_context_length / (n_rotations * 2.0 * math.pi)
        return rope.n_dims * math.log(turns) / (2.0 * math.log(rope.freq_base))

    low = max(0.0, math.floor(pair_of_rotations(rope.beta_fast)))
    high = min(rope.n_dims - 1.0, math.ceil(pair_of_rotations(rope.beta_slow)))
    pair = np.arange(rope.n_dims // 2, dtype=np.float64)
    return 1.0 - np.clip((pair - low) / max(0.001, high - low), 0.0, 1.0)


def rope_tables(
    rope: RopeConfig, n_tokens: int, freq_factors: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine, [n_tokens, n_dims / 2]; angles in double, as 1e-4 rad shows in logits."""
    pair = np.arange(rope.n_dims // 2, dtype=np.float64)
    frequency = rope.freq_base ** (-2.0 * pair / rope.n_dims)
    if freq_factors is not None:
        frequency = frequency / freq_factors.astype(np.float64)
    magnitude = 1.0
    if rope.scaling == "linear":
        frequency = frequency / rope.factor
    elif rope.scaling == "yarn":
        share = yarn_extrapolation_share(rope)
        frequency = frequency / rope.factor * (1.0 - share) + frequency * share
        magnitude = rope.attn_factor * (1.0 + 0.1 * math.log(rope.factor))
    angle = np.arange(n_tokens, dtype=np.float64)[:, None] * frequency[None, :]
    return (
        (np.cos(angle) * magnitude).astype(np.float32),
        (np.sin(angle) * magnitude).astype(np.float32),
    )


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotates the pairs (2i, 2i + 1) of the first n_dims of x [n_tokens, n_heads, head_dim]."""
    n_dims = 2 * cos.shape[1]
    even, odd = x[..., 0:n_dims:2], x[..., 1:n_dims:2]
    out = x.copy()
    out[..., 0:n_dims:2] = even * cos[:, None, :] - odd * sin[:, None, :]
    out[..., 1:n_dims:2] = even * sin[:, None, :] + odd * cos[:, None, :]
    return out


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    mean_square = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    return x / np.sqrt(mean_square + np.float32(eps)) * weight


def silu(x: np.ndarray) -> np.ndarray:
    # exp overflows to inf for large negative x, where x / (1 + inf) is the right zero.
    with np.errstate(over="ignore"):
        return x / (np.float32(1.0) + np.exp(-x))


def apply(linear: Linear, x: np.ndarray) -> np.ndarray:
    y = x @ linear.weight.T
    return y if linear.bias is None else y + linear.bias


@dataclass
class LlamaModel:
    """A decoded model. A value: `logits` changes nothing in it."""

    config: LlamaConfig
    tensors: dict[str, np.ndarray] = field(repr=False)  # float32, as in the file: [n_out, n_in]

    @staticmethod
    def load(path: str | Path) -> "LlamaModel":
        reader = GGUFReader(str(path))
        tensors = {
            tensor.name: np.ascontiguousarray(
                dequantize(tensor.data, tensor.tensor_type), dtype=np.float32
            )
            for tensor in reader.tensors
        }
        vocab_size = tensors["token_embd.weight"].shape[0]
        return LlamaModel(read_config(reader, vocab_size), tensors)

    def linear(self, name: str) -> Linear:
        return Linear(self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def head(self) -> Linear:
        return self.linear("output" if "output.weight" in self.tensors else "token_embd")

    def logits(self, token_ids: list[int], arithmetic: Arithmetic | None = None) -> np.ndarray:
        """Teacher-forced logits of every position, [n_tokens, vocab_size], float32."""
        arithmetic = arithmetic or Arithmetic()
        c = self.config
        ids = np.asarray(token_ids, dtype=np.int64)
        if ids.size == 0 or ids.min() < 0 or ids.max() >= c.vocab_size:
            raise ValueError(f"token ids: a non-empty list of values in 0..{c.vocab_size - 1}")
        tables = rope_tables(c.rope, ids.size, self.tensors.get("rope_freqs.weight"))
        x = self.tensors["token_embd.weight"][ids]  # [n_tokens, hidden_size]
        for layer in range(c.n_layers):
            name = f"blk.{layer}"
            h = rms_norm(x, self.tensors[f"{name}.attn_norm.weight"], c.norm_eps)
            x = x + self.attention(name, h, tables, arithmetic)
            h = rms_norm(x, self.tensors[f"{name}.ffn_norm.weight"], c.norm_eps)
            x = x + self.feed_forward(name, h, arithmetic)
        x = rms_norm(x, self.tensors["output_norm.weight"], c.norm_eps)
        return apply(self.head(), arithmetic.linear_input(x))

    def attention(self, name, h, tables, arithmetic: Arithmetic) -> np.ndarray:
        """Causal grouped-query attention of the whole prompt, [n_tokens, hidden_size]."""
        c = self.config
        n_tokens = h.shape[0]
        h = arithmetic.linear_input(h)
        q = apply(self.linear(f"{name}.attn_q"), h).reshape(n_tokens, c.n_heads, c.head_dim)
        k = apply(self.linear(f"{name}.attn_k"), h).reshape(n_tokens, c.n_kv_heads, c.head_dim)
        v = apply(self.linear(f"{name}.attn_v"), h).reshape(n_tokens, c.n_kv_heads, c.head_dim)
        q = arithmetic.query(rotate(q, *tables))
        k = arithmetic.key(rotate(k, *tables))
        v = arithmetic.value(v)
        scale = np.float32(1.0 / math.sqrt(c.head_dim))
        future = np.triu(np.ones((n_tokens, n_tokens), dtype=bool), k=1)
        out = np.empty_like(q)  # [n_tokens, n_heads, head_dim]
        for head in range(c.n_heads):
            kv_head = head * c.n_kv_heads // c.n_heads
            score = (q[:, head] @ k[:, kv_head].T) * scale  # [n_tokens, n_tokens]
            score[future] = -np.inf
            p = np.exp(score - score.max(axis=-1, keepdims=True))
            total = p.sum(axis=-1, keepdims=True)
            out[:, head] = (arithmetic.probability(p) @ v[:, kv_head]) / total
        out = arithmetic.linear_input(out.reshape(n_tokens, c.n_heads * c.head_dim))
        return apply(self.linear(f"{name}.attn_output"), out)

    def feed_forward(self, name: str, h: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
        h = arithmetic.linear_input(h)
        gate = apply(self.linear(f"{name}.ffn_gate"), h)
        up = apply(self.linear(f"{name}.ffn_up"), h)
        return apply(self.linear(f"{name}.ffn_down"), arithmetic.linear_input(silu(gate) * up))


def main() -> None:
    parser = argparse.ArgumentParser(description="Teacher-forced logits of a Llama GGUF in NumPy.")
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--tokens", required=True, type=Path, help="JSON list of token ids")
    parser.add_argument("--out", required=True, type=Path, help="x.npy, or raw float32")
    args = parser.parse_args()
    logits = LlamaModel.load(args.model).logits(json.loads(args.tokens.read_text()))
    if args.out.suffix == ".npy":
        np.save(args.out, logits)
    else:
        logits.astype("<f4").tofile(args.out)


if __name__ == "__main__":
    main()
