"""The numbers of a backend.

`backend_reference` is held to an independent NumPy implementation, `backend_cpu` to
`backend_reference`; on a real model first, then on tiny ones of every weight type, head and RoPE
scaling. The driver named by LUNA_LOGITS (built from tests/support/logits_driver.cpp)
writes teacher-forced logits of every position as raw float32, row-major [n_tokens, vocab_size].
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden" / "model")]
from evaluation_text import token_windows  # noqa: E402
from logit_metrics import Comparison  # noqa: E402
from make_tiny_models import SPECS, Spec, make_tiny_model, vocabulary  # noqa: E402
from real_model import real_model_path  # noqa: E402
from reference_llama import LlamaModel  # noqa: E402

REFERENCE_POSITIONS = 200
REFERENCE_LOGIT_ERROR_MAX = 2e-3
WINDOWS = 8
WINDOW_TOKENS = 1024
PERPLEXITY_RELATIVE_ERROR_MAX = 0.003
SAME_TOP1_RATIO_MIN = 0.99
# Root mean square of the logit error over the spread of the logits. NumPy with the same roundings
# gives 0.006 to 0.009 for 12- and 11-bit activations and 0.013 for the 10 bits of Q6_K; in one
# matrix of one layer a lost group gives 0.25 and more, swapped halves of a block 0.35 and more.
TINY_RELATIVE_ERROR_MAX = 0.03
TINY_POSITIONS = 300  # crosses a partition of 256 positions
TINY_SEED = 7
DRIVER_TIMEOUT_S = 1800  # a hang ends the test; the plain reference needs minutes a window at worst


class LogitsDriver:
    """Runs the project's driver; one process per call, its output file removed after reading. [any]"""

    def __init__(self, binary: Path, folder: Path):
        self.binary_ = binary
        self.folder_ = folder
        self.calls_ = itertools.count()

    def logits(self, model: Path, backend: list[str], token_ids: list[int]) -> np.ndarray:
        name = f"{next(self.calls_)}"
        tokens_path, out_path = self.folder_ / f"{name}.json", self.folder_ / f"{name}.f32"
        tokens_path.write_text(json.dumps(token_ids))
        command = [str(self.binary_), "--model", str(model), *backend]
        command += ["--tokens", str(tokens_path), "--out", str(out_path)]
        command += ["--threads", str(len(os.sched_getaffinity(0)))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_TIMEOUT_S)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        values = np.fromfile(out_path, dtype="<f4")
        out_path.unlink()
        assert values.size > 0 and values.size % len(token_ids) == 0, f"{values.size} logits"
        assert np.isfinite(values).all(), "a logit is not finite"
        return values.reshape(len(token_ids), -1)


REFERENCE = ["--backend", "reference"]
CPU_I12 = ["--backend", "cpu", "--numerics", "i12"]


@pytest.fixture
def driver(tmp_path: Path) -> LogitsDriver:
    binary = os.environ.get("LUNA_LOGITS")
    if binary is None:
        pytest.skip("LUNA_LOGITS is not set: no driver to ask for logits")
    return LogitsDriver(Path(binary), tmp_path)


def test_reference_backend_equals_numpy_within_2e_3(driver: LogitsDriver) -> None:
    model = real_model_path()
    ids = token_windows(model, 1, REFERENCE_POSITIONS)[0]
    expected = LlamaModel.load(model).logits(ids)
    actual = driver.logits(model, REFERENCE, ids)
    assert actual.shape == expected.shape
    error = np.abs(actual - expected)
    position, token = np.unravel_index(error.argmax(), error.shape)
    print(f"max abs logit error {error.max():.3e} at position {position}, token {token}")
    assert error.max() <= REFERENCE_LOGIT_ERROR_MAX


def test_cpu_backend_predicts_like_reference_on_8_windows(driver: LogitsDriver) -> None:
    model = real_model_path()
    comparison = Comparison()
    windows = token_windows(model, WINDOWS, WINDOW_TOKENS)
    n_cores = len(os.sched_getaffinity(0))
    for first in range(0, WINDOWS, n_cores):  # the reference has one thread, so a window a core
        together = windows[first : first + n_cores]
        with ThreadPoolExecutor(n_cores) as pool:
            bases = list(pool.map(lambda ids: driver.logits(model, REFERENCE, ids), together))
        for ids, base in zip(together, bases, strict=True):
            comparison.add(base, driver.logits(model, CPU_I12, ids), ids)
    print(
        f"KL {comparison.mean_kl:.3e}, perplexity {comparison.perplexity:.5f} against "
        f"{comparison.base_perplexity:.5f}, top-1 equal {100 * comparison.same_top1_ratio:.3f} %"
    )
    relative_error = abs(comparison.perplexity / comparison.base_perplexity - 1.0)
    assert relative_error <= PERPLEXITY_RELATIVE_ERROR_MAX
    assert comparison.same_top1_ratio >= SAME_TOP1_RATIO_MIN


def tiny_token_ids() -> list[int]:
    rng = np.random.default_rng(TINY_SEED)
    return rng.integers(0, len(vocabulary()[0]), TINY_POSITIONS).tolist()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_reference_backend_equals_numpy_on_tiny(
    driver: LogitsDriver, spec: Spec, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path, spec)
    ids = tiny_token_ids()
    error = np.abs(driver.logits(model, REFERENCE, ids) - LlamaModel.load(model).logits(ids))
    assert error.max() <= REFERENCE_LOGIT_ERROR_MAX


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_cpu_backend_is_close_to_reference_on_tiny(
    driver: LogitsDriver, spec: Spec, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path, spec)
    ids = tiny_token_ids()
    base = driver.logits(model, REFERENCE, ids)
    error = driver.logits(model, CPU_I12, ids) - base
    relative_error = np.sqrt(np.mean(error**2)) / base.std()
    print(f"{spec.name}: relative error {relative_error:.2e}")
    assert relative_error <= TINY_RELATIVE_ERROR_MAX


def test_committed_tiny_model_is_what_its_script_makes(tmp_path: Path) -> None:
    committed = TESTS / "golden" / "model" / "tiny_llama.gguf"
    made = make_tiny_model(tmp_path, SPECS[0])
    assert made.name == committed.name
    assert made.read_bytes() == committed.read_bytes()
