"""Prefill passes, iterations of an answer, and durations of steps, read off the table of the compiled loops."""

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import ModuleType
from typing import NamedTuple

import numpy as np

from ground.arrays import Ints
from ground.errors import BadInput
from planner.loops.arrays import TableArrays
from planner.manifest.drafts import MOST_DRAWN, Acceptance, drawn_iterations, drawn_sums, mean_iterations
from planner.manifest.schema import Drafts
from planner.manifest.terms import StepCost
from runtime.simulate.request import Request

MOST_REMEMBERED = 100_000
_OFFSETS_AT_ONCE = 4096


class RankLoad(NamedTuple):
    """What a step carries on one DP rank; ``planner.loops.tables_loop.step_seconds`` takes these columns."""

    decode_sequences: float = 0.0
    decode_kv_tokens: float = 0.0
    tokens: float = 0.0
    context: float = 0.0
    pairs: float = 0.0
    finishing: float = 0.0


def balanced(cost: StepCost, balance: float | None) -> StepCost:
    """Return a step cost with another busiest expert rank over the mean; as it is where that is None."""
    return cost if balance is None else replace(cost, balance=balance, sampling_deviations=0.0)


class StepTimer:
    """Durations of the steps of one instance; decode iterations are straight in a rank's cached tokens and requests."""

    def __init__(self, made: Callable[[], TableArrays]) -> None:
        """``made`` returns the table, when it is first needed."""
        self._made = made
        self._known: dict[object, float] = {}
        self._lines: dict[int, tuple[float, float, float]] = {}
        """Of an iteration, by running requests of all ranks: seconds with nothing on the fullest rank, of each cached
        token there, and of each request there."""

    @cached_property
    def table(self) -> TableArrays:
        """The step table."""
        return self._made()

    @cached_property
    def _loop(self) -> ModuleType:
        from planner.loops import tables_loop  # numba: half a second

        return tables_loop

    def step_seconds(self, loads: Sequence[RankLoad], ranks: int) -> float:
        """Return the duration of a step that all ``ranks`` leave together: that of its slowest one.

        The experts serve all ranks, so their part follows the mean over ranks.
        """
        key = (ranks, *loads)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            found = self._known[key] = checked_seconds(self._loop.step_seconds(self.table, np.array(loads), ranks))
        return found

    def computing_seconds(self, budget: int, tokens: int) -> float:
        """Return the seconds in which full passes compute the first tokens of a prompt."""
        return float(self._loop.computing_seconds(self.table, budget, tokens))

    def iteration_seconds(self, running: int, sequences: int, kv_tokens: float) -> float:
        """Return the duration of a decode iteration; the fullest ranks have so many requests and cached tokens.

        They are taken together although they may stand on different ranks.
        """
        found = self._lines.get(running)
        if found is None:
            table = self.table
            columns = (table.alone[:, 0], table.usual_kv, table.kv_seconds, table.sequence_seconds)
            alone, usual, kv, sequence = (float(np.interp(running, table.running, column)) for column in columns)
            found = self._lines[running] = alone - usual * kv - running / table.ranks * sequence, kv, sequence
        base, kv, sequence = found
        return checked_seconds(base + sequences * sequence + kv_tokens * kv)


def checked_seconds(seconds: float) -> float:
    """Return seconds by which virtual time can advance; BadInput for others."""
    if not 0 < seconds < math.inf:
        raise BadInput(f"step_costs: a step takes {seconds:g} seconds; its terms must give a positive, finite time")
    return seconds


@dataclass(slots=True)
class Pass:
    """A pass in the making or under way: room and load of each rank, and the prompts that it ends or carries on."""

    room: list[int]
    tokens: list[int]
    context: list[float]
    pairs: list[float]
    finishing: list[int]
    loading: list[float]
    ended: list[tuple[Request, int]] = field(default_factory=list)
    carried: list[tuple[Request, int, int]] = field(default_factory=list)
    before: list[tuple[Request, int, int]] = field(default_factory=list)
    taken: list[Request] = field(default_factory=list)
    only_offline: bool = False

    @classmethod
    def empty(cls, ranks: int, budget: int) -> "Pass":
        """Return a pass that holds nothing."""
        return cls([budget] * ranks, [0] * ranks, [0.0] * ranks, [0.0] * ranks, [0] * ranks, [0.0] * ranks)

    def loads(self) -> list[RankLoad]:
        """Return the load of every rank that computes something."""
        columns = zip(self.tokens, self.context, self.pairs, self.finishing, strict=True)
        return [RankLoad(0.0, 0.0, float(t), c, p, float(f)) for t, c, p, f in columns if t]


@cache
def _sums(drafts: int, acceptance: Acceptance) -> "array[int]":
    """Return what is drawn once as Python's own numbers, which bisection of one answer is quicker with."""
    return array("q", drawn_sums(drafts, acceptance).tobytes())


class IterationCounts:
    """Draws the number of iterations of an answer when it is admitted, or takes the ``expected`` one."""

    def __init__(self, mtp: Drafts, expected: bool, random: np.random.Generator) -> None:
        self._mtp = mtp
        self._random = random
        self._offsets: list[int] = []
        self._sums = _sums(mtp.drafts, mtp.acceptance) if mtp.drafts and not expected else None

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
