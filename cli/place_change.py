"""What `plan place` does with a map that runs already, and with traffic between nodes."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cli.place_flags import PlaceFlags
from ground.errors import BadInput
from ground.files import read_text
from ground.units import parse_count
from planner.manifest.mapformats import read_map
from planner.placement.methods import Placement, measure
from planner.placement.migrate import few_moves, moves, renumbered
from planner.placement.problem import Problem
from planner.placement.traffic import leaving_share, pay_for_leaving, trade_off_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The current map's imbalance [layers], and experts to be loaded for the new one [layers]."""

    current: NDArray[np.float64]
    loads: NDArray[np.int64]
    unlimited_loads: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Share of tokens served away from their group's node, and the bound on imbalance + weight x share; [layers]."""

    weight: float
    leaving: NDArray[np.float64]
    bound: NDArray[np.float64]


def read_current(flags: PlaceFlags, problem: Problem) -> NDArray[np.int64] | None:
    """Return the slots [layers, slots] of the map that runs; BadInput where it belongs to another deployment."""
    path = flags.current
    if path is None:
        if flags.max_moves is not None:
            raise BadInput("--max-moves: needs --current, the map that experts move from")
        return None
    found = read_map(read_text(path), str(path), experts=problem.experts, ranks=problem.ranks)
    slots = found.slots[-problem.layers :]
    if found.ranks != problem.ranks or slots.shape != (problem.layers, problem.slots):
        raise BadInput(
            f"--current: {path} has {len(found.slots)} layers of {found.slots.shape[1]} slots on {found.ranks} "
            f"devices; expected are {problem.layers} of {problem.slots} on {problem.ranks}"
        )
    return slots


def migrate(
    flags: PlaceFlags, problem: Problem, placed: Placement, current: NDArray[np.int64]
) -> tuple[Placement, Migration]:
    """Return the placement that keeps experts where they are as far as it can, within ``--max-moves`` per layer."""
    before = measure(problem, current)
    slots = renumbered(current, placed.slots, problem)
    unlimited = moves(current, slots, problem.ranks)
    if flags.max_moves is not None:
        most = parse_count(flags.max_moves, "--max-moves", allow_zero=True)
        rows = []
        for layer, loads in enumerate(problem.mean_loads):
            if unlimited[layer] <= most:
                rows.append(slots[layer])
                continue
            trace = few_moves(loads, current[layer], problem.ranks, most)
            rows.append(trace.slots[trace.within(most)])
        slots = np.stack(rows)
    reached = measure(problem, slots)
    kept = replace(placed, slots=slots, imbalance=reached, lower_bound=placed.lower_bound.clip(max=reached))
    return kept, Migration(current=before, loads=moves(current, slots, problem.ranks), unlimited_loads=unlimited)


def read_weight(flags: PlaceFlags, problem: Problem) -> float | None:
    """Return ``--traffic-weight``; BadInput unless it is a number from 0 and there are groups and nodes to leave."""
    if flags.traffic_weight is None:
        return None
    try:
        weight = float(flags.traffic_weight)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise BadInput(f"--traffic-weight: {flags.traffic_weight[:20]!r} is not a number from 0, such as 0.5")
    if problem.sliced or problem.nodes < 2 or problem.groups < 2 or problem.groups % problem.nodes:
        raise BadInput(
            "--traffic-weight: needs --nodes of 2 or more that divide --groups, and loads without time slices "
            "(--objective mean)"
        )
    return weight


def weigh_traffic(problem: Problem, placed: Placement, weight: float) -> tuple[Placement, Traffic]:
    """Return the map with the least imbalance + weight x leaving share, of the one given and those on the way."""
    kept = replace(problem, keep_groups=True)
    slots = pay_for_leaving(kept, weight)
    ours, usual = (measure(problem, rows) + weight * leaving_share(problem, rows) for rows in (slots, placed.slots))
    slots = np.where((usual < ours)[:, None], placed.slots, slots)
    reached = measure(problem, slots)
    found = replace(
        placed, slots=slots, imbalance=reached, lower_bound=placed.lower_bound.clip(max=reached), method="traffic"
    )
    bound = trade_off_bound(problem, weight)
    return found, Traffic(weight=weight, leaving=leaving_share(problem, slots), bound=bound)
