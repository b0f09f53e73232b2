"""Sums up the reports of `./luna test`: a line a phase, then `N passed, N failed, N skipped`.

  summary.py RESULTS_DIR

phases.txt has a line `PHASE EXIT_STATUS SECONDS` a phase; PHASE.xml is its JUnit report (ctest's or
pytest's), PHASE-PART.xml are those of parts that ran by themselves, PHASE/*.xml those of single
GoogleTest programs: where there is one, its cases count, not the one entry that ctest has for the
program. Exit status 1 if anything failed.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Counts:
    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)

    def add(self, name: str, case: ElementTree.Element) -> None:
        if case.find("failure") is not None or case.find("error") is not None:
            self.failed.append(name)
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            self.skipped += 1
        else:
            self.passed += 1


def count_phase(results: Path, phase: str, status: int) -> Counts:
    counts = Counts()
    for report in sorted([*results.glob(f"{phase}.xml"), *results.glob(f"{phase}-*.xml")]):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = case.get("name", "")
            cases = results / phase / f"{name}.xml"
            inner = [] if not cases.is_file() else list(ElementTree.parse(cases).getroot().iter("testcase"))
            for one in inner:
                counts.add(f"{one.get('classname')}.{one.get('name')}", one)
            # A program that died has no report, or one without the failure.
            if not inner or (case.find("failure") is not None and not counts.failed):
                counts.add(name, case)
    if status != 0 and not counts.failed:
        counts.failed.append(f"the phase itself: exit status {status}")
    return counts


def main() -> int:
    results = Path(sys.argv[1])
    passed = failed = skipped = 0
    print("\nphase         passed  failed  skipped  seconds")
    for line in (results / "phases.txt").read_text(encoding="utf-8").splitlines():
        phase, status, seconds = line.split()
        counts = count_phase(results, phase, int(status))
        print(f"{phase:12} {counts.passed:7} {len(counts.failed):7} {counts.skipped:8} {seconds:>8}")
        for name in counts.failed:
            print(f"  FAILED {phase}: {name}")
        passed += counts.passed
        failed += len(counts.failed)
        skipped += counts.skipped
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
