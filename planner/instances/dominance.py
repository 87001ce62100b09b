"""Which of many alternatives no other matches in every respect."""

import numpy as np
from numpy.typing import NDArray


def undominated(buckets: NDArray[np.int64], criteria: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return, ascending, the alternatives that none of their bucket equals or beats in all criteria.

    Of equal ones the first stays. Args: ``buckets`` [alternatives], compared only where equal; ``criteria``
    [alternatives, criteria], each to be made small, no NaN.
    """
    kept: list[NDArray[np.int64]] = []
    order = np.argsort(buckets, kind="stable")
    starts = np.flatnonzero(np.diff(buckets[order], prepend=np.nan if buckets.size else 0) != 0)
    for members in np.split(order, starts[1:]) if buckets.size else ():
        own = criteria[members]
        no_worse = (own[:, None, :] <= own[None, :, :]).all(axis=2)  # [one, other]
        first = np.arange(members.size)[:, None] < np.arange(members.size)[None, :]
        beaten = (no_worse & (~no_worse.T | first)).any(axis=0)
        kept.append(members[~beaten])
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.int64)
