"""The options of every model: prefill and decode instances, each on any pool, or aggregated instances on one pool.

Separate pools are costed and solved first, as their queues are quick. They are the incumbent on their devices. Decode
beyond the grid (AFD on whole nodes) and aggregated instances are then pruned where their bound does not beat it: an
incumbent with no more devices and at least the same rate can replace them, whatever the objective.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from planner.engines.loader import runs_on
from planner.engines.spec import ShapeName
from planner.instances.apart import apart_rows
from planner.instances.candidates import Count
from planner.instances.encoding import apart, ways_to_encode
from planner.instances.space import Role, Row, role_rows
from planner.objective import Aim, Incumbent
from planner.offers.decode_offers import decode_offers
from planner.plans.quantised import alternatives
from planner.programme.columns import Picks, Side
from planner.programme.programme import Programme
from planner.programme.pruned import Pruned, late_alone, never_costed, never_queued
from planner.question import Machines, Question
from planner.search.fleet import Fleet, Member, on_pools, shares
from planner.search.gather import (
    Aggregated,
    Costing,
    Cut,
    Option,
    Pools,
    aggregated,
    gather,
    needed_beside,
    not_aggregated,
    slowest_transfer,
    why_not_apart,
)

Rows = dict[Role, list[Row]]  # rows to search, by role; a role that is missing is searched whole


@dataclass(frozen=True, slots=True)
class Gathered:
    """Every option of every member, [members][options], costed once."""

    fleet: Fleet
    options: tuple[tuple[Option, ...], ...]
    count: Count
    roles: tuple[tuple[Question, Pools], ...] = ()
    """For every member its question and its separate pools on its first machines."""
    cut: Cut = field(default_factory=dict)
    left_out: tuple[Pruned, ...] = ()  # pruned decode instances beyond the grid and pruned aggregated instances

    @property
    def closed(self) -> list[int]:
        """Members without any option."""
        return [number for number, own in enumerate(self.options) if not own]

    def behind(self, picks: Picks, longer: Mapping[str, float]) -> "Gathered":
        """Return the options with KV transfers of so many seconds, by member, in the separate ones that are picked."""
        options = [list(own) for own in self.options]
        for member, own, pick in zip(self.fleet.members, options, picks, strict=True):
            if member.name in longer:
                own[pick.way] = own[pick.way].behind(longer[member.name])
        return replace(self, options=tuple(map(tuple, options)))

    def programme(self, aim: Aim, members: Sequence[int] | None = None) -> Programme:
        """Return the programme of all members, or of those with the given numbers."""
        chosen = range(len(self.options)) if members is None else members
        ways = tuple(tuple(option.sides for option in self.options[number]) for number in chosen)
        weights = shares(self.fleet)
        weighted = tuple(weights[number] for number in chosen)
        return Programme(ways, aim, not self.fleet.share_nodes, weighted, self.count)


class Ways(NamedTuple):
    """All options that may be best, and the incumbent of separate pools."""

    gathered: Gathered
    separate: Picks | None  # the best choice of separate pools; None where none fits, or where it was not needed
    least: float  # lower bound on the rate, in units of the asked rates: the aim's rate, or that of separate pools


def gather_fleet(
    fleet: Fleet,
    rows: Rows | None = None,
    costing: Costing | None = None,
) -> Gathered:
    """Cost every candidate of separate pools of every member on every pool that it may stand on; no queue is solved.

    ``costing``: costs known already.
    """
    count = costing.count if costing else Count()
    options: list[tuple[Option, ...]] = []
    roles: list[tuple[Question, Pools]] = []
    cut: Cut = {}
    for member in fleet.members:
        known, own = costing or Costing(count, member.name), list[Option]()
        pools: dict[str, tuple[Question, Pools]] = {}
        for formed in formats_of(member, "disaggregated"):
            pools = _gather_pools(fleet, formed, rows, known)
            for option in _options(fleet, formed, pools):
                fed = known.fed(option)
                own += known.by_links(fed) if fleet.single else [fed]
        if not pools:  # the engine has encode instances only before aggregated ones
            alone = replace(member.question, shape="aggregated")
            pools = _gather_pools(fleet, member._replace(question=alone), rows, known)
        roles.append(next(iter(pools.values())))
        cut = _joined(cut, roles[-1][1].cut)
        options.append(tuple(own))
    return Gathered(fleet, tuple(options), count, tuple(roles), cut)


def formats_of(member: Member, shape: ShapeName) -> Iterator[Member]:
    """Yield the member with each engine, number format and way to encode pictures, on the pools where the engine runs.

    Only those ways to encode that the question allows and the engine supports before the shape.
    """
    for question in alternatives(member.question):
        pools = member.pools
        if member.question.engines:
            pools = tuple(machines for machines in pools if runs_on(question.engine, machines.hardware))
        if pools or not member.pools:
            for share in ways_to_encode(question, shape).shares:
                yield member._replace(question=apart(question, share), pools=pools)


def _gather_pools(
    fleet: Fleet, member: Member, rows: Rows | None, costing: Costing
) -> dict[str, tuple[Question, Pools]]:
    """Cost a member on each pool that it may stand on, with the slowest KV transfer from any pool."""
    if not member.pools:
        question = on_pools(fleet, member)
        return {"": (question, gather(question, rows, None, costing))}
    pairs = [on_pools(fleet, member, (first, second)) for first in member.pools for second in member.pools]
    transfer = max(slowest_transfer(question) for question in pairs)
    alone = {machines.budget: on_pools(fleet, member, (machines, machines)) for machines in member.pools}
    return {name: (question, gather(question, rows, transfer, costing)) for name, question in alone.items()}


def _options(fleet: Fleet, member: Member, pools: Mapping[str, tuple[Question, Pools]]) -> Iterator[Option]:
    """Yield the separate options of a member: every pair of pools, split by what its engine lets share KV.

    With the latency objective prefill is costed per pair, as it ends when the KV has reached the other pool.
    """
    for own, first in pools.values():
        for other, second in pools.values():
            if own is other:
                yield from first.options(own)
                continue
            question = on_pools(fleet, member, (own.prefill, other.decode))
            fed = first._replace(decode=second.decode)
            if Aim(devices={}, objective=question.objective).goal.timed:
                costing = Costing(model=member.name)
                fed = fed._replace(prefill=costing.prefill(question, role_rows(question, "prefill")))
            yield from fed.options(question)


def every_way(separate: Gathered, aim: Aim, rows: Rows | None = None, known: float = 0.0) -> Ways:
    """Return the options with all others that may beat separate pools of the grid and the rate ``known``.

    ``rows`` are the rows to search, None for all.
    """
    programme = None if separate.closed else separate.programme(aim)
    wanted = separate.fleet.single or aim.rate is None or aim.goal.timed
    picks = programme.settle(known) if programme is not None and wanted else None
    least = programme.carried(picks) if programme is not None and picks is not None and aim.rate is None else known
    least = aim.rate or least
    wide = with_apart(separate, aim, least) if rows is None and least and not aim.goal.timed else separate
    if programme is not None and picks is not None and wide is not separate:
        programme = wide.programme(aim)
        picks = programme.settle(least) or picks
        least = aim.rate or programme.carried(picks)
    seconds = programme.seconds(picks) if programme is not None and picks is not None and aim.goal.timed else math.inf
    return Ways(_with_aggregated(wide, aim, least, seconds, rows), picks, least)


def unpruned(separate: Gathered, aim: Aim, rows: Rows | None = None) -> Gathered:
    """Return the options with every aggregated instance, or those of given rows, without pruning by an incumbent."""
    return _with_aggregated(separate, aim, 0.0, math.inf, rows)


def with_apart(gathered: Gathered, aim: Aim, least: float) -> Gathered:
    """Return the options with the decode rows beyond the grid that may beat rows of the grid.

    They come behind the others, in an option with each pool of prefill instances.
    """
    beyond: dict[int, Side | None] = {}
    options: list[tuple[Option, ...]] = []
    pruned: list[Pruned] = []
    for member, own in zip(gathered.fleet.members, gathered.options, strict=True):
        dropped, more, paired = 0, list[Option](), set[int]()
        for option in own:
            whole = option.whole or option
            side, question = whole.decode, option.question
            spread = side.machines.devices != question.decode.devices  # the part of a spread pool
            if not spread and id(side) not in beyond and why_not_apart(question) is None:
                known = Incumbent(rate=least, spent=(0.0, 0.0))
                needed = needed_beside(question, aim, known, (whole.sides[-2], side))
                own_clock, times = question.on_clock("decode"), question.stretch_of("decode")
                rows = apart_rows(own_clock, needed, gathered.count)
                dropped += rows.dropped
                offers = decode_offers(own_clock, rows.rows, gathered.count, whole.transfer_seconds)
                beyond[id(side)] = side.beyond(offers.stretched(times)) if offers else None
            apart = beyond.get(id(side))
            if apart is not None and id(option.sides[-2]) not in paired:
                paired.add(id(option.sides[-2]))
                more.append(option._replace(sides=(*option.sides[:-1], apart), transfer_seconds=whole.transfer_seconds))
        options.append((*own, *more))
        pruned += never_costed(member.name, dropped, least * (member.question.rate_per_second or 1.0))
    return replace(gathered, options=tuple(options), left_out=tuple(pruned))


def _with_aggregated(gathered: Gathered, aim: Aim, least: float, seconds: float, rows: Rows | None = None) -> Gathered:
    """Return the options with the aggregated instances that may beat separate pools.

    With the latency objective a row is pruned if the mean over all requests reaches the incumbent's ``seconds`` even
    when a request is alone in the row and all other models are at their quickest.
    """
    members, weights = gathered.fleet.members, shares(gathered.fleet)
    costed = [list(_aggregated(gathered, number, aim, least, rows)) for number in range(len(members))]
    limits = [math.inf] * len(members)
    if aim.goal.timed:
        found = [[*own, *(option for option, _ in more)] for own, more in zip(gathered.options, costed, strict=True)]
        quickest = [share * min(map(_alone, own), default=math.inf) for share, own in zip(weights, found, strict=True)]
        others = [sum(quickest[:number]) + sum(quickest[number + 1 :]) for number in range(len(members))]
        limits = [(seconds - other) / share for other, share in zip(others, weights, strict=True)]
    options, pruned, cut = [], list(gathered.left_out), gathered.cut
    for number, member in enumerate(members):
        kept = [_quick_enough(option, limits[number], aim) for option, _ in costed[number]]
        options.append((*gathered.options[number], *(option for option in kept if option.decode.size)))
        slow = sum(each.slow for _, each in costed[number])
        pruned += never_queued(member.name, slow, least * (member.question.rate_per_second or 1.0), aim.goal)
        late = sum(len(option.decode.offers) for option, _ in costed[number])
        pruned += late_alone(member.name, late - sum(len(option.decode.offers) for option in kept), limits[number])
        for _, each in costed[number]:
            cut = _joined(cut, each.cut)
    question = members[0].question
    why_not = not_aggregated(question) if gathered.fleet.single else None
    if why_not is not None and question.shape != "disaggregated":
        cut = cut | {"mixed": {why_not: 1}}
    return replace(gathered, options=tuple(options), left_out=tuple(pruned), cut=cut)


def _aggregated(
    gathered: Gathered, number: int, aim: Aim, least: float, rows: Rows | None
) -> Iterator[tuple[Option, Aggregated]]:
    """Yield the aggregated option of a member on each pool, with the columns that may beat separate pools there."""
    fleet, member = gathered.fleet, gathered.fleet.members[number]
    beaten: dict[str, Incumbent | None] = {}
    costing = Costing(gathered.count, member.name)
    mixed = None if rows is None else rows.get("mixed", [])
    for formed in formats_of(member, "aggregated"):
        for machines in grounds(formed):
            question = on_pools(fleet, formed, (machines, machines))
            if not_aggregated(question) is not None:
                continue
            if machines.budget not in beaten:
                beaten[machines.budget] = _separate(gathered, number, machines.budget, aim, least)
            found = aggregated(question, aim, beaten[machines.budget], mixed, gathered.count)
            yield costing.fed(found.option(question, member.name)), found


def grounds(member: Member) -> tuple[Machines, ...]:
    """Return the pools on which both roles of a member may stand."""
    question = member.question
    if member.pools:
        return member.pools
    if question.one_pool:
        return (question.decode,)
    return (question.decode, question.prefill) if question.shape == "aggregated" else ()


def _separate(gathered: Gathered, number: int, pool: str, aim: Aim, least: float) -> Incumbent | None:
    """Return the incumbent of a member's separate pools on one pool; None where they do not carry the rate there.

    With a common growth, the rate is what all members carry in any case.
    """
    if aim.goal.timed or (aim.rate is None and not least):
        return None
    if aim.rate is None and not gathered.fleet.single:
        return Incumbent(rate=least, spent=(0.0, 0.0))
    there = [
        option.sides for option in gathered.options[number] if {side.machines.budget for side in option.sides} == {pool}
    ]
    programme = Programme((tuple(there),), aim, not gathered.fleet.share_nodes)
    picks = programme.settle(least) if there else None
    if picks is None:  # an option that carries less than another pool cannot be best
        return None if aim.rate is not None else Incumbent(rate=least, spent=(0.0, 0.0))
    return programme.incumbent(picks)


def _alone(option: Option) -> float:
    """Return the seconds of a request alone in the quickest instances of an option."""
    return sum(float(side.offers.alone_seconds.min(initial=math.inf)) for side in option.sides)


def _quick_enough(option: Option, limit_seconds: float, aim: Aim) -> Option:
    """Return the rows of an option in which a request alone takes less than a limit."""
    if not aim.goal.timed:
        return option
    side = option.decode
    kept = side.offers.select(np.flatnonzero(side.offers.alone_seconds < limit_seconds))
    return option._replace(sides=(*option.encode, side.of(kept)))


def _joined(one: Cut, other: Cut) -> Cut:
    """Return the sum of two counts of cuts, by role and rule."""
    added = {role: Counter(one.get(role, {})) + Counter(cut) for role, cut in other.items()}
    return one | {role: dict(sorted(cut.items())) for role, cut in added.items()}
