"""What is measured: one row a kind of work, one or more figures of it with their bars."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A figure and the least (higher is better) or greatest (lower is better) ratio Luna / peer."""

    name: str
    unit: str
    higher_is_better: bool
    bar: float

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.bar if self.higher_is_better else ratio <= self.bar


@dataclass(frozen=True)
class Row:
    """`sequences` at once, each `prompt_tokens` in (the first `shared_tokens` of them alike) and
    `generated_tokens` out."""

    name: str
    kind: str  # "prefill", "decode": offline; "http": over HTTP, closed loop
    sequences: int
    prompt_tokens: int
    generated_tokens: int
    metrics: tuple[Metric, ...]
    shared_tokens: int = 0
    numerics: str = "i12"  # Luna's class of arithmetic

    @property
    def work_name(self) -> str:
        """The same for rows that differ in Luna's arithmetic alone: the peers' work is one."""
        return self.name.removesuffix(f" {self.numerics}")

    def work(self) -> dict:
        """What the drivers are asked."""
        return {
            "sequences": self.sequences, "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
        }


# Long enough that all sequences of a batch generate at once for most of the time, whatever the order
# in which an engine takes their prompts.
BATCH_TOKENS = 128
DECODE_TOKENS = 64
HTTP_TOKENS_IN, HTTP_TOKENS_OUT = 201, 64
# Context 0 cannot be asked of a server: one token is the least prompt.
CONTEXT_0 = 1


def prefill(n_tokens: int, bar: float, numerics: str = "i12") -> Row:
    name = f"prefill {n_tokens}" + ("" if numerics == "i12" else f" {numerics}")
    metrics = (Metric("tokens/s", "tokens/s", True, bar),)
    return Row(name, "prefill", 1, n_tokens, 1, metrics, numerics=numerics)


def decode(context: int, bar: float) -> Row:
    metrics = (Metric("tokens/s", "tokens/s", True, bar),)
    return Row(f"decode at {context}", "decode", 1, max(context, CONTEXT_0), DECODE_TOKENS, metrics)


def batch(n: int, bar: float) -> Row:
    metrics = (Metric("tokens/s", "tokens/s", True, bar),)
    return Row(f"batch {n}", "decode", n, 128, BATCH_TOKENS, metrics)


def http(n_clients: int, bar: float) -> Row:
    metrics = (
        Metric("tokens/s", "tokens/s", True, bar), Metric("TTFT P50", "ms", False, 0.7),
        Metric("E2E P95", "ms", False, 0.7),
    )
    return Row(f"http {n_clients}", "http", n_clients, HTTP_TOKENS_IN, HTTP_TOKENS_OUT, metrics)


def http_shared(n_clients: int) -> Row:
    metrics = (Metric("tokens/s", "tokens/s", True, 1.6), Metric("TTFT P50", "ms", False, 0.6))
    return Row(
        f"http {n_clients} shared", "http", n_clients, 1000 + HTTP_TOKENS_IN, HTTP_TOKENS_OUT, metrics,
        shared_tokens=1000,
    )


ROWS = [
    prefill(128, 1.15), prefill(512, 1.15), prefill(2048, 1.4), prefill(512, 1.5, "bf16"),
    decode(0, 1.25), decode(512, 2.0), decode(2048, 2.5),
    batch(8, 2.5), batch(32, 3.0), batch(64, 3.0),
    http(1, 2.0), http(8, 2.5), http(32, 1.8), http(128, 1.4), http_shared(32),
]


def fits(name: str, patterns: str) -> bool:
    """Whether a name fits one of the patterns, which commas separate ("prefill*,batch 8")."""
    return any(fnmatch.fnmatch(name, pattern.strip()) for pattern in patterns.split(","))


def chosen(patterns: str) -> list[Row]:
    return [row for row in ROWS if fits(row.name, patterns)]
