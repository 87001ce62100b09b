"""What is proven of a plan: the integer programme's bound over all columns, and what was left out under which bound."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ground.aside import Aside, aside
from ground.units import counted
from planner.offers.choice import Aim, carried_by
from planner.offers.columns import Side
from planner.offers.programme import FleetSolution, solve_fleet

AGGREGATED = "aggregated instances, by strategy, layout and MTP depth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Alternatives that were never solved in full, and the bound that shows that none is better."""

    what: str
    number: int
    bound: float | None
    unit: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The best value that the covered space can reach, and how far the plan is from it."""

    objective: str
    value: float
    gap: float
    covers: str
    queues_solved: int = 0
    pruned: tuple[Pruned, ...] = ()


def certify(sides: Sequence[Side], aim: Aim, least_rate: float = 0.0) -> FleetSolution:
    """Solve the integer programme over every column that no other matches, bounds standing for unsolved queues."""
    return begin_certificate(sides, aim, least_rate).result()


def begin_certificate(sides: Sequence[Side], aim: Aim, least_rate: float = 0.0) -> Aside[FleetSolution]:
    """Begin to ``certify`` the columns as they are now; another core, where one is free, solves the programme."""
    least = max(least_rate, (aim.rate or 0.0)) * (1 - 1e-9)
    columns = [
        side.column(int(number))
        for side in sides
        for number in side.staircase(aim.devices[side.machines.budget], least)
    ]
    roles = [side.role for side in sides]
    devices = dict(aim.devices)
    return aside(partial(solve_fleet, columns, devices=devices, objective=aim.objective, rate=aim.rate, roles=roles))


def over_parts(best: Bound | None, parts: Sequence[Bound], queues_solved: int) -> Bound | None:
    """Return the bound of the best of several number formats that were each proven.

    They share columns, and so the queues that were solved; the others' pruned are none of its own.
    """
    if best is None or len(parts) < 2:
        return best
    values = [part.value for part in parts]
    value = max(values) if best.objective == "throughput" else min(values)
    return replace(
        best,
        value=value,
        gap=abs(value - best.value) / abs(best.value) if best.value else abs(value - best.value),
        covers=f"each of {len(parts)} combinations of number formats: of the chosen one {best.covers}",
        queues_solved=queues_solved,
    )


def begin_proof(
    parts: Sequence[Sequence[Side]], chosen: Sequence[Side], aim: Aim, choice: Sequence[int]
) -> Callable[[], Bound]:
    """Begin to prove a choice of one part of the space over all of them; return what waits for the bound.

    Parts are the shapes of a deployment, and the sets of instances that an engine lets share KV. Columns are taken
    as they are now: queues that are solved later are none of the proof's.
    """
    reached = carried_by(chosen, tuple(choice))
    others = [sides for sides in parts if tuple(sides) != tuple(chosen) and all(side.size for side in sides)]
    covered = [chosen, *others]
    # Whatever holds a column slower than the choice carries less: the programme's optimum stays.
    least = reached if aim.objective == "throughput" else 0.0
    certificates = [begin_certificate(sides, aim, least) for sides in covered]
    told = "; and ".join(covers(sides) for sides in covered)
    left_out = tuple(pruned(list(dict.fromkeys(side for sides in covered for side in sides)), reached))
    queues = sum({id(side): side.queues_solved for sides in parts for side in sides}.values())

    def bound() -> Bound:
        own, *rest = (certificate.result() for certificate in certificates)
        values = [own.bound, *(solution.bound for solution in rest if solution.status == "optimal")]
        value = max(values) if aim.objective == "throughput" else min(values)
        return Bound(
            objective=aim.objective,
            value=value,
            gap=own.gap + abs(value - own.bound) / abs(own.bound or 1.0),
            covers=told,
            queues_solved=queues,
            pruned=left_out,
        )

    return bound


def covers(sides: Sequence[Side]) -> str:
    """Say what the bound is a bound of."""
    if [side.role for side in sides] == ["mixed"]:
        return (
            f"{counted(sides[0].size, 'column')} of aggregated instances (so many of one kind), of "
            f"{counted(len(sides[0].offers), 'kind')} whose bounds could beat the other shape, with every listed token "
            "budget, in those solved in full with nearby ones between, and all requests that memory holds; not both "
            "shapes side by side for one model"
        )
    if any(side.beyond_grid for side in sides):
        return (
            f"{sum(len(side.offers) for side in sides if side.beyond_grid)} decode rows beyond the grid, attention and "
            "experts on whole nodes of their own in every split and with up to 16 domains, whose bounds could beat it"
        )
    roles = " and ".join(f"{len(side.offers)} {side.role}" for side in sides)
    columns = counted(sum(side.size for side in sides), "column")
    return (
        f"{columns} of separate prefill and decode pools (so many instances of one kind), of {roles} kinds: every "
        "strategy, redundancy, MTP depth and microbatching of the grid, with every decode batch whose iteration keeps "
        "the limit and every prefill budget of whole prompts whose pass does (beyond 12 a twelfth apart), to 0.3 % of "
        "what one carries; where prompts differ, with prefill budgets in steps of a half or a third that close in on "
        "the least TTFT, and without rows that another of their size matches at every budget"
    )


def never_costed(rows: int, rate_per_second: float) -> list[Pruned]:
    """Say how many decode rows beyond the grid were not costed in full, and the bound under which."""
    if not rows:
        return []
    return [
        Pruned(
            what="decode rows beyond the grid, by split into attention and expert nodes, domains, layout and MTP depth",
            number=rows,
            bound=rate_per_second,
            unit="requests/s",
            why="beside prefill for the plan's rate their steps miss the TPOT limit with what they have to run",
        )
    ]


def never_queued(
    rows: int, rate_per_second: float, *, what: str = AGGREGATED, reach: str = "the plan's rate"
) -> list[Pruned]:
    """Say how many aggregated instances no queue was solved for, and the rate that they do not ``reach``."""
    if not rows:
        return []
    return [
        Pruned(
            what=what,
            number=rows,
            bound=rate_per_second,
            unit="requests/s",
            why=f"no number of running requests whose mean step keeps the TPOT limit brings a pool to {reach}",
        )
    ]


def pruned(sides: Sequence[Side], reached: float) -> list[Pruned]:
    """Say how many columns were never solved, and the bound under which."""
    found = []
    for side in sides:
        open_columns = ~side.exact
        count = int(open_columns.sum())
        if not count:
            continue
        small = open_columns & (side.rate < reached)
        unit = "requests/s"
        found.append(
            Pruned(
                what=f"{side.role} columns that carry less than the plan",
                number=int(small.sum()),
                bound=float(side.rate[small].max()) * side.unit if small.any() else None,
                unit=unit,
                why="98 % of saturation, passes in time, or a queue tried at the plan's rate bound what they "
                "carry: their own or, of prompts that differ, one whose passes are nowhere slower",
            )
        )
        rest = open_columns & ~small
        if rest.any():
            found.append(
                Pruned(
                    what=f"{side.role} columns that {_too_large(side)}",
                    number=int(rest.sum()),
                    bound=float(side.devices[rest].min()),
                    unit="devices",
                    why="a smaller column carries as much, or nothing that fits beside them carries more than the plan",
                )
            )
    return found


def _too_large(side: Side) -> str:
    return "take too many devices" if side.role.endswith("mixed") else "leave the other role too few devices"
