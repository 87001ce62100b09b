"""Further placements: for the experts' seconds, for less traffic between nodes, or near the current map."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.costs.predict import Configuration, expert_layouts
from planner.placement.methods import Placement, measure
from planner.placement.migrate import few_moves, moves, renumbered
from planner.placement.problem import Problem
from planner.placement.seconds import Timed, place_for_seconds
from planner.placement.traffic import leaving_share, pay_for_leaving, trade_off_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class MapChange:
    """Imbalance of the current map, and experts to load for the new one, each [layers]."""

    current: NDArray[np.float64]
    loads: NDArray[np.int64]
    unlimited_loads: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingTokens:
    """Share of tokens served away from their group's node, and the bound on imbalance + weight x share; [layers]."""

    weight: float
    leaving: NDArray[np.float64]
    bound: NDArray[np.float64]


def time_experts(problem: Problem, asked: Configuration, placed: Placement, *, search: bool) -> tuple[Placement, Timed]:
    """Return the placement (with ``search``, the one with the least seconds found) and the experts' seconds."""
    deployment = expert_layouts(replace(asked, redundant=problem.redundant, shared="local"))[0]
    rows = asked.tokens if asked.phase == "prefill" else asked.batch
    timed = place_for_seconds(problem, deployment, rows * problem.ranks, placed.slots, search=search)
    return (_moved(problem, placed, timed.slots, "seconds") if search else placed), timed


def _moved(problem: Problem, placed: Placement, slots: NDArray[np.int64], method: str | None = None) -> Placement:
    """Return a placement with other slots; its bound is the old one, or its own value where that is lower."""
    reached = measure(problem, slots)
    bound = placed.lower_bound.clip(max=reached)
    return replace(placed, slots=slots, imbalance=reached, lower_bound=bound, method=method or placed.method)


def moved_little(
    problem: Problem, placed: Placement, current: NDArray[np.int64], most: int | None
) -> tuple[Placement, MapChange]:
    """Return the placement that keeps most experts in place, with at most ``most`` loads per layer."""
    before = measure(problem, current)
    slots = renumbered(current, placed.slots, problem)
    unlimited = loaded = moves(current, slots, problem.ranks).sum(axis=1)
    if most is not None:
        rows = []
        for layer, loads in enumerate(problem.mean_loads):
            if unlimited[layer] <= most:
                rows.append(slots[layer])
                continue
            trace = few_moves(loads, current[layer], problem.ranks, most)
            rows.append(trace.slots[trace.within(most)])
        slots = np.stack(rows)
        loaded = moves(current, slots, problem.ranks).sum(axis=1)
    change = MapChange(current=before, loads=loaded, unlimited_loads=unlimited)
    return _moved(problem, placed, slots), change


def weigh_traffic(problem: Problem, placed: Placement, weight: float) -> tuple[Placement, LeavingTokens]:
    """Return the map with the least imbalance + weight x leaving share among the given one and those on the way."""
    kept = replace(problem, keep_groups=True)
    slots = pay_for_leaving(kept, weight)
    ours, usual = (measure(problem, rows) + weight * leaving_share(problem, rows) for rows in (slots, placed.slots))
    slots = np.where((usual < ours)[:, None], placed.slots, slots)
    told = LeavingTokens(weight=weight, leaving=leaving_share(problem, slots), bound=trade_off_bound(problem, weight))
    return _moved(problem, placed, slots, "traffic"), told
