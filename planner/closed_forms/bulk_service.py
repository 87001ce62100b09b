"""Elastic bulk service of equal prompts that come Poisson or are dealt to instances in turn: exact TTFT.

A pass takes the prompts that wait, up to a cap, and lasts the longer the more it took. What waits when a pass starts
is a Markov chain (``bulk_chain``), counted on a lattice: fractions of a prompt where arrivals are dealt in turn
and the phase of the dealing counts, several prompts where passes hold hundreds. A prompt that arrives waits for the
rest of the running pass, for whole passes when more prompts than the cap stand before it, and for its own pass, which
it shares with who came before that pass began. These parts are added as distributions on a grid of time. Exact but for
the lattices of waiting prompts and time: 1 % of p99.

Ref: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16:80, 1954; method of phases,
A. K. Erlang; elastic batching of LLM inference in arXiv 2407.05347, section IV. The sojourn is derived here.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, windows
from ground.errors import BadInput
from planner.closed_forms.arrival_counts import Arrivals
from planner.closed_forms.bulk_chain import Chain, settled_chain
from planner.closed_forms.bulk_lattice import RARE
from planner.closed_forms.pass_seconds import Passes
from planner.serving.latency import Latency

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

    Args:
        passes: durations by what passes took.
        rate: prompts per second at this instance.
        arrival_squared_cv: of the gaps between its arrivals: 1 alone, 1/c where one of c in turn.

    Raises:
        BadInput: a rate below 0.
    """
    if rate < 0:
        raise BadInput(f"An arrival rate of {rate:g} prompts per second must not be negative.")
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


@dataclass(frozen=True, slots=True)
class _Line:
    """What comes before the own pass ends."""

    rest: Floats
    """[times - 1, sizes + 1]: masses by the rest of the running pass and by what the own pass takes, if it is next."""
    before: NDArray[np.complex128]
    """[passes ahead, frequencies]: the rest and so many whole passes, from one on."""
    own: Floats
    """[passes ahead, sizes + 1]: what the own pass takes behind them."""
    length: int
    """Cells of time."""


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
