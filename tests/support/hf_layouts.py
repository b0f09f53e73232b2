"""The formats of tests/support/hf_folder.py: how each packs a weight [n_out, n_in]."""

from __future__ import annotations

import numpy as np
from hf_folder import Layout, Tensor

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the output in each nibble of a word, lowest first


def bf16_bits(values: np.ndarray) -> np.ndarray:
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def bf16_values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype("<u4") << 16).view("<f4")


def fp8_table(exponent_bits: int) -> np.ndarray:
    """The values of the 128 codes without sign; what is no finite number is NaN."""
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    code = np.arange(128)
    exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
    normal = np.ldexp(1.0 + mantissa / 2**mantissa_bits, exponent - bias)
    small = np.ldexp(mantissa / 2**mantissa_bits, 1 - bias)
    table = np.where(exponent == 0, small, normal)
    last = 0x7F if exponent_bits == 4 else 0x7C  # E4M3 has one NaN, E5M2 infinities too
    table[last:] = np.nan
    return table.astype(np.float32)


def to_fp8(values: np.ndarray, exponent_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the nearest FP8 values, and these values."""
    table = fp8_table(exponent_bits)
    finite = table[np.isfinite(table)]
    code = np.abs(np.abs(values)[..., None] - finite).argmin(axis=-1)
    sign = np.signbit(values)
    worth = np.where(sign, -finite[code], finite[code]).astype(np.float32)
    return (code + 128 * sign).astype(np.uint8), worth


def grouped_codes(weight: np.ndarray, bits: int, groups: np.ndarray, symmetric: bool):
    """Round to nearest: codes [n_out, n_in], scales (FP16) and zeros [n_out, n_groups].

    groups  [n_in] the group of each column
    """
    n_groups, top = groups.max() + 1, 2**bits - 1
    scales = np.zeros((weight.shape[0], n_groups), np.float16)
    zeros = np.zeros(scales.shape, np.int64)
    codes = np.zeros(weight.shape, np.int64)
    for g in range(n_groups):
        own = weight[:, groups == g]
        low, high = np.minimum(own.min(axis=1), 0), np.maximum(own.max(axis=1), 0)
        if symmetric:
            scales[:, g] = np.maximum(-low, high) / (top / 2)
            zeros[:, g] = (top + 1) // 2
        else:
            scales[:, g] = (high - low) / top
            zeros[:, g] = np.clip(np.rint(-low / scales[:, g].astype(np.float32)), 0, top)
        scale = scales[:, g].astype(np.float32)[:, None]
        codes[:, groups == g] = np.clip(np.rint(own / scale) + zeros[:, g][:, None], 0, top)
    return codes, scales, zeros


def worth_of(codes, scales, zeros, groups) -> np.ndarray:
    exact = scales.astype(np.float64)[:, groups] * (codes - zeros[:, groups])
    return exact.astype(np.float32)


def pack_stream(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Numbers along the first axis as a stream of bits, low bits first: 32-bit words."""
    n, n_other = numbers.shape
    stream = ((numbers[:, None, :] >> np.arange(bits)[None, :, None]) & 1).reshape(-1, n_other)
    words = stream.reshape(n * bits // 32, 32, n_other).astype(np.uint64)
    return (words << np.arange(32, dtype=np.uint64)[None, :, None]).sum(axis=1).astype("<u4")


def dense(dtype: str) -> Layout:
    def pack(weight: np.ndarray):
        if dtype == "F32":
            return {"weight": Tensor.of(weight.astype("<f4"), dtype)}, weight
        if dtype == "F16":
            half = weight.astype("<f2")
            return {"weight": Tensor.of(half, dtype)}, half.astype(np.float32)
        if dtype == "BF16":
            bits = bf16_bits(weight)
            return {"weight": Tensor.of(bits, dtype)}, bf16_values(bits)
        codes, worth = to_fp8(weight, 4 if dtype == "F8_E4M3" else 5)
        return {"weight": Tensor.of(codes, dtype)}, worth

    return Layout(dtype.lower(), pack)


def fp8_rows() -> Layout:
    def pack(weight: np.ndarray):
        scale = (np.abs(weight).max(axis=1, keepdims=True) / 448).astype(np.float32)
        codes, worth = to_fp8(weight / scale, 4)
        return {"weight": Tensor.of(codes, "F8_E4M3"), "weight_scale": Tensor.of(scale, "F32")}, (
            worth * scale
        )

    config = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    return Layout("f8_rows", pack, config)


def fp8_blocks() -> Layout:
    def pack(weight: np.ndarray):
        rows, columns = np.indices(weight.shape) // 128
        scale = np.zeros((rows.max() + 1, columns.max() + 1), np.float32)
        for r in range(scale.shape[0]):
            for c in range(scale.shape[1]):
                own = weight[128 * r : 128 * r + 128, 128 * c : 128 * c + 128]
                scale[r, c] = np.abs(own).max() / 448
        codes, worth = to_fp8(weight / scale[rows, columns], 4)
        return {"weight": Tensor.of(codes, "F8_E4M3"),
                "weight_scale_inv": Tensor.of(scale, "F32")}, worth * scale[rows, columns]  # fmt: skip

    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    return Layout("f8_blocks", pack, config)


def awq(group: int) -> Layout:
    def words(numbers: np.ndarray) -> np.ndarray:  # [n, n_out] -> [n, n_out / 8]
        lanes = numbers.reshape(numbers.shape[0], -1, 8)[:, :, AWQ_ORDER].astype(np.uint32)
        return (lanes << (4 * np.arange(8, dtype=np.uint32))).sum(axis=2).astype("<u4")

    def pack(weight: np.ndarray):
        groups = np.arange(weight.shape[1]) // group
        codes, scales, zeros = grouped_codes(weight, 4, groups, symmetric=False)
        parts = {"qweight": Tensor.of(words(codes.T), "I32"),
                 "qzeros": Tensor.of(words(zeros.T), "I32"),
                 "scales": Tensor.of(scales.T.astype("<f2"), "F16")}  # fmt: skip
        return parts, worth_of(codes, scales, zeros, groups)

    config = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": group,
              "zero_point": True}  # fmt: skip
    size = max(128, group)
    return Layout(f"awq_g{group}", pack, config, 2 * size, 2 * size)


def gptq(bits: int, group: int, symmetric: bool = False, act_order: bool = False,
         version: int = 1) -> Layout:  # fmt: skip
    """group  -1: the whole row"""

    def pack(weight: np.ndarray):
        n_in = weight.shape[1]
        groups = np.arange(n_in) // (n_in if group < 0 else group)
        if act_order:  # columns by falling size, as the tool orders them
            order = np.argsort(-(weight**2).sum(axis=0))
            by_column = np.empty_like(groups)
            by_column[order] = groups
            groups = by_column
        codes, scales, zeros = grouped_codes(weight, bits, groups, symmetric)
        if bits != 3 and version == 1:
            stored = (zeros - 1) % 2**bits
        else:
            zeros = np.maximum(zeros, 1) if version == 1 else zeros
            stored = zeros - 1 if version == 1 else zeros
        parts = {"qweight": Tensor.of(pack_stream(codes.T, bits), "I32"),
                 "qzeros": Tensor.of(pack_stream(stored, bits).T, "I32"),
                 "scales": Tensor.of(scales.T.astype("<f2"), "F16"),
                 "g_idx": Tensor.of(groups.astype("<i4"), "I32")}  # fmt: skip
        return parts, worth_of(codes, scales, zeros, groups)

    name = f"gptq{version}_{bits}bit_" + ("row" if group < 0 else f"g{group}")
    name += ("_sym" if symmetric else "") + ("_act_order" if act_order else "")
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric,
              "desc_act": act_order}  # fmt: skip
    if version == 2:
        config["checkpoint_format"] = "gptq_v2"
    size = max(128, group)
    return Layout(name, pack, config, 2 * size, 2 * size)


def int8(group: int | None, symmetric: bool = True) -> Layout:
    """group  None: a scale a row"""

    def pack(weight: np.ndarray):
        groups = np.arange(weight.shape[1]) // (group or weight.shape[1])
        codes, scales, zeros = grouped_codes(weight, 8, groups, symmetric)
        scales = bf16_values(bf16_bits(scales.astype(np.float32)))  # BF16, as such files have
        codes = np.clip(np.rint(weight / scales[:, groups]) + zeros[:, groups], 0, 255)
        parts = {"weight": Tensor.of((codes - 128).astype(np.int8), "I8"),
                 "weight_scale": Tensor.of(bf16_bits(scales), "BF16")}  # fmt: skip
        if not symmetric:
            parts["weight_zero_point"] = Tensor.of((zeros - 128).astype(np.int8), "I8")
        return parts, worth_of(codes, scales, zeros, groups)

    name = "int8_" + ("rows" if group is None else f"g{group}") + ("" if symmetric else "_zeros")
    return Layout(name, pack, {"quant_method": "compressed-tensors", "format": "int-quantized"})


LAYOUTS = [
    *(dense(dtype) for dtype in ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")),
    fp8_rows(), fp8_blocks(),
    awq(32), awq(64), awq(128),
    gptq(4, 128, symmetric=True), gptq(4, 128), gptq(4, 32), gptq(4, 128, version=2),
    gptq(4, 64, act_order=True), gptq(8, 128), gptq(3, 64, symmetric=True), gptq(2, 64),
    gptq(4, -1),
    int8(None), int8(64), int8(64, symmetric=False),
]  # fmt: skip
