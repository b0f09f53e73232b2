"""Measures what `luna quantize` costs in quality: 4 bits rounded to nearest, and by AWQ.

    LUNA_BIN=build/release/bin/luna LUNA_LOGITS=build/release/tests/luna_logits \
        python3 bench/numerics/measure_quantize.py --model m.gguf

Of awq and gptq the model's weights are written as a Hugging Face folder in FP32: the reference; of
GGUF's types the file itself is it. From the reference both quantizations are made, with the same groups; perplexity is that of the CPU backend on the text of
the numerics tests. AWQ is calibrated on the docstrings of another file of NumPy, whose text is not
judged.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "golden" / "model"),
                str(ROOT / "tests" / "integration")]  # fmt: skip
from evaluation_text import PACKAGE, docstrings, token_windows, tokenizer_of  # noqa: E402
from hf_folder import make_hf_folder  # noqa: E402
from hf_layouts import dense  # noqa: E402
from logit_metrics import Comparison  # noqa: E402
from test_numerics import CPU_I12, LogitsDriver  # noqa: E402

CALIBRATION_FILE = "ma/core.py"


def calibration_text() -> str:
    path = Path(metadata.distribution(PACKAGE).locate_file(PACKAGE)) / CALIBRATION_FILE
    return "\n\n".join(docstrings(path.read_text(encoding="utf-8")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--type", default="gptq", choices=("awq", "gptq", "q4_0", "q4_1", "q4_k"))
    parser.add_argument("--group", default=128, type=int)
    parser.add_argument("--windows", default=4, type=int)
    parser.add_argument("--window-tokens", default=512, type=int)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        plain = args.model
        if not args.type.startswith("q"):
            plain = root / "plain"
            make_hf_folder(plain, args.model, dense("F32"))
            tokenizer_of(args.model).save(str(plain / "tokenizer.json"))
        (root / "calibration.txt").write_text(calibration_text(), encoding="utf-8")
        driver = LogitsDriver(Path(os.environ["LUNA_LOGITS"]), root)
        windows = token_windows(args.model, args.windows, args.window_tokens)
        bases = [driver.logits(plain, CPU_I12, ids) for ids in windows]
        for label, more in (("round to nearest", []),
                            ("AWQ", ["--calibration", str(root / "calibration.txt")])):  # fmt: skip
            out = root / (label.replace(" ", "_") + ".gguf")
            begun = time.monotonic()
            subprocess.run([os.environ["LUNA_BIN"], "quantize", plain, "--type", args.type, "--group",
                            str(args.group), "--out", out, *more], check=True)  # fmt: skip
            took = time.monotonic() - begun
            comparison = Comparison()
            for ids, base in zip(windows, bases, strict=True):
                comparison.add(base, driver.logits(out, CPU_I12, ids), ids)
            kind = args.type if args.type.startswith("q") else f"{args.type}, group {args.group}"
            print(f"{kind}, {label}: perplexity {comparison.perplexity:.4f} "
                  f"against {comparison.base_perplexity:.4f}, KL {comparison.mean_kl:.4f}, top-1 equal "
                  f"{100 * comparison.same_top1_ratio:.1f} %, {took:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
