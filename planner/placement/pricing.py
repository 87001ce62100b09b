"""What a rank can hold within a target, priced: the check of a stored certificate, without a solver.

A certificate for one layer is a target T and a price mu_i per expert. A replica of expert i at count r has the load
w_i / r and the price mu_i / r. If no rank with S replicas of total load at most T holds replicas worth more than M,
then a map with the busiest rank at T would need sum mu_i <= ranks * M, for each expert's replicas are worth mu_i
together. So sum mu_i > ranks * M proves that every map is busier than T. The greatest worth is found exactly on loads
rounded down to T / 1000, which only allows more; so the check never proves too much.

Ref: the dual of the configuration linear programme (Gilmore and Gomory 1961, Operations Research 9:849), with replica
counts as columns; derived here, see docs/placement.md.
"""

from dataclasses import dataclass

import numpy as np

from ground.arrays import Floats, Ints

GRID = 1000
_MARGIN = 1e-9


@dataclass(frozen=True, slots=True)
class Certificate:
    """Proof that the busiest rank of a layer exceeds ``target``, in units of the mean rank."""

    target: float
    prices: Floats  # [experts]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Every replica that a map with the busiest rank at the target can have: expert, count and load on the grid."""

    expert: Ints
    count: Ints
    size: Ints
    slots_per_rank: int


@dataclass(frozen=True, slots=True)
class Priced:
    """The greatest worth of a rank with each replica on it, and the choices that recover its other replicas."""

    worth: Floats  # [replicas]
    rest: Ints  # [replicas] grid load that the other slots use
    dearest: Ints  # [grid] replica that is dearest at a grid load
    steps: list[Ints]  # for each further slot, [grid] grid load of the replica in it


def possible_replicas(loads: Floats, ranks: int, slots: int, target: float) -> Replicas | None:
    """Return the replicas that a map within ``target`` can have; None where it needs more slots than there are.

    ``loads`` [experts] and ``target`` in one unit. Expert i has at least w_i / target replicas, and at most what is
    left when every other has its least.
    """
    need = np.maximum(np.ceil(loads / target - _MARGIN), 1.0).astype(np.int64)
    spare = slots - int(need.sum())
    if spare < 0 or need.max() > ranks:
        return None
    most = np.minimum(need + spare, ranks)
    choices = most - need + 1
    expert = np.repeat(np.arange(len(loads)), choices)
    count = np.arange(len(expert)) - np.repeat(np.cumsum(choices) - choices, choices) + need[expert]
    size = np.maximum(np.floor(loads[expert] / count / target * GRID - _MARGIN), 0.0).astype(np.int64)
    return Replicas(expert, count, size, slots // ranks)


def price(replicas: Replicas, prices: Floats) -> Priced:
    """Return the greatest worth of a rank within the target for every replica that may stand on it.

    Dynamic programme over slots: the greatest worth of k replicas with a given grid load is the greatest sum of one
    replica and k - 1 others.
    """
    value = prices[replicas.expert] / replicas.count
    single, dearest = _dearest(replicas.size, value)
    offered = np.flatnonzero(np.isfinite(single))
    best, steps = single, []
    if replicas.slots_per_rank == 1:
        best = np.where(np.arange(GRID + 1) == 0, 0.0, -np.inf)  # no other slot
    for _ in range(replicas.slots_per_rank - 2):
        best, used = _one_more(best, single, offered)
        steps.append(used)
    highest = np.maximum.accumulate(best)
    at = np.maximum.accumulate(np.where(best >= highest, np.arange(GRID + 1), 0))
    room = GRID - replicas.size
    return Priced(worth=value + highest[room], rest=at[room], dearest=dearest, steps=steps)


def _dearest(size: Ints, value: Floats) -> tuple[Floats, Ints]:
    """The greatest value at each grid load and the replica that has it; minus infinity where there is none."""
    order = np.lexsort((value, size))
    last = order[np.flatnonzero(np.append(size[order][1:] != size[order][:-1], True))]
    single, dearest = np.full(GRID + 1, -np.inf), np.full(GRID + 1, -1)
    single[size[last]], dearest[size[last]] = value[last], last
    return single, dearest


def _one_more(best: Floats, single: Floats, offered: Ints) -> tuple[Floats, Ints]:
    """Greatest sum of ``best`` and one offered replica at each grid load, and the grid load of that replica."""
    before = np.arange(GRID + 1)[:, None] - offered[None, :]  # [grid, offered]
    sums = np.where(before >= 0, best[before], -np.inf) + single[offered]
    chosen = sums.argmax(axis=1)
    return sums[np.arange(GRID + 1), chosen], offered[chosen]


def dearest_ranks(replicas: Replicas, priced: Priced, first: Ints) -> Ints:
    """Return the dearest rank with each of the replicas ``first`` on it, [len(first), slots per rank] replicas."""
    ranks = np.empty((len(first), replicas.slots_per_rank), dtype=np.int64)
    ranks[:, 0] = first
    left = priced.rest[first]
    for slot, used in zip(range(1, replicas.slots_per_rank), [*reversed(priced.steps), None], strict=True):
        size = left if used is None else used[left]
        ranks[:, slot] = priced.dearest[size]
        left = left - size
    return ranks


def certificate_holds(certificate: Certificate, loads: Floats, ranks: int, slots: int) -> bool:
    """Whether the certificate proves that every map of the layer has a rank busier than its target.

    Args:
        certificate: target in units of the mean rank, prices [experts].
        loads: [experts], any unit.
        ranks: expert-parallel degree.
        slots: slots in all, equally many on every rank, no expert twice on a rank.
    """
    scaled = loads * (ranks / loads.sum())
    if not 0 < certificate.target < np.inf or certificate.prices.shape != loads.shape:
        return False
    if not np.isfinite(certificate.prices).all():
        return False
    replicas = possible_replicas(scaled, ranks, slots, certificate.target)
    if replicas is None:
        return True
    worth = max(float(price(replicas, certificate.prices).worth.max()), 0.0)
    return bool(certificate.prices.sum() > ranks * worth * (1 + _MARGIN))
