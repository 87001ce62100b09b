"""How many iterations an answer takes when each yields one token and the drafts accepted before the first refusal."""

import math
from array import array
from bisect import bisect_left
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.manifest.drafts import Acceptance, acceptances, tokens_per_iteration
from planner.manifest.schema import Drafts

Integers = NDArray[np.int64]

_DRAWN_STEPS = 1 << 20
_OFFSETS_AT_ONCE = 4096


def accepted_tokens(random: np.random.Generator, count: int, drafts: int, acceptance: Acceptance) -> Integers:
    """Return tokens per request of one iteration: 1 + drafts accepted before the first that is not."""
    accepted = random.random((count, drafts)) < acceptances(drafts, acceptance)
    tokens: Integers = 1 + np.cumprod(accepted, axis=1, dtype=np.int64).sum(axis=1)
    return tokens


@cache
def _drawn_sums(drafts: int, acceptance: Acceptance) -> "array[int]":
    """Return the running total of tokens over a million iterations."""
    tokens = accepted_tokens(np.random.default_rng(drafts), _DRAWN_STEPS, drafts, acceptance)
    return array("q", np.cumsum(tokens).tobytes())


class IterationCounts:
    """Draws the number of iterations of an answer when it is admitted.

    A million iterations are drawn once and their tokens added up; an answer of n tokens starts at a random one of them
    and takes as many as it needs to pass n. Each answer's count has the exact distribution, found by bisection.
    """

    def __init__(self, mtp: Drafts, mode: Literal["sampled", "expected"], random: np.random.Generator) -> None:
        self._mean = tokens_per_iteration(mtp.drafts, mtp.acceptance)
        self._most = 1 + mtp.drafts
        self._random = random
        self._offsets: list[int] = []
        sampled = mode == "sampled" and mtp.drafts
        self._sums = _drawn_sums(mtp.drafts, mtp.acceptance) if sampled else None

    def draw(self, tokens: int) -> int:
        """Return the iterations that ``tokens`` take, at least 1."""
        if self._most == 1:
            return tokens
        if self._sums is None or tokens >= _DRAWN_STEPS // 4:
            return max(math.ceil(tokens / self._mean - 1e-9), 1)
        if not self._offsets:
            self._offsets = self._random.integers(0, _DRAWN_STEPS // 2, _OFFSETS_AT_ONCE).tolist()
        start = self._offsets.pop()
        target = self._sums[start] + tokens
        return max(bisect_left(self._sums, target, start + tokens // self._most, start + tokens + 1) - start, 1)

    def draw_all(self, tokens: Integers) -> Integers:
        """Return the iterations of many answers, as ``draw`` does of one."""
        if self._most == 1:
            return np.maximum(tokens, 1)
        expected: Integers = np.maximum(np.ceil(tokens / self._mean - 1e-9), 1).astype(np.int64)
        if self._sums is None:
            return expected
        sums = np.frombuffer(self._sums, dtype=np.int64)
        start = self._random.integers(0, _DRAWN_STEPS // 2, tokens.size)
        drawn = np.searchsorted(sums, sums[start] + tokens) - start
        return np.where(tokens >= _DRAWN_STEPS // 4, expected, np.maximum(drawn, 1))
