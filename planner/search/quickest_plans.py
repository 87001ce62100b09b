"""The quickest plan at a rate over both shapes of a deployment: separate pools first, then what may be quicker."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.instances.operating import DecodeServer, PrefillServer
from planner.instances.space import Role
from planner.mixed.server import MixedServer
from planner.offers.choice import Aim, Choice
from planner.plans.aggregated import make_aggregated
from planner.plans.plan import Plan, make_plan
from planner.question import Question
from planner.search.parts import Pools, compatible, make_side, with_mixed
from planner.search.proof import AGGREGATED, Bound, Pruned, never_queued
from planner.search.quickest import Quickest, TimedSide, bound_over, quickest
from planner.search.shapes import not_aggregated, on_each_pool, on_machines


@dataclass(frozen=True, slots=True)
class Part:
    """Columns of one shape that may stand together."""

    pools: Pools
    timed: tuple[TimedSide, ...]


@dataclass(frozen=True, slots=True)
class QuickChoice:
    """The quickest choice of columns over all parts of the space, and the part that it is of."""

    question: Question
    aim: Aim
    parts: tuple[Part, ...]
    place: int
    found: Quickest
    cut: dict[Role, dict[str, int]]
    """What was not costed, by role and rule."""
    pruned: tuple[Pruned, ...] = ()
    other: tuple[int, Quickest] | None = None
    """The quickest separate pools with their part, where aggregated instances are quicker."""

    @property
    def part(self) -> Part:
        """The part of the choice."""
        return self.parts[self.place]

    def plan(self) -> Plan | None:
        """Return the plan of the choice; None where it cannot keep up."""
        return quick_plan(self.question, self.part.pools, self.found.choice)

    def bound(self, seconds: float) -> Bound:
        """Return the bound over all parts of a plan whose requests take so long."""
        return bound_over([part.timed for part in self.parts], self.aim, seconds, self.pruned)

    def others(self, shares: Sequence[float]) -> list[Plan]:
        """Return the quickest plan of the other shape where it is known, and of any on shares of the devices."""
        found = [self.other]
        for share in shares:
            devices = {budget: int(count * share) for budget, count in self.aim.devices.items()}
            found.append(_quickest_of(self.parts, replace(self.aim, devices=devices)))
        plans = (quick_plan(self.question, self.parts[each[0]].pools, each[1].choice) for each in found if each)
        return [plan for plan in plans if plan is not None]


def quickest_choice(question: Question, pools: Pools, aim: Aim) -> QuickChoice | None:
    """Return the quickest choice of columns at the asked rate; None where nothing carries it."""
    assert question.rate_per_second is not None
    both = pools.prefill.offers and pools.decode.offers
    parts = [_timed(question, own) for own in compatible(question, pools)] if both else []
    best, other = _quickest_of(parts, aim), None
    late: tuple[Pruned, ...] = ()
    cut, why_not = pools.cut, not_aggregated(question)
    if why_not is not None and question.shape == "auto":
        cut = cut | {"mixed": {why_not: 1}}
    for own in on_each_pool(question) if why_not is None else ():
        known = best[1].seconds if best else np.inf
        mixed, more = _aggregated(own, pools, aim, known)
        found = quickest(mixed.timed, aim, known) if mixed.timed else None
        if found is not None:
            best, other = (len(parts), found), best
        parts.append(mixed)
        pools, cut, late = replace(mixed.pools, mixed=None), mixed.pools.cut, (*late, *more)
    if best is None:
        return None
    slow = never_queued(pools.dropped.slow, question.rate_per_second, reach="the asked rate")
    return QuickChoice(question, aim, tuple(parts), *best, cut=cut, pruned=(*slow, *late), other=other)


def _quickest_of(parts: Sequence[Part], aim: Aim) -> tuple[int, Quickest] | None:
    """Return the quickest choice of several parts, and the place of its part; None where nothing fits."""
    best: tuple[int, Quickest] | None = None
    for place, part in enumerate(parts):
        found = quickest(part.timed, aim, best[1].seconds if best else np.inf) if part.timed else None
        best = best if found is None else (place, found)
    return best


def _timed(question: Question, pools: Pools) -> Part:
    assert question.rate_per_second is not None
    return Part(pools, tuple(TimedSide(side, question.rate_per_second) for side in pools.sides))


def _aggregated(question: Question, pools: Pools, aim: Aim, known_seconds: float) -> tuple[Part, tuple[Pruned, ...]]:
    """Return the columns of aggregated instances in which a request alone is quicker than is known, and the others."""
    mixed = with_mixed(question, pools, aim, None)
    assert mixed.mixed is not None and question.rate_per_second is not None
    offers = mixed.mixed.offers
    kept = np.flatnonzero(offers.alone_seconds < known_seconds)
    left = replace(mixed, mixed=make_side(question, "mixed", offers.select(kept)))
    part = _timed(question, left) if kept.size else Part(left, ())
    late = Pruned(
        what=AGGREGATED,
        number=len(offers) - kept.size,
        bound=known_seconds,
        unit="s",
        why="a request alone takes as long as in what was found before, or longer",
    )
    return part, (late,) if late.number else ()


def quick_plan(question: Question, pools: Pools, choice: Choice) -> Plan | None:
    """Return the plan of chosen columns at the asked rate, with the budgets and caps that are quickest at it."""
    rate = question.rate_per_second
    assert rate is not None
    chosen = [
        (side.chosen(column, rate), int(side.left[column]), int(side.instances[column]))
        for side, column in zip(pools.sides, choice, strict=True)
    ]
    if pools.mixed is not None:
        ((server, left, instances),) = chosen
        assert isinstance(server, MixedServer)
        question = on_machines(question, pools.mixed.machines)
        return make_aggregated(question, server, instances, max(server.pool_capacity(left), rate) / left, rate)
    (prefill, left, prefills), (decode, _, decodes) = chosen
    assert isinstance(prefill, PrefillServer) and isinstance(decode, DecodeServer)
    return make_plan(
        question,
        (prefill, prefills, prefill.pool_capacity(left) / left),
        (decode, decodes, decode.pool_capacity(1)),
        rate,
    )
