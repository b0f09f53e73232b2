"""Measures what INT8 KV and pruning after prefill cost in quality.

    LUNA_LOGITS=build/release/tests/luna_logits python3 bench/numerics/measure_kv.py --model m.gguf

Perplexity: windows of the text of the numerics tests. For pruning the first half of a window is
the prompt, which is pruned at its end; the second half is predicted token by token. Recall: a
number is stated somewhere in a long text and asked for at its end; an answer counts if greedy
decoding gives all its digits (teacher-forced: each digit is the most likely one).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from evaluation_text import evaluation_text, token_windows, tokenizer_of  # noqa: E402
from logit_metrics import Comparison, log_softmax  # noqa: E402

KV_TYPES = ("bf16", "int8")
NEEDLE = "The special magic number is {number}. Remember it. "
QUESTION = "\n\nWhat is the special magic number? The special magic number is "
SEED = 20261130
DIGITS = 5


class Driver:
    """Runs luna_logits; one process a call."""

    def __init__(self, model: Path, folder: Path):
        self.model_ = model
        self.folder_ = folder

    def logits(self, ids: list[int], *, kv: str, keep: int = 100, prompt: int = 1) -> np.ndarray:
        tokens, out = self.folder_ / "ids.json", self.folder_ / "logits.f32"
        tokens.write_text(json.dumps(ids))
        command = [os.environ["LUNA_LOGITS"], "--model", str(self.model_), "--backend", "cpu"]
        command += ["--tokens", str(tokens), "--out", str(out), "--kv", kv]
        command += ["--prompt", str(prompt), "--keep-percent", str(keep)]
        command += ["--threads", str(len(os.sched_getaffinity(0)))]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        values = np.fromfile(out, dtype="<f4").reshape(len(ids), -1)
        out.unlink()
        return values


def measure_types(driver: Driver, windows: list[list[int]]) -> None:
    comparison = Comparison()
    for ids in windows:
        base, other = (driver.logits(ids, kv=kv) for kv in KV_TYPES)
        comparison.add(base, other, ids)
    change = 100 * (comparison.perplexity / comparison.base_perplexity - 1)
    print(
        f"KV int8 against bf16: perplexity {comparison.perplexity:.5f} against "
        f"{comparison.base_perplexity:.5f} ({change:+.3f} %), KL {comparison.mean_kl:.2e}, "
        f"top-1 equal {100 * comparison.same_top1_ratio:.2f} %"
    )


def tail_perplexity(logits: np.ndarray, ids: list[int], first: int) -> float:
    """Of ids[first:], each predicted by the row before it."""
    rows = log_softmax(logits[first - 1 : -1])
    return float(np.exp(-rows[np.arange(len(rows)), ids[first:]].mean()))


def measure_pruned_perplexity(
    driver: Driver, windows: list[list[int]], kv: str, keep_percents: list[int]
) -> None:
    for keep in keep_percents:
        found = []
        for ids in windows:
            prompt = len(ids) // 2
            logits = driver.logits(ids, kv=kv, keep=keep, prompt=prompt)
            found.append(tail_perplexity(logits, ids, prompt + 1))
        print(f"keep {keep} %, KV {kv}: perplexity after the prompt {np.exp(np.log(found).mean()):.4f}")


def recall_case(text: str, rng: random.Random, depth: float, n_characters: int) -> tuple[str, str]:
    """A prompt with a number at a depth of it, and the number."""
    number = "".join(rng.choice("0123456789") for _ in range(DIGITS))
    first = rng.randrange(len(text) - n_characters)
    hay = text[first : first + n_characters]
    at = hay.find(" ", int(depth * (len(hay) - 200))) + 1
    return hay[:at] + NEEDLE.format(number=number) + hay[at:] + QUESTION, number


def measure_recall(
    driver: Driver, model: Path, kv: str, keep_percents: list[int], n_cases: int, n_tokens: int
) -> None:
    tokenizer = tokenizer_of(model)
    text = evaluation_text()
    n_right = dict.fromkeys(keep_percents, 0)
    n_digits = dict.fromkeys(keep_percents, 0)
    rng = random.Random(SEED)
    for case in range(n_cases):
        prompt_text, number = recall_case(text, rng, (case + 0.5) / n_cases, 3 * n_tokens)
        prompt = tokenizer.encode(prompt_text).ids
        answer = tokenizer.encode(number).ids
        for keep in keep_percents:
            logits = driver.logits(prompt + answer, kv=kv, keep=keep, prompt=len(prompt))
            told = logits[len(prompt) - 1 : -1].argmax(axis=-1)
            n_right[keep] += int((told == answer).all())
            n_digits[keep] += int((told == answer).sum())
    for keep in keep_percents:
        print(
            f"keep {keep} %, KV {kv}: {n_right[keep]} of {n_cases} numbers recalled, "
            f"{n_digits[keep]} of {n_cases * DIGITS} digits"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--window-tokens", type=int, default=1024)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--recall-tokens", type=int, default=1000, help="about so many")
    parser.add_argument("--keep", type=int, nargs="+", default=[100, 70, 30])
    arguments = parser.parse_args()
    windows = token_windows(arguments.model, arguments.windows, arguments.window_tokens)
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(arguments.model, Path(folder))
        measure_types(driver, windows)
        measure_pruned_perplexity(driver, windows, "bf16", arguments.keep)
        measure_recall(
            driver,
            arguments.model,
            "bf16",
            arguments.keep,
            arguments.cases,
            arguments.recall_tokens,
        )


if __name__ == "__main__":
    main()
