"""Writes tiny Llama GGUF files with random weights: real in every respect but what they say.

    python3 tests/golden/model/make_tiny_models.py --out FOLDER [--only NAME]...
    python3 tests/golden/model/make_tiny_models.py --list

Each file is a whole model: grouped-query attention, byte-level BPE of 300 tokens (its
pre-tokenizer is `smollm`), three control tokens, a ChatML template. There is one for every weight
type, for a tied and an own head, and for every kind of RoPE scaling. The same seed gives the same bytes with
numpy 2.4.6 and gguf 0.19.0. `tiny_llama.gguf` beside this script is `--only tiny_llama`.

Weights are drawn so that the logits spread over several units and the last token does not win by
itself. The `gguf` package cannot quantize to K types, so their blocks are drawn directly: random
codes and scales, with the block factors set so that the decoded weights have the wanted spread.
"""

from __future__ import annotations

import argparse
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, RopeScalingType, TokenType
from gguf import GGMLQuantizationType as QuantType
from gguf.quants import dequantize, quantize

SEED = 20240917
N_LAYERS = 2
HEAD_DIM = 32
CONTEXT_LENGTH = 1024  # four attention partitions of 256
ROPE_BASE = 10000.0
ROPE_FACTOR = 4.0
NORM_EPS = 1e-5

# Gains over the unit spread 1 / sqrt(n_in): sharp attention, and layers that outweigh the embedding
# (a tied head would repeat the last token otherwise).
GAINS = {"attn_q": 2.0, "attn_output": 3.0, "ffn_down": 3.0}
EMBEDDING_SPREAD = 0.27

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    "Ġ t|h e|Ġ a|i n|r e|o n|Ġt he|e r|Ġ s|a t|Ġ w|Ġ o|e n|i s|Ġ c|o r|n d|i t|e s|a n|Ġ f|Ġ b|"
    "Ġ p|in g|o u|e d|Ġ in|a l|Ġ m|a r|Ġt o|Ġo f|Ġa nd|Ġ d|l l|o m|Ġ h|Ġ n|Ġ re|u r|Ġ e"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Spec:
    """One model. Rows of K types must be a multiple of 256 long, hence the second shape."""

    name: str
    weight_type: QuantType = QuantType.F32
    embedding_type: QuantType | None = None  # the weights' type where absent
    own_head: bool = False
    rope: str = "none"  # none | linear | llama3 | yarn
    hidden_size: int = 128
    feed_forward_size: int = 192
    n_kv_heads: int = 2

    @property
    def n_heads(self) -> int:
        return self.hidden_size // HEAD_DIM


PLAIN_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
K_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
SPECS = (
    Spec("tiny_llama", QuantType.Q4_1, QuantType.Q8_0),  # the types of the default model
    *(Spec(f"tiny_{name.lower()}", QuantType[name]) for name in PLAIN_TYPES),
    *(
        Spec(f"tiny_{name.lower()}", QuantType[name], hidden_size=256, feed_forward_size=256)
        for name in K_TYPES
    ),
    Spec("tiny_f32_own_head", own_head=True),
    Spec("tiny_q4_0_own_head", QuantType.Q4_0, own_head=True),
    *(Spec(f"tiny_f32_rope_{rope}", rope=rope) for rope in ("linear", "llama3", "yarn")),
)


def byte_alphabet() -> list[str]:
    """GPT-2's printable character of each byte, by byte value."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    character_by_byte = {byte: chr(byte) for byte in printable}
    character_by_byte |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [character_by_byte[byte] for byte in range(256)]


def vocabulary() -> tuple[list[str], list[TokenType], list[str]]:
    """Tokens, their types, and merges; ids are control tokens, bytes, merge results."""
    merges = MERGES.split("|")
    tokens = [*CONTROL_TOKENS, *byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    n_control = len(CONTROL_TOKENS)
    types = [TokenType.CONTROL] * n_control + [TokenType.NORMAL] * (len(tokens) - n_control)
    return tokens, types, merges


def half(values: np.ndarray) -> np.ndarray:
    """Bytes of FP16 values, one row of two bytes per block."""
    return values.astype("<f2").view(np.uint8).reshape(-1, 2)


def k_blocks(quant_type: QuantType, n_blocks: int, d: np.ndarray, seed: int) -> np.ndarray:
    """Random K-type blocks with block factor d [n_blocks]; the same codes for the same seed.

    dmin is d times the middle code, which makes the decoded weights even about zero.
    """
    rng = np.random.default_rng(seed)

    def drawn(n_bytes: int) -> np.ndarray:
        return rng.integers(0, 256, (n_blocks, n_bytes), dtype=np.uint8)

    fields = {  # in the order of ggml-common.h's block structs
        QuantType.Q2_K: lambda: (drawn(16), drawn(64), half(d), half(1.5 * d)),
        QuantType.Q3_K: lambda: (drawn(32), drawn(64), drawn(12), half(d)),
        QuantType.Q4_K: lambda: (half(d), half(7.5 * d), drawn(12), drawn(128)),
        QuantType.Q5_K: lambda: (half(d), half(15.5 * d), drawn(12), drawn(32), drawn(128)),
        QuantType.Q6_K: lambda: (drawn(128), drawn(64), drawn(16), half(d)),
    }[quant_type]()
    return np.concatenate(fields, axis=1)


def random_k_rows(quant_type: QuantType, shape, spread: float, seed: int) -> np.ndarray:
    """K-type rows, [n_rows, row_bytes], whose decoded weights have the given standard deviation."""
    n_rows, n_columns = shape
    n_blocks = n_rows * n_columns // 256
    share = np.random.default_rng(seed + 1).uniform(0.5, 1.5, n_blocks)
    probe = k_blocks(quant_type, n_blocks, share * 2.0**-6, seed).reshape(n_rows, -1)
    factor = spread / dequantize(probe, quant_type).std() * 2.0**-6
    return k_blocks(quant_type, n_blocks, share * factor, seed).reshape(n_rows, -1)


class TensorWriter:
    """Draws and adds tensors; each has its own seed, so that none depends on another's order."""

    def __init__(self, writer: GGUFWriter, spec: Spec, seed: int):
        self.writer_ = writer
        self.spec_ = spec
        self.seed_ = seed

    def seed_of(self, name: str) -> int:
        return zlib.crc32(f"{self.seed_}/{self.spec_.name}/{name}".encode())

    def matrix(self, name: str, shape: tuple[int, int], spread: float, quant_type) -> None:
        seed = self.seed_of(name)
        if quant_type.name in K_TYPES:
            data = random_k_rows(quant_type, shape, spread, seed)
        else:
            drawn = np.random.default_rng(seed).standard_normal(shape) * spread
            data = quantize(drawn.astype(np.float32), quant_type)
        self.writer_.add_tensor(name, data, raw_dtype=quant_type)

    def linear(self, layer: int, name: str, n_out: int, n_in: int) -> None:
        spread = GAINS.get(name, 1.0) / np.sqrt(n_in)
        self.matrix(f"blk.{layer}.{name}.weight", (n_out, n_in), spread, self.spec_.weight_type)

    def norm(self, name: str) -> None:
        drawn = np.random.default_rng(self.seed_of(name)).standard_normal(self.spec_.hidden_size)
        self.writer_.add_tensor(name, (1.0 + 0.1 * drawn).astype(np.float32))


def add_metadata(writer: GGUFWriter, spec: Spec) -> None:
    writer.add_name(spec.name)
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(spec.feed_forward_size)
    writer.add_head_count(spec.n_heads)
    writer.add_head_count_kv(spec.n_kv_heads)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPS)
    if spec.rope in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(spec.rope))
        writer.add_rope_scaling_factor(ROPE_FACTOR)
    if spec.rope == "yarn":
        writer.add_rope_scaling_orig_ctx_len(int(CONTEXT_LENGTH / ROPE_FACTOR))
    tokens, types, merges = vocabulary()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(CONTROL_TOKENS.index("<|im_start|>"))
    writer.add_eos_token_id(CONTROL_TOKENS.index("<|im_end|>"))
    writer.add_unk_token_id(CONTROL_TOKENS.index("<|endoftext|>"))
    writer.add_pad_token_id(CONTROL_TOKENS.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def llama3_freq_factors() -> np.ndarray:
    """1 for fast pairs, ROPE_FACTOR for slow ones, blended between (Llama 3.1's rule), [pairs]."""
    original, low_factor, high_factor = CONTEXT_LENGTH / ROPE_FACTOR, 1.0, 4.0
    wavelength = 2.0 * np.pi * ROPE_BASE ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    smooth = np.clip(
        (original / wavelength - low_factor) / (high_factor - low_factor), 0.0, 1.0
    )
    return (1.0 / ((1.0 - smooth) / ROPE_FACTOR + smooth)).astype(np.float32)


def make_tiny_model(folder: Path, spec: Spec, seed: int = SEED) -> Path:
    """Writes folder/<name>.gguf and returns its path."""
    path = folder / f"{spec.name}.gguf"
    writer = GGUFWriter(path, "llama")
    add_metadata(writer, spec)
    tensors = TensorWriter(writer, spec, seed)
    n_vocab, hidden = len(vocabulary()[0]), spec.hidden_size
    n_kv = spec.n_kv_heads * HEAD_DIM
    embedding_type = spec.embedding_type or spec.weight_type
    tensors.matrix("token_embd.weight", (n_vocab, hidden), EMBEDDING_SPREAD, embedding_type)
    for layer in range(N_LAYERS):
        tensors.norm(f"blk.{layer}.attn_norm.weight")
        tensors.linear(layer, "attn_q", hidden, hidden)
        tensors.linear(layer, "attn_k", n_kv, hidden)
        tensors.linear(layer, "attn_v", n_kv, hidden)
        tensors.linear(layer, "attn_output", hidden, hidden)
        tensors.norm(f"blk.{layer}.ffn_norm.weight")
        tensors.linear(layer, "ffn_gate", spec.feed_forward_size, hidden)
        tensors.linear(layer, "ffn_up", spec.feed_forward_size, hidden)
        tensors.linear(layer, "ffn_down", hidden, spec.feed_forward_size)
    tensors.norm("output_norm.weight")
    if spec.own_head:
        tensors.matrix("output.weight", (n_vocab, hidden), EMBEDDING_SPREAD, embedding_type)
    if spec.rope == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_freq_factors())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder, made if absent")
    parser.add_argument("--only", action="append", choices=[spec.name for spec in SPECS])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    args = parser.parse_args()
    if args.list:
        print("\n".join(spec.name for spec in SPECS))
        return
    if args.out is None:
        parser.error("--out is needed")
    args.out.mkdir(parents=True, exist_ok=True)
    for spec in SPECS:
        if not args.only or spec.name in args.only:
            path = make_tiny_model(args.out, spec, args.seed)
            print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
