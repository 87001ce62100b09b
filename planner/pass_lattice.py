"""The lattice on which a queue of passes counts who waits, and the times that it tells apart.

Fractions of a prompt where arrivals are dealt in turn and the phase of the dealing counts, several prompts where passes
hold hundreds; as far as what waits all but never goes, which is estimated from where arrivals of a pass fill the next.
"""

import math

import numpy as np

from planner.prefill_service import KINDS, FullPasses, Service
from planner.queueing import Array
from podplan.records import dataclass

_CELLS = 256
"""Of the lattice."""
_MOST_QUEUED = 256
"""Prompts that wait beyond a full pass."""
_USUAL, _LONGEST, _HORIZON = 40, 320, 4096
"""Cells of time of a usual pass, and at most of the longest one and of the longest sojourn."""
RARE = 1e-7
"""Masses that are left out."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """How waiting prompts are counted, and over which times."""

    fine: int
    """Cells of what takes one place in a pass."""
    prompts: Array
    """[sizes]: prompts of passes that took 1.. places."""
    holds: Array
    """[sizes]: how likely a full pass holds 1.. places."""
    cells: int
    """Waiting is counted from 0 to ``cells`` - 1."""
    width_seconds: float

    @property
    def fit(self) -> Array:
        """[sizes]: chance that so many places fit into a pass."""
        return np.cumsum(self.holds[::-1])[::-1]

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


def most_waiting(service: Service, rate: float, squared_cv: float) -> float:
    """Return the prompts that a pass all but never exceeds, if the service holds as many: its cap says no more then."""
    settled, noise = _settled(service, rate, squared_cv)
    return _reach(service, rate, squared_cv, settled, noise)


def lattice_of(service: Service, rate: float, squared_cv: float, phases: int, behind_full: float) -> Lattice:
    """Return the lattice of a queue.

    Args:
        service: durations of passes by what they took.
        rate: prompts (units of the service) per second.
        squared_cv: of the gaps between arrivals.
        phases: events that make a prompt.
        behind_full: the share of full passes that follow a full one.
    """
    settled, noise = _settled(service, rate, squared_cv)
    reach = _reach(service, rate, squared_cv, settled, noise)
    queued, sizes = 2.0, min(reach, float(service.full.largest) if service.full else service.most)
    if reach >= service.most - (6 * math.sqrt(service.full.spread) if service.full else 0.0):
        queued = _queued(service, rate, squared_cv)
    lines = sizes + queued
    # Rounding to a lattice of 1/m prompt adds a variance of up to 1/(6 m²): a hundredth of what is there.
    fine = max(min(phases, math.ceil(4 / math.sqrt(max(noise, 1e-6))), int(_CELLS / lines)), 1)
    step = max(lines / _CELLS, 1.0)
    count = max(math.ceil(sizes / step), 1)
    step = max(sizes / count, 1.0)
    prompts = np.arange(1.0, count + 1) * step
    holds = _holds(service.full, behind_full, sizes, prompts)
    cells = fine * (count + math.ceil(queued / step) + 1)
    longest = float(service.durations(prompts[[0, -1]], KINDS)[0].max())
    longest = max(longest, float(service.full.kinds.max())) if service.full else longest
    usual = float(service.mean(np.array([settled]))[0])
    horizon = 2 * longest + (math.ceil(queued / service.most) + 1) * service.full_seconds
    width = max(usual / _USUAL, longest / _LONGEST, horizon / _HORIZON)
    return Lattice(fine, prompts, holds, cells, width)


def _holds(full: FullPasses | None, behind_full: float, sizes: float, prompts: Array) -> Array:
    """How likely a full pass holds 1.. places of ``prompts``, [sizes]; between two places so that means stay."""
    held, chances = np.array([sizes]), np.ones(1)
    if full:
        held = np.minimum(np.arange(1.0, full.largest + 1), sizes)
        chances = (1 - behind_full) * full.chances[0] + behind_full * full.chances[1]
    places = np.clip(held / prompts[0], 1.0, float(prompts.size)) - 1
    low = np.minimum(places.astype(np.intp), max(prompts.size - 2, 0))
    high = np.minimum(low + 1, prompts.size - 1)
    found = np.bincount(low, chances * (1 - (places - low)), prompts.size)
    found += np.bincount(high, chances * (places - low), prompts.size)
    return np.asarray(found, dtype=np.float64)


def _settled(service: Service, rate: float, squared_cv: float) -> tuple[float, float]:
    """Prompts of the pass whose arrivals fill the next, and the variance of these arrivals; continuous in the rate."""
    beyond = service.prompts - rate * service.seconds
    first = int(np.argmax(beyond >= 0))
    size = float(service.prompts[0])
    if first:
        size = float(np.interp(0.0, beyond[first - 1 : first + 1], service.prompts[first - 1 : first + 1]))
    elif beyond[0] < 0:
        size = float(service.prompts[-1])
    at = np.array([size])
    return size, squared_cv * rate * float(service.mean(at)[0]) + rate**2 * float(service.variance(at)[0])


def _reach(service: Service, rate: float, squared_cv: float, settled: float, noise: float) -> float:
    """Prompts that a pass all but never exceeds: 8 standard deviations above where arrivals of a pass fill the next.

    Linearised there, with f the arrivals that one more prompt brings: variance = arrivals' variance / (1 - f²). Each
    prompt brings its own, as in a branching process with immigration, so where f is near one the tail is exponential
    and longer than the normal one: it decays by 2 (1 - f) / v a prompt, v the variance of what one brings. At least
    what arrives while the longest prompt is alone.
    """
    place = int(np.searchsorted(service.prompts, settled))
    slope = float(np.diff(service.seconds, append=service.seconds[-1])[min(place, service.prompts.size - 1)])
    share = float(service.seconds[-1] - service.seconds[0]) / max(service.largest - 1, 1)
    gain = min(rate * max(share, slope), 0.99)
    alone = rate * float(service.durations(service.prompts[:1], KINDS)[0].max())
    usual = settled + 8 * math.sqrt(noise / (1 - gain**2)) + 3
    least, most = service.variance(service.prompts[[0, -1]])
    brought = squared_cv * gain + rate**2 * float(most - least) / max(service.largest - 1, 1)
    usual = max(usual, settled + math.log(1 / RARE) * brought / (2 * (1 - gain)))
    return float(math.ceil(max(usual, alone + 6 * math.sqrt(squared_cv * alone) + 3)))


def _queued(service: Service, rate: float, squared_cv: float) -> float:
    """Prompts beyond a full pass that all but never wait: heavy-traffic decay."""
    full = service.full_seconds
    slack = max(service.most - rate * full, 1e-9)
    noise = squared_cv * rate * full + rate**2 * service.full_variance
    noise += service.full.spread if service.full else 0.0
    return min(2 + math.log(1 / RARE) * noise / (2 * slack), float(_MOST_QUEUED))
