"""Measurements that are made in slices, one after the other, on a machine that others use as well."""

from __future__ import annotations

import json
import math
import statistics
import time
from pathlib import Path


class Journal:
    """What all slices have found so far, a line of JSON each; a slice goes on where the last one ended.

    The first line is the settings: figures of other settings are not mixed with them.
    """

    def __init__(self, path: Path | None, settings: dict):
        self.path_ = path
        self.rows_: list[dict] = []
        if path and path.is_file():
            known, *self.rows_ = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            if known != settings:
                raise SystemExit(f"{path}: made with {known}, not with {settings}")
        else:
            self.write_(settings)

    def write_(self, row: dict) -> None:
        if self.path_:
            with self.path_.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def add(self, what: str, **found: object) -> dict:
        row = {"what": what} | found
        self.rows_.append(row)
        self.write_(row)
        return row

    def of(self, what: str) -> list[dict]:
        return [row for row in self.rows_ if row["what"] == what]


class TimeBox:
    """Whether another piece of work ends within the slice, by what such pieces took so far."""

    def __init__(self, limit_s: float):
        self.end_s_ = time.monotonic() + limit_s if limit_s > 0 else math.inf
        self.longest_s_: dict[str, float] = {}

    def has_room_for(self, what: str, guess_s: float) -> bool:
        return time.monotonic() + self.longest_s_.get(what, guess_s) <= self.end_s_

    def took(self, what: str, seconds: float) -> None:
        self.longest_s_[what] = max(seconds, self.longest_s_.get(what, 0.0))


def percentile(values: list[float], percent: float) -> float:
    """By nearest rank: one of the values."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def spread(values: list[float], unit: str) -> str:
    """Median, extremes and how many."""
    if not values:
        return "none"
    return (
        f"median {statistics.median(values):.2f} {unit} ({min(values):.2f}..{max(values):.2f}, "
        f"P95 {percentile(values, 95):.2f}, n {len(values)})"
    )
