"""xDeepServe's greedy replication for time-sliced loads: a baseline.

Ref: xDeepServe (arXiv 2508.02520) section 4.5. The load of a layer is the sum over slices of its hottest expert's load;
each spare slot goes to the expert, among those that are hottest in some slice, whose further replica lowers it most.
"""

import numpy as np
from numpy.typing import NDArray


def hottest_first(loads: NDArray[np.float64], slots: int, most_per_expert: int) -> NDArray[np.int64]:
    """Replica counts of one layer, [experts] with the sum ``slots``, from loads [experts, slices]."""
    experts, slices = loads.shape
    counts = np.ones(experts, dtype=np.int64)
    each = np.arange(slices)
    for _ in range(slots - experts):
        share = loads / counts[:, None]
        open_ = counts < most_per_expert
        hottest = share.argmax(axis=0)  # [slices]
        candidates = np.unique(hottest[open_[hottest]])
        if not len(candidates):
            candidates = np.flatnonzero(open_)
        rest = share.copy()
        rest[hottest, each] = -np.inf
        second = rest.max(axis=0)
        others = np.where(hottest[None] == candidates[:, None], second, share[hottest, each])  # [candidates, slices]
        after = np.maximum(others, loads[candidates] / (counts[candidates] + 1)[:, None]).sum(axis=1)
        counts[candidates[int(after.argmin())]] += 1
    return counts
