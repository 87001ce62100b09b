"""What multi-token prediction (MTP) yields: drafts count up to the first that is refused."""

from functools import cache
from itertools import accumulate

import numpy as np

from ground.arrays import Floats, Ints

MOST_DRAFTS = 8  # drafts of an iteration that are costed
Acceptance = float | tuple[float, ...]
"""Of a draft, given those before it: of all, or of the first, the second, ... where the last holds for those beyond."""

MOST_DRAWN = 1 << 18  # tokens of the longest answer whose iterations are drawn: a longer one takes the mean


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


def tokens_squared_cv(drafts: int, acceptance: Acceptance) -> float:
    """Return the squared CV of the tokens of an iteration, over iterations."""
    chances = step_chances(drafts, acceptance)
    tokens = np.arange(1.0, drafts + 2)
    mean = float(chances @ tokens)
    return float(chances @ (tokens / mean - 1) ** 2)


def step_chances(drafts: int, acceptance: Acceptance) -> Floats:
    """Return the chances of 1, 2, ... drafts + 1 tokens in an iteration, [drafts + 1]."""
    return -np.diff(np.array([*reached(drafts, acceptance), 0.0]))


def accepted_tokens(random: np.random.Generator, count: int, drafts: int, acceptance: Acceptance) -> Ints:
    """Return the tokens of so many iterations: 1 + drafts accepted before the first that is not."""
    accepted = random.random((count, drafts)) < acceptances(drafts, acceptance)
    return 1 + np.cumprod(accepted, axis=1, dtype=np.int64).sum(axis=1)


@cache
def drawn_sums(drafts: int, acceptance: Acceptance) -> Ints:
    """Return the running total of tokens over a million iterations, which answers begin within the first half of."""
    return np.cumsum(accepted_tokens(np.random.default_rng(drafts), 4 * MOST_DRAWN, drafts, acceptance))


def drawn_iterations(tokens: Ints, drafts: int, acceptance: Acceptance, random: np.random.Generator) -> Ints:
    """Return the iterations that answers of so many tokens take, at least 1: each has the exact distribution.

    An answer starts at a random one of a million drawn iterations and takes as many as it needs to pass its tokens.
    """
    if not drafts:
        return np.maximum(tokens, 1)
    sums, start = drawn_sums(drafts, acceptance), random.integers(0, 2 * MOST_DRAWN, tokens.size)
    drawn = np.searchsorted(sums, sums[start] + np.minimum(tokens, MOST_DRAWN)) - start
    return np.where(tokens > MOST_DRAWN, mean_iterations(tokens, drafts, acceptance), np.maximum(drawn, 1))


def mean_iterations(tokens: Ints, drafts: int, acceptance: Acceptance) -> Ints:
    """Return the iterations of answers whose every iteration gives the mean, rounded up, at least 1."""
    mean = tokens_per_iteration(drafts, acceptance)
    return np.maximum(np.ceil(tokens / mean - 1e-9), 1).astype(np.int64)
