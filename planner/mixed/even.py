"""Prompts that a router deals to instances in turn meet others less often than at random.

Of c instances each takes every c-th arrival, so its gaps are Erlang with c phases. Chains of steps forget when the last
prompt came; here what they find is put right. A prompt meets another if that came less than the time ago that a prompt
alone takes, b: F_c(b) / F_1(b) times as often as at random, with F_c the distribution of the gaps. What that costs on
average is G/G/1's wait over M/G/1's, with the share of prompts that meet others as the load.

Ref: W. Kraemer and M. Langenbach-Belz, Approximate formulae for the delay in the queueing system GI/G/1, 8th
International Teletraffic Congress, 1976; the use made of it is derived here and held against the runtime. How many
requests are beside and behind one: Palm's distribution of a renewal process.
"""

import math

import numpy as np

from planner.queues.queueing import Array

Points = tuple[Array, Array]
"""Seconds and their masses."""
_MOST_PHASES = 64


def phases_of(squared_cv: float) -> int:
    """Phases of gaps of that squared CV; 1 for those at random and for bursts."""
    return min(max(round(1 / max(squared_cv, 1e-9)), 1), _MOST_PHASES)


def gap_beyond(gaps: Array, phases: int) -> Array:
    """Chance that a gap is longer, in units of the mean gap: exp(-c x) times the sum of (c x)^i / i! over i < c."""
    if phases == 1:
        return np.asarray(np.exp(-np.maximum(gaps, 0.0)))
    scaled = phases * np.maximum(gaps, 0.0)[..., None]
    i = np.arange(phases)
    factorials = np.cumsum(np.log(np.maximum(i, 1)))
    return np.asarray(np.exp(i * np.log(np.maximum(scaled, 1e-300)) - scaled - factorials).sum(axis=-1))


def extra_beside(gaps: float, dispersion: float) -> float:
    """Requests that run beside one, beyond as many as at any time, where each runs for so many mean gaps.

    Variance over mean of what comes within such a time, less 1 (D. R. Cox and P. A. W. Lewis, The Statistical Analysis
    of Series of Events, 1966, chapter 4); bursts are taken as if they came at once.

    >>> round(extra_beside(0.01, 0.125), 3), round(extra_beside(100.0, 0.125), 3)  # nobody else; d - 1
    (-0.01, -0.872)
    """
    return dispersion - 1 if dispersion >= 1 else 2 * _gone_by(gaps, dispersion) / gaps


def extra_behind(step: float, gaps: float, dispersion: float) -> float:
    """Prompts that come within so many gaps behind the ``step`` in which another came, beyond as many as at any time.

    Args: ``step`` and ``gaps`` in mean gaps. All in all (d - 1)/2 behind the prompt itself; what of it falls into its
    own step is left out, but for bursts, which are taken as behind it.

    >>> round(extra_behind(0.001, 100.0, 0.125), 3)
    -0.437
    """
    if dispersion >= 1:
        return (dispersion - 1) / 2
    both, rest, own = (_gone_by(each, dispersion) for each in (step + gaps, gaps, step))
    return (both - rest - own) / step


def _gone_by(gaps: float, dispersion: float) -> float:
    """Integral over so many mean gaps of the prompts that came since one did, less the gaps gone by.

    Of c phases a gap, those since the last prompt, over c, are what has gone by without one: their mean is (c - 1)/2
    and what (1 - w)^-1 exp(c x (w - 1)) takes away, summed over the other roots w of w^c = 1.
    """
    phases = min(max(math.ceil(1 / dispersion - 1e-9), 2), _MOST_PHASES)
    roots = np.exp(2j * np.pi * np.arange(1, phases) / phases)
    settling = (np.expm1(phases * gaps * (roots - 1)) / (phases * (roots - 1)) / (np.conj(roots) - 1)).sum()
    since = (phases - 1) / 2 * gaps + float(settling.real)
    return -since / phases * (1 - dispersion) / (1 - 1 / phases)


def with_mates(counts: Array, mates: float) -> Array:
    """Counts of prompts, [..., counts], and a geometric number of others that came in the same burst, ``mates`` on
    average; the last count stands for it or more.

    Counts with a dispersion d are batches: of its own one a prompt meets d - 1 others, half of them ahead of it.
    """
    if mates <= 0:
        return counts
    size = counts.shape[-1]
    chances = (1 / (1 + mates)) * (mates / (1 + mates)) ** np.arange(size)
    found = np.zeros_like(counts)
    for more, chance in enumerate(chances):
        found[..., more:] += chance * counts[..., : size - more]
    found[..., -1] += np.maximum(1 - found.sum(axis=-1), 0.0)
    return found


def wait_share(load: float, squared_cv: float, service_squared_cv: float) -> float:
    """Mean wait of GI/G/1 over that of M/G/1 for gaps of a squared CV up to 1.

        (ca + cs) / (1 + cs) · exp(-2 (1 - load) / (3 load) · (1 - ca)² / (ca + cs))

    >>> round(wait_share(0.5, 1 / 3, 0.0), 3)  # E3/D/1: 0.333 · exp(-0.667 · 1.333)
    0.137
    """
    spread = squared_cv + service_squared_cv
    exponent = 2 * (1 - load) / (3 * max(load, 1e-9)) * (1 - squared_cv) ** 2 / max(spread, 1e-9)
    return spread / (1 + service_squared_cv) * math.exp(-min(exponent, 700.0))


def dealt(alone: Points, company: Points, rate: float, phases: int, service_squared_cv: float) -> Points:
    """Return times from arrival to first token where prompts come in turn, from those at random.

    ``alone`` are of prompts that find no other when they come, ``company`` those of the others; masses add up to 1.
    """
    met, total = float(company[1].sum()), float(alone[1].sum())
    if phases == 1 or met <= 0 or total <= 0:
        return _joined(alone, company)
    usual = float(alone[0] @ alone[1]) / total
    reach = np.array([rate * usual])
    often = float((1 - gap_beyond(reach, phases))[0] / (1 - np.exp(-reach))[0])
    share = wait_share(met / (met + total), 1 / phases, service_squared_cv)
    # Half of what gaps do not tell by themselves is fewer meetings, half is shorter ones.
    cost = math.sqrt(min(share / max(often, 1e-12), 1.0))
    often *= cost
    longer = np.maximum(company[0] - usual, 0.0)
    seconds = np.minimum(company[0], usual) + longer * cost
    now = met * min(often, 1.0)
    return _joined((alone[0], alone[1] * ((1 - now) / total)), (seconds, company[1] * (now / met)))


def _joined(one: Points, other: Points) -> Points:
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])
