"""The lattice on which a queue of passes counts who waits, and the times that it tells apart.

Fractions of a prompt where arrivals are dealt in turn and the phase of the dealing counts, several prompts where passes
hold hundreds; as far as what waits all but never goes, which is estimated from where arrivals of a pass fill the next.
"""

import math
from dataclasses import dataclass

import numpy as np

from ground.arrays import Floats
from planner.closed_forms.pass_seconds import Passes

_CELLS = 256
"""Of the lattice."""
_MOST_QUEUED = 256
"""Prompts that wait beyond a full pass."""
_USUAL, _LONGEST, _HORIZON = 40, 320, 4096
"""Cells of time of a usual pass, and at most of the longest one and of the longest sojourn."""
RARE = 1e-7
"""Masses that are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """How waiting prompts are counted, and over which times."""

    fine: int
    """Cells of what takes one place in a pass."""
    prompts: Floats
    """[sizes]: prompts of passes that took 1.. places."""
    least: int
    """Places of the smallest pass that is not all but never."""
    cells: int
    """Waiting is counted from 0 to ``cells`` - 1."""
    seconds: Floats
    """[sizes + 1]: durations of passes that take all, by how many that is; last full ones."""
    width_seconds: float
    """Of a cell of time."""

    @property
    def prompts_per_cell(self) -> float:
        """Of waiting."""
        return float(self.prompts[0]) / self.fine

    @property
    def sizes(self) -> int:
        """Places of the largest pass."""
        return int(self.prompts.size)

    @property
    def places(self) -> int:
        """Places in line that are told apart."""
        return (self.cells - 1) // self.fine


def most_waiting(passes: Passes, rate: float, squared_cv: float) -> float:
    """Return the prompts that a pass all but never exceeds, if it may hold as many: its cap says no more then."""
    return _reach(passes, rate, squared_cv, _settled(passes, rate, squared_cv))


def lattice_of(passes: Passes, rate: float, squared_cv: float, phases: int) -> Lattice:
    """Return the lattice of a queue.

    Args:
        passes: durations by what passes took.
        rate: prompts per second.
        squared_cv: of the gaps between arrivals.
        phases: events that make a prompt.
    """
    settled = _settled(passes, rate, squared_cv)
    reach = _reach(passes, rate, squared_cv, settled)
    sizes = min(reach, passes.most)
    queued = _queued(passes, rate, squared_cv) if reach >= passes.most else 2.0
    lines = sizes + queued
    # Rounding to a lattice of 1/m prompt adds a variance of up to 1/(6 m²): a hundredth of what is there.
    fine = max(min(phases, math.ceil(4 / math.sqrt(max(settled.noise, 1e-6))), int(_CELLS / lines)), 1)
    count = max(math.ceil(sizes / max(lines / _CELLS, 1.0)), 1)
    step = max(sizes / count, 1.0)
    seconds = passes.at(np.append(np.arange(1.0, count + 1) * step, sizes))
    longest = float(seconds[[0, -2, -1]].max())
    horizon = 2 * longest + (math.ceil(queued / passes.most) + 1) * passes.full_seconds
    return Lattice(
        fine=fine,
        prompts=np.arange(1.0, count + 1) * step,
        least=min(max(int(_least(passes, rate, squared_cv, settled) / step), 1), count),
        cells=fine * (count + math.ceil(queued / step) + 1),
        seconds=seconds,
        width_seconds=max(settled.seconds / _USUAL, longest / _LONGEST, horizon / _HORIZON),
    )


@dataclass(frozen=True, slots=True)
class _Settled:
    """The pass whose arrivals fill the next."""

    prompts: float
    seconds: float
    noise: float
    """Variance of these arrivals."""
    gain: float
    """What one more prompt in it brings, below one."""


def _settled(passes: Passes, rate: float, squared_cv: float) -> _Settled:
    """Return the pass whose arrivals fill the next; continuous in the rate."""
    beyond = passes.prompts - rate * passes.seconds
    enough = np.flatnonzero(beyond >= 0)
    place = int(enough[0]) if enough.size else passes.prompts.size - 1
    size, seconds = float(passes.prompts[place]), float(passes.seconds[place])
    if place and enough.size:
        part = float(beyond[place] / (beyond[place] - beyond[place - 1]))
        size -= part * float(passes.prompts[place] - passes.prompts[place - 1])
        seconds -= part * float(passes.seconds[place] - passes.seconds[place - 1])
    noise = squared_cv * rate * seconds
    slope = float(passes.seconds[place + 1] - passes.seconds[place]) if place + 1 < passes.prompts.size else 0.0
    return _Settled(size, seconds, noise, min(rate * max(passes.share_seconds, slope), 0.99))


def _reach(passes: Passes, rate: float, squared_cv: float, settled: _Settled) -> float:
    """Prompts that a pass all but never exceeds: 8 standard deviations above where arrivals of a pass fill the next.

    Linearised there, with f the arrivals that one more prompt brings: variance = arrivals' variance / (1 - f²). Each
    prompt brings its own, as in a branching process with immigration, so where f is near one the tail is exponential
    and longer than the normal one: it decays by 2 (1 - f) / v a prompt, v the variance of what one brings. At least
    what arrives while the longest prompt is alone.
    """
    alone = rate * float(passes.seconds[0])
    usual = settled.prompts + 8 * math.sqrt(settled.noise / (1 - settled.gain**2)) + 3
    usual = max(usual, settled.prompts + math.log(1 / RARE) * squared_cv * settled.gain / (2 * (1 - settled.gain)))
    return float(math.ceil(max(usual, alone + 6 * math.sqrt(squared_cv * alone) + 3)))


def _least(passes: Passes, rate: float, squared_cv: float, settled: _Settled) -> float:
    """Prompts that a pass all but never falls short of.

    7.5 standard deviations below where arrivals of a pass fill the next, linearised there; or the most that brings as
    many again even 6.5 deviations below its mean, which holds where durations leap, too.
    """
    means = rate * passes.seconds
    kept = np.flatnonzero(means - 6.5 * np.sqrt(squared_cv * means) >= passes.prompts)
    again = float(passes.prompts[kept[-1]]) if kept.size else 1.0
    return max(settled.prompts - 7.5 * math.sqrt(settled.noise / (1 - settled.gain**2)), again)


def _queued(passes: Passes, rate: float, squared_cv: float) -> float:
    """Prompts beyond a full pass that all but never wait: heavy-traffic decay."""
    full = passes.full_seconds
    slack = max(passes.most - rate * full, 1e-9)
    return min(2 + math.log(1 / RARE) * squared_cv * rate * full / (2 * slack), float(_MOST_QUEUED))
