"""Stragglers: how much longer the busiest expert-parallel rank is loaded than the mean one.

Three causes, each an expected maximum over ranks: experts differ in popularity (the static part, which placement
removes), popularity moves after the placement was computed (drift), and an iteration routes finitely many tokens
(sampling). The first two depend on the deployment only and are one number; the third depends on the batch and
broadcasts. The load distribution is stated, not hidden: it stands in a plan's assumptions.
"""

import functools
import math
from typing import Literal, NamedTuple

import numpy as np

from ground.arrays import Floats
from ground.errors import BadInput
from ground.units import number_of
from planner.balance.counts import check_redundancy, longest_first, replica_counts
from planner.balance.skew import MIXED, LoadDistribution, quantile_loads

Number = float | Floats

_SEED = 20251
_SHUFFLES = 256
_DRIFTS = 64


@functools.lru_cache(maxsize=4096)
def static_factor(experts: int, ranks: int, redundant: int, distribution: LoadDistribution, balanced: bool) -> float:
    """Expected load of the busiest rank over the mean rank, for infinitely many tokens; from 1 to ``ranks``.

    Balanced: experts are placed for the typical loads by water-filling and LPT, as the engines' balancers do, then
    every expert drifts on its own: the mean over fixed draws of the busiest rank. Not balanced: slot s holds expert s
    modulo ``experts``, the layout that engines start from, and popularity is assigned to experts at random: the mean
    over fixed permutations.

    Args:
        experts: routed experts per layer.
        ranks: expert-parallel degree.
        redundant: slots beyond one per expert, in all.
        distribution: popularity and its drift.
        balanced: whether the placement knows the loads.

    Raises:
        BadInput: the slots do not fit the ranks, see ``check_redundancy``.

    Ref: derived here. Reproduces NVIDIA TensorRT-LLM tech blog 4 (2.56 without, 1.109 with balancing at EP32) and, not
    fitted, the 1.115 at EP36 of its examples/wide_ep/ep_load_balancer/README.md. Standard error below 1 %.
    """
    slots_per_rank = check_redundancy(experts, ranks, redundant)
    if balanced:
        past = quantile_loads(distribution, experts)
        counts = replica_counts(past, experts + redundant, ranks)
        slots = longest_first(past, counts, ranks).ravel()
        present = drifted_loads(distribution, experts)
    else:
        slots = np.arange(experts + redundant) % experts
        counts = np.bincount(slots, minlength=experts)
        present = _shuffled_loads(distribution, experts)
    per_slot = np.take(present / counts, slots, axis=1)  # [draws, slots]
    busiest = per_slot.reshape(-1, ranks, slots_per_rank).sum(axis=2).max(axis=1)
    return float(busiest.mean()) * ranks / experts


@functools.lru_cache(maxsize=8)
def _shuffled_loads(distribution: LoadDistribution, experts: int) -> Floats:
    """The typical loads in random orders, [draws, experts]; fixed seed."""
    rows = np.tile(quantile_loads(distribution, experts), (_SHUFFLES, 1))
    return np.random.default_rng(_SEED).permuted(rows, axis=1)


@functools.lru_cache(maxsize=8)
def drifted_loads(distribution: LoadDistribution, experts: int) -> Floats:
    """The typical loads after drift, [draws, experts], every draw with mean 1; fixed seed."""
    scores = np.random.default_rng(_SEED).standard_normal((_DRIFTS, experts))
    loads = quantile_loads(distribution, experts) * np.exp(distribution.drift_log_sigma * scores)
    return np.asarray(loads / loads.mean(axis=1, keepdims=True), dtype=np.float64)


@functools.lru_cache(maxsize=1)
def _half_line() -> tuple[Floats, float]:
    """Phi on a grid over x >= 0 and the grid's step."""
    step = 0.05
    return np.array([0.5 * (1 + math.erf(step * i / math.sqrt(2))) for i in range(201)]), step


def expected_maximum_normal(count: Number) -> Number:
    """Expected maximum of ``count`` independent standard normals.

    E = integral over x > 0 of 1 - Phi(x)^n - (1 - Phi(x))^n.

    The integrand is even and smooth, so the trapezoid rule is exact to 1e-9; valid for 1 <= n <= 1e6; any shape.
    Example: n = 2 gives 1 / sqrt(pi) = 0.5642.

    Ref: order statistics, H. A. David, Order Statistics, section 3.1; values in Tippett 1925, Biometrika 17:364.
    """
    if np.ndim(count) == 0:
        return _expected_maximum(float(count))
    distinct, where = np.unique(count, return_inverse=True)
    expected = np.array([_expected_maximum(float(each)) for each in distinct])
    return expected[where].reshape(np.shape(count))


@functools.lru_cache(maxsize=8192)
def _expected_maximum(count: float) -> float:
    """The integral for one count; a search asks again and again for the same few hundred."""
    cdf, step = _half_line()
    tail = 1.0 - cdf**count - (1.0 - cdf) ** count
    tail[0] /= 2
    return float(tail.sum() * step)


class Balance(NamedTuple):
    """What --expert-balance asked for; ``factor`` only with the kind of that name."""

    kind: Literal["perfect", "measured", "none", "factor"]
    factor: float = 1.0
    distribution: LoadDistribution = MIXED
    """What the kinds measured and none rest on (``--expert-skew``)."""


def parse_balance(text: str) -> Balance:
    """Read --expert-balance: perfect, measured, none, or a factor from 1 on, the busiest rank over the mean.

    Raises:
        BadInput: anything else.
    """
    word = text.strip().lower()
    for kind in ("perfect", "measured", "none"):
        if word == kind:
            return Balance(kind=kind)
    factor = number_of(word)
    if not factor >= 1.0:
        raise BadInput(
            f"--expert-balance {text!r} must be perfect, measured, none, or a factor of at least 1, the "
            "busiest rank over the mean."
        )
    return Balance(kind="factor", factor=factor)
