"""Whether the cores are this machine's alone, as far as a guest can see it.

A virtual core shares its execution units with another one whose work cannot be seen; what can be seen
is that a loop without memory traffic takes longer. A fixed product of small matrices (they lie in the
second-level cache) is timed on each core before and after a sample: within TOLERANCE of the fastest
time that this run has seen, the core counts as alone.
"""

from __future__ import annotations

import os
import statistics
import time

# Read by OpenBLAS and MKL when NumPy is loaded: the probe is of one core.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
import numpy as np  # noqa: E402

SIZE = 160  # three matrices of 100 KiB
REPEATS = 30  # about a millisecond
TOLERANCE = 1.10


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
