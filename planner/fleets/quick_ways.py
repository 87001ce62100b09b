"""Aggregated instances of a fleet's models that may be part of its quickest plans."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from planner.fleets.members import Fleet, Member, asked_rate, on_pools
from planner.fleets.ways import Gathered, Option, aggregated_of, formats_of, grounds, side_of
from planner.search.parts import aim_of, gather, make_side, with_mixed
from planner.search.proof import Pruned, never_queued
from planner.search.shapes import not_aggregated


def with_aggregated(
    separate: Gathered, shares: Sequence[float], known_seconds: float
) -> tuple[Gathered, tuple[Pruned, ...]]:
    """Return the options with those of aggregated instances that may be quicker, and what is left out.

    A row is left out where a request alone in it, with all other models at their very quickest, takes the mean over all
    requests to what is known to be reached, or beyond. ``shares`` are what each model has of all requests.
    """
    fleet = separate.fleet
    costed = [list(_aggregated(fleet, member)) for member in fleet.members]
    quickest = [
        share * min((_alone(option) for option in (*own, *more)), default=math.inf)
        for share, own, more in zip(shares, separate.options, costed, strict=True)
    ]
    options: list[tuple[Option, ...]] = []
    pruned: list[Pruned] = []
    for number, (member, found) in enumerate(zip(fleet.members, costed, strict=True)):
        beside = sum(quickest[:number]) + sum(quickest[number + 1 :])
        limit = (known_seconds - beside) / shares[number]
        kept = [_quick_enough(member, option, limit) for option in found]
        options.append((*separate.options[number], *(option for option in kept if option.sides[0].size)))
        pruned += _left_out(member, found, kept, limit)
    evaluated = separate.evaluated + sum(option.pools.count.total for own in costed for option in own)
    return replace(separate, options=tuple(options), evaluated=evaluated), tuple(pruned)


def _aggregated(fleet: Fleet, member: Member) -> Iterator[Option]:
    """Yield a member's aggregated instances on each pool, in each format."""
    for formed in formats_of(member):
        for machines in grounds(formed):
            question = on_pools(fleet, formed, (machines, machines))
            if not_aggregated(question) is None:
                pools = gather(replace(question, shape="aggregated"))
                yield Option(question, with_mixed(question, pools, aim_of(question), None))


def _quick_enough(member: Member, option: Option, limit_seconds: float) -> Option:
    """Return the rows of an option in which a request alone takes less than a limit, as the member's columns."""
    (side,) = option.sides
    kept = side.offers.select(np.flatnonzero(side.offers.alone_seconds < limit_seconds))
    return replace(
        option, pools=replace(option.pools, mixed=side_of(member, make_side(option.question, "mixed", kept)))
    )


def _alone(option: Option) -> float:
    """Return what a request alone takes in the quickest instances of an option."""
    return sum(float(side.offers.alone_seconds.min(initial=math.inf)) for side in option.sides)


def _left_out(member: Member, found: Sequence[Option], kept: Sequence[Option], limit: float) -> Iterator[Pruned]:
    """Yield how many aggregated instances of a member are no columns, and why."""
    what = aggregated_of(member)
    slow = sum(option.pools.dropped.slow for option in found)
    yield from never_queued(slow, asked_rate(member), what=what, reach="the asked rate")
    late = sum(len(option.sides[0].offers) for option in found) - sum(len(option.sides[0].offers) for option in kept)
    if late:
        why = "a request alone takes the mean of the fleet beyond what was found before, the other models at their best"
        yield Pruned(what=what, number=late, bound=limit, unit="s", why=why)
