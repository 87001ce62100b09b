"""What waits when passes start: the chain of elastic bulk service, settled.

A pass takes all that waits, or as much as it holds; what waits next is what it left and what came meanwhile. Where more
waits than any pass holds, how far that goes up or down no longer depends on how much it is, so its chances soon fall
off by one factor from cell to cell, and the chain is solved only up to there.

Ref: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16:80, 1954; for the geometric tail
H. C. Tijms and M. C. T. van de Coevering, A simple numerical approach for infinite-state Markov chains, Prob. Eng. Inf.
Sci. 5:285, 1991.
"""

import cmath
import math
from dataclasses import dataclass

import numpy as np

from ground.arrays import Floats, on_nodes, windows
from planner.closed_forms.arrival_counts import Arrivals
from planner.closed_forms.bulk_lattice import Lattice, lattice_of
from planner.closed_forms.pass_seconds import Passes

_NEGLIGIBLE = 1e-10
"""Share of a chance by which it may be off where a tail is taken as geometric, and mass below the least that waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The stationary chain."""

    lattice: Lattice
    passes: Floats
    """[sizes + 1, times]: durations of passes on the grid of time."""
    reached: Floats
    """[times, counts]: chance that so many cells or more arrive within a time, as far as there is any."""
    starts: Floats
    """[sizes, fine]: chance that a pass takes all of so many places and leaves part of a prompt behind."""
    left: Floats
    """[cells]: chance that a pass is full and leaves so much behind."""


def settled_chain(passes: Passes, arrivals: Arrivals, rate: float, squared_cv: float) -> Chain:
    """Return the stationary chain."""
    lattice = lattice_of(passes, rate, squared_cv, arrivals.events_per_prompt)
    width = lattice.width_seconds
    times = math.ceil(float(lattice.seconds.max()) / width) + 2
    lasting = on_nodes(lattice.seconds[:, None] / width, np.ones(1), times)
    reached = arrivals.reached(np.arange(float(times)) * width, lattice.prompts_per_cell, lattice.cells)
    brought = lasting @ reached
    settled = _Walk(lattice, brought[:-1], brought[-1]).settled()
    fine, cells, sizes = lattice.fine, lattice.cells, lattice.sizes
    starts, left = np.zeros(sizes * fine), np.zeros(cells)
    starts[: min(starts.size, cells - fine)] = settled[fine : fine * (sizes + 1)]
    left[fine : cells - fine * sizes] = settled[fine * (sizes + 1) :]
    return Chain(lattice=lattice, passes=lasting, reached=reached, starts=starts.reshape(sizes, fine), left=left)


@dataclass(frozen=True, slots=True)
class _Walk:
    """How what waits goes up and down from pass to pass, on a lattice: the chances that so much or more arrives."""

    lattice: Lattice
    brought: Floats
    """[sizes, counts]: while all of 1.. places are taken."""
    whole: Floats
    """[counts]: during full passes that leave somebody behind."""

    def settled(self) -> Floats:
        """Stationary distribution of what waits when a pass starts, [cells].

        States that all but never occur are left out. Tried, and shown by what is found.
        """
        known = self._between(self.lattice.fine * self.lattice.least, self._tail())
        found = self._between(self.lattice.fine, None) if known is None else known
        assert found is not None, "the whole lattice has a distribution"
        return found

    def _between(self, lowest: int, tail: "_Tail | None") -> Floats | None:
        """Solve from a state to the tail, or else to the end; None where other states matter, too."""
        cells = self.lattice.cells
        states = (tail.first if tail else cells - 1) + 1 - lowest
        beyond = self._beyond(lowest, states)
        moves = beyond[:, :-1] - beyond[:, 1:]
        if tail:
            moves[-1] = tail.moves(states)
        else:
            moves[:, -1] = beyond[:, -2]  # what would go further
        moves.flat[:: states + 1] -= 1
        moves[:, 0] = 1.0  # the sum of all, for one of the balances, which follow from each other
        moves[-1, 0] = 1 / (1 - tail.factor) if tail else 1.0
        solved = np.linalg.solve(moves.T, np.eye(1, states)[0])
        if lowest > self.lattice.fine and np.abs(solved[: self.lattice.fine]).sum() > _NEGLIGIBLE:
            return None
        if tail and abs(solved[-1] - tail.factor * solved[-2]) > _NEGLIGIBLE:
            return None
        found = np.zeros(cells)
        found[lowest : lowest + states] = np.maximum(solved, 0.0)
        if tail:
            found[tail.first :] = solved[-1] * tail.factor ** np.arange(float(cells - tail.first))
            found[-1] /= 1 - tail.factor
        return np.asarray(found / found.sum(), dtype=np.float64)

    def _beyond(self, lowest: int, states: int) -> Floats:
        """Chances that each of these states or a further one, [states + 1], follows on each of them, [states]."""
        fine, sizes = self.lattice.fine, self.lattice.sizes
        found = self._after_full(lowest, states)
        first, end = lowest // fine, lowest + states + 1
        counts = np.zeros((sizes + 1 - first, max(end, self.brought.shape[1])))
        counts[:, : self.brought.shape[1]] = self.brought[first - 1 :]
        for left in range(fine):  # of all places taken, and so much that is less than one
            taken = found[left : fine * (sizes + 1) - lowest : fine]
            taken += counts[: taken.shape[0], lowest - left : end - left]
        return found

    def _after_full(self, lowest: int, states: int) -> Floats:
        """The part of ``_beyond`` that is through passes that leave somebody behind: they take what they hold."""
        fine, sizes, counts = self.lattice.fine, self.lattice.sizes, self.whole.size
        found = np.zeros((states, states + 1))
        waiting = np.arange(max(lowest, fine * (sizes + 1)), lowest + states)
        if waiting.size:
            first = fine * sizes + 1
            padded = np.zeros((1, max(states + counts, first + 2 * states)))
            padded[:, :states] = 1.0
            padded[:, states : states + counts] = self.whole
            rises = windows(padded[:, first : first + 2 * states], states + 1)[0]  # by 1 - states ... states
            found[-waiting.size :] = rises[lowest + states - 1 - waiting]
        return found

    def _tail(self) -> "_Tail | None":
        """Return where chances fall off by one factor; None where the lattice ends before.

        Changes by X, of mean -d and variance v, keep z^n if E[z^-X] = 1: by exp(-s) with s about 2 d / v. The next
        solutions, of which that of n = 1 lasts longest, have s (d - s v / 2) = -2 pi i n.
        """
        fine, sizes, counts = self.lattice.fine, self.lattice.sizes, self.whole.size
        chances = np.zeros(fine * sizes + counts)
        chances[: counts - 1] = self.whole[:-1] - self.whole[1:]
        chances[chances < 1e-13] = 0.0  # rounding, which the tail would blow up
        steps = np.arange(chances.size) - float(fine * sizes)
        drift = -float(chances @ steps)
        variance = float(chances @ steps**2) - drift**2
        if drift <= 0 or drift**2 > 4 * variance:
            return None  # more and more waits, or it all but never does
        other = (drift + cmath.sqrt(drift**2 + 4j * math.pi * variance).real) / variance
        first = fine * (sizes + 1) + math.ceil(-math.log(_NEGLIGIBLE) / other)
        if first > self.lattice.cells - fine:
            return None
        decay = 2 * drift / variance
        for _ in range(20):
            tilted = chances * np.exp(decay * steps)
            total = float(tilted.sum())
            change = math.log(total) * total / float(tilted @ steps)
            decay -= change
            if abs(change) < 1e-13:
                break
        return _Tail(first, math.exp(-decay), chances[: fine * sizes + 1])


@dataclass(frozen=True, slots=True)
class _Tail:
    """States whose chances fall off by one factor."""

    first: int
    factor: float
    falls: Floats
    """Chances that what waits goes down, by most ... 1 and by nothing."""

    def moves(self, states: int) -> Floats:
        """Chances of the last ``states`` up to the first of the tail after any of it, [states], in those of the first.

        From all that wait j cells more: at d below, the sum over j of factor^j times the chance to fall by d + j.
        """
        most = self.falls.size
        powers = self.factor ** np.arange(most - 1.0, -1.0, -1.0)
        found = np.zeros(max(states, most))
        found[found.size - most :] = np.cumsum(self.falls * powers) / powers
        return found[found.size - states :]
