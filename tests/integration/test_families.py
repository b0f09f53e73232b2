"""Every family of models, from both kinds of file to logits, against the `transformers` library.

The golden logits were computed once by `make_family_golden.py`; the models are made here from the
same seeds. `backend_reference` and `backend_cpu` are held to them for a prompt in one piece, and a
prompt in pieces, down to single tokens, gives the bits of the whole.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden" / "model")]
from test_numerics import (  # noqa: E402, F401 - the fixture `driver`
    CPU_I12, REFERENCE, REFERENCE_LOGIT_ERROR_MAX, TINY_RELATIVE_ERROR_MAX, LogitsDriver, driver,
)  # fmt: skip
from tiny_families import (  # noqa: E402
    FAMILIES, N_TOKENS, POSITIONS, Family, token_ids, write_folder, write_gguf,
)  # fmt: skip

GOLDEN = load_file(TESTS / "golden" / "model" / "family_logits.safetensors")
KINDS = ("gguf", "folder")


def write_model(tmp_path: Path, family: Family, kind: str) -> Path:
    if kind == "gguf":
        return write_gguf(tmp_path / f"{family.name}.gguf", family)
    return write_folder(tmp_path / family.name, family)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_logits_are_those_of_transformers(
    driver: LogitsDriver, family: Family, kind: str, tmp_path: Path  # noqa: F811
) -> None:
    model = write_model(tmp_path, family, kind)
    expected = GOLDEN[family.name]
    ids = token_ids()
    reference = driver.logits(model, REFERENCE, ids)[list(POSITIONS)]
    worst = np.abs(reference - expected).max()
    cpu = driver.logits(model, CPU_I12, ids)[list(POSITIONS)]
    relative_error = np.sqrt(np.mean((cpu - expected) ** 2)) / expected.std()
    print(f"{family.name}, {kind}: reference {worst:.2e}, cpu {relative_error:.2e}")
    assert worst <= REFERENCE_LOGIT_ERROR_MAX
    assert relative_error <= TINY_RELATIVE_ERROR_MAX


@pytest.mark.parametrize("backend", (REFERENCE, CPU_I12, [*CPU_I12, "--kv", "int8"]),
                         ids=("reference", "cpu", "cpu-int8"))  # fmt: skip
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_prompt_in_pieces_gives_the_bits_of_the_whole(
    driver: LogitsDriver, family: Family, backend: list[str], tmp_path: Path  # noqa: F811
) -> None:
    model = write_model(tmp_path, family, "gguf")
    ids = token_ids()
    whole = driver.logits(model, [*backend, "--rows-per-step", str(N_TOKENS)], ids)
    for n_rows in (1, 7, 64):
        pieces = driver.logits(model, [*backend, "--rows-per-step", str(n_rows)], ids)
        assert np.array_equal(whole.view(np.uint32), pieces.view(np.uint32)), f"{n_rows} rows"
