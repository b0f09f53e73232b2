"""Measures what 12-bit activations and BF16 attention operands cost, as KL to FP32 activations.

    python3 bench/numerics/measure_attention_precision.py --model m.gguf [--windows 4]

The weights are the decoded ones in every row of the table, so the figures are the cost of the
arithmetic alone, not of the weight format. The text is the one of the numerics tests. It decides
whether Q and P are carried as one BF16 term or as two (hi + lo): one, unless its KL exceeds 5e-5.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from evaluation_text import FILES, PACKAGE, SHA256, VERSION, token_windows  # noqa: E402
from logit_metrics import Comparison  # noqa: E402
from reference_llama import Arithmetic, LlamaModel  # noqa: E402

GROUP = 32  # weights per scale of Q4_1 and Q8_0, which activation groups follow
CODE_MAX = 2047  # largest code of a 12-bit activation


def round_bf16(x: np.ndarray) -> np.ndarray:
    """Nearest BF16, ties to even, as float32. Finite values only."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)


def split_bf16(x: np.ndarray) -> np.ndarray:
    """The value of two BF16 terms, hi + lo; exact in float32."""
    hi = round_bf16(x)
    return hi + round_bf16(x - hi)


def round_i12(x: np.ndarray) -> np.ndarray:
    """12-bit integers per row and group of 32, decoded again: s = max / 2047, a = rint(x / s)."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    code = np.rint(groups * (np.float32(CODE_MAX) / np.where(largest == 0, 1, largest)))
    return (code * (largest / np.float32(CODE_MAX))).reshape(x.shape).astype(np.float32)


Rounding = Callable[[np.ndarray], np.ndarray]


def keep(x: np.ndarray) -> np.ndarray:
    return x


@dataclass(frozen=True)
class Variant(Arithmetic):
    """One row of the table: a rounding per place."""

    name: str
    activation: Rounding = keep
    q: Rounding = keep
    k: Rounding = keep
    v: Rounding = keep
    p: Rounding = keep

    def linear_input(self, x):
        return self.activation(x)

    def query(self, q):
        return self.q(q)

    def key(self, k):
        return self.k(k)

    def value(self, v):
        return self.v(v)

    def probability(self, p):
        return self.p(p)


KV = {"k": round_bf16, "v": round_bf16}
VARIANTS = (
    Variant("i12", round_i12),
    Variant("i12; Q K V P one term", round_i12, q=round_bf16, p=round_bf16, **KV),
    Variant("i12; K V P one, Q two", round_i12, q=split_bf16, p=round_bf16, **KV),
    Variant("i12; Q K V one, P two", round_i12, q=round_bf16, p=split_bf16, **KV),
    Variant("i12; K V one, Q P two", round_i12, q=split_bf16, p=split_bf16, **KV),
    Variant("i12; K only", round_i12, k=round_bf16),
    Variant("i12; V only", round_i12, v=round_bf16),
    Variant("i12; Q only", round_i12, q=round_bf16),
    Variant("i12; P only", round_i12, p=round_bf16),
    Variant("FP32; Q K V P one term", q=round_bf16, p=round_bf16, **KV),
)


def print_row(name: str, c: Comparison) -> None:
    top1 = 100.0 * c.same_top1_ratio
    print(f"{name:26s} {c.mean_kl:10.3e} {c.perplexity:11.5f} {top1:9.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--window-tokens", type=int, default=1024)
    parser.add_argument("--variants", type=int, default=len(VARIANTS), help="the first so many")
    args = parser.parse_args()
    windows = token_windows(args.model, args.windows, args.window_tokens)
    model = LlamaModel.load(args.model)
    variants = VARIANTS[: args.variants]
    comparisons = {variant.name: Comparison() for variant in variants}
    exact = Comparison()
    started = time.monotonic()
    for number, ids in enumerate(windows, start=1):
        base = model.logits(ids)
        exact.add(base, base, ids)
        for variant in variants:
            comparisons[variant.name].add(base, model.logits(ids, variant), ids)
        print(f"window {number}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    print(f"text: docstrings of {PACKAGE} {VERSION} {' '.join(FILES)}, sha256 {SHA256}")
    print(f"{args.windows} windows of {args.window_tokens} tokens; model {args.model.name}")
    print(f"{'arithmetic':26s} {'mean KL':>10s} {'perplexity':>11s} {'top-1 %':>9s}")
    print_row("FP32", exact)
    for name, comparison in comparisons.items():
        print_row(name, comparison)


if __name__ == "__main__":
    main()
