"""Whether the cores are this machine's alone, as far as a guest can see it.

A virtual core shares its execution units with another one whose work cannot be seen; what can be seen
is that a loop without memory traffic takes longer. A fixed product of small matrices (they lie in the
second-level cache) is timed on each core before and after a sample: within TOLERANCE of the fastest
time that this run has seen, the core counts as alone. Other processes of this machine are seen directly:
by the time that the kernel counted for them.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

# Read by NumPy's BLAS when it is loaded: the probe is of one core. The peers must not inherit them.
ONE_THREAD = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")}
before = {name: os.environ.get(name) for name in ONE_THREAD}
os.environ.update(ONE_THREAD)
import numpy as np  # noqa: E402

for name, value in before.items():
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value

SIZE = 160  # three matrices of 100 KiB
REPEATS = 30  # about a millisecond
TOLERANCE = 1.10
# Of all cores' time during a sample; what a quiet machine's own services take is less.
OTHERS_RATIO_MAX = 0.03


class CoreProbe:
    def __init__(self, cores: list[int]):
        self.cores_ = cores
        self.a_ = np.full((SIZE, SIZE), 0.5, dtype=np.float32)
        self.b_, self.c_ = self.a_ * 1.5, np.empty_like(self.a_)
        self.fastest_ = min(max(self.times_()) for _ in range(20))

    def times_(self) -> list[float]:
        """The median time on each core."""
        before, medians = os.sched_getaffinity(0), []
        for core in self.cores_:
            os.sched_setaffinity(0, {core})
            times = []
            for _ in range(REPEATS):
                begin = time.perf_counter()
                np.matmul(self.a_, self.b_, out=self.c_)
                times.append(time.perf_counter() - begin)
            medians.append(statistics.median(times))
        os.sched_setaffinity(0, before)
        return medians

    def is_alone(self) -> bool:
        slowest = max(self.times_())
        self.fastest_ = min(self.fastest_, slowest)
        return slowest <= TOLERANCE * self.fastest_


class OtherWork:
    """Time that processes outside of this session take, from the moment this is made."""

    def __init__(self):
        self.begin_, self.others_ = time.monotonic(), self.others_s_()

    @staticmethod
    def others_s_() -> float:
        ticks = os.sysconf("SC_CLK_TCK")
        # user, nice, system, idle, iowait, irq, softirq
        counts = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
        busy = sum(counts) - counts[3] - counts[4]
        session, own = os.getsid(0), 0
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                # After the name in brackets: state, parent, group, session, ...
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it ended meanwhile; its time is its parent's now
            if int(fields[3]) == session:
                own += sum(int(n) for n in fields[11:15])  # its own time and that of ended children
        return (busy - own) / ticks

    def is_little(self) -> bool:
        elapsed = time.monotonic() - self.begin_
        return self.others_s_() - self.others_ <= OTHERS_RATIO_MAX * elapsed * os.cpu_count()
