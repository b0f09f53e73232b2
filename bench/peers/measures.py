"""From token times to figures; the same for all sides."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path

from rows import Row

LOAD_TIMEOUT_S = 600


def offline_figures(row: Row, times: list[list[float]]) -> dict[str, float]:
    """Token times of each sequence, in seconds since the prompts were handed over.

    Prefill: prompt tokens over the time to the first token. Decode: the tokens that came while every
    sequence was generating, over that time.
    """
    if row.kind == "prefill":
        return {"tokens/s": row.sequences * row.prompt_tokens / max(t[0] for t in times)}
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    assert end > begin, f"{row.name}: the first sequence ended before the last began"
    n_tokens = sum(1 for t in times for at in t if begin < at <= end)
    return {"tokens/s": n_tokens / (end - begin)}


def run_luna_bench(luna: Path, arguments: list[str], folder: Path) -> dict:
    """`luna bench` with these arguments; its JSON."""
    path = folder / "bench.json"
    command = [str(luna), "bench", *arguments, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return json.loads(path.read_text(encoding="utf-8"))


def load_arguments(row: Row, n_requests: int) -> list[str]:
    arguments = [
        "--clients", row.sequences, "--requests", n_requests, "--prompt-tokens", row.prompt_tokens,
        "--output-tokens", row.generated_tokens, "--shared-prefix-tokens", row.shared_tokens,
    ]
    return [str(argument) for argument in arguments]


def n_http_requests(row: Row) -> int:
    """Four waves, fewer where a wave is long: of two, the first, which all clients begin together,
    would be half."""
    return max(16, min(4 * row.sequences, row.sequences + 64))


def http_figures(row: Row, luna: Path, url: str, folder: Path) -> dict[str, float]:
    """A server under the row's load, by Luna's own load generator."""
    n_requests = n_http_requests(row)
    arguments = ["--url", url, *load_arguments(row, n_requests)]
    if row.shared_tokens:
        arguments += ["--warm-up", "1"]  # the cache knows the prefix
    result = run_luna_bench(luna, arguments, folder)
    summary = result["summary"]
    assert summary["requests"] == n_requests and not result["errors"], (row.name, url, result["errors"])
    wanted = n_requests * row.generated_tokens
    assert summary["output_tokens"] == wanted, f"{url}: {summary['output_tokens']} tokens, not {wanted}"
    return {
        "tokens/s": summary["output_tokens_per_s"], "TTFT P50": result["latency_ms"]["ttft"]["p50"],
        "E2E P95": result["latency_ms"]["e2e"]["p95"],
    }


def median_figures(samples: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(s[name] for s in samples) for name in samples[0]}
