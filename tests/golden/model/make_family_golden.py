#!/usr/bin/env python3
"""Makes family_logits.safetensors in this folder: what `transformers` computes of the tiny families.

    python3 tests/golden/model/make_family_golden.py

Made with transformers 5.24.0, torch 2.15.0 and numpy 2.4.6 on a CPU, FP32, eager attention; the
weights are those of tiny_families.py (seed 20261201). One tensor a family, FP32 [positions, vocab]:
the logits of one sequence of 300 tokens at the positions that tiny_families.POSITIONS lists.
Tolerance: 2e-3 for a backend in FP32 (test_families.py).
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

sys.path[:0] = [str(Path(__file__).parents[2] / "support")]
from tiny_families import (  # noqa: E402
    FAMILIES, POSITIONS, Family, stacked_experts, token_ids, weights_of,
)  # fmt: skip


def as_modules(family: Family) -> dict[str, np.ndarray]:
    """The weights as the modules hold them: experts stacked, gate and up of each as one."""
    weights = stacked_experts(family, weights_of(family))
    named = {}
    for name, weight in weights.items():
        if not name.startswith("blk."):
            named[name.replace("block_sparse_moe", "mlp")] = weight
    for layer in range(family.n_layers if family.experts else 0):
        gate, up, down = (weights[f"blk.{layer}.ffn_{part}_exps.weight"]
                          for part in ("gate", "up", "down"))  # fmt: skip
        experts = f"model.layers.{layer}.mlp.experts"
        named[f"{experts}.gate_up_proj"] = np.concatenate((gate, up), axis=1)
        named[f"{experts}.down_proj"] = down
    return named


def logits_of(family: Family):
    fields = {key: value for key, value in family.config.items() if key != "architectures"}
    config = transformers.AutoConfig.for_model(**fields)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    assert type(model).__name__ == family.config["architectures"][0], type(model).__name__
    weights = {name: torch.from_numpy(w) for name, w in as_modules(family).items()}
    left = model.load_state_dict(weights, strict=False)
    missing = [name for name in left.missing_keys if name != "lm_head.weight"]
    assert not missing and not left.unexpected_keys, (family.name, missing, left.unexpected_keys)
    model.tie_weights()
    with torch.no_grad():
        logits = model(torch.tensor([token_ids()]), use_cache=False).logits[0]
    print(family.name, "spread", float(logits.std()), "largest", float(logits.abs().max()))
    return logits[list(POSITIONS)].numpy()


def main() -> None:
    tensors = {family.name: logits_of(family) for family in FAMILIES}
    path = Path(__file__).with_name("family_logits.safetensors")
    save_file(tensors, path)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
