"""Units dealt to the DP groups of passes as the runtime deals: a fixed sample, many passes at once.

Each unit goes to the group with most room; one that fits nowhere ends the pass and is the first of the next. What a
pass costs is decided by its busiest group, of which the one with most tokens and the one with most pairs are kept.

The longest unit of n decides most about a pass. So passes are drawn by it: its level among units is v^(1/n) for v even
over 0..1, finer where long ones are and weighted, and the others are drawn below it (order statistics: H. A. David,
Order Statistics, 1981, section 2.1). Draws are even over their range, so that means of a sample are those of the units.

Ref: the rule is the runtime's (``runtime.simulate.prefill``); no closed form is known for unlike units on few groups.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.queues.queueing import Array

Ints = NDArray[np.int64]

_LANES, _USUAL = 112, 72
"""Passes of a count of units, and those of them that are as likely each."""
_LONG, _RAREST = 0.1, 1e-4
"""How likely what the others cover is, and the last of them."""
_FILLED, _FEWEST, _MOST = 3072, 192, 512
"""Groups of all full passes of a sample, and the fewest and most of these passes."""
_IN_A_ROW = 3
_SEED = 0
_KEPT = 256
"""Samples: rows of a search that cut prompts alike share them."""


@dataclass(frozen=True, slots=True)
class Parcels:
    """Units by what they add to their group, arrays [kinds], rising in ``taken``."""

    loads: Array
    """[kinds, 4]: computed tokens, context, pairs, finishing prompts."""
    taken: Array
    """Tokens of the group's budget."""
    weights: Array
    """Summing to 1."""

    def content(self) -> bytes:
        """Return all of it, as a key."""
        return np.column_stack([self.loads, self.taken, self.weights]).tobytes()

    @classmethod
    def of(cls, content: bytes) -> "Parcels":
        """Return what has this content."""
        rows = np.frombuffer(content).reshape(-1, 6)
        return cls(rows[:, :4], rows[:, 4], rows[:, 5])


@dataclass(frozen=True, slots=True)
class Dealt:
    """Passes and what their busiest groups carry; [..., lanes]."""

    loads: Array
    """[..., lanes, 2, 4]: of the group with most tokens and of the one with most pairs."""
    mean_tokens: Array
    """Computed tokens of a group on average."""
    masses: Array
    """How likely each is, 0 where its units do not fit one pass."""
    counts: Array
    """Units that a pass holds."""


class _Lanes:
    """Passes in the making, one a lane."""

    def __init__(self, parcels: Parcels, groups: int, budget_tokens: float, lanes: int) -> None:
        self._parcels = parcels
        self.room = np.full((lanes, groups), budget_tokens)
        self.loads = np.zeros((lanes, groups, 4))

    def deal(self, lanes: Ints, kinds: Ints) -> NDArray[np.bool_]:
        """Give a unit to each of some lanes; tell which had room for it."""
        room = self.room if lanes.size == self.room.shape[0] else self.room.take(lanes, axis=0)
        places, taken = lanes * self.room.shape[1] + room.argmax(axis=1), self._parcels.taken.take(kinds)
        fits = self.room.take(places) >= taken - 1e-9
        places = places[fits]
        self.room.reshape(-1)[places] -= taken[fits]
        self.loads.reshape(-1, 4)[places] += self._parcels.loads.take(kinds[fits], axis=0)
        return np.asarray(fits)

    def busiest(self) -> Array:
        """[lanes, 2, 4]."""
        places = np.arange(self.loads.shape[0])
        most = [self.loads[places, self.loads[:, :, column].argmax(axis=1)] for column in (0, 2)]
        return np.stack(most, axis=1)


def dealt(parcels: Parcels, groups: int, budget_tokens: float, counts: Array) -> Dealt:
    """Return passes of ``counts`` units that fit one pass, [counts, lanes]."""
    return _dealt(parcels.content(), groups, budget_tokens, tuple(counts.tolist()))


@lru_cache(maxsize=_KEPT)
def _dealt(content: bytes, groups: int, budget_tokens: float, units: tuple[float, ...]) -> Dealt:
    parcels, counts = Parcels.of(content), np.array(units)
    rare = 1 - np.geomspace(_LONG, _RAREST, _LANES - _USUAL + 1)
    edges = np.concatenate([np.linspace(0.0, 1 - _LONG, _USUAL + 1), rare[1:-1], [1.0]])
    levels, shares = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    number = np.repeat(counts.astype(np.int64), _LANES)
    top = np.tile(levels, counts.size) ** (1 / number)
    rng = np.random.default_rng(_SEED)
    longest = (rng.random(number.size) * number).astype(np.int64)
    lanes, below = _Lanes(parcels, groups, budget_tokens, number.size), np.cumsum(parcels.weights)
    fits, drawn_tokens = np.ones(number.size, dtype=np.bool_), np.zeros(number.size)
    for place in range(int(number.max())):
        here = np.flatnonzero(number > place)
        drawn = np.where(longest[here] == place, 1.0, _even(rng, here.size)) * top[here]
        kinds = _kinds(below, drawn)
        drawn_tokens[here] += parcels.taken[kinds]
        open_ones = fits[here]
        fits[here[open_ones]] = lanes.deal(here[open_ones], kinds[open_ones])
    shape = (counts.size, _LANES)
    masses = np.where(fits.reshape(shape), shares, 0.0)
    masses = np.where(fits.reshape(shape).any(axis=1, keepdims=True), masses, shares)
    # What the sample has too much of all units together, the busiest group has too much of.
    factor = counts * (parcels.taken @ parcels.weights) / (drawn_tokens.reshape(shape) @ shares)
    return Dealt(
        loads=lanes.busiest().reshape(*shape, 2, 4) * factor[:, None, None, None],
        mean_tokens=lanes.loads[:, :, 0].mean(axis=1).reshape(shape) * factor[:, None],
        masses=masses / masses.sum(axis=1, keepdims=True),
        counts=np.broadcast_to(counts[:, None], shape),
    )


def filled(parcels: Parcels, groups: int, budget_tokens: float) -> tuple[Dealt, Dealt]:
    """Return full passes of units that all wait, [lanes] each: behind one that took all, and behind full ones.

    Each ends with a unit that fits no more and begins the next, which is longer than others therefore: of passes in a
    row the first and the third, from which on they are alike.
    """
    return _filled(parcels.content(), groups, budget_tokens)


@lru_cache(maxsize=_KEPT)
def _filled(content: bytes, groups: int, budget_tokens: float) -> tuple[Dealt, Dealt]:
    parcels, rng = Parcels.of(content), np.random.default_rng(_SEED)
    below, passes = np.cumsum(parcels.weights), min(max(_FILLED // groups, _FEWEST), _MOST)
    head, found = np.full(passes, -1), []
    for _ in range(_IN_A_ROW):
        lanes, held = _Lanes(parcels, groups, budget_tokens, passes), np.zeros(passes)
        open_ones = np.arange(passes)
        while open_ones.size:
            kinds = _kinds(below, _even(rng, open_ones.size))
            kinds = np.where(head[open_ones] >= 0, head[open_ones], kinds)
            fits = lanes.deal(open_ones, kinds)
            held[open_ones[fits]] += 1
            head[open_ones] = np.where(fits, -1, kinds)
            open_ones = open_ones[fits]
        found.append(
            Dealt(
                loads=lanes.busiest(),
                mean_tokens=lanes.loads[:, :, 0].mean(axis=1),
                masses=np.full(passes, 1 / passes),
                counts=held,
            )
        )
    return found[0], found[-1]


def _even(rng: np.random.Generator, count: int) -> Array:
    """Levels within 0..1, one in each of ``count`` equal parts, in random order."""
    return rng.permutation((np.arange(count) + rng.random(count)) / max(count, 1))


def _kinds(below: Array, levels: Array) -> Ints:
    return np.minimum(np.searchsorted(below, levels), below.size - 1)
