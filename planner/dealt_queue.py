"""Elastic bulk service behind a router that deals arrivals in turn: exact in the phases of the dealing.

Of c instances each takes every c-th of the stream's arrivals. Counted in arrivals of the stream, what waits at one
instance is c times its prompts plus those dealt to others since its last one, and a pass of S seconds brings a Poisson
number of them. So Poisson arrivals dealt in turn make the chain of Bailey's bulk service in units of 1/c prompt.

Ref: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16:80, 1954; method of phases,
A. K. Erlang. The distribution of the sojourn is derived here.
"""

import math
from dataclasses import dataclass

import numpy as np

from planner.prefill_service import Service, with_rest
from planner.queueing import Array

_CELLS = 40
_KINDS = 8
_NEGLIGIBLE = 1e-9
_RARE = 1e-5
"""Share of passes of one size that may be told roughly."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """The stationary chain; waiting is counted in phases, ``phases`` to a prompt."""

    phases: int
    events_per_second: float
    sizes: int
    durations: Array
    """[sizes, kinds]."""
    weights: Array
    starts: Array
    """[states]: what waits when a pass starts, from one prompt on, in phases."""


def chain_states(service: Service, rate: float, phases: int, most: int) -> int:
    """Return the states of the chain of passes that take up to ``most`` prompts."""
    return phases * (most + _queued(service, rate, 1 / phases, most))


def _queued(service: Service, rate: float, dispersion: float, most: int) -> int:
    """Prompts beyond ``most`` that all but never wait: heavy-traffic decay, 1e-7 of it left; none under the cap."""
    if most < service.most:
        return 2
    full = float(service.seconds[-1])
    slack = max(service.most - rate * full, 1e-9)
    variance = float(service.variance(np.array([service.most]))[0])
    noise = dispersion * rate * full + rate**2 * variance
    return 2 + math.ceil(min(math.log(1e7) * noise / (2 * slack), 1e6))


def dealt_sojourn(service: Service, rate: float, phases: int, most: int) -> tuple[Array, Array]:
    """Return (seconds, masses) of the time from arrival to the end of the own pass, of one instance at its rate.

    Passes take up to ``most`` prompts: the cap, or what they all but never exceed.
    """
    chain = _solve(service, rate, phases, most)
    grid = _grid(chain)
    ahead = _positions(chain, grid)  # [positions, cells]: arrivals per pass, by place in line and residual
    empty = _idle_share(chain)
    middles = (grid[1:] + grid[:-1]) / 2
    seconds, masses = _finish(service, chain, ahead, middles)
    alone, weights = service.durations(np.array([1.0]), _KINDS)
    total = masses.sum() + empty
    return np.append(seconds, alone[0]), np.append(masses, empty * weights) / total


def _solve(service: Service, rate: float, phases: int, most: int) -> _Chain:
    sizes = min(most, int(service.most))
    rows = sizes + _queued(service, rate, 1 / phases, most)
    durations, weights = service.durations(np.arange(1.0, sizes + 1), _KINDS)
    events = rate * phases
    states = phases * rows
    first = np.arange(phases, phases + states)  # events that wait when a pass starts
    taken = np.minimum(first // phases, sizes)
    left = first - phases * taken
    counts = _poisson(events * durations, phases + states)  # [sizes, kinds, counts]
    arrivals = np.einsum("skn,k->sn", counts, weights)[taken - 1]  # [states, counts]
    moves = np.zeros((states, phases + states))
    for start in range(states):
        moves[start, left[start] :] = arrivals[start, : phases + states - left[start]]
    moves[:, -1] += np.maximum(1 - moves.sum(axis=1), 0.0)
    moves[:, phases] += moves[:, :phases].sum(axis=1)  # less than a prompt: idle until it is one
    balance = moves[:, phases:].T - np.eye(states)
    balance[-1] = 1.0
    right = np.zeros(states)
    right[-1] = 1.0
    solved = np.maximum(np.linalg.solve(balance, right), 0.0)
    return _Chain(phases, events, sizes, durations, weights, solved / solved.sum())


def _poisson(means: Array, counts: int) -> Array:
    """Probabilities of 0 .. counts-1 events, [..., counts]."""
    k = np.arange(counts)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.maximum(k[1:], 1)))])
    scaled = np.maximum(means, 1e-300)[..., None]
    return np.asarray(np.exp(k * np.log(scaled) - scaled - factorials), dtype=np.float64)


def _split(chain: _Chain) -> list[tuple[int, Array]]:
    """Return for every pass size the distribution of the phases left over, [left]."""
    first = np.arange(chain.phases, chain.phases + chain.starts.size)
    taken = np.minimum(first // chain.phases, chain.sizes)
    left = first - chain.phases * taken
    found = []
    for size in range(1, chain.sizes + 1):
        here = taken == size
        found.append((size, np.bincount(left[here], chain.starts[here]).astype(np.float64)))
    return found


def _grid(chain: _Chain) -> Array:
    """Edges of the residual's cells: fine up to the longest pass that is not rare, one cell beyond."""
    likely = [size for size, leftover in _split(chain) if leftover.sum() > _RARE]
    usual, longest = float(chain.durations[: max(likely)].max()), float(chain.durations.max())
    edges = np.linspace(0.0, usual, _CELLS + 1)
    return edges if usual >= longest else np.append(edges, longest)


def _positions(chain: _Chain, grid: Array) -> Array:
    """Arrivals per pass by place in line (1: next in the next pass) and residual of the running pass, [places, cells].

    With l phases left over, the prompt at place p is the event c·p - l of the pass; it comes at y when that event does,
    and the residual is S - y: P(residual in a cell) from the Poisson counts at both ends.
    """
    phases = chain.phases
    places = chain.starts.size // phases + 1
    found = np.zeros((places + 1, grid.size - 1))
    counts = phases * (places + 1)
    for size, leftover in _split(chain):
        for duration, weight in zip(chain.durations[size - 1], chain.weights, strict=True):
            elapsed = np.maximum(duration - grid, 0.0)
            below = np.cumsum(_poisson(chain.events_per_second * elapsed, counts), axis=1)  # [grid, counts]
            come = below[1:] - below[:-1]  # [cells, counts]: event k + 1 falls into the cell, by k
            for left in np.flatnonzero(leftover > 1e-12):
                first = int(left) // phases + 1
                events = phases * np.arange(first, places + 1) - int(left)
                found[first:, :] += weight * leftover[left] * come[:, events - 1].T
    return found[1:]


def _idle_share(chain: _Chain) -> float:
    """Arrivals per pass that end an idle time: passes whose events leave less than a prompt."""
    total = 0.0
    for size, leftover in _split(chain):
        counts = _poisson(chain.events_per_second * chain.durations[size - 1], chain.phases)
        few = np.cumsum(chain.weights @ counts)  # [counts]: at most so many events
        for left in range(min(leftover.size, chain.phases)):
            total += float(leftover[left]) * float(few[chain.phases - 1 - left])
    return total


def _finish(service: Service, chain: _Chain, ahead: Array, residual: Array) -> tuple[Array, Array]:
    """Residual, whole passes ahead, and the own pass, which later arrivals may share, as point masses."""
    places, cells = np.nonzero(ahead > _NEGLIGIBLE)
    full, place = np.divmod(places, chain.sizes)  # whole passes ahead; place within the own pass, from 0
    waits = residual[cells] + full * service.mean(np.array([float(chain.sizes)]))[0]
    counts = _poisson(chain.events_per_second * waits, chain.phases * chain.sizes)
    joined = counts.reshape(counts.shape[0], chain.sizes, chain.phases).sum(axis=2)  # [rows, later prompts]
    room = chain.sizes - 1 - place
    later = np.arange(chain.sizes)
    joined = np.where(later[None, :] < room[:, None], joined, 0.0)
    rows = np.arange(place.size)
    joined[rows, room] += 1 - joined.sum(axis=1)
    row, more = np.nonzero(joined > _RARE)
    rest, weights = with_rest(service, place[row] + 1.0 + more, full[row].astype(np.float64), _KINDS)
    seconds = residual[cells][row][:, None] + rest
    masses = (ahead[places, cells][row] * joined[row, more])[:, None] * weights
    return seconds.ravel(), masses.ravel()
