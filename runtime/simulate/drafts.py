"""How many iterations an answer takes when each yields one token and the drafts accepted before the first refusal."""

from array import array
from bisect import bisect_left
from functools import cache
from typing import Literal

import numpy as np

from ground.arrays import Ints
from planner.manifest.drafts import MOST_DRAWN, Acceptance, drawn_iterations, drawn_sums, mean_iterations
from planner.manifest.schema import Drafts

_OFFSETS_AT_ONCE = 4096


@cache
def _sums(drafts: int, acceptance: Acceptance) -> "array[int]":
    """Return what is drawn once as Python's own numbers, which bisection of one answer is quicker with."""
    return array("q", drawn_sums(drafts, acceptance).tobytes())


class IterationCounts:
    """Draws the number of iterations of an answer when it is admitted."""

    def __init__(self, mtp: Drafts, mode: Literal["sampled", "expected"], random: np.random.Generator) -> None:
        self._mtp = mtp
        self._random = random
        self._offsets: list[int] = []
        self._sums = _sums(mtp.drafts, mtp.acceptance) if mode == "sampled" and mtp.drafts else None

    def draw(self, tokens: int) -> int:
        """Return the iterations that ``tokens`` take, at least 1."""
        if not self._mtp.drafts:
            return max(tokens, 1)
        if self._sums is None or tokens > MOST_DRAWN:
            return int(self.draw_all(np.array([tokens]))[0])
        if not self._offsets:
            self._offsets = self._random.integers(0, 2 * MOST_DRAWN, _OFFSETS_AT_ONCE).tolist()
        start = self._offsets.pop()
        least = start + tokens // (1 + self._mtp.drafts)
        return max(bisect_left(self._sums, self._sums[start] + tokens, least, start + tokens + 1) - start, 1)

    def draw_all(self, tokens: Ints) -> Ints:
        """Return the iterations of many answers, as ``draw`` does of one."""
        drafts, acceptance = self._mtp.drafts, self._mtp.acceptance
        if self._sums is None:
            return mean_iterations(tokens, drafts, acceptance)
        return drawn_iterations(tokens, drafts, acceptance, self._random)
