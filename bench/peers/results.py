"""Samples to results: medians, spread, ratios; the JSON file and docs/benchmarks.md."""

from __future__ import annotations

import json
import platform
import statistics
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from rows import ROWS, Metric, Row

# Ratios are of samples taken while the cores were alone, when each side has so many of them.
ALONE_MIN = 5


@dataclass
class Sample:
    figures: dict[str, float]
    is_alone: bool


@dataclass
class RowSamples:
    luna: list[Sample] = field(default_factory=list)
    peers: dict[str, list[Sample]] = field(default_factory=dict)  # by candidate


def spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)


def result(row: Row, metric: Metric, samples: RowSamples) -> dict:
    """One line of the result: the best peer by its median, and Luna against it."""
    sides = {"luna": samples.luna, **samples.peers}
    is_alone = all(sum(s.is_alone for s in side) >= ALONE_MIN for side in sides.values())
    values = {
        name: [s.figures[metric.name] for s in side if s.is_alone or not is_alone]
        for name, side in sides.items()
    }
    medians = {name: statistics.median(v) for name, v in values.items()}
    luna = medians.pop("luna")
    pick = max if metric.higher_is_better else min
    peer_name = pick(medians, key=lambda name: medians[name])
    ratio = luna / medians[peer_name]
    return {
        "name": f"{row.name}: {metric.name}", "row": row.name, "unit": metric.unit, "luna": luna,
        "peer": medians[peer_name], "peer_name": peer_name, "ratio": ratio, "bar": metric.bar,
        "better": "higher" if metric.higher_is_better else "lower", "is_met": metric.is_met(ratio),
        "rounds": len(samples.luna), "class": "cores alone" if is_alone else "all samples",
        "alone_samples": sum(s.is_alone for s in samples.luna), "luna_spread": spread(values["luna"]),
        "peer_spread": spread(values[peer_name]), "luna_rounds": values["luna"],
        "peer_rounds": {name: v for name, v in values.items() if name != "luna"},
        "date": date.today().isoformat(),
    }


def merge(path: Path, new: list[dict]) -> list[dict]:
    """The file's results, those measured now in place of older ones, in the order of ROWS."""
    old = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    by_name = {r["name"]: r for r in [*old, *new]}
    names = [f"{row.name}: {metric.name}" for row in ROWS for metric in row.metrics]
    return [by_name[name] for name in names if name in by_name]


def line(r: dict) -> str:
    sign = ">=" if r["better"] == "higher" else "<="
    return (
        f"{r['name']:28} luna {r['luna']:8.1f} (spread {r['luna_spread']:4.0%})  peer {r['peer']:8.1f}"
        f" (spread {r['peer_spread']:4.0%})  ratio {r['ratio']:5.2f} {sign} {r['bar']}"
        f" {'met' if r['is_met'] else 'NOT MET'}  {r['peer_name']}, {r['rounds']} rounds, {r['class']}"
    )


def processor() -> str:
    for entry in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if entry.startswith("model name"):
            return entry.split(":", 1)[1].strip()
    return platform.processor()


def search_table(search: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    lines = ["| row | peer and settings | figures |", "|---|---|---|"]
    for row in ROWS:
        for candidate, figures in search.get(row.name, {}).items():
            text = ", ".join(f"{name} {value:.1f}" for name, value in figures.items())
            lines.append(f"| {row.name} | {candidate} | {text} |")
    return lines


def markdown(results: list[dict], search: dict, n_threads: int, model: Path) -> str:
    lines = [
        "# Benchmarks", "",
        "Written by `bench/peers/bench_peers.py`; how each side is measured stands in",
        "[bench/peers/README.md](../bench/peers/README.md). Medians over alternating rounds in one run;",
        "spread is (max - min) / median. A latency's ratio is better when it is lower.", "",
        f"Machine: {processor()}, {n_threads} threads, {platform.system()} {platform.release().split('-')[0]}."
        f" Model: {model.name}, as shipped.", "",
        "| row | Luna | best peer | ratio | bar | | spread: Luna, peer | rounds | cores | day |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        sign = ">=" if r["better"] == "higher" else "<="
        lines.append(
            f"| {r['name']} | {r['luna']:.1f} {r['unit']} | {r['peer']:.1f} {r['unit']}, {r['peer_name']} |"
            f" {r['ratio']:.2f} | {sign} {r['bar']} | {'met' if r['is_met'] else '**not met**'} |"
            f" {r['luna_spread']:.0%}, {r['peer_spread']:.0%} | {r['rounds']} | {r['class']} | {r['date']} |"
        )
    lines += ["", "## The peers' settings", "",
              "One sample of each; the best for a figure of a row was measured in the rounds.", ""]
    return "\n".join(lines + search_table(search)) + "\n"
