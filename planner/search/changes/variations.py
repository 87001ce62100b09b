"""Variations of an answered question: their largest rates, without front and proof, over the rows that matter.

Rows far behind others of their size stay behind on a machine that is a tenth faster. So variations of the same sizes
are solved over the leading rows only.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from planner.instances.space import ROLES, Row, role_rows
from planner.objective import Incumbent
from planner.offers.aggregated_kinds import AggregatedKind
from planner.offers.aggregated_offers import aggregated_offers
from planner.offers.decode_kinds import DecodeKind
from planner.offers.kinds import PrefillKind
from planner.offers.offer import Offers
from planner.plans.plan import Plan
from planner.plans.quantised import alternatives, own_formats
from planner.programme.columns import Picks
from planner.question import Question
from planner.search.fleet import Fleet, aim_of
from planner.search.gather import Costing, Option, needed_rates, not_aggregated, on_each_pool, why_not_apart
from planner.search.search import Aside, at_need, search
from planner.search.solve import Choice, carried_in_time, choose, chosen_of, find, plan_of
from planner.search.sure import Times, holds, is_plain, needed, stressed
from planner.search.ways import Gathered, Rows, gather_fleet, unpruned, with_apart
from planner.serving.capacity import STEP

LEADING = 10  # rows of each size of a role with the largest bounds, which are solved again
ROUNDS = 3  # likely plans that are tried for a confidence, each with the factors that the one before it needs
Known = list[tuple[Question, Rows]]
"""Rows of plans of similar questions, each with a question in the plan's engine and formats."""
NEAR = 0.8  # part of the best rate that the bound of an aggregated row must reach to be solved for again


def rows_that_matter(question: Question, known_per_second: float) -> Rows:
    """Return the rows of each role and size with the largest bounds, given the rate of a known plan."""
    separate = gather_fleet(Fleet.of(question))
    aim = aim_of(separate.fleet)
    known = Incumbent(rate=known_per_second / (question.rate_per_second or 1.0), spent=(0.0, 0.0))
    found: Rows = {role: [] for role in ROLES}
    options = with_apart(separate, aim, known.rate).options[0]
    for side in {id(side): side for option in options for side in option.sides}.values():
        if side.role != "encode":  # of one row
            found[side.role] += _leading_rows(side.offers)
    return {**found, "mixed": _mixed_rows_that_matter(question, separate, known)}


def _leading_rows(offers: Offers) -> list[Row]:
    """Return the rows of each size with the largest bounds."""
    return _rows_behind(offers, offers.leading_of_each_size(LEADING))


def _rows_behind(offers: Offers, numbers: Iterable[int]) -> list[Row]:
    """Return the rows of some offers, each once."""
    kinds = (offers.build(number) for number in numbers)
    return list(
        dict.fromkeys(kind.row for kind in kinds if isinstance(kind, (PrefillKind, DecodeKind, AggregatedKind)))
    )


def _mixed_rows_that_matter(question: Question, separate: Gathered, known: Incumbent) -> list[Row]:
    """Return the aggregated rows with the largest bounds that may come near the best of either shape."""
    if not_aggregated(question) is not None:
        return []
    aim, near = aim_of(separate.fleet), known._replace(rate=NEAR * known.rate)
    found: dict[Row, None] = {}
    for own in on_each_pool(question):
        offers, _ = aggregated_offers(own, role_rows(own, "mixed"), separate.count, needed_rates(own, aim, near))
        found |= dict.fromkeys(_leading_rows(offers))
    return list(found)


def most_carried(
    question: Question, rows: Rows | None = None, known_per_second: float = 0.0, aside: Aside = at_need
) -> float:
    """Return the rate of the best choice of columns, over given rows or all; the known rate if none carries more."""
    if not is_plain(question):
        best = search(replace(question, objective="throughput", rate_per_second=None), beside=False, aside=aside).best
        return 0.0 if best is None else best.requests_per_second
    most, costing = known_per_second, Costing()
    unit = question.rate_per_second or 1.0
    for each in alternatives(question):
        more = most / unit * (1 + STEP / 2)  # the next rate of the grid, but for rounding
        chosen = choose(gather_fleet(Fleet.of(each), rows=rows, costing=costing), rows=rows, known=more)
        most = max(most, carried_in_time(chosen) * unit) if isinstance(chosen, Choice) else most
    return most


def has_plan(question: Question, costing: Costing | None = None, known: Known | None = None) -> bool:
    """Whether a question has any plan; likely choices are tried before all bounds are refuted.

    ``costing`` keeps the costs of similar questions, ``known`` the rows of their plans, which are tried first.
    """
    question = replace(question, objective="throughput" if question.rate_per_second is None else "chips")
    costing, known = costing or Costing(), [] if known is None else known
    if not is_plain(question):
        return _likely_holds(question, costing) or search(question, beside=False).feasible
    if question.rate_per_second is not None and _rows_carry(question, costing, known):
        return True
    every = [gather_fleet(Fleet.of(each), costing=costing) for each in alternatives(question)]
    if question.rate_per_second is not None and any(_likely_plan(each, known) for each in every):
        return True  # one engine's likely plan takes less time than the proof that another has none
    return any(_has_plan(each, known) for each in every)


def alike(choice: Choice | Gathered | None = None) -> Callable[[Question], bool]:
    """Return ``has_plan`` for similar questions, which share costs and rows; those of a known ``choice`` come first."""
    known = [_rows_of(*choice.chosen[0])] if isinstance(choice, Choice) else []
    return partial(has_plan, costing=Costing(), known=known)


def _rows_of(option: Option, columns: Sequence[int]) -> tuple[Question, Rows]:
    """Return the question of a single model's choice, in its engine and formats, and the rows of its columns."""
    rows: Rows = {role: [] for role in ROLES}
    for side, column in zip(option.sides, columns, strict=True):
        rows[side.role] = _rows_behind(side.offers, [int(side.offer[column])])
    return option.question, {"mixed": [], **rows}


def _rows_carry(question: Question, costing: Costing, known: Known) -> bool:
    """Whether rows of known plans, the last of them first, have a plan for a question with a rate."""
    for own, rows in reversed(known):
        for each in alternatives(question):
            if each.engine != own.engine or own_formats(each) != own_formats(own):
                continue
            gathered = gather_fleet(Fleet.of(each), rows=rows, costing=costing)
            if _likely_plan(unpruned(gathered, aim_of(gathered.fleet), rows)):
                return True
    return False


def _has_plan(separate: Gathered, known: Known) -> bool:
    aim = aim_of(separate.fleet)
    if aim.rate is None:
        if not separate.closed and separate.programme(aim).carries_any():
            return True
        every = unpruned(separate, aim)
        return not every.closed and every.programme(aim).carries_any()
    every = unpruned(separate, aim)
    programme = None if every.closed else every.programme(aim)
    picks = None if programme is None else programme.sufficient() or programme.carrying(aim.rate)
    if _in_time(every, picks, known):
        return True
    if not picks and why_not_apart(separate.fleet.members[0].question):
        return False
    return bool(find(separate).plans)


def _likely_plan(gathered: Gathered, known: Known | None = None) -> Plan | None:
    """Return the plan of the first choice found that carries the asked rate in time; None where none does."""
    picks = None if gathered.closed else gathered.programme(aim_of(gathered.fleet)).sufficient()
    return _in_time(gathered, picks, known)


def _in_time(gathered: Gathered, picks: Picks | None, known: Known | None = None) -> Plan | None:
    """Return the plan of a single model's choice at the asked rate; None without a choice, or where it is late.

    The rows of a choice in time are added to those ``known``.
    """
    if picks is None:
        return None
    option, columns = chosen_of(gathered, picks)[0]
    plan = plan_of(option, columns, 1.0)
    if plan is None or plan.excess > 1:
        return None
    if known is not None:
        known.append(_rows_of(option, columns))
    return plan


def _likely_holds(question: Question, costing: Costing) -> bool:
    """Whether a likely plan, with the factors on service times that the one before it needs, has its confidence."""
    for each in alternatives(question) if question.rate_per_second is not None else ():
        times: Times = {}
        for _ in range(ROUNDS):
            asked = stressed(each, times)
            plan = _likely_plan(gather_fleet(Fleet.of(asked), costing=costing))
            if plan is None:
                break
            if holds(plan, each, asked):
                return True
            times = {**times, **needed(plan, each)}
    return False
