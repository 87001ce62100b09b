"""Prompts cut into parts on several DP ranks: what a step computes of them, by what came and by what older ones lack.

A prompt stands on one rank, which computes a part of it per step, and a step lasts as its fullest rank does.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from planner.costs.latency import deviations
from planner.mixed.chain import on_lattice
from planner.mixed.steps import StepTable
from planner.queues.queueing import Array

_MOST_PARTS = 64
_LEVELS = np.array([0.0, 0.5, 0.8, 0.95, 1.0])
"""Between which steps of one state are taken as one kind, by their largest prompt; the mean of ``_WITHIN`` levels."""
_WITHIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPrompts:
    """Prompts cut into parts at one number of running requests; arrays are [kinds]."""

    parts: Array
    first: Array
    """Tokens of the first part."""
    last: Array
    weights: Array
    room: float
    """Tokens that a rank takes in a step."""
    together: float
    """Prompts that a rank takes in a step."""

    @property
    def mean_parts(self) -> float:
        """Of a prompt."""
        return float(self.parts @ self.weights)


def cut_prompts(table: StepTable, running: float) -> CutPrompts:
    """Return the prompts in parts, as a rank with its share of so many running requests takes them."""
    aggregate = table.aggregate
    new, weights = aggregate.new_tokens, aggregate.prompts.weights
    room = float(aggregate.room(np.array(running)))
    parts = np.minimum(np.maximum(np.ceil(new / room - 1e-9), 1.0), _MOST_PARTS)
    mean = float(np.minimum(new, room) @ weights)
    return CutPrompts(
        parts=parts,
        first=np.minimum(new, room),
        last=np.clip(new - room * (parts - 1), 1.0, room),
        weights=weights,
        room=room,
        together=max(room / mean, 1.0),
    )


def stages(prompts: CutPrompts, lacking: Array, came: float) -> tuple[Array, Array, Array]:
    """(prompts, those that lack one part only, chance that all do) given the parts that older ones lack.

    So many lack 1, 2, ... parts as independent Poisson numbers with rates a_s: E[N_s | j] = a_s P(j - s) / P(j).

    Ref: H. H. Panjer, ASTIN Bulletin 12:22, 1981: j P(j) = sum over s of s a_s P(j - s).
    """
    further = on_lattice(np.maximum(prompts.parts - 1, 0.0), prompts.weights)
    if further[1:].sum() <= 0:  # whole prompts, that wait
        return lacking, lacking, np.ones_like(lacking)
    rates = max(came, 1e-3) * np.cumsum(further[::-1])[::-1]
    rates = rates[: int(np.flatnonzero(rates > 0)[-1]) + 1]
    size = int(lacking[-1]) + 1
    logs = _log_compound(rates, size)
    held, lasts = np.zeros(size), np.zeros(size)
    for s in range(1, min(rates.size, size)):
        given = rates[s] * np.exp(logs[:-s] - logs[s:])
        held[s:] += given
        if s == 1:
            lasts[1:] = given
    only = np.append(1.0, np.exp(np.minimum(np.cumsum(np.log(rates[1] / np.arange(1, size))) - logs[1:], 0.0)))
    place = lacking.astype(np.intp)
    return held[place], np.minimum(lasts, held)[place], only[place]


def _log_compound(rates: Array, size: int) -> Array:
    """Logarithms of P(0), P(1), ... over P(0) of a compound Poisson number with ``rates`` [0, 1, ...] of its jumps.

    Tilted so that it lies about the middle of ``size``: far from where it would lie no more of it is seen than noise.
    """
    jumps = np.arange(rates.size)
    low, high = -8.0, 8.0
    for _ in range(30):
        tilt = (low + high) / 2
        mean = float((jumps * rates) @ np.exp(np.minimum(tilt * jumps, 600.0)))
        low, high = (tilt, high) if mean < 0.4 * size else (low, tilt)
    tilted = rates * np.exp(np.minimum(low * jumps, 600.0))
    length = 1 << (4 * size).bit_length()
    spectrum = np.exp(np.fft.rfft(np.append(tilted, np.zeros(max(length - rates.size, 0)))[:length]) - tilted.sum())
    chances = np.maximum(np.fft.irfft(spectrum, length)[:size], 1e-17)
    logs = np.log(chances) - low * np.arange(size)
    return np.asarray(logs - logs[0])


def step_loads(
    table: StepTable, prompts: CutPrompts, state: tuple[Array, Array, Array, Array]
) -> tuple[Array, Array, Array, Array]:
    """Prompt tokens of the fullest rank and of all, [kinds, came, lacking]; what is taken of those that came and of
    the parts of older ones, [came, lacking].
    """
    came, older, lasts, all_last = state
    ranks = float(table.aggregate.ranks)
    most = ranks * prompts.together
    old = np.broadcast_to(np.minimum(older, most)[None, :], (came.size, older.size))
    new = np.minimum(came[:, None], most - old)
    first = float(prompts.first @ prompts.weights)
    waits = float(prompts.parts.max()) == 1  # older ones are whole prompts that waited
    ends = prompts.first if waits else prompts.last
    share = np.where(older > 0, lasts / np.maximum(older, 1e-12), 0.0)
    old_tokens = old * (share * float(ends @ prompts.weights) + (1 - share) * prompts.room)
    old_largest = all_last * _largest(prompts, ends, np.maximum(older, 1.0)) + (1 - all_last) * prompts.room
    new_largest = _largest(prompts, prompts.first, np.maximum(new, 1.0))
    busiest = np.maximum(np.where(new > 0, new_largest, 0.0), np.where(older > 0, old_largest, 0.0)[:, None, :])
    each = (new + old) / ranks
    spread = math.sqrt(max(float(prompts.first**2 @ prompts.weights) - first**2, 0.0))
    fullest = np.maximum(first * np.ceil(each - 1e-9), first * each + deviations(int(ranks)) * spread * np.sqrt(each))
    several = np.where(each > 1, fullest, 0.0)
    busiest = np.minimum(np.maximum(busiest, several), prompts.room)
    left = np.minimum(ranks * _overflow(prompts, each) / first, new)
    usual = np.tensordot(kind_weights(prompts), busiest, 1)
    total = np.maximum((new - left) * first + old_tokens + busiest - usual, busiest)
    return busiest, total, new - left, old


def _overflow(prompts: CutPrompts, each: Array) -> Array:
    """Prompt tokens beyond the room of a rank that holds ``each`` prompts, whole numbers mixed; as of normal sums."""
    first = float(prompts.first @ prompts.weights)
    variance = max(float(prompts.first**2 @ prompts.weights) - first**2, 0.0)
    counts = np.arange(1.0, math.ceil(float(each.max(initial=1.0))) + 2)
    deviation = np.sqrt(np.maximum(variance * counts, 1e-9))
    over = counts * first - prompts.room
    score = over / deviation
    normal = np.array([NormalDist().cdf(float(z)) for z in score])
    beyond = over * normal + deviation * np.exp(-np.minimum(score**2, 1400.0) / 2) / math.sqrt(2 * math.pi)
    beyond[0] = 0.0  # one prompt: its further parts are counted as such
    # What the room holds on average is taken anyway: only the spread leaves more.
    return np.asarray(np.interp(each, counts, np.maximum(beyond - np.maximum(over, 0.0), 0.0)))


def kind_weights(prompts: CutPrompts) -> Array:
    """How likely the kinds of steps are, [kinds]; one kind where prompts are equal."""
    return np.diff(_LEVELS) if np.ptp(prompts.first) > 0 else np.ones(1)


def _largest(prompts: CutPrompts, sizes: Array, counts: Array) -> Array:
    """The largest of ``counts`` sizes of prompts drawn independently, [kinds, *counts]: means between levels."""
    if np.ptp(prompts.first) <= 0:
        return np.broadcast_to(sizes[0], (1, *counts.shape))
    order = np.argsort(sizes, kind="stable")
    below = np.cumsum(prompts.weights[order]) - prompts.weights[order] / 2
    parts = (np.arange(_WITHIN) + 0.5) / _WITHIN
    levels = _LEVELS[:-1, None] + np.diff(_LEVELS)[:, None] * parts  # [kinds, within]
    each = levels.reshape(-1, *(1,) * counts.ndim) ** (1 / counts)
    found = np.interp(each, below, sizes[order])
    return np.asarray(found.reshape(levels.shape + counts.shape).mean(axis=1))
