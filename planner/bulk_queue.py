"""Elastic bulk service with passes that vary: one chain for Poisson, dealt and bursty arrivals.

A pass takes the prompts that wait, up to a cap, and lasts the longer the more it took. What waits when a pass starts
is a Markov chain, counted on a lattice: fractions of a prompt where arrivals are dealt in turn and the phase of the
dealing counts, several prompts where passes hold hundreds. A prompt that arrives waits for the rest of the running
pass, for whole passes when more prompts than the cap stand before it, and for its own pass, which it shares with who
came before that pass began. These parts are added as distributions on a grid of time, so a tail of long passes is kept
as it is.

Ref: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16:80, 1954; method of phases,
A. K. Erlang; elastic batching of LLM inference in arXiv 2407.05347, section IV. The sojourn is derived here.
"""

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from planner.arrival_counts import Arrivals
from planner.pass_lattice import RARE, Lattice, lattice_of
from planner.prefill_service import KINDS, Service
from planner.queueing import Array
from podplan.records import dataclass

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sojourn:
    """From arrival to the end of the last own pass, as point masses."""

    seconds: Array
    """Rising; each mass lies between the one before it and here."""
    masses: Array
    mean_seconds: float


@dataclass(frozen=True, slots=True)
class _Chain:
    """The stationary chain."""

    lattice: Lattice
    passes: Array
    """[sizes + 1, times]: durations on the grid of time of passes that take all, by how many that is; last full ones.
    """
    beyond: Array
    """[times, cells + 1]: chance that so many cells or more arrive within a time."""
    starts: Array
    """[sizes, fine]: chance that a pass takes all of so many places and leaves part of a prompt behind."""
    left: Array
    """[cells]: chance that a pass is full and leaves so much behind."""
    behind_full: float
    """Share of full passes that follow a full one."""


def sojourn(service: Service, rate: float, squared_cv: float) -> Sojourn:
    """Return the sojourn of prompts at one instance below its saturation.

    Args:
        service: durations of passes by what they took.
        rate: prompts (units of the service) per second.
        squared_cv: of the gaps between arrivals.
    """
    arrivals = Arrivals.of(rate, squared_cv)
    chain, rows, weights = _settle(service, arrivals, rate, squared_cv)
    lattice = chain.lattice
    ahead = _ahead(chain)
    idle = _idle_share(chain)
    line = _line(chain, arrivals, ahead)
    taken = np.append(chain.starts.sum(axis=1), chain.left.sum())
    usual = float(taken @ (rows @ weights))  # seconds of a pass, over passes
    seconds, masses, mean = [], [], 0.0
    for own in service.own:
        mine = rows if own.alone is None else np.concatenate([own.alone[None, :], rows[1:]])
        mine = np.maximum(mine, own.least_seconds)
        later = sum(max(usual, each) for each in own.later_seconds)
        behind = _with_own(line, _on_grid(mine, weights, lattice.width_seconds, chain.passes.shape[1]))
        ends = (np.arange(behind.size) + 1.0) * lattice.width_seconds
        total = (float(behind.sum()) + idle) / own.share
        seconds += [ends + later, mine[0] + later]
        masses += [behind / total, idle * weights / total]
        middles = (ends - lattice.width_seconds / 2) @ behind + idle * float(mine[0] @ weights)
        mean += float(middles) / total + own.share * later
    times, chances = np.concatenate(seconds), np.concatenate(masses)
    order = np.argsort(times, kind="stable")
    return Sojourn(seconds=times[order], masses=chances[order], mean_seconds=mean)


def _settle(service: Service, arrivals: Arrivals, rate: float, squared_cv: float) -> tuple[_Chain, Array, Array]:
    """Return the chain, and durations of passes by places taken, the last full ones, [sizes + 1, kinds], with weights.

    What full passes hold depends on whether they follow a full one, and how often they do on what they hold: solved for
    the one, then for the other.
    """
    behind_full = 1.0
    for _ in range(2 if service.full else 1):
        lattice = lattice_of(service, rate, squared_cv, arrivals.events_per_prompt, behind_full)
        rows, weights = service.durations(lattice.prompts, KINDS)
        last = service.full_kinds
        if not service.full:
            last = service.durations(np.array([min(service.most, float(lattice.prompts[-1]))]), KINDS)[0][0]
        rows = np.concatenate([rows, last[None, :]])
        held = rows[-1:]
        if service.full:
            places = np.clip(np.rint(lattice.prompts).astype(np.int64), 1, service.full.largest) - 1
            held = service.full.held_kinds[places]
        chain = _solve(lattice, arrivals, (rows, held), weights)
        behind_full = chain.behind_full
    return chain, rows, weights


def _on_grid(seconds: Array, weights: Array, width: float, times: int) -> Array:
    """Put point masses [sizes, kinds] on a grid of time, each on the two nodes beside it; [sizes, times]."""
    places = np.minimum(seconds / width, times - 1.0)
    low = np.minimum(places.astype(np.intp), times - 2)
    part = places - low
    rows = np.arange(seconds.shape[0])[:, None] * times
    found = np.bincount((rows + low).ravel(), ((1 - part) * weights).ravel(), seconds.shape[0] * times)
    found += np.bincount((rows + low + 1).ravel(), (part * weights).ravel(), seconds.shape[0] * times)
    return np.asarray(found.reshape(seconds.shape[0], times), dtype=np.float64)


def _solve(lattice: Lattice, arrivals: Arrivals, durations: tuple[Array, Array], weights: Array) -> _Chain:
    """Stationary distribution of what waits at pass starts: what was left, and what the last pass brought.

    Args: ``durations`` of passes by places taken, the last full ones, and of full ones by places held (or one for all).
    """
    rows, held = durations
    times = math.ceil(float(max(rows.max(), held.max())) / lattice.width_seconds) + 2
    passes = _on_grid(rows, weights, lattice.width_seconds, times)
    grid = np.arange(float(times)) * lattice.width_seconds
    counts = arrivals.counts(grid, lattice.prompts_per_cell, lattice.cells)  # [times, cells]
    fine, cells, sizes = lattice.fine, lattice.cells, lattice.sizes
    waiting = np.arange(fine, cells)
    places = waiting // fine
    whole = _on_grid(held, weights, lattice.width_seconds, times) @ counts
    moves, full = _moves(lattice, (passes[:-1] @ counts, whole), waiting, places)
    moves[:, -1] += np.maximum(1 - moves.sum(axis=1), 0.0)
    moves[:, fine] += moves[:, :fine].sum(axis=1)  # less than a prompt: idle until it is one
    settled = _stationary(moves[:, fine:])
    found = np.concatenate([np.zeros(fine), settled])
    starts = np.zeros(sizes * fine)
    starts[: min(starts.size, cells - fine)] = found[fine : fine * (sizes + 1)]
    starts = starts.reshape(sizes, fine) * lattice.fit[:, None]
    late = np.where(places <= sizes, 1 - lattice.fit[np.minimum(places, sizes) - 1], 1.0)
    again = float((settled @ full)[fine:] @ late) / max(float(settled @ late), 1e-300)
    left = np.zeros(cells)
    for size in np.flatnonzero(lattice.holds) + 1:
        left[fine : cells - fine * size] += lattice.holds[size - 1] * found[fine * (size + 1) :]
    beyond = np.zeros((times, cells + 1))
    beyond[:, :cells] = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1]
    return _Chain(lattice, passes, beyond, starts, left, again)


def _moves(
    lattice: Lattice, brought: tuple[Array, Array], waiting: Ints, places: Ints
) -> tuple[NDArray[np.float64], Array]:
    """Chances of what waits next by what waits now, [states, cells], and the part of them through full passes.

    Args: ``brought`` [sizes, cells] arrivals during passes that take all of 1.. places, and [sizes or 1, cells] during
    full ones by what they hold.
    """
    fine, cells, sizes = lattice.fine, lattice.cells, lattice.sizes
    padded, whole = (np.concatenate([np.zeros_like(part), part], axis=1) for part in brought)
    size = np.minimum(places, sizes)
    fit = np.where(places <= sizes, lattice.fit[size - 1], 0.0)
    # What is there next is what came, moved on by what now waits and back by what is taken: a window of a row.
    moves = fit[:, None] * sliding_window_view(padded, cells, axis=1)[size - 1, cells - waiting + fine * size]
    # A full pass takes k of more than k places: what it brings, that much less, for all k below the places.
    shifts = np.arange(1 - cells, cells)
    fewer = np.zeros((sizes + 1, shifts.size))
    for number in np.flatnonzero(lattice.holds) + 1:
        row = whole[min(number, whole.shape[0]) - 1]
        fewer[number] = lattice.holds[number - 1] * row[np.minimum(shifts + fine * number, cells - 1) + cells]
    fewer = np.cumsum(fewer, axis=0)
    full = sliding_window_view(fewer, cells, axis=1)[np.minimum(places - 1, sizes), cells - 1 - waiting]
    return moves + full, full


def _stationary(moves: Array) -> Array:
    """Left eigenvector of a stochastic matrix, [states]."""
    states = moves.shape[0]
    balance = moves.T - np.eye(states)
    balance[-1] = 1.0
    right = np.zeros(states)
    right[-1] = 1.0
    solved = np.maximum(np.linalg.solve(balance, right), 0.0)
    return np.asarray(solved / solved.sum(), dtype=np.float64)


def _ahead(chain: _Chain) -> Array:
    """Arrivals per pass by the rest of the running pass and place in line, [times - 1, places].

    With l cells left over, the prompt at place p arrives when l and the arrivals of the pass so far reach it; of a pass
    that lasts d cells of time, the rest is d less those gone by.
    """
    lattice, fine = chain.lattice, chain.lattice.fine
    come = np.diff(chain.beyond, axis=0)  # [times - 1, cells + 1]: reached within a cell of time
    times = come.shape[0]
    lines = fine * np.arange(1, lattice.places + 1)
    found = np.zeros((times, lines.size))
    rests = _rests(np.concatenate([chain.starts.T @ chain.passes[:-1], chain.passes[-1:]]))
    for left in range(fine):
        found += rests[left] @ come[:, fine - left :: fine][:, : lines.size]
    if chain.left.any():
        back = lines[None, :] - np.arange(come.shape[1])[:, None]  # left over, so that this many more reach the place
        spread = np.where(back >= 0, chain.left[np.clip(back, 0, chain.left.size - 1)], 0.0)
        found += rests[fine] @ (come @ spread)
    return found


def _rests(lasting: Array) -> Array:
    """[kinds, rest, gone]: chance that a pass lasts gone + rest + 1 cells of time, of durations [kinds, times]."""
    size = lasting.shape[1] - 1
    padded = np.concatenate([lasting[:, 1:], np.zeros((lasting.shape[0], size))], axis=1)
    windows = sliding_window_view(padded, size, axis=1)[:, :size]
    return np.ascontiguousarray(windows)  # overlapping rows are slow to multiply


def _idle_share(chain: _Chain) -> float:
    """Arrivals per pass that end an idle time: passes at whose end less than a prompt waits."""
    fine = chain.lattice.fine
    lasting = chain.starts.T @ chain.passes[:-1]  # [left, times]
    short = 1 - chain.beyond[:, fine - np.arange(fine)].T
    return float((lasting * short).sum())


@dataclass(frozen=True, slots=True)
class _Line:
    """What comes before the own pass ends, in frequencies: [sizes + 1, frequencies], by what the own pass takes."""

    before: NDArray[np.complex128]
    length: int


def _line(chain: _Chain, arrivals: Arrivals, ahead: Array) -> _Line:
    """Distribution of residual and whole passes ahead, by what the own pass takes.

    Full passes ahead take what they hold at random; the place that is left in line when the own pass starts fits it.
    """
    lattice, sizes = chain.lattice, chain.lattice.sizes
    chances, places = _passes_ahead(lattice, ahead.sum(axis=0))
    blocks = chances.shape[1]
    rests = (chain.beyond[1:] + chain.beyond[:-1]) / 2
    first = np.zeros((ahead.shape[0], sizes))
    first[:, : ahead.shape[1]] = ahead[:, :sizes]
    own = _own_sizes(lattice, first, rests)
    full = float(chain.passes[-1] @ np.arange(chain.passes.shape[1]))
    length = _quick_length(2 * chain.passes.shape[1] + blocks * full)
    found = np.fft.rfft(own.T, length, axis=1)
    if blocks > 1:
        later = ahead @ chances[:, 1:]  # [rest, whole passes ahead]
        waits = (np.arange(1.0, blocks) * full + _middle(later)) * lattice.width_seconds
        counts = arrivals.counts(waits, lattice.prompts_per_cell, sizes * lattice.fine + 1)
        behind = _own_sizes(lattice, places[1:], np.cumsum(counts[:, ::-1], axis=1)[:, ::-1])
        behind /= np.maximum(behind.sum(axis=1, keepdims=True), 1e-300)
        powers = np.fft.rfft(chain.passes[-1], length)[None, :] ** np.arange(1, blocks)[:, None]
        found += behind.T @ (np.fft.rfft(later.T, length, axis=1) * powers)
    return _Line(found, length)


def _quick_length(least: float) -> int:
    """Return a length of at least so much that is quick to transform: five to eight times a power of two."""
    unit = 1 << max(math.ceil(math.log2(least)) - 3, 1)
    return math.ceil(least / unit) * unit


def _with_own(line: _Line, passes: Array) -> Array:
    """Add the own pass, [sizes + 1, times] on the grid of time; return all of it together, [times]."""
    found = (line.before * np.fft.rfft(passes, line.length, axis=1)).sum(axis=0)
    return np.maximum(np.fft.irfft(found, line.length), 0.0)


def _passes_ahead(lattice: Lattice, masses: Array) -> tuple[Array, Array]:
    """How many full passes come before the own one.

    With k* the chance that so many full passes hold k places together, it is that number for place p where they hold
    p - j and the own pass fits the j that remain.

    Args:
        lattice: with what full passes hold.
        masses: [places] of arrivals.

    Returns:
        Their chances [places, passes], and the masses by passes and j, [passes, sizes], still to fit.
    """
    sizes, fit = lattice.sizes, lattice.fit
    together = np.zeros(masses.size)
    together[0] = 1.0
    chances, places = [], []
    remaining = masses.copy()
    for _ in range(masses.size):
        chances.append(np.convolve(together, np.append(0.0, fit))[1 : masses.size + 1])
        row = np.zeros(sizes)
        row[: min(sizes, remaining.size)] = remaining[:sizes]
        places.append(row)
        together = np.convolve(together, np.append(0.0, lattice.holds))[: masses.size]
        remaining = np.correlate(np.append(remaining, np.zeros(sizes)), np.append(0.0, lattice.holds), "valid")
        if not together.any() or remaining.sum() < RARE * masses.sum():
            break
    return np.stack(chances, axis=1), np.stack(places)


def _middle(later: Array) -> Array:
    """Mean rest in cells of time, by column."""
    masses = np.maximum(later.sum(axis=0), 1e-300)
    return np.asarray((np.arange(later.shape[0]) + 0.5) @ later / masses, dtype=np.float64)


def _own_sizes(lattice: Lattice, places: Array, more: Array) -> Array:
    """Distribution of the own pass, [rows, sizes + 1]: it takes all of 1.. places, or is full.

    It takes the place and who comes until it begins, as far as they fit.

    Args: ``places`` [rows, sizes] masses, of which that share counts that fits; ``more`` [rows, cells + 1] chances that
    so many cells or more come.
    """
    sizes, fine = lattice.sizes, lattice.fine
    reached = more[:, fine * np.arange(sizes)]
    joined = reached - np.append(reached[:, 1:], np.zeros((reached.shape[0], 1)), axis=1)
    length = 2 * sizes
    both = np.fft.irfft(np.fft.rfft(places, length, axis=1) * np.fft.rfft(joined, length, axis=1), length, axis=1)
    found = np.maximum(both[:, :sizes], 0.0) * lattice.fit
    full = np.maximum(places @ lattice.fit - found.sum(axis=1), 0.0)
    return np.concatenate([found, full[:, None]], axis=1)
