"""What the machinery for several devices costs where there is one: flowsplit beside static.

The same closed loop in a process of its own (`luna bench --config`), by turns under the policy static,
which knows one group and neither moves nor slices, and under flowsplit, which does all that it can. Two
runs, one of each, make a pair; the order changes from pair to pair. Prints the median of the pairs'
ratios of tokens a second and an interval that holds it in 95 of 100 cases (of the order statistics, so
nothing is assumed of how the ratios are distributed).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from luna_server import config_text  # noqa: E402

POLICIES = ("static", "flowsplit")


def tokens_per_s(options: argparse.Namespace, config: Path, report: Path, n_clients: int, seed: int) -> float:
    command = [options.luna, "bench", "--config", config, "--clients", n_clients,
               "--requests", options.requests_per_client * n_clients, "--warm-up", n_clients,
               "--prompt-tokens", options.prompt_tokens, "--output-tokens", options.output_tokens,
               "--seed", seed, "--json", report]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.loads(report.read_text(encoding="utf-8"))["summary"]["output_tokens_per_s"]


def median_interval(values: list[float]) -> tuple[float, float]:
    """Order statistics that enclose the median with at least 95 % confidence; the extremes of few."""
    ordered = sorted(values)
    n = len(ordered)
    below = 0.0
    for k in range(n // 2 + 1):
        below += math.comb(n, k) / 2**n
        if below > 0.025:
            return ordered[max(0, k - 1)], ordered[n - max(1, k)]
    return ordered[0], ordered[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--luna", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=0, help="of the device; 0: all cores")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--requests-per-client", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        configs = {}
        for policy in POLICIES:
            configs[policy] = Path(folder) / f"{policy}.toml"
            configs[policy].write_text(config_text(options.model, n_threads=options.threads, policy=policy), encoding="utf-8")
        for n_clients in options.clients:
            rates: dict[str, list[float]] = {policy: [] for policy in POLICIES}
            for pair in range(options.pairs):
                for policy in POLICIES if pair % 2 == 0 else POLICIES[::-1]:
                    rates[policy].append(tokens_per_s(options, configs[policy], report, n_clients, pair + 1))
            ratios = [b / a for a, b in zip(*(rates[policy] for policy in POLICIES), strict=True)]
            low, high = median_interval(ratios)
            results[n_clients] = {"rates": rates, "median": statistics.median(ratios), "low": low, "high": high}
            print(
                f"{n_clients:4} clients: "
                + ", ".join(f"{policy} {statistics.median(rates[policy]):.1f}" for policy in POLICIES)
                + f" tokens/s; flowsplit / static {statistics.median(ratios):.4f} ({low:.4f}..{high:.4f}), {len(ratios)} pairs",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
