"""Makes the files that the fuzzers of model files begin with: small, whole and right.

Made with gguf 0.19.0 and numpy 2.4.6. No random numbers.
"""
import json
import pathlib
import struct

import numpy as np
from gguf import GGUFWriter

FOLDER = pathlib.Path(__file__).parent
HIDDEN, FFN, VOCAB = 8, 16, 8


def make_gguf():
    writer = GGUFWriter(FOLDER / "gguf" / "tiny.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(4)
    writer.add_string("llama.rope.scaling.type", "yarn")
    writer.add_float32("llama.rope.scaling.factor", 4.0)
    writer.add_uint32("llama.rope.scaling.original_context_length", 16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    writer.add_token_types([3] + [1] * (VOCAB - 1))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    shapes = {
        "token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,), "rope_freqs": (2,),
        "blk.0.attn_norm": (HIDDEN,), "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (HIDDEN // 2, HIDDEN), "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN), "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (FFN, HIDDEN), "blk.0.ffn_up": (FFN, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FFN),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name + ".weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_safetensors():
    header = json.dumps({
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "BF16", "shape": [0, 3], "data_offsets": [16, 16]},
        "c\u00e9": {"dtype": "I64", "shape": [], "data_offsets": [16, 24]},
    }).encode()
    path = FOLDER / "safetensors" / "tiny.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))


if __name__ == "__main__":
    make_gguf()
    make_safetensors()
