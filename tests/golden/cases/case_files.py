"""Model files of the cases: small ones, and broken ones."""
import json, struct


class FileHelper:
    def gguf(self, kv, tensors, data=b"", version=3, n_kv=None, n_tensors=None, align=32, magic=b"GGUF", pad=True):
        """kv: [(key, type, value)] with type u8 i8 u16 i16 u32 i32 f32 bool str u64 i64 f64, ('arr', elemtype) or 'raw'
        (value: the bytes after the key); tensors: [(name, dims, type number, offset)]."""
        code = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"),
                "bool": (7, "?"), "str": (8, None), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d")}

        def st(x):
            b = x if isinstance(x, bytes) else x.encode("utf-8")
            return struct.pack("<Q", len(b)) + b

        def val(t, v):
            return st(v) if t == "str" else struct.pack("<" + code[t][1], v)
        o = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors, len(kv) if n_kv is None else n_kv)
        for k, t, v in kv:
            o += st(k)
            if t == "raw":
                o += v
            elif isinstance(t, tuple):
                o += struct.pack("<IIQ", 9, code[t[1]][0], len(v)) + b"".join(val(t[1], x) for x in v)
            else:
                o += struct.pack("<I", code[t][0]) + val(t, v)
        for name, dims, ty, off in tensors:
            o += st(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d & (2 ** 64 - 1)) for d in dims) + struct.pack("<IQ", ty, off & (2 ** 64 - 1))
        if pad and align:
            o += b"\0" * (-len(o) % align)
        return o + data

    def tiny_parts(self):
        """A whole and right one-layer model: key list, tensor list, data bytes."""
        bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
        toks, n = [], 0
        for b in range(256):
            toks.append(chr(b) if b in bs else chr(256 + n))
            n += b not in bs
        toks += ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "th"]
        kv = [("general.architecture", "str", "llama"), ("general.name", "str", "tiny"), ("general.alignment", "u32", 32),
              ("llama.block_count", "u32", 1), ("llama.context_length", "u32", 64), ("llama.embedding_length", "u32", 32),
              ("llama.feed_forward_length", "u32", 64), ("llama.attention.head_count", "u32", 2), ("llama.attention.head_count_kv", "u32", 1),
              ("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5), ("llama.rope.dimension_count", "u32", 16), ("llama.rope.freq_base", "f32", 10000.0),
              ("llama.vocab_size", "u32", 260), ("tokenizer.ggml.model", "str", "gpt2"), ("tokenizer.ggml.pre", "str", "smollm"),
              ("tokenizer.ggml.tokens", ("arr", "str"), toks), ("tokenizer.ggml.token_type", ("arr", "i32"), [1] * 256 + [3, 3, 3, 1]),
              ("tokenizer.ggml.merges", ("arr", "str"), ["t h"]), ("tokenizer.ggml.bos_token_id", "u32", 257), ("tokenizer.ggml.eos_token_id", "u32", 258),
              ("tokenizer.chat_template", "str", "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}")]
        shapes = [("token_embd.weight", [32, 260]), ("output_norm.weight", [32]), ("blk.0.attn_norm.weight", [32]), ("blk.0.attn_q.weight", [32, 32]),
                  ("blk.0.attn_k.weight", [32, 16]), ("blk.0.attn_v.weight", [32, 16]), ("blk.0.attn_output.weight", [32, 32]),
                  ("blk.0.ffn_norm.weight", [32]), ("blk.0.ffn_gate.weight", [32, 64]), ("blk.0.ffn_up.weight", [32, 64]), ("blk.0.ffn_down.weight", [64, 32])]
        ts, off = [], 0
        for name, d in shapes:
            ts.append((name, d, 0, off))
            size = 4
            for x in d:
                size *= x
            off += size + (-size % 32)
        return kv, ts, b"\0" * off

    def tiny(self, name="m.gguf", drop=(), put=(), tensors=None, data=None, **k):
        """Writes the small model with keys dropped or replaced; returns its path."""
        kv, ts, d = self.tiny_parts()
        rep = {x[0]: x for x in put}
        kv = [rep.pop(x[0], x) for x in kv if x[0] not in drop] + list(rep.values())
        ts = tensors(ts) if callable(tensors) else ts if tensors is None else tensors
        d = d if data is None else data(d) if callable(data) else data
        return self.write(name, self.gguf(kv, ts, d, **k))

    def safetensors(self, header, data=b"", name="m.safetensors", n=None):
        h = header if isinstance(header, bytes) else json.dumps(header).encode()
        return self.write(name, struct.pack("<Q", len(h) if n is None else n) + h + data)

    def inspect_bad(self, path, pattern=None, secs=5, mb=1500):
        p = self.run("inspect", file=path, timeout=secs + 15)
        self.refused(p, pattern, "inspect")
        assert p.secs <= secs, f"took {p.secs:.1f} s to refuse"
        assert p.rss_mb <= mb, f"used {p.rss_mb:.0f} MB to refuse a small file"
        return p
