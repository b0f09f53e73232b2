"""Measures how far engines stray from FP32 activations: mean KL of next-token distributions.

    python3 bench/numerics/measure_kl.py --model m.gguf --driver build/release/tests/luna_logits
        [--llama-perplexity BINARY] [--classes i12,i8,bf16] [--windows 8] [--json FILE]

The base is an independent NumPy model: the file's weights decoded, FP32 throughout. Everybody else
runs the same file with BF16 KV. Judged is the second half of each window of 1,024 tokens, which is
what llama.cpp's llama-perplexity saves (16 bits a log-probability, cut off 16 below the largest).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from evaluation_text import PACKAGE, VERSION, evaluation_text, token_windows  # noqa: E402
from logit_metrics import Comparison  # noqa: E402
from reference_llama import LlamaModel  # noqa: E402

LLAMA = "llama.cpp"
WINDOW_TOKENS = 1024
FIRST = WINDOW_TOKENS // 2
JUDGED = slice(FIRST, WINDOW_TOKENS - 1)


def run(command: list[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


class LlamaLogits:
    """Windows of token ids and llama.cpp's log-probabilities of their second halves."""

    def __init__(self, binary: Path, model: Path, n_windows: int, folder: Path):
        text, saved = folder / "text.txt", folder / "all.kld"
        text.write_text(evaluation_text())
        command = [str(binary), "-m", str(model), "-f", str(text), "--chunks", str(n_windows)]
        command += ["-c", str(WINDOW_TOKENS), "-b", str(WINDOW_TOKENS), "-t", "2"]
        command += ["-ctk", "bf16", "-ctv", "bf16", "--save-all-logits", str(saved)]
        run(command, {**os.environ, "LD_LIBRARY_PATH": str(binary.parent)})
        with open(saved, "rb") as file:
            if file.read(8) != b"_logits_":
                raise SystemExit(f"{saved}: not a file of llama-perplexity")
            n_ctx, self.vocab_, n_chunks = np.fromfile(file, "<i4", 3)
            if (n_ctx, n_chunks) != (WINDOW_TOKENS, n_windows):
                raise SystemExit(f"{saved}: {n_chunks} windows of {n_ctx} tokens")
            self.ids = np.fromfile(file, "<i4", n_ctx * n_chunks).reshape(n_chunks, n_ctx).tolist()
            self.start_ = file.tell()
        self.path_ = saved

    def log_probabilities(self, window: int) -> np.ndarray:
        """[511, vocab_size]: a row is scale and offset (FP32), then a 16-bit code a token."""
        n_rows = WINDOW_TOKENS - 1 - FIRST
        row = 2 * ((self.vocab_ + 1) // 2) + 4
        offset = self.start_ + 2 * window * n_rows * row
        codes = np.fromfile(self.path_, "<u2", n_rows * row, offset=offset).reshape(n_rows, row)
        scales = np.ascontiguousarray(codes[:, :4]).view("<f4")
        values = codes[:, 4 : 4 + self.vocab_].astype(np.float32)
        return values * scales[:, :1] + scales[:, 1:]


class DriverLogits:
    """Logits of luna_logits in a numeric class."""

    def __init__(self, driver: Path, model: Path, numerics: str, folder: Path):
        self.ids_, self.out_ = folder / "ids.json", folder / "logits.f32"
        self.command_ = [str(driver), "--model", str(model), "--backend", "cpu", "--threads", "2"]
        self.command_ += ["--numerics", numerics, "--tokens", str(self.ids_)]
        self.command_ += ["--out", str(self.out_)]

    def logits(self, ids: list[int]) -> np.ndarray:
        self.ids_.write_text(json.dumps(ids))
        run(self.command_)
        return np.fromfile(self.out_, dtype="<f4").reshape(len(ids), -1)


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Comparison]:
    model = LlamaModel.load(args.model)
    drivers = {
        name: DriverLogits(args.driver, args.model, name, folder)
        for name in args.classes.split(",")
    }
    found = {name: Comparison() for name in drivers}
    if args.llama_perplexity is not None:
        llama = LlamaLogits(args.llama_perplexity, args.model, args.windows, folder)
        found[LLAMA] = Comparison()
        windows = llama.ids
    else:
        windows = token_windows(args.model, args.windows, WINDOW_TOKENS)
    for number, ids in enumerate(windows):
        base = model.logits(ids)[JUDGED]
        for name, driver in drivers.items():
            found[name].add(base, driver.logits(ids)[JUDGED], ids[JUDGED])
        if LLAMA in found:
            found[LLAMA].add(base, llama.log_probabilities(number), ids[JUDGED])
        print(f"window {number + 1} of {args.windows}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--driver", required=True, type=Path)
    parser.add_argument("--llama-perplexity", type=Path)
    parser.add_argument("--classes", default="i12,i8,bf16")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = measure(args, Path(name))
    positions = next(iter(found.values())).n_positions
    print(f"{positions} positions of {PACKAGE} {VERSION}'s docstrings; model {args.model.name}")
    print(f"{'engine':10s} {'mean KL':>10s} {'perplexity':>11s} {'top-1 %':>8s} {LLAMA:>10s} / it")
    rows = []
    for engine, c in found.items():
        ratio = found[LLAMA].mean_kl / c.mean_kl if LLAMA in found else float("nan")
        top1 = 100 * c.same_top1_ratio
        print(f"{engine:10s} {c.mean_kl:10.3e} {c.perplexity:11.5f} {top1:8.3f} {ratio:10.1f}")
        row = {"engine": engine, "mean_kl": c.mean_kl, "perplexity": c.perplexity}
        rows.append({**row, "same_top1_percent": top1, "llama_over_this": ratio})
    if args.json is not None:
        args.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
