"""The English text on which numerics are judged, and the tokenizer that turns it into ids.

The text is the documentation inside a pinned NumPy: the docstrings of the files below, in file
order, joined by blank lines. NumPy is a test requirement anyway, so nothing is downloaded and no
text is kept in the tree; the hash makes sure that every machine judges the same text.
"""

from __future__ import annotations

import ast
import hashlib
from importlib import metadata
from pathlib import Path

from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PACKAGE = "numpy"
VERSION = "2.4.6"
FILES = ("linalg/_linalg.py",)
SHA256 = "b4d6f576d3edfd78775e1838399a96a907e534c6ea550e9e92443bca2441f464"


def docstrings(source: str) -> list[str]:
    """Raw docstrings (no re-indentation: Python versions differ in it) in the order of the file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                if isinstance(first.value.value, str):
                    found.append((first.lineno, first.value.value.strip()))
    return [text for _, text in sorted(found)]


def evaluation_text() -> str:
    """The text; raises ValueError where the installed package is not the pinned one."""
    distribution = metadata.distribution(PACKAGE)
    if distribution.version != VERSION:
        raise ValueError(f"{PACKAGE} {distribution.version} is installed: the text needs {VERSION}")
    parts = []
    for name in FILES:
        path = Path(distribution.locate_file(PACKAGE)) / name
        parts.extend(docstrings(path.read_text(encoding="utf-8")))
    text = "\n\n".join(parts)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != SHA256:
        raise ValueError(f"{PACKAGE} {VERSION} docstrings: sha256 {digest}, expected {SHA256}")
    return text


def tokenizer_of(model_path: str | Path) -> Tokenizer:
    """The byte-level BPE of a GGUF file with pre-tokenizer `smollm`; parses no special tokens."""
    fields = GGUFReader(str(model_path)).fields
    kind, pre = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("model", "pre"))
    if (kind, pre) != ("gpt2", "smollm"):
        raise ValueError(f"tokenizer {kind}/{pre}: only gpt2/smollm is built here")
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def token_windows(model_path: str | Path, n_windows: int, window_tokens: int) -> list[list[int]]:
    """The first n_windows windows of the text, each a list of window_tokens ids."""
    ids = tokenizer_of(model_path).encode(evaluation_text()).ids
    if len(ids) < n_windows * window_tokens:
        raise ValueError(f"the text has {len(ids)} tokens: {n_windows * window_tokens} are needed")
    return [ids[i * window_tokens : (i + 1) * window_tokens] for i in range(n_windows)]
