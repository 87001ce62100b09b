"""Why a question or a fleet has no plan: the binding limit, and the nearest changes, each solved."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ground.units import format_duration, rounded_down
from planner.instances.candidates import Count
from planner.instances.space import groups, role_rows
from planner.objective import LEAST_PART, Aim
from planner.offers.aggregated_offers import holding
from planner.offers.decode_offers import decode_offers
from planner.offers.prefill_offers import prefill_offers
from planner.plans.plan import Plan
from planner.plans.pools import PlannedPool
from planner.programme.columns import Side
from planner.programme.programme import Programme
from planner.question import Pin, Question, Role
from planner.search.answer import Answer, Change
from planner.search.changes.missing import (
    fastest,
    late_in_encode,
    limit_of,
    missing,
    missing_anyhow,
    smallest_plan,
    unsurvivable,
    without_plan,
)
from planner.search.changes.shortage import helped, nearest_rate, not_carried, shortage, told_rate
from planner.search.changes.variations import alike, most_carried
from planner.search.search import Aside, at_need, question_of, search
from planner.search.solve import Choice, Found, carried_in_time, choose
from planner.search.sure import is_plain
from planner.search.ways import Gathered, every_way, gather_fleet

_LONG_SECONDS = 1e9  # a latency limit that never binds
_IN_PASSES = ("batch", "tokens")
MOST_FACTOR = 16  # pools are enlarged by at most this factor
_BEYOND = 1.05  # factor on the size that would suffice in proportion, which is tried first
_MANY_NODES, _MORE_THAN_SHARE = 8, 2.0
"""Pools of so many nodes carry in proportion to their devices, or so many times more: instances fit larger ones better.
"""


def answered(
    question: Question,
    *,
    beside: bool = True,
    aside: Aside = at_need,
    worth: Callable[[Plan], bool] | None = None,
) -> Answer:
    """Return the answer to a question as ``search`` does; a refusal with its reason and the nearest changes, solved."""
    refuse = _nearest_refused if is_plain(question) else None
    answer = search(question, beside=beside, aside=aside, worth=worth, refuse=refuse)
    if answer.best is not None or refuse is not None:
        return answer
    most = most_carried(replace(question, objective="throughput", rate_per_second=None), aside=aside)
    feasible = alike()

    def carried(changed: Question) -> bool:
        """Whether the plan of the largest rate, or another one, carries a rate."""
        return (changed.offline is None and (changed.rate_per_second or 0.0) <= most) or feasible(changed)

    rated = nearest_rate(question, answer.binding_limit, most, carried)
    told = f"no rate at all keeps the limits: {answer.binding_limit} binds"
    if most and question.rate_per_second is not None:
        told = not_carried(question, told_rate(rated, most))
    elif not most:  # often for a reason that has nothing to do with the confidence
        as_predicted = replace(question, confidence=None, headroom=0.0)
        plain = search(as_predicted, beside=False, refuse=_carried_by_none)
        told = told if plain.best else plain.explanation
        if plain.best and answer.binding_limit == "devices":  # of which each role needs more for times so long
            told = search(question, beside=False, refuse=_carried_by_none).explanation.removeprefix(answer.explanation)
    return helped(replace(answer, explanation=f"{answer.explanation}{told}"), question, most, rated, feasible)


def _carried_by_none(found: Sequence[Found], question: Question) -> Answer:
    """Return the reason why no alternative has a plan, without changes."""
    best, chosen = _nearest(found)
    return _refused(best.separate, chosen)


def _nearest_refused(found: Sequence[Found], question: Question) -> Answer:
    """Return the refusal of the alternative that carries most, or lacks least."""
    best, chosen = _nearest(found)
    cut = (chosen.gathered if isinstance(chosen, Choice) else chosen).cut
    return replace(refused(best.separate, question, chosen), cut=cut)


def _nearest(found: Sequence[Found]) -> tuple[Found, Choice | Gathered]:
    """Return the result that carries most, or lacks least, with the choice that carries most."""

    def lack(tried: tuple[Found, Choice | Gathered]) -> tuple[bool, float]:
        """Return whether memory lacks, and the devices that hold a plan; else the latency of an idle instance."""
        asked, limit = question_of(tried[0]), limit_of(tried[0].separate)
        if limit == "memory":
            return True, smallest_plan(asked)
        return False, fastest(asked, ttft=limit == "ttft") or math.inf

    known, carrying, idle = 0.0, None, []
    for each in found:
        count = each.separate.count
        count.allow(count.turns, len(found))
        aim = Aim(devices=each.separate.fleet.devices, objective="throughput")
        chosen = choose(each.separate, aim, known=known)
        if isinstance(chosen, Choice):
            known, carrying = chosen.carried, (each, chosen)
        idle.append((each, chosen))
    return carrying or (min(idle, key=lack) if len(idle) > 1 else idle[0])


def unheld(question: Question) -> tuple[str, str] | None:
    """Return (binding limit, sentence) where memory does not hold the given batch or tokens."""
    for role, pin in question.pins:
        for field in _IN_PASSES:
            if getattr(pin, field) is None or _held(question, role) or not _held(_without(question, field), role):
                continue
            return (
                "memory",
                f"--{field} {role}={getattr(pin, field)}: no {role} instance that may be holds as many",
            )
    return None


def _held(question: Question, role: Role) -> bool:
    """Whether an instance of a role fits in memory, whatever its latency."""
    loose, rows = replace(question, ttft_seconds=_LONG_SECONDS, tpot_seconds=_LONG_SECONDS), role_rows(question, role)
    if role == "mixed":
        return any(holding(loose, group).size for group in groups(loose, role, rows, min(question.drafts)))
    offers = prefill_offers(loose, rows, Count()) if role == "prefill" else decode_offers(loose, rows, Count(), 0.0)
    return len(offers) > 0


def _without(question: Question, field: str) -> Question:
    """Return the question with one given field left to the search."""
    return replace(question, pins=tuple((role, replace(pin, **{field: None})) for role, pin in question.pins))


def eased(question: Question) -> Iterator[Change]:
    """Yield, for each given field, the value of the best plan without it, the others kept; each is solved."""
    for field in fields(Pin):
        if all(getattr(pin, field.name) is None for _, pin in question.pins):
            continue
        best = search(_without(question, field.name), beside=False).best
        if best is not None:
            flag, text = _as_in(best, question, field.name)
            yield Change(direction=flag, told=f"--{flag} {text}")


def _as_in(plan: Plan, question: Question, field: str) -> tuple[str, str]:
    """Return the flag of a field, and its value in a plan."""
    given = {role for role, pin in question.pins if getattr(pin, field) is not None}
    pins = tuple((pool.role, Pin(**{field: _value(pool, field)})) for _, pool in plan.pools() if pool.role in given)
    ((flag, text),) = replace(question, pins=pins).given.items() or (("shape", plan.pools()[0][0]),)
    return flag.replace("_", "-"), text


def _value(pool: PlannedPool, field: str) -> Any:
    candidate, row = pool.candidate, pool.candidate.row
    if field == "instances":
        return pool.instances
    if field in _IN_PASSES:
        name = {"prefill": "tokens_per_device", "mixed": "batched_tokens"}[pool.role] if field == "tokens" else field
        return getattr(candidate, name)
    return {"strategy": row.strategy, "redundant": row.redundant}.get(field, row.dedicated or "local")


def refused(separate: Gathered, asked: Question | None = None, most: Choice | Gathered | None = None) -> Answer:
    """Return the answer without a plan, with the binding constraint and the changes that would help.

    ``separate`` are the members' separate pools, ``most`` the choice with the largest rate, and ``asked`` the question
    of a single model with all its engines and formats. For given strategies and batches, the values of a plan without
    them are returned too.
    """
    most = most or choose(separate, Aim(devices=separate.fleet.devices, objective="throughput"))
    if not separate.fleet.single:
        return _refused(separate, most)
    question = asked or separate.fleet.members[0].question
    carried = (carried_in_time(most) if isinstance(most, Choice) else 0.0) * (question.rate_per_second or 1.0)
    feasible = alike(most)
    rated = nearest_rate(question, "devices", carried, feasible)
    wrong = unheld(question) if question.pins else None
    answer = _refused(separate, most, rated) if wrong is None else without_plan(separate, *wrong)
    answer = helped(answer, question, carried, rated, feasible)
    if not question.pins:
        return answer
    changes = tuple(eased(question))
    helps = " or ".join(change.told for change in changes)
    told = f"{answer.explanation}; or, with all else as given, {helps}" if helps else answer.explanation
    return replace(answer, explanation=told, changes=(*answer.changes, *changes))


def _refused(separate: Gathered, most: Choice | Gathered, rated: Change | None = None) -> Answer:
    """Return the refusal with its reason; ``rated``: the nearest rate of a single model."""
    fleet = separate.fleet
    aim = Aim(devices=fleet.devices, objective="throughput")
    gathered = most.gathered if isinstance(most, Choice) else most
    share = carried_in_time(most) if isinstance(most, Choice) else 0.0
    for number, member in enumerate(fleet.members if not share else ()):
        limit, told = _lacking(gathered, number, aim)
        if fleet.single and not limit:  # each role keeps its limit alone, and what transfers add to TPOT is too long
            kept = format_duration(member.question.tpot_seconds)
            limit, told = "tpot", f"KV reaches decode too late for --tpot {kept}, at every rate"
        if fleet.single:
            return without_plan(gathered, limit, told)
        if limit not in ("", "devices"):
            loss = f"survive {member.question.survive}" if limit == "survive" else limit
            return without_plan(gathered, f"{loss} of {member.name}", f"{member.name}: {told}")
    if fleet.single and isinstance(most, Choice):
        option = most.chosen[0][0]
        carried = told_rate(rated, share * (option.question.rate_per_second or 1.0))
        return without_plan(gathered, *shortage(option, carried), growth=share)
    pool, more = _larger_pools(gathered, share)
    eased = (*_with_shared_nodes(gathered), *_without_loss(gathered), *_without_one(gathered))
    changes = (*_rates(gathered, share), *more, *eased)
    limit = f"devices of {pool}" if pool else "devices"
    return without_plan(gathered, limit, _told(gathered, share), growth=share, changes=changes)


def _lacking(gathered: Gathered, number: int, aim: Aim) -> tuple[str, str]:
    """Return (binding limit, sentence) where no choice of a member's columns is feasible alone; empty where one is.

    The limit is what prefill and decode instances lack, or what aggregated instances lack where only they are asked for
    or memory lacks, of which they need least; else a loss, or the devices of both roles together.
    """
    question, pools = gathered.roles[number]
    if gathered.options[number] and gathered.programme(aim, [number]).carries_any():
        return "", ""
    if late := late_in_encode(question):
        return "ttft", late
    if question.shape == "aggregated" or not pools.prefill.offers or not pools.decode.offers:
        return missing_anyhow(question, "decode" if pools.prefill.offers else "prefill")
    for side in pools.sides:
        if side.size and not Programme((((side,),),), aim).carries_any():
            return missing(question, side.role)
    if question.survive is not None:
        return unsurvivable(question)
    least = {side.role: _least_devices(side, aim.devices) for side in pools.sides}
    needs = " and ".join(f"{role} at least {count}" for role, count in least.items())
    there = {side.machines.budget: side.machines.devices for side in pools.sides}
    available = ", ".join(f"{count} of {pool}" for pool, count in sorted(there.items()))
    return "devices", f"the roles together need more devices than there are: {needs}; available are {available}"


def _least_devices(side: Side, devices: Mapping[str, int]) -> int:
    """Return the fewest devices on which instances of a role keep their limit at some rate."""
    aim = Aim(devices=devices, objective="chips", rate=LEAST_PART * float(side.rate.max()))
    picks = Programme((((side,),),), aim).settle(aim.rate or 0.0)
    return int(side.room.min()) if picks is None else int(side.room[picks[0].columns[0]])


def _told(gathered: Gathered, share: float) -> str:
    """Return a sentence with the devices, the devices that each model needs alone, and the share of rates that fits."""
    fleet = gathered.fleet
    there = " and ".join(f"{count} devices of {pool}" for pool, count in sorted(fleet.devices.items()))
    needs = []
    for number, member in enumerate(fleet.members):
        programme = gathered.programme(_asked(fleet.devices), [number])
        picks = programme.settle(1.0)
        if picks is None:
            needs.append(f"{member.name} does not fit alone")
            continue
        picked = programme.picked(picks)
        used: dict[str, int] = {}
        for side, column in picked:
            used[side.machines.budget] = used.get(side.machines.budget, 0) + int(side.room[column])
        used = dict(sorted(used.items()))
        needs.append(f"{member.name} {' and '.join(f'{count} of {pool}' for pool, count in used.items())}")
    carried = f"carry {share:.1%} of every model's rate" if share else "do not hold an instance of every role"
    return f"{there} {carried}; alone would need: {', '.join(needs)}"


def _asked(devices: Mapping[str, int]) -> Aim:
    """Return the aim of carrying every asked rate on the fewest chips."""
    return Aim(devices=devices, objective="chips", rate=1.0)


def _rates(gathered: Gathered, share: float) -> Iterator[Change]:
    """Yield the factor on all rates with which they fit, rounded as printed."""
    for part in (1.0, 0.99, 0.97) if share else ():  # sizing and planning agree within what the queues are solved to
        factor = rounded_down(share * part)
        programme = gathered.programme(replace(_asked(gathered.fleet.devices), rate=factor))
        if programme.settle() is not None:
            yield Change(direction="rate", told=f"{factor:.3g} times every rate")
            return


def _larger_pools(gathered: Gathered, share: float) -> tuple[str | None, tuple[Change, ...]]:
    """Return the pools that suffice once enlarged, None for none, and the sizes that hold the fleet.

    Args: ``share`` of the rates that is carried now.
    """
    fleet, found = gathered.fleet, []
    for pool in sorted(fleet.devices):
        size = _least_size(gathered, [pool], share)
        if size is not None:
            found.append((pool, _nodes_change(gathered, [pool], size)))
    if found:
        return " or ".join(pool for pool, _ in found), tuple(change for _, change in found)
    size = _least_size(gathered, sorted(fleet.devices), share) if len(fleet.devices) > 1 else None
    return None, (_nodes_change(gathered, sorted(fleet.devices), size),) if size else ()


def _nodes_change(gathered: Gathered, pools: list[str], factor: float) -> Change:
    nodes = _per_node(gathered)
    sizes = ", ".join(
        f"{_grown(gathered.fleet.devices[pool], nodes[pool], factor) // nodes[pool]} nodes of {pool} instead of "
        f"{gathered.fleet.devices[pool] / nodes[pool]:g}"
        for pool in pools
    )
    return Change(direction="nodes", told=sizes)


def _per_node(gathered: Gathered) -> dict[str, int]:
    """Return the devices of a node of each pool."""
    sides = [side for options in gathered.options for option in options for side in option.sides]
    return {side.machines.budget: side.machines.devices_per_node for side in sides}


def _grown(devices: int, per_node: int, factor: float) -> int:
    """Devices times a factor, in whole nodes."""
    return max(math.ceil(devices * factor / per_node - 1e-9), 1) * per_node


def _least_size(gathered: Gathered, pools: list[str], share: float) -> float | None:
    """Return the least factor on some pools with which the fleet fits, to a node; None where none does.

    The costed columns are used where they suffice. Otherwise larger pools are costed, unless even all pools times the
    largest factor would carry far less than is asked.
    """
    fleet, nodes, known = gathered.fleet, _per_node(gathered), gathered
    if any(pool not in nodes for pool in pools):
        return None

    def sizes(factor: float) -> dict[str, int]:
        return {
            pool: _grown(count, nodes[pool], factor) if pool in pools else count
            for pool, count in fleet.devices.items()
        }

    def holds(factor: float) -> bool:
        return known.programme(_asked(sizes(factor))).settle(1.0) is not None

    large = all(fleet.devices[pool] >= _MANY_NODES * nodes[pool] for pool in pools)

    def hopeless(factor: float) -> bool:
        return large and 0 < _MORE_THAN_SHARE * factor * share < 1

    high, most = 2.0, MOST_FACTOR if len(pools) == len(fleet.devices) else 4
    while hopeless(high) or not holds(high):
        if high >= most:
            return None
        high = min(max(2 * high, _BEYOND / share if large and share else 0.0), most)
        if not hopeless(high):
            larger = fleet._replace(devices=sizes(high))
            known = every_way(gather_fleet(larger), _asked(larger.devices)).gathered
    low = 1.0
    step = min(nodes[pool] / fleet.devices[pool] for pool in pools)
    while high - low > step * 1.001:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _with_shared_nodes(gathered: Gathered) -> Iterator[Change]:
    """Yield the change that lets models share nodes, if the fleet then fits."""
    fleet = gathered.fleet
    sharing = replace(gathered, fleet=fleet._replace(share_nodes=True))
    if not fleet.share_nodes and sharing.programme(_asked(fleet.devices)).settle(1.0) is not None:
        yield Change(direction="nodes", told="models that share nodes")


def _without_loss(gathered: Gathered) -> Iterator[Change]:
    """Yield the change that drops the loss to survive, if the fleet then fits."""
    fleet = gathered.fleet
    if all(member.question.survive is None for member in fleet.members):
        return
    options = tuple(tuple(option.without_spares() for option in own) for own in gathered.options)
    bare = replace(gathered, options=options)
    if bare.programme(_asked(fleet.devices)).settle(1.0) is not None:
        yield Change(direction="survive", told="no loss to survive")


def _without_one(gathered: Gathered) -> Iterator[Change]:
    """Yield each model without which the others fit."""
    fleet = gathered.fleet
    names = []
    for number, member in enumerate(fleet.members):
        others = [each for each in range(len(fleet.members)) if each != number]
        if others and gathered.programme(_asked(fleet.devices), others).settle(1.0) is not None:
            names.append(member.name)
    if names:
        yield Change(direction="models", told=f"all but {' or all but '.join(names)}")
