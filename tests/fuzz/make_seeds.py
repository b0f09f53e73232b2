"""Writes the seeds of the fuzzers into seeds/: small right inputs from which a fuzzer begins.

  make_seeds.py      standard library only
"""

import json
import random
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent

BODIES = [
    {"messages": [{"role": "user", "content": "x"}], "n": 2, "stop": ["a"], "logit_bias": {"5": -1.5},
     "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2},
    {"messages": [{"role": "system", "content": [{"type": "text", "text": "x"}]},
                  {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function":
                   {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "a", "content": "1"}]},
    {"prompt": ["a", "b"], "max_tokens": 0, "echo": True, "suffix": None, "best_of": 1, "seed": 7},
    {"prompt": [[1, 2], [3]], "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "ignore_eos": True},
]

TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": 3, "content": "<|im_end|>", "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<|im_end|>": 3}, "merges": ["a b"]},
}
TOKENIZER_CONFIG = {"bos_token": "<|im_end|>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": False,
                    "chat_template": "{{ messages[0].content }}"}


HF_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "vocab_size": 32, "tie_word_embeddings": True, "eos_token_id": [2, 3], "sliding_window": None,
    "partial_rotary_factor": 1.0, "_name_or_path": "a",
    "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "damp": 0.1,
                            "config_groups": {"group_0": {"weights": {"num_bits": 8}}}, "ignore": ["lm_head"]},
}
HF_SCALINGS = (
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
    {"type": "linear", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1},
)
HF_INDEX = {"metadata": {"total_size": 8}, "weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors",
                                                          "model.norm.weight": "model-00002-of-00002.safetensors"}}


def hf_files() -> list[bytes]:
    configs = [HF_CONFIG, *({**HF_CONFIG, "rope_scaling": scaling} for scaling in HF_SCALINGS),
               {**HF_CONFIG, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}]
    return [json.dumps(it).encode() for it in (*configs, HF_INDEX, {"eos_token_id": 2})]


def requests() -> list[bytes]:
    body = json.dumps(BODIES[0]).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    return [
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        head + chunked + b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\nHEAD /metrics HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"OPTIONS /v1/models HTTP/1.1\r\nOrigin: http://a\r\nExpect: 100-continue\r\n\r\n",
    ]


def shard_manifests() -> list[bytes]:
    """A model of two layers in two shards, with a tied head and with one of its own."""

    def tensor(name: str, kind: str = "F32", shape: tuple[int, ...] = (4, 32), n_bytes: int = 512) -> dict:
        return {"name": name, "type": kind, "shape": list(shape), "bytes": n_bytes, "sha256": "0" * 64}

    def shard(i: int, tensors: list[dict]) -> dict:
        return {"file": f"shard_{i}.gguf", "bytes": 4096, "sha256": "1" * 64, "first_layer": i, "n_layers": 1,
                "tensors": tensors}

    embedding, norm = tensor("token_embd.weight"), tensor("output_norm.weight", shape=(32,), n_bytes=128)
    layers = [tensor(f"blk.{i}.attn_q.weight", "Q8_0", n_bytes=136) for i in (0, 1)]
    factors = tensor("rope_freqs.weight", shape=(4,), n_bytes=16)
    head = {"format": "luna-shards", "version": 1, "model": {"name": "a", "architecture": "llama", "n_layers": 2},
            "source": {"file": "a.gguf", "bytes": 9000, "sha256": "2" * 64}}
    ends = ([embedding, norm, layers[1]], [norm, tensor("output.weight"), layers[1], factors])
    return [json.dumps({**head, "shards": [shard(0, [embedding, layers[0]] + extra), shard(1, end)]}).encode()
            for end, extra in zip(ends, ([], [factors]))]


def tcp_frames() -> list[bytes]:
    """Frames of every type with a payload allowed for it (the fuzzer puts checksums in), a hello, an address."""
    frames = []
    for kind in range(1, 22):
        is_numbered = kind >= 10
        n_bytes = {1: 100, 2: 32, 3: 32, 4: 32, 8: 1 << 20, 12: 4096, 15: 12, 18: 4096}.get(kind, 0)
        head = struct.pack("<IHHQQQQQQIII", 0x5043544C, 1, kind, 7, 1, int(is_numbered), 0, n_bytes, 5, 1, 2, 0)
        frames.append(head + bytes(4))
    address = b"luna-tcp" + struct.pack("<QH", 11, 4711) + b"node-1.example"
    hello = struct.pack("<QQB", 12, 3, 1) + bytes(range(32)) + address
    return [*frames, address, hello]


def plan_files() -> list[bytes]:
    """Recordings of one plan and of none (the fuzzer puts the hashes in)."""
    digest = bytes(32)
    text = b'policy = "static"\n'
    head = b"LUNAPLAN" + struct.pack("<10I", 1, 120, 32, 24, 104, 88, 24, 20, 16, len(text)) + text + digest
    snapshot = struct.pack("<12I2Q4Q4IQ", 120, 104, 88, 24, 20, 1, 1, 0, 0, 64, 8, 32, 1, 1000, 0, 0, 0, 0, 0, 1, 16,
                           0, 0)
    request = struct.pack("<3Q18IQ", 1, 5, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 8, *[0] * 7, 0xFFFFFFFF, 0)
    device = struct.pack("<2I2Q2IfIQ3f6I4x", 0, 0, 10, 20, 4, 8, 0.5, 0, 0, 3e6, 2e5, 100.0, 0, 0, 1, 0, 0, 0)
    action = struct.pack("<IHHIIII", 0, 1, 0, 0, 0, 10, 0)
    literal = struct.pack("<2I", 1, 0xFFFFFFFF)
    same = struct.pack("<2I", 1, 0)
    answer = struct.pack("<4I2QiI", 32, 64, 1, 0, 0, 0, 0, 1)
    bodies = [snapshot + answer + literal + request + literal + device + action, snapshot + answer + same * 2 + action]
    records = [struct.pack("<2I", len(body), 1) + body + digest for body in bodies]
    end = struct.pack("<2IB", 1, 2, 1) + digest
    return [head + records[0] + records[1] + end, head + end]


def plans() -> list[bytes]:
    """Good plans alone, in one group and in two; then all that may go wrong."""
    shapes = [bytes([groups, 1, 5, 3, *[20] * 7]) for groups in (0, 1)]
    return [*(shape + bytes(8) for shape in shapes),
            *(shape + random.Random(seed).randbytes(300) for seed in range(4) for shape in shapes)]


def main() -> None:
    seeds: dict[str, list[bytes]] = {"request": [json.dumps(body).encode() for body in BODIES], "http": requests()}
    seeds["hf_folder"] = hf_files()
    seeds["tcp_frame"] = tcp_frames()
    seeds["plan_file"] = plan_files()
    seeds["plan"] = plans()
    seeds["override"] = [b"scheduler.policy=srf", b'model[0].devices=["a0"]', b'scheduler."a.b".c=1.5',
                         b"plugins.sha256.srf=" + b"0" * 64, b"log.level=debug"]
    seeds["tokenizer_json"] = [json.dumps(it).encode() for it in (TOKENIZER, TOKENIZER_CONFIG)]
    seeds["shard_manifest"] = shard_manifests()
    for name, inputs in seeds.items():
        folder = HERE / "seeds" / name
        folder.mkdir(parents=True, exist_ok=True)
        for i, content in enumerate(inputs):
            (folder / str(i)).write_bytes(content)


if __name__ == "__main__":
    main()
