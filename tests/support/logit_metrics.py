"""How close two sets of teacher-forced logits are: KL divergence, perplexity, equal top-1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

CHUNK_ROWS = 64  # rows at a time: 25 MB per double array at a vocabulary of 49,152


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise, in double: the divergences measured are near FP32's own resolution."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@dataclass
class Comparison:
    """Sums over the positions of any number of windows; the base is what the other is held to."""

    kl_sum: float = 0.0
    base_nll_sum: float = 0.0
    nll_sum: float = 0.0
    n_same_top1: int = 0
    n_positions: int = 0
    n_predicted: int = 0

    def add(self, base: np.ndarray, logits: np.ndarray, token_ids: list[int]) -> None:
        """Adds a window; both arrays are [n_tokens, vocab_size], row i predicts token i + 1."""
        if base.shape != logits.shape or base.shape[0] != len(token_ids):
            raise ValueError(f"logits {base.shape} and {logits.shape} for {len(token_ids)} tokens")
        for begin in range(0, len(token_ids), CHUNK_ROWS):
            rows = slice(begin, begin + CHUNK_ROWS)
            p, q = log_softmax(base[rows]), log_softmax(logits[rows])
            targets = token_ids[begin + 1 : begin + 1 + CHUNK_ROWS]
            picked = (np.arange(len(targets)), targets)
            self.kl_sum += float((np.exp(p) * (p - q)).sum())
            self.n_same_top1 += int((p.argmax(axis=-1) == q.argmax(axis=-1)).sum())
            self.base_nll_sum -= float(p[picked].sum())
            self.nll_sum -= float(q[picked].sum())
            self.n_predicted += len(targets)
        self.n_positions += len(token_ids)

    @property
    def mean_kl(self) -> float:
        return self.kl_sum / self.n_positions

    @property
    def base_perplexity(self) -> float:
        return math.exp(self.base_nll_sum / self.n_predicted)

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll_sum / self.n_predicted)

    @property
    def same_top1_ratio(self) -> float:
        return self.n_same_top1 / self.n_positions
