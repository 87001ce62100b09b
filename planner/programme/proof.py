"""The proven bound of a choice over all columns of all ways, and the alternatives pruned under a bound."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ground.errors import Fault
from ground.units import counted
from planner.objective import OBJECTIVES, Objective, ObjectiveName
from planner.programme.certificate import solve
from planner.programme.columns import Side
from planner.programme.programme import Picks, Programme


class Pruned(NamedTuple):
    """Alternatives that were never solved in full, and the bound that shows that none is better."""

    what: str
    number: int
    bound: float | None
    unit: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The best value that the covered space can reach, and how far the plan is from it."""

    objective: ObjectiveName
    value: float
    gap: float
    covers: str
    queues_solved: int = 0
    pruned: tuple[Pruned, ...] = ()

    @property
    def goal(self) -> Objective:
        """The objective that is bounded."""
        return OBJECTIVES[self.objective]

    def of_plan(self, value: float) -> "Bound":
        """Return the bound beside a plan's own value; a value better than the bound becomes the bound."""
        best = self.goal.best_bound([self.value, value])
        return replace(self, value=best, gap=abs(best - value) / abs(value) if value else abs(best - value))


def proven(programme: Programme, picks: Picks, models: Sequence[str], left_out: Sequence[Pruned]) -> Bound:
    """Prove a choice over all columns of all routes, with upper bounds for queues that were not solved.

    With the latency objective the choice is the bound: it is the best of all routes by lower bounds of their times.

    Raises Fault where the programme's optimum differs from the choice's value.
    """
    goal, sides = programme.aim.goal, programme.sides
    if goal.timed:
        reached = programme.seconds(picks)
        pruned = [each for side in sides for each in _slow_columns(side)]
        value: float | None = reached
    else:
        known = programme.incumbent(picks)
        reached = known.rate if goal.maximised else known.spent[0]
        pruned = [each for side in sides for each in _small_columns(side, known.rate)]
        # A choice with a slower column carries less, so leaving such columns out keeps the optimum.
        least = known.rate if goal.maximised else programme.aim.rate or 0.0
        value = solve(programme, least)
    if value is None:
        raise Fault("the fleet programme has no solution, and one was found")
    gap = abs(value - reached) / abs(reached)
    if gap > 1e-6:
        raise Fault(f"the fleet programme's bound {value:g} is not what the chosen columns reach")
    return Bound(
        objective=programme.aim.objective,
        value=value,
        gap=gap,
        covers=covers(programme, models),
        queues_solved=sum(side.queues_solved for side in sides),
        pruned=(*pruned, *left_out),
    )


def over_parts(best: Bound | None, parts: Sequence[Bound], queues_solved: int) -> Bound | None:
    """Return the bound of the best of several engines or number formats that were each proven.

    They share columns and solved queues; pruned alternatives of the others are not listed.
    """
    if best is None or len(parts) < 2:
        return best
    value = best.goal.best_bound([part.value for part in parts])
    return replace(
        best,
        value=value,
        gap=abs(value - best.value) / abs(best.value) if best.value else abs(value - best.value),
        covers=f"each of {len(parts)} engines and number formats: of the chosen one {best.covers}",
        queues_solved=queues_solved,
    )


def covers(programme: Programme, models: Sequence[str]) -> str:
    """Return a phrase that names the space that the bound covers."""
    sides, goal = programme.sides, programme.aim.goal
    single = [side for side in sides if side.role == "mixed"]
    encoders = [side for side in sides if side.role == "encode"]
    routes = math.prod(len({len(way) > 1 or id(way) for way in own}) for own in programme.ways)
    named = [model for model in models if model]
    parts = []
    separate = [side for side in sides if side.role in ("prefill", "decode")]
    if separate:
        parts.append(_covers_separate(separate, timed=goal.timed))
    if single:
        parts.append(_covers_aggregated(single, timed=goal.timed))
    if encoders:
        columns = counted(sum(side.size for side in encoders), "column")
        parts.append(f"encode instances of one device before either: {columns}, each within a listed part of TTFT")
    start = f"of {', '.join(named)}, " if named else ""
    spread = f", in every one of {routes} ways to spread the roles over the pools" if named and routes > 1 else ""
    both = "; not both shapes side by side for one model" if single else ""
    time = "the mean time from arrival to the last token over all requests, in " if goal.timed else ""
    return f"{time}{start}{'; and '.join(parts)}{spread}{both}"


def _covers_separate(sides: Sequence[Side], *, timed: bool) -> str:
    rows = {role: sum(len(side.offers) for side in sides if side.role == role) for role in ("prefill", "decode")}
    kinds = " and ".join(f"{number} {role}" for role, number in rows.items())
    start = f"separate prefill and decode pools: {counted(sum(side.size for side in sides), 'column')}, each so many"
    if timed:
        return (
            f"{start} instances of one of {kinds} rows of the grid, with the largest batch that keeps the limits at "
            "the asked rate, which is the quickest, and prefill budgets that close in on the least mean, taken to fall "
            "and then to rise; waits for links that KV crosses are not in it"
        )
    beyond = (
        "; decode rows beyond the grid, attention and experts on whole nodes of their own in every split and with up "
        "to 16 domains, whose bounds could beat it"
        if any(side.beyond_grid for side in sides)
        else ""
    )
    return (
        f"{start} node-aligned instances of one of {kinds} kinds: every strategy, redundancy, MTP depth and "
        "microbatching of the grid, with every decode batch whose iteration keeps the limit and every prefill budget "
        "of whole prompts whose pass does (beyond 12 a twelfth apart), to 0.09 % of what one carries; where prompts "
        "differ, with prefill budgets in steps of a half or a third that close in on the least TTFT, and without rows "
        f"that another of their size matches at every budget{beyond}"
    )


def _covers_aggregated(sides: Sequence[Side], *, timed: bool) -> str:
    rows = counted(sum(len(side.offers) for side in sides), "row")
    which = "in which a request alone is quick enough" if timed else "whose bounds could beat separate pools"
    budgets = "" if timed else ", in those solved in full with nearby ones between, and all requests that memory holds"
    return (
        f"aggregated instances: {counted(sum(side.size for side in sides), 'column')}, each so many of one of {rows} "
        f"{which}, with every listed token budget{budgets}"
    )


def never_costed(model: str, rows: int, rate_per_second: float) -> list[Pruned]:
    """Return the decode rows beyond the grid that were not costed in full, with their bound."""
    what = "decode rows beyond the grid, by split into attention and expert nodes, domains, layout and MTP depth"
    why = "beside prefill for that rate their steps miss the TPOT limit with what they have to run"
    return _counted(f"{model}: {what}" if model else what, rows, rate_per_second, "requests/s", why)


def never_queued(model: str, rows: int, rate_per_second: float, goal: Objective) -> list[Pruned]:
    """Return the aggregated instances whose queues were not solved, with the rate that they do not reach."""
    fewer = "" if goal.maximised or goal.timed else ", or not on fewer devices than separate pools take there"
    why = f"no number of running requests whose mean step keeps the TPOT limit brings a pool to that rate{fewer}"
    return _counted(_aggregated(model), rows, rate_per_second, "requests/s", why)


def late_alone(model: str, rows: int, seconds: float) -> list[Pruned]:
    """Return the aggregated instances that are too slow with one request to be quickest."""
    beside = ", all other models at their quickest" if model else ""
    why = f"a request alone takes as long as in what was found before, or longer{beside}"
    return _counted(_aggregated(model), rows, seconds, "s", why)


def _aggregated(model: str) -> str:
    return f"aggregated instances{f' of {model}, by pool' if model else ', by'} strategy, layout and MTP depth".replace(
        "pool strategy", "pool, strategy"
    )


def _counted(what: str, number: int, bound: float | None, unit: str, why: str) -> list[Pruned]:
    return [Pruned(what=what, number=number, bound=bound, unit=unit, why=why)] if number else []


def _small_columns(side: Side, reached: float) -> list[Pruned]:
    """Return the columns of a side that were never solved, with their bound."""
    left = ~side.exact
    small = left & (side.rate < reached)
    large = left & ~small
    alone = side.role == "mixed"
    return [
        *_counted(
            f"{side.label} columns that carry less than the plan",
            int(small.sum()),
            float(side.rate[small].max()) * side.unit if small.any() else None,
            "requests/s",
            "98 % of saturation, passes in time, or a queue tried at the plan's rate bound what they carry: their own "
            "or, of prompts that differ, one whose passes are nowhere slower",
        ),
        *_counted(
            f"{side.label} columns that {'take too many devices' if alone else 'leave the other role too few devices'}",
            int(large.sum()),
            float(side.devices[large].min()) if large.any() else None,
            "devices",
            "a smaller column carries as much, or nothing that fits beside them carries more than the plan",
        ),
    ]


def _slow_columns(side: Side) -> list[Pruned]:
    """Return the columns of a side that were never timed, with their bound."""
    alone, left = side.role == "mixed", ~side.timed
    slow, weak = left & np.isfinite(side.seconds), left & ~np.isfinite(side.seconds)
    return [
        *_counted(
            f"{side.label} columns that take longer{'' if alone else ' with what fits beside them'}",
            int(slow.sum()),
            float(side.seconds[slow].min()) if slow.any() else None,
            "s",
            "a request alone, and Little's law at the rate, bound its mean time from below",
        ),
        *_counted(
            f"{side.label} columns that do not carry the rate",
            int(weak.sum()),
            side.unit,
            "requests/s",
            f"{90 if alone else 98} % of saturation bounds what they carry",
        ),
    ]
