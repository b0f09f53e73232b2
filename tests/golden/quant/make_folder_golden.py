#!/usr/bin/env python3
"""Makes formats.safetensors in this folder: weights packed by the tools that define the formats.

    python3 tests/golden/quant/make_folder_golden.py AUTOAWQ AUTO_GPTQ GPTQMODEL

The folders are the unpacked packages autoawq 0.2.9, auto-gptq 0.7.1 (format 1) and gptqmodel 7.7.0
(format 2). Their packing functions are called as they are: what holds them is cut out of their
files and run alone, because the packages themselves import GPU kernels.
Made with torch 2 and numpy 2.4.6, seed 20261130. Tolerance: none, bit for bit.

A case N of format F has the parts of its weight ("F.N.qweight" ...), "F_expected_N.values", FP32
[n_out, n_in], computed from codes, scales and zeros before they were packed, and what a folder's
quantization_config says, as a JSON text "F.N" of __metadata__. Shapes go from the smallest that a
format has to ones with several groups; codes are random, all lowest, all highest; scales include
the least and the largest of FP16 and negative ones.
"""

import ast
import json
import contextlib
import sys
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

SEED = 20261130


def cut_class(path: Path, name: str, namespace: dict) -> type:
    """A class of a file, executed without the rest of the file."""
    tree = ast.parse(path.read_text())
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    node.bases = [ast.Attribute(ast.Name("nn", ast.Load()), "Module", ast.Load())]
    module = ast.fix_missing_locations(ast.Module([node], []))
    exec(compile(module, str(path), "exec"), namespace)
    return namespace[name]


def cut_method(path: Path, class_name: str, name: str, namespace: dict):
    """A method of a class as a function, executed without the rest of the file."""
    tree = ast.parse(path.read_text())
    cls = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == class_name)
    node = next(n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == name)
    module = ast.fix_missing_locations(ast.Module([node], []))
    exec(compile(module, str(path), "exec"), namespace)
    return namespace[name]


def scales_of(random, shape, kind: str) -> np.ndarray:
    scales = np.exp2(random.uniform(-9, -2, shape)) * random.choice([-1, 1], shape)
    if kind == "extreme":
        scales = random.choice([6e-8, 6.1e-5, 65504.0, -65504.0, 1.0], shape)
    return scales.astype(np.float16)


def codes_of(random, shape, kind: str, top: int) -> np.ndarray:
    if kind == "lowest":
        return np.zeros(shape, np.int64)
    if kind == "highest":
        return np.full(shape, top, np.int64)
    return random.integers(0, top + 1, shape)


class Cases:
    """Collects tensors and configurations."""

    def __init__(self):
        self.tensors: dict[str, torch.Tensor] = {}
        self.configs: dict[str, str] = {}
        self.n_cases: dict[str, int] = {}

    def add(self, form: str, parts: dict, values: np.ndarray, config: dict) -> None:
        n = self.n_cases.get(form, 0)
        self.n_cases[form] = n + 1
        for part, tensor in parts.items():
            self.tensors[f"{form}.{n}.{part}"] = tensor.clone().contiguous()
        expected = torch.from_numpy(values.astype(np.float32))
        self.tensors[f"{form}_expected_{n}.values"] = expected.contiguous()
        self.configs[f"{form}.{n}"] = json.dumps(config)


def values_of(codes, scales, zeros, groups) -> np.ndarray:
    """scale * (q - zero) in FP64, which holds it exactly; [n_out, n_in]"""
    return scales.astype(np.float64)[:, groups] * (codes - zeros[:, groups])


def linear_of(values: np.ndarray):
    """A torch layer whose weight is right for packing: pack() rounds (w + z * s) / s."""
    layer = torch.nn.Linear(values.shape[1], values.shape[0], bias=False)
    layer.weight.data = torch.from_numpy(values).to(torch.float64)
    return layer


def add_awq(cases: Cases, source: Path, random) -> None:
    namespace = {"torch": torch, "nn": torch.nn, "get_best_device": lambda: "cpu"}
    cls = cut_class(source / "awq/modules/linear/gemm.py", "WQLinear_GEMM", namespace)
    for n_out, n_in, group, codes, scales in (
        (32, 32, 32, "random", "usual"), (64, 128, 128, "random", "usual"),
        (96, 192, 64, "random", "usual"), (32, 64, 32, "lowest", "usual"),
        (32, 64, 64, "highest", "extreme"), (32, 256, 128, "random", "usual"),
    ):  # fmt: skip
        n_groups, groups = n_in // group, np.arange(n_in) // group
        q = codes_of(random, (n_out, n_in), codes, 15)
        s = scales_of(random, (n_out, n_groups), scales)
        z = random.integers(0, 16, (n_out, n_groups))
        layer = linear_of(values_of(q, s, z, groups))
        packed = cls.from_linear(layer, 4, group, False,
                                 torch.from_numpy(s.astype(np.float64)).t().contiguous(),
                                 torch.from_numpy(z.astype(np.float64)).t().contiguous())  # fmt: skip
        parts = {"qweight": packed.qweight, "qzeros": packed.qzeros,
                 "scales": torch.from_numpy(s).t()}  # fmt: skip
        config = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": group}
        cases.add("awq", parts, values_of(q, s, z, groups), config)


def add_gptq(cases: Cases, source: Path, random) -> None:
    transformers = types.SimpleNamespace(
        pytorch_utils=types.SimpleNamespace(Conv1D=type("Conv1D", (), {}))
    )
    namespace = {"torch": torch, "nn": torch.nn, "np": np, "math": __import__("math"),
                 "transformers": transformers, "autogptq_cuda_64": None, "autogptq_cuda_256": None,
                 "_autogptq_cuda_available": False}  # fmt: skip
    qlinear = source / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py"
    cls = cut_class(qlinear, "QuantLinear", namespace)
    for bits, n_out, n_in, group, codes, scales, act_order in (
        (4, 32, 32, 32, "random", "usual", False), (4, 64, 128, 128, "random", "usual", False),
        (4, 32, 192, 64, "random", "extreme", False), (4, 32, 64, -1, "highest", "usual", False),
        (4, 32, 128, 32, "random", "usual", True), (8, 32, 96, 32, "random", "usual", True),
        (8, 32, 64, 64, "random", "usual", False), (3, 32, 64, 32, "random", "usual", False),
        (3, 64, 96, 32, "random", "usual", True), (2, 32, 64, 64, "random", "usual", False),
        (2, 32, 64, 32, "lowest", "usual", False),
    ):  # fmt: skip
        size = n_in if group < 0 else group
        groups = np.arange(n_in) // size
        if act_order:
            groups = groups[random.permutation(n_in)]
        n_groups = n_in // size
        q = codes_of(random, (n_out, n_in), codes, 2**bits - 1)
        s = scales_of(random, (n_out, n_groups), scales)
        z = random.integers(1, 2**bits, (n_out, n_groups))  # pack() cannot write a zero of 0
        layer = linear_of(values_of(q, s, z, groups))
        packed = cls(bits, group, n_in, n_out, False)
        packed.pack(layer, torch.from_numpy(s.astype(np.float64)),
                    torch.from_numpy(z.astype(np.float64)),
                    torch.from_numpy(groups.astype(np.int32)))  # fmt: skip
        parts = {"qweight": packed.qweight, "qzeros": packed.qzeros, "g_idx": packed.g_idx,
                 "scales": torch.from_numpy(s).t()}  # fmt: skip
        config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order}
        cases.add("gptq", parts, values_of(q, s, z, groups), config)


def add_gptqmodel(cases: Cases, source: Path, random) -> None:
    """Format 2 stores zeros as they are, so that 0 can be one."""
    transformers = types.SimpleNamespace(
        pytorch_utils=types.SimpleNamespace(Conv1D=type("Conv1D", (), {}))
    )
    limits = types.SimpleNamespace(threadpool_limits=lambda n: contextlib.nullcontext())
    namespace = {"t": torch, "nn": torch.nn, "np": np, "math": __import__("math"),
                 "transformers": transformers, "THREADPOOLCTL": limits,
                 "_ConvNd": torch.nn.modules.conv._ConvNd}  # fmt: skip
    qlinear = source / "gptqmodel/nn_modules/qlinear/__init__.py"
    pack = cut_method(qlinear, "PackableQuantLinear", "pack_original", namespace)
    for bits, n_out, n_in, group, act_order in (
        (4, 32, 128, 32, False), (4, 64, 128, 64, True), (3, 32, 64, 64, False),
        (2, 32, 64, 32, False), (8, 32, 96, 32, True),
    ):  # fmt: skip
        groups = np.arange(n_in) // group
        if act_order:
            groups = groups[random.permutation(n_in)]
        q = codes_of(random, (n_out, n_in), "random", 2**bits - 1)
        s = scales_of(random, (n_out, n_in // group), "usual")
        z = random.integers(0, 2**bits, (n_out, n_in // group))
        layer = linear_of(values_of(q, s, z, groups))
        packed = torch.nn.Module()
        packed.bits, packed.maxq, packed.pack_factor, packed.planar = bits, 2**bits - 1, 32 // bits, False
        packed.pack_dtype_bits, packed.pack_np_math_dtype, packed.pack_np_dtype = 32, np.uint32, np.int32
        pack(packed, layer, torch.from_numpy(s.astype(np.float64)),
             torch.from_numpy(z.astype(np.float64)), torch.from_numpy(groups.astype(np.int32)))  # fmt: skip
        parts = {"qweight": packed.qweight, "qzeros": packed.qzeros, "g_idx": packed.g_idx,
                 "scales": packed.scales}  # fmt: skip
        config = {"quant_method": "gptq", "checkpoint_format": "gptq_v2", "bits": bits,
                  "group_size": group, "desc_act": act_order}  # fmt: skip
        cases.add("gptq", parts, values_of(q, s, z, groups), config)


def add_fp8(cases: Cases, random) -> None:
    """All 256 codes of both types, as torch reads them."""
    every = torch.arange(256, dtype=torch.uint8).reshape(4, 64)
    scale = torch.from_numpy(np.exp2(random.uniform(-9, 3, (4, 1))).astype(np.float32))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        codes = every.view(dtype)
        values = codes.to(torch.float32)
        cases.add("dense", {"weight": codes}, values.numpy(), {})
        parts = {"weight": codes, "weight_scale": scale}
        cases.add("dense", parts, (values * scale).numpy(), {})
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        weight = torch.from_numpy(random.standard_normal((3, 37)).astype(np.float32)).to(dtype)
        cases.add("dense", {"weight": weight}, weight.to(torch.float32).numpy(), {})


def main() -> None:
    awq, gptq, gptqmodel = map(Path, sys.argv[1:])
    random = np.random.default_rng(SEED)
    cases = Cases()
    add_awq(cases, awq, random)
    add_gptq(cases, gptq, random)
    add_fp8(cases, random)
    add_gptqmodel(cases, gptqmodel, random)
    path = Path(__file__).parent / "formats.safetensors"
    save_file(cases.tensors, path, metadata=cases.configs)
    print(f"{path}: {path.stat().st_size} bytes, {cases.n_cases}")


if __name__ == "__main__":
    main()
