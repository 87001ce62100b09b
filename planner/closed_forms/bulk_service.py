"""Elastic bulk service of equal prompts that come Poisson or are dealt to instances in turn: exact TTFT.

A pass takes all that waits, up to a cap, and lasts the longer the more it took. What waits when a pass starts is a
Markov chain, counted on a lattice (``bulk_lattice``): what a pass left and what came meanwhile. Where more waits
than any pass holds, how far that goes up or down no longer depends on how much it is, so its chances soon fall off
by one factor from cell to cell, and the chain is solved only up to there. A prompt that arrives waits for the rest
of the running pass, for whole passes when more prompts than the cap stand before it, and for its own pass, which it
shares with who came before that pass began. These parts are added as distributions on a grid of time. Exact but for
the lattices of waiting prompts and time: 1 % of p99.

Ref: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16:80, 1954; for the geometric
tail H. C. Tijms and M. C. T. van de Coevering, A simple numerical approach for infinite-state Markov chains, Prob.
Eng. Inf. Sci. 5:285, 1991; method of phases, A. K. Erlang; elastic batching of LLM inference in arXiv 2407.05347,
section IV. The sojourn is derived here.
"""

import cmath
import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, on_nodes, windows
from planner.closed_forms.bulk_lattice import RARE, Arrivals, Lattice, Passes, lattice_of
from planner.serving.latency import Latency

_NEGLIGIBLE = 1e-10
"""Share of a chance by which it may be off where a tail is taken as geometric, and mass below the least that waits."""


class Chain(NamedTuple):
    """The stationary chain."""

    lattice: Lattice
    passes: Floats  # [sizes + 1, times]: durations of passes on the grid of time
    reached: Floats  # [times, counts]: chance that so many cells or more arrive within a time, as far as there is any
    starts: Floats  # [sizes, fine]: chance that a pass takes all of so many places and leaves part of a prompt behind
    left: Floats  # [cells]: chance that a pass is full and leaves so much behind


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


class _Walk(NamedTuple):
    """How what waits goes up and down from pass to pass, on a lattice: the chances that so much or more arrives."""

    lattice: Lattice
    brought: Floats  # [sizes, counts]: while all of 1.. places are taken
    whole: Floats  # [counts]: during full passes that leave somebody behind

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


class _Tail(NamedTuple):
    """States whose chances fall off by one factor."""

    first: int
    factor: float
    falls: Floats  # chances that what waits goes down, by most ... 1 and by nothing

    def moves(self, states: int) -> Floats:
        """Chances of the last ``states`` up to the first of the tail after any of it, [states], in those of the first.

        From all that wait j cells more: at d below, the sum over j of factor^j times the chance to fall by d + j.
        """
        most = self.falls.size
        powers = self.factor ** np.arange(most - 1.0, -1.0, -1.0)
        found = np.zeros(max(states, most))
        found[found.size - most :] = np.cumsum(self.falls * powers) / powers
        return found[found.size - states :]


Policy = Literal["random", "round_robin", "least_load"]


def thinned_squared_cv(arrival_squared_cv: float, instances: int, policy: Policy) -> float:
    """Squared CV of the gaps at one of c instances: c2/c round robin, 1 + (c2 - 1)/c at random.

    Ref: W. Whitt, The Queueing Network Analyzer, Bell Syst. Tech. J. 62:2779, 1983, Eq. (36) for the split at random.
    """
    if policy == "random":
        return 1 + (arrival_squared_cv - 1) / instances
    return arrival_squared_cv / instances


def latency_of(passes: Passes, rate: float, arrival_squared_cv: float = 1.0) -> Latency | None:
    """TTFT of one instance, from arrival to the end of the prompt's own pass; None if unstable.

    Args: ``passes``: durations by what passes took; ``rate``: prompts per second at this instance;
    ``arrival_squared_cv``: of the gaps between its arrivals: 1 alone, 1/c where one of c in turn.
    """
    if rate * passes.full_seconds >= passes.most:
        return None
    return Latency.from_masses(*sojourn(passes, max(rate, 1e-12), arrival_squared_cv))


def sojourn(passes: Passes, rate: float, squared_cv: float) -> tuple[Floats, Floats, float]:
    """Return the sojourn of prompts: rising seconds, masses between each and the one before, and the mean."""
    arrivals = Arrivals.of(rate, squared_cv)
    chain = settled_chain(passes, arrivals, rate, squared_cv)
    line, idle, width = _line(chain, arrivals, _ahead(chain)), _idle_share(chain), chain.lattice.width_seconds
    behind, alone = _behind(line, chain.passes), float(chain.lattice.seconds[0])
    ends = (np.arange(behind.size) + 1.0) * width
    total = float(behind.sum()) + idle
    mean = float((ends - width / 2) @ behind + idle * alone) / total
    found, chances = np.append(ends, alone), np.append(behind, idle) / total
    order = np.argsort(found, kind="stable")
    return found[order], chances[order], mean


def _ahead(chain: Chain) -> Floats:
    """Arrivals per pass by the rest of the running pass and place in line, [times - 1, places].

    With l cells left over, the prompt at place p arrives when l and the arrivals of the pass so far reach it; of a pass
    that lasts d cells of time, the rest is d less those gone by.
    """
    fine, places = chain.lattice.fine, chain.lattice.places
    come = np.diff(chain.reached, axis=0)  # [times - 1, counts]: reached within a cell of time
    times, counts = come.shape
    # What is left over, and as many places on: [gone, places, fine] for the counts 1, 2, ... of which one is reached.
    near = min(places, -(-(counts - 1) // fine))
    padded = np.zeros((times, near * fine))
    padded[:, : counts - 1] = come[:, 1 : near * fine + 1]
    by_left = padded.reshape(times, near, fine).transpose(2, 0, 1).reshape(fine * times, near)
    lasting = np.concatenate([chain.starts.T[::-1] @ chain.passes[:-1], chain.passes[-1:]])
    rests = _rests(lasting)
    found = np.zeros((times, places))
    found[:, :near] = rests[:, :fine].reshape(times, fine * times) @ by_left
    if chain.left.any():
        # Left over, so that this many more reach the place: [counts, places].
        before = np.concatenate([np.zeros(counts), chain.left, np.zeros(fine)])
        spread = windows(before[None, :], counts)[0, fine + 1 :: fine][:places, ::-1].T
        found += rests[:, fine] @ (come @ spread)
    return found


def _rests(lasting: Floats) -> Floats:
    """[rest, kinds, gone]: chance that a pass lasts gone + rest + 1 cells of time, of durations [kinds, times]."""
    size = lasting.shape[1] - 1
    padded = np.concatenate([lasting[:, 1:], np.zeros((lasting.shape[0], size))], axis=1)
    # Copied, for rows that overlap are slow to multiply.
    return np.ascontiguousarray(windows(padded, size)[:, :size].transpose(1, 0, 2))


def _idle_share(chain: Chain) -> float:
    """Arrivals per pass that end an idle time: passes at whose end less than a prompt waits."""
    fine = chain.lattice.fine
    lasting = chain.starts.T @ chain.passes[:-1]  # [left, times]
    reached = chain.reached[:, 1 : fine + 1]  # a prompt may be more cells than ever arrive
    short = np.ones((reached.shape[0], fine))
    short[:, : reached.shape[1]] -= reached
    return float((lasting * short[:, ::-1].T).sum())


class _Line(NamedTuple):
    """What comes before the own pass ends."""

    rest: Floats
    """[times - 1, sizes + 1]: masses by the rest of the running pass and by what the own pass takes, if it is next."""
    before: NDArray[np.complex128]  # [passes ahead, frequencies]: the rest and so many whole passes, from one on
    own: Floats  # [passes ahead, sizes + 1]: what the own pass takes behind them
    length: int  # cells of time


def _line(chain: Chain, arrivals: Arrivals, ahead: Floats) -> _Line:
    """Distribution of residual and whole passes ahead, by what the own pass takes.

    The place that is left in line when the own pass starts fits it.
    """
    lattice, sizes = chain.lattice, chain.lattice.sizes
    chances, places = _passes_ahead(ahead.sum(axis=0), sizes)
    (rests, times), blocks = (ahead.shape[0], chain.passes.shape[1]), chances.shape[1]
    full = float(chain.passes[-1] @ np.arange(times))
    length = _quick_length(2 * times + blocks * full)
    later = ahead @ chances[:, 1:]  # [rest, whole passes ahead]
    waiting = np.zeros((rests + blocks - 1, sizes))
    waiting[:rests, : ahead.shape[1]] = ahead[:, :sizes]
    waiting[rests:] = places[1:]
    joined = np.zeros((rests + blocks - 1, sizes))
    every = chain.reached[:, :: lattice.fine][:, :sizes]
    joined[:rests, : every.shape[1]] = (every[1:] + every[:-1]) / 2
    if blocks == 1:
        return _Line(_own_sizes(waiting, joined), np.zeros((0, 1), dtype=np.complex128), waiting[:0], length)
    waits = (np.arange(1.0, blocks) * full + _middle(later)) * lattice.width_seconds
    every = arrivals.reached(waits, lattice.prompts_per_cell, sizes * lattice.fine)[:, :: lattice.fine][:, :sizes]
    joined[rests:, : every.shape[1]] = every
    takes = _own_sizes(waiting, joined)
    own = takes[rests:] / np.maximum(takes[rests:].sum(axis=1, keepdims=True), 1e-300)
    whole = np.fft.rfft(chain.passes[-1], length)
    powers = np.multiply.accumulate(np.broadcast_to(whole, (blocks - 1, whole.size)), axis=0)
    return _Line(takes[:rests], np.fft.rfft(later.T, length) * powers, own, length)


def _quick_length(least: float) -> int:
    """Return a length of at least so much that is quick to transform: five to eight times a power of two."""
    unit = 1 << max(math.ceil(math.log2(least)) - 3, 1)
    return math.ceil(least / unit) * unit


def _behind(line: _Line, passes: Floats) -> Floats:
    """Time in line and own pass together, [times]; ``passes`` [sizes + 1, times] by what they took."""
    found = np.zeros(line.length)
    if line.own.size:
        found = np.fft.irfft((line.before * np.fft.rfft(line.own @ passes, line.length)).sum(axis=0), line.length)
    # Rests and passes that last as long together: rows of which each begins one later than the one before.
    rests, times = line.rest.shape[0], passes.shape[1]
    padded = np.zeros((rests, rests + times))
    padded[:, :times] = line.rest @ passes
    both = padded.ravel()[: rests * (rests + times - 1)].reshape(rests, -1).sum(axis=0)
    found[: both.size] += both[: found.size]
    return np.maximum(found, 0.0, out=found)


def _passes_ahead(masses: Floats, sizes: int) -> tuple[Floats, Floats]:
    """Return how many full passes come before the own one, [places, passes], and the masses by passes and place left.

    Args: ``masses`` [places] of arrivals, and the places of a full pass; the latter masses are [passes, sizes].
    """
    alike = np.zeros((-(-masses.size // sizes), sizes))
    alike.flat[: masses.size] = masses
    further = np.cumsum(alike.sum(axis=1)[::-1])[::-1]
    ahead = max(int(np.count_nonzero(further >= RARE * masses.sum())), 1)
    return np.repeat(np.eye(alike.shape[0], ahead), sizes, axis=0)[: masses.size], alike[:ahead]


def _middle(later: Floats) -> Floats:
    """Mean rest in cells of time, by column."""
    masses = np.maximum(later.sum(axis=0), 1e-300)
    return np.asarray((np.arange(later.shape[0]) + 0.5) @ later / masses, dtype=np.float64)


def _own_sizes(places: Floats, reached: Floats) -> Floats:
    """Distribution of the own pass, [rows, sizes + 1]: it takes all of 1.. places, or is full.

    It takes the place and who comes until it begins, as far as they fit.

    Args: ``places`` [rows, sizes] masses; ``reached`` [rows, sizes] chances that 0, 1, ... prompts or more come.
    """
    sizes = places.shape[1]
    length = _quick_length(2 * sizes)
    # The place and who joins, side by side: the product of their transforms is that of the sum.
    terms = np.zeros((2, places.shape[0], length))
    terms[0, :, :sizes] = places
    terms[1, :, :sizes] = reached
    terms[1, :, : sizes - 1] -= reached[:, 1:]
    one, other = np.fft.rfft(terms)
    found = np.empty((places.shape[0], sizes + 1))
    np.maximum(np.fft.irfft(one * other, length)[:, :sizes], 0.0, out=found[:, :sizes])
    found[:, sizes] = np.maximum(places.sum(axis=1) - found[:, :sizes].sum(axis=1), 0.0)
    return found
