"""Makes <type>.bin in this folder: blocks of each GGUF type and the values the gguf package reads.

Made with gguf 0.19.0 and numpy 2.4.6. Seed 20240917. Tolerance: none, bit for bit.
Layout of a file, little-endian: u32 ggml_type, u32 n_blocks, u32 values of a block, u32 bytes of a
block, the blocks, then the values as F32. Blocks are random bytes; the 16-bit scales take, one
block each: random, +0, -0, the least denormal, the largest denormal, the largest number, its
negative, +infinity, -infinity, NaN. The bits of a NaN do not count.
"""
import pathlib
import struct

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

SEED = 20240917
SCALES = [0x0000, 0x8000, 0x0001, 0x03FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x2E66, 0xAE66]
N_RANDOM = 4
# Offsets of the 16-bit floats within a block.
HALVES = {
    T.F32: [], T.F16: [0], T.BF16: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2],
    T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ4_NL: [0],
}


def make_blocks(kind, random):
    n_bytes = GGML_QUANT_SIZES[kind][1]
    halves = HALVES[kind]
    n_special = max(1, len(halves)) * len(SCALES)
    blocks = random.integers(0, 256, (N_RANDOM + n_special, n_bytes), dtype=np.uint8)
    for row in blocks:  # ordinary scales everywhere first: 2^-8 to 2^-1 in size
        for at in halves:
            row[at + 1] = (row[at + 1] & 0x80) | 0x1C + (row[at + 1] & 0x1B)
    for h, at in enumerate(halves):
        for i, scale in enumerate(SCALES):
            blocks[N_RANDOM + h * len(SCALES) + i, at:at + 2] = [scale & 0xFF, scale >> 8]
    # Every bit of a block set, and none, but for the scales.
    blocks[0] = 0
    blocks[1] = 255
    for at in halves:
        blocks[0, at + 1] = 0x30
        blocks[1, at:at + 2] = [0, 0x30]
    return blocks


def main():
    folder = pathlib.Path(__file__).parent
    random = np.random.default_rng(SEED)
    for kind in HALVES:
        n_values, n_bytes = GGML_QUANT_SIZES[kind]
        blocks = make_blocks(kind, random)
        with np.errstate(all="ignore"):
            if kind in (T.F32, T.F16):  # the package takes these as arrays of their own type
                values = blocks.copy().view(np.float32 if kind == T.F32 else np.float16)
            else:
                values = dequantize(blocks, kind)
            values = np.ascontiguousarray(values.astype(np.float32))
        head = struct.pack("<4I", kind.value, len(blocks), n_values, n_bytes)
        path = folder / f"{kind.name.lower()}.bin"
        path.write_bytes(head + blocks.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
