"""The ways of a fleet's models: prefill and decode instances, each on any pool, and aggregated instances on one.

Separate pools are costed and settled first, for their queues are quick. Aggregated instances of a model on a pool are
then left out where their bound shows that they beat no separate pools there: in its place these, which take no more
devices of the same pool and carry as much, keep every constraint and worsen no objective.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from planner.fleets.members import Fleet, Member, asked_rate, on_pools
from planner.instances.decode_candidates import Count
from planner.offers.choice import Aim, settle
from planner.offers.columns import Side
from planner.offers.decode_offers import decode_offers
from planner.offers.offer import Floats, Ints, Offers
from planner.plans.quantised import in_formats
from planner.question import Machines, Question
from planner.search.infeasible import slowest_transfer
from planner.search.parts import Costing, Pools, compatible, gather, with_mixed
from planner.search.proof import Pruned, never_costed, never_queued
from planner.search.routes import Programme, settle_picks
from planner.search.shapes import SLACK, Known, not_aggregated, why_not_apart
from planner.survival import lost_of_sizes


@dataclass(frozen=True, slots=True)
class Option:
    """A way of a member: the question on the pools that it takes, and the columns of its roles."""

    question: Question
    pools: Pools

    @property
    def sides(self) -> tuple[Side, ...]:
        """The columns of each role, or those of aggregated instances."""
        return self.pools.sides

    @property
    def budgets(self) -> set[str]:
        """The pools that it takes devices from."""
        return {side.machines.budget for side in self.sides}


@dataclass(frozen=True, slots=True)
class Gathered:
    """Every option of every member, [members][options], costed once."""

    fleet: Fleet
    options: tuple[tuple[Option, ...], ...]
    evaluated: int
    without: dict[str, tuple[Question, bool]] = field(default_factory=dict)
    """Members without separate pools, with a question and whether it is their prefill that has no instance."""
    never_queued: tuple[Pruned, ...] = ()
    """Decode instances beyond the grid and aggregated ones that were left out."""

    @property
    def closed(self) -> list[str]:
        """Names of members without any option."""
        return [member.name for member, own in zip(self.fleet.members, self.options, strict=True) if not own]

    def programme(self, aim: Aim, members: Sequence[int] | None = None) -> Programme:
        """Return the programme of all members, or of those with the given numbers."""
        chosen = range(len(self.options)) if members is None else members
        ways = tuple(tuple(option.sides for option in self.options[number]) for number in chosen)
        return Programme(ways, aim, whole_nodes=not self.fleet.share_nodes)


def gather_fleet(fleet: Fleet, transfers: Mapping[str, float] | None = None) -> Gathered:
    """Cost every candidate of separate pools of every member on every pool that it may stand on; no queue is solved.

    ``transfers``: seconds that a prompt's KV takes at least, by member.
    """
    longer = transfers or {}
    options, evaluated = [], 0
    without: dict[str, tuple[Question, bool]] = {}
    for member in fleet.members:
        own: list[Option] = []
        lacks, costing = True, Costing()  # a role is costed once in each of its formats
        for formed in formats_of(member):
            least = longer.get(member.name)
            pools = (
                _gather_pools(fleet, formed, least or 0.0)
                if member.pools
                else {"": gather(on_pools(fleet, formed), transfer_seconds=least, costing=costing)}
            )
            evaluated += sum(part.count.total for part in pools.values()) if member.pools else 0
            own += _options(fleet, formed, pools)
            lacks = lacks and not any(part.prefill.offers for part in pools.values())
        evaluated += costing.count.total
        options.append(tuple(own))
        if not own:
            without[member.name] = (on_pools(fleet, formed), lacks)
    return Gathered(fleet, tuple(options), evaluated, without)


def formats_of(member: Member) -> Iterator[Member]:
    """Yield the member in each of its number formats."""
    return (replace(member, question=question) for question in in_formats(member.question))


def _gather_pools(fleet: Fleet, member: Member, least_transfer_seconds: float) -> dict[str, Pools]:
    """Cost a member on each pool that it may stand on; KV may come from whichever takes longest."""
    at = {machines.budget: machines for machines in member.pools}
    pairs = [on_pools(fleet, member, (first, second)) for first in at.values() for second in at.values()]
    transfer = max(least_transfer_seconds, *(slowest_transfer(question) for question in pairs))
    return {
        name: gather(on_pools(fleet, member, (machines, machines)), transfer_seconds=transfer)
        for name, machines in at.items()
    }


def _options(fleet: Fleet, member: Member, pools: dict[str, Pools]) -> list[Option]:
    """Return the separate ways of a member: every pair of pools, in the parts that its engine lets share KV."""
    made: dict[int, tuple[Side, Side]] = {}  # the key's own side is kept, so that no other gets its id

    def side(own: Side) -> Side:
        """Return the member's columns; each made once."""
        if id(own) not in made:
            made[id(own)] = own, side_of(member, own)
        return made[id(own)][1]

    found = []
    for first in pools.values():
        for second in pools.values():
            machines = (first.prefill.machines, second.decode.machines)
            question = on_pools(fleet, member, machines)
            for part in compatible(question, _fed(fleet, question, first, second)):
                prefill, decode = side(part.prefill), side(part.decode)
                if prefill.offers and decode.offers:
                    found.append(Option(question, replace(part, prefill=prefill, decode=decode)))
    return found


def _fed(fleet: Fleet, question: Question, first: Pools, second: Pools) -> Pools:
    """Return prefill instances of one pool and decode instances of another.

    Where time is what is made small, the prefill instances are costed anew: it ends when the KV is in the other pool.
    """
    if first is second or fleet.objective != "latency":
        return replace(first, decode=second.decode)
    costing = Costing()
    prefill = costing.prefill(question, costing.space(question, "prefill").rows).side
    return replace(first, prefill=prefill, decode=second.decode)


def side_of(member: Member, own: Side) -> Side:
    """Return columns under the member's name, with rates in units of what it has to serve."""
    role, loss = f"{member.name} {own.role}", member.question.survive
    return Side(role, own.machines, own.offers, loss, asked_rate(member), own.most_instances)


def every_way(gathered: Gathered, aim: Aim) -> tuple[Gathered, float]:
    """Return the options with all that may beat separate pools of the grid, and a rate that is carried at least.

    These are decode instances beyond the grid, attention and experts on nodes of their own, and aggregated ones.

    It is in units of what is asked: the aim's, or what separate pools carry, 0 where they do not hold all members.
    """
    known = aim.rate or 0.0
    if aim.rate is None and not gathered.closed:
        programme = gathered.programme(aim)
        picks = settle_picks(programme)
        known = programme.carried(picks) if picks is not None else 0.0
    return _with_aggregated(_with_apart(gathered, aim, known), aim, known), known


def _with_apart(gathered: Gathered, aim: Aim, known: float) -> Gathered:
    """Return the options with the decode rows beyond the grid that may take less of a pool than those of it."""
    count = Count()
    options: list[tuple[Option, ...]] = []
    pruned: list[Pruned] = []
    for member, own in zip(gathered.fleet.members, gathered.options, strict=True):
        wider: dict[int, Side] = {}
        dropped = 0
        for option in own:
            side = option.pools.decode
            if id(side) not in wider:
                wider[id(side)], more = _beyond_grid(option, aim, known, count)
                dropped += more
        options.append(
            tuple(replace(each, pools=replace(each.pools, decode=wider[id(each.pools.decode)])) for each in own)
        )
        left = never_costed(dropped, known * asked_rate(member))
        pruned += [replace(each, what=f"{member.name}: {each.what}") for each in left]
    evaluated = gathered.evaluated + count.total
    return replace(gathered, options=tuple(options), evaluated=evaluated, never_queued=tuple(pruned))


def _beyond_grid(option: Option, aim: Aim, known: float, count: Count) -> tuple[Side, int]:
    """Return the decode columns of an option with those beyond the grid, and how many rows a bound leaves out.

    Where a rate is asked a column is of use only on fewer devices than any of the grid that carries it.
    """
    side, question = option.pools.decode, option.question
    if not known or why_not_apart(question) is not None:
        return side, 0
    from planner.instances.apart import apart_rows  # only a model with experts needs it

    most = aim.devices[side.machines.budget]
    choice = settle([side], replace(aim, objective="chips"), aim.rate) if aim.rate is not None else None
    if choice is not None:
        most = min(most, int(side.room[choice[0]]) - 1)

    def needed(sizes: Ints) -> Floats:
        held = most // sizes - lost_of_sizes(question.survive, sizes, side.machines.devices_per_node)
        return np.where(held > 0, known * side.unit * (1 - SLACK) / np.maximum(held, 1), np.inf)

    found = apart_rows(question, needed, count)
    offers = decode_offers(question, found.rows, count, option.pools.transfer_seconds)
    if not offers:
        return side, found.dropped
    joined = Offers.joined([side.offers, offers])
    joined = replace(joined, build=cache(joined.build))
    wider = Side(side.role, side.machines, joined, question.survive, side.unit, side.most_instances)
    wider.beyond_grid = True
    return wider, found.dropped


def _with_aggregated(gathered: Gathered, aim: Aim, known: float) -> Gathered:
    """Return the options with those of aggregated instances that may beat separate pools."""
    options: list[tuple[Option, ...]] = []
    pruned = list(gathered.never_queued)
    evaluated = gathered.evaluated
    for number, member in enumerate(gathered.fleet.members):
        found = list(_aggregated(gathered, number, aim, known))
        evaluated += sum(option.pools.count.total for option in found)
        pruned += _left_out(member, found, known)
        options.append((*gathered.options[number], *(option for option in found if option.sides[0].size)))
    return replace(gathered, options=tuple(options), evaluated=evaluated, never_queued=tuple(pruned))


def _aggregated(gathered: Gathered, number: int, aim: Aim, growth: float) -> Iterator[Option]:
    """Yield the aggregated way of a member on each pool, with the columns that may beat separate pools there."""
    fleet, member = gathered.fleet, gathered.fleet.members[number]
    beaten: dict[str, Known | None] = {}
    for formed in formats_of(member):
        for machines in grounds(formed):
            question = on_pools(fleet, formed, (machines, machines))
            if not_aggregated(question) is not None:
                continue
            if machines.budget not in beaten:
                beaten[machines.budget] = _separate(gathered, number, machines.budget, aim, growth)
            known = beaten[machines.budget]
            own = Aim(
                devices=aim.devices,
                objective="throughput" if aim.rate is None else "chips",
                rate=None if aim.rate is None else aim.rate * asked_rate(member),
            )
            pools = gather(replace(question, shape="aggregated"))
            pools = with_mixed(question, pools, own, known)
            assert pools.mixed is not None
            yield Option(question, replace(pools, mixed=side_of(formed, pools.mixed)))


def grounds(member: Member) -> tuple[Machines, ...]:
    """Return the pools on which both roles of a member may stand."""
    if member.pools:
        return member.pools
    question = member.question
    if question.prefill.budget == question.decode.budget:
        return (question.decode,)
    return (question.decode, question.prefill) if question.shape == "aggregated" else ()


def _separate(gathered: Gathered, number: int, pool: str, aim: Aim, growth: float) -> Known | None:
    """Return what separate pools of a member do in one pool alone; None where they do not carry the rate there.

    Of a common growth: what all members carry anyway.
    """
    asked = asked_rate(gathered.fleet.members[number])
    if aim.rate is None:
        return Known(rate_per_second=growth * asked, devices=0, cost_per_hour=0.0) if growth else None
    ways = tuple(option.sides for option in gathered.options[number] if option.budgets == {pool})
    programme = Programme((ways,), replace(aim, objective="chips"))
    picks = settle_picks(programme, aim.rate) if ways else None
    if picks is None:
        return None
    room = sum(int(side.room[column]) for side, column in programme.picked(picks))
    return Known(rate_per_second=aim.rate * asked, devices=room, cost_per_hour=0.0)


def _left_out(member: Member, options: Sequence[Option], share: float) -> list[Pruned]:
    """Return how many aggregated instances of a member no queue was solved for, and under which bound."""
    rows = sum(option.pools.dropped.slow for option in options)
    reach = "that rate, or not on fewer devices than separate pools take there"
    return never_queued(rows, share * asked_rate(member), what=aggregated_of(member), reach=reach)


def aggregated_of(member: Member) -> str:
    """Name the aggregated instances of a member."""
    return f"aggregated instances of {member.name}, by pool, strategy, layout and MTP depth"
