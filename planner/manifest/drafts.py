"""What multi-token prediction (MTP) yields: drafts count up to the first that is refused."""

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Acceptance = float | tuple[float, ...]
"""Of a draft, given those before it: of all, or of the first, the second, ... where the last holds for those beyond."""


def reached(drafts: int, acceptance: Acceptance) -> list[float]:
    """Return the chances that the first 0, 1, ... ``drafts`` drafts are all accepted, [drafts + 1].

    >>> reached(2, 0.5), reached(2, (0.9, 0.4))
    ([1.0, 0.5, 0.25], [1.0, 0.9, 0.36000000000000004])
    """
    return list(accumulate(acceptances(drafts, acceptance), lambda chance, own: chance * own, initial=1.0))


def acceptances(drafts: int, acceptance: Acceptance) -> list[float]:
    """Return the acceptance of each draft, [drafts]."""
    stated = acceptance if isinstance(acceptance, tuple) else (acceptance,)
    return [stated[min(depth, len(stated) - 1)] for depth in range(drafts)]


def tokens_per_iteration(drafts: int, acceptance: Acceptance) -> float:
    """Return the mean tokens of an iteration: 1 + a1 + a1 a2 + ..."""
    return sum(reached(drafts, acceptance))


def step_chances(drafts: int, acceptance: Acceptance) -> NDArray[np.float64]:
    """Return the chances of 1, 2, ... drafts + 1 tokens in an iteration, [drafts + 1]."""
    return -np.diff(np.array([*reached(drafts, acceptance), 0.0]))
