"""Measures how far engines stray from FP32 activations: mean KL of next-token distributions.

    python3 bench/numerics/measure_kl.py --model m.gguf --driver build/release/tests/luna_logits
        [--llama-python PYTHON] [--classes i12,i8,bf16] [--windows 4] [--json FILE]

The base is an independent NumPy model: the file's weights decoded, FP32 throughout. Everybody else
runs the same file with BF16 KV. llama.cpp is what the interpreter PYTHON imports as llama_cpp.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "support"))
from evaluation_text import PACKAGE, VERSION, token_windows  # noqa: E402
from logit_metrics import Comparison  # noqa: E402
from reference_llama import LlamaModel  # noqa: E402

LLAMA = "llama.cpp"


def logits_of(command: list[str], ids: list[int], folder: Path) -> np.ndarray:
    """Runs a command that reads ids.json and writes logits.f32 in `folder`."""
    (folder / "ids.json").write_text(json.dumps(ids))
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return np.fromfile(folder / "logits.f32", dtype="<f4").reshape(len(ids), -1)


def commands(args: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    """The command of every engine, by name."""
    ids, out = str(folder / "ids.json"), str(folder / "logits.f32")
    model = str(args.model)
    made = {}
    for name in args.classes.split(","):
        made[name] = [str(args.driver), "--model", model, "--backend", "cpu", "--numerics", name]
        made[name] += ["--tokens", ids, "--out", out, "--threads", "2"]
    if args.llama_python is not None:
        made[LLAMA] = [str(args.llama_python), str(HERE / "llama_logits.py"), model, ids, out]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--driver", required=True, type=Path)
    parser.add_argument("--llama-python", type=Path)
    parser.add_argument("--classes", default="i12,i8,bf16")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--window-tokens", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = LlamaModel.load(args.model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engines = commands(args, folder)
        found = {engine: Comparison() for engine in engines}
        for ids in token_windows(args.model, args.windows, args.window_tokens):
            base = model.logits(ids)
            for engine, command in engines.items():
                found[engine].add(base, logits_of(command, ids, folder), ids)
    print(f"{args.windows} windows of {args.window_tokens} tokens of {PACKAGE} {VERSION}")
    print(f"{'engine':10s} {'mean KL':>10s} {'perplexity':>11s} {'top-1 %':>8s} {'llama.cpp / it':>15s}")
    rows = []
    for engine, c in found.items():
        ratio = found[LLAMA].mean_kl / c.mean_kl if LLAMA in found else float("nan")
        top1 = 100 * c.same_top1_ratio
        print(f"{engine:10s} {c.mean_kl:10.3e} {c.perplexity:11.5f} {top1:8.3f} {ratio:15.1f}")
        rows.append({"engine": engine, "mean_kl": c.mean_kl, "perplexity": c.perplexity,
                     "same_top1_percent": top1, "llama_over_this": ratio})
    if args.json is not None:
        args.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
