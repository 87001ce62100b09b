"""Maps of experts that follow their loads: collect, compute, migrate, switch.

xDeepServe section 4.5 and xLLM section 4.4. The token counts of an interval give the next map; its weights come from
peers into spare buffers while the old map serves, and all ranks switch between two iterations, so that serving never
waits. What it costs is time: the loads may have changed again before the map for them is there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ground.arrays import Floats, Ints
from ground.errors import BadInput
from ground.units import counted, format_duration
from hardware.formats import ELEMENT_BYTES
from models.parameters import count_parameters
from planner.manifest.layout import ExpertLayers, ExpertMap
from planner.manifest.loads import placement_balance
from planner.manifest.schema import Manifest, Pool
from planner.placement.eplb import eplb
from planner.placement.migrate import moves, renumbered
from planner.placement.problem import Problem

Loads = Callable[[int], Floats]  # popularity of every expert in the n-th stretch of a drift, [layers, experts]
MOST_CHANGES = 500
_GAIN = 1e-6  # relative gain of the busiest rank below which two maps count as equal
_LEAST_SHARE = 1e-9  # load of an expert without tokens, over the busiest expert's: each expert needs a slot


@dataclass(frozen=True, kw_only=True)
class Changing:
    """When the popularity of experts changes, and how often maps are made anew; None: never.

    Raises BadInput naming the flag where that happens too often.
    """

    loads: Loads
    drift_seconds: float | None
    every_seconds: float | None
    last_seconds: float

    def __post_init__(self) -> None:
        for flag, seconds in (("--expert-loads", self.drift_seconds), ("--rebalance", self.every_seconds)):
            if seconds is not None and self.last_seconds / seconds > MOST_CHANGES:
                raise BadInput(
                    f"{flag}: every {format_duration(seconds)} is more than {MOST_CHANGES} times until the last "
                    f"request comes after {format_duration(self.last_seconds)}; use a longer time"
                )

    def at(self, seconds: float) -> Floats:
        """Return the popularity at a time."""
        return self.loads(0 if self.drift_seconds is None else int(seconds / self.drift_seconds))

    def drifts(self) -> list[float]:
        """Return the times at which the popularity changes."""
        step = self.drift_seconds
        return [] if step is None else [k * step for k in range(1, int(self.last_seconds / step) + 1)]

    def collected(self, begin: float, end: float) -> Floats:
        """Return the token counts of an interval, up to a factor."""
        cuts = [begin, *(time for time in self.drifts() if begin < time < end), end]
        return np.asarray(sum((after - before) * self.at(before) for before, after in pairwise(cuts)))


@dataclass(frozen=True, kw_only=True)
class Rebalanced:
    """Imbalance (busiest expert rank over the mean) by role, at the begin of a run and from later times on."""

    balance: dict[str, float]
    changes: tuple[tuple[float, dict[str, float]], ...]
    note: str


def rebalanced(manifest: Manifest, changing: Changing) -> Rebalanced:
    """Return the imbalance over time of all pools with experts, and in a sentence what was moved."""
    balance: dict[str, float] = {}
    changes: list[tuple[float, dict[str, float]]] = []
    told: list[str] = []
    for pool in manifest.pools:
        if pool.expert_map is None:
            continue
        maps, moved, seconds = _maps(manifest, pool, pool.expert_map, changing)
        times = sorted({0.0, *changing.drifts(), *(time for time, _ in maps)})
        current = [next(own for begin, own in reversed(maps) if begin <= time) for time in times]
        found = [placement_balance(own, changing.at(time)) for time, own in zip(times, current, strict=True)]
        still = [placement_balance(pool.expert_map, changing.at(time)) for time in times]
        balance[pool.role] = found[0]
        changes += [(time, {pool.role: each}) for time, each in zip(times[1:], found[1:], strict=True)]
        weights = np.diff([*times, max(changing.last_seconds, times[-1])])
        weights = weights if weights.sum() else np.ones_like(weights)
        means = [float(np.average(each, weights=weights)) for each in (still, found)]
        told.append(f"{pool.role}: busiest expert rank over the mean {means[0]:.2f} with the plan's map")
        if len(maps) > 1:
            told[-1] += (
                f", {means[1]:.2f} with {counted(len(maps) - 1, 'new one')}, for which {moved} experts' weights were "
                f"moved in at most {format_duration(seconds)} each time"
            )
    return Rebalanced(balance=balance, changes=tuple(sorted(changes, key=lambda each: each[0])), note="; ".join(told))


def _maps(
    manifest: Manifest, pool: Pool, planned: ExpertMap, changing: Changing
) -> tuple[list[tuple[float, ExpertMap]], int, float]:
    """Return the maps of a pool with the times from which they serve, experts loaded, and the longest migration."""
    maps, moved, longest, begin = [(0.0, planned)], 0, 0.0, 0.0
    every = changing.every_seconds
    while every is not None and begin + every <= changing.last_seconds:
        now, current = begin + every, maps[-1][1]
        counts, begin = changing.collected(begin, now), now
        # EPLB's map for token counts, ranks numbered so that most weights stay
        held = _slots(current)
        layers, experts = len(held), counts.shape[1]
        rows = np.maximum(counts[np.arange(layers) % len(counts)], counts.max() * _LEAST_SHARE)
        problem = Problem(loads=rows, ranks=len(current.expert_ranks), redundant=held.shape[1] - experts)
        slots = renumbered(held, eplb(problem), problem)
        numbers = [number for entry in current.placements for number in entry.layers]
        placements = [ExpertLayers(layers=[n], slots=row) for n, row in zip(numbers, slots.tolist(), strict=True)]
        found = current.model_copy(update={"placements": placements})
        better = placement_balance(current, counts) * (1 - _GAIN)
        if placement_balance(found, counts) > better:
            continue
        loaded = moves(_slots(current), _slots(found), len(planned.expert_ranks)).sum(axis=0)
        spec = manifest.clusters[pool.hardware].spec
        size = count_parameters(manifest.model.spec).routed_expert * ELEMENT_BYTES[pool.weights_dtype]
        seconds = float(loaded.max()) * (size / spec.plane(spec.kv_plane).reached_bytes_per_second)
        moved, longest = moved + int(loaded.sum()), max(longest, seconds)
        maps.append((now + seconds, found))
        begin = max(begin, now + seconds)  # counts are collected again once it serves
    return maps, moved, longest


def _slots(mapping: ExpertMap) -> Ints:
    """Return the expert in every slot of every layer, [layers, slots]."""
    return np.array([entry.slots for entry in mapping.placements for _ in entry.layers])
