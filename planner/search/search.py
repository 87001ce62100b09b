"""The best plan of one model over engines and number formats, with runners-up, proof and published deployments."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from planner.instances.reachable import REFERENCE
from planner.instances.space import check_layouts, supernode_step
from planner.objective import Aim, preferred
from planner.offers.aggregated_kinds import AggregatedKind
from planner.offers.decode_kinds import DecodeKind
from planner.offers.decode_offers import decode_offers
from planner.offers.offer import Server, on_own_clock
from planner.plans.papers import Beside, Published, as_deployed, matching
from planner.plans.plan import Plan
from planner.plans.quantised import Tried, alternatives, check_some, own_formats
from planner.programme.columns import Side
from planner.programme.programme import Programme
from planner.programme.proof import Bound, over_parts
from planner.question import Question
from planner.search.answer import Answer
from planner.search.changes.missing import limit_of, without_plan
from planner.search.fewest import on_fewest_nodes
from planner.search.fleet import Fleet
from planner.search.gather import Costing, Option, aggregated, make_side
from planner.search.pareto import front_of
from planner.search.solve import Choice, Found, chosen_of, find, in_time, lasting, plan_of
from planner.search.sure import holds, in_own_terms, is_plain, surely
from planner.search.ways import gather_fleet

# For the front: parts of the devices, and of the TPOT limit, with so many of the best decode instances.
FEWER_DEVICES = (0.75, 0.5)
TIGHTER_TPOT = (0.6,)
LEADING_OFFERS = 24


class Besides(NamedTuple):
    """What is told beside an answer, and results of further engines, without their columns and queues."""

    published: tuple[Beside, ...] = ()
    unrestricted: Plan | None = None  # plan of the reference engine, where an engine was to be chosen
    tried: tuple[Tried, ...] = ()
    bounds: tuple[Bound | None, ...] = ()  # of each of them; None without a plan
    queues_solved: int = 0
    candidates_evaluated: int = 0
    answer: Answer | None = None  # of the best of them, once it is told


Refuse = Callable[[Sequence[Found], Question], Answer]  # tells why none of some results of a question has a plan
Aside = Callable[[Callable[[], Iterator[Besides]]], AbstractContextManager[Callable[[], Besides]]]
"""Runs work, at once or in parallel, until the block ends; each call gives its next result."""


@contextmanager
def at_need(work: Callable[[], Iterator[Besides]]) -> Iterator[Callable[[], Besides]]:
    """Do the work when its results are asked for."""
    yield work().__next__


def search(
    question: Question,
    *,
    beside: bool = True,
    proof: bool = False,
    aside: Aside = at_need,
    worth: Callable[[Plan], bool] | None = None,
    refuse: Refuse | None = None,
) -> Answer:
    """Return the best plan for a question, the runners-up, and the proven bound.

    Every combination of engines and number formats is part of the space; each role is costed once in each. Runners-up
    are those of the best combination and the best plans of the others. Confidence and headroom: see ``search.sure``.

    Args:
        question: the question.
        beside: whether to add runners-up, certificate, published deployments and the plan of the reference engine; the
            best plan does not depend on it.
        proof: whether the bound is proven without them, too.
        aside: runs the search of published deployments, of the reference engine and of half of the engines.
        worth: whether a plan is worth these additions; None for every plan.
        refuse: gives the reason where there is no plan, as ``refusal.answered`` does; None for the limit alone.

    Raises BadInput where the asked expert layout fits no strategy.
    """
    if is_plain(question):
        return _search(_fewest(question), beside=beside, proof=proof, aside=aside, worth=worth, refuse=refuse)

    def solve(asked: Sequence[Question]) -> Answer:
        own = beside and asked[0].objective == question.objective  # else its plan tells no more than factors
        worth = partial(holds, question=question, asked=asked[0]) if own else None
        return _search(_fewest(asked[0]), beside=own, proof=proof, aside=aside, worth=worth, refuse=refuse)

    return in_own_terms(surely([question], solve), question)


def _fewest(question: Question) -> Question:
    """Return the question on the fewest nodes that survive a loss, where all of them are paid for."""
    return on_fewest_nodes(question, lambda each: _search(each, beside=False).best)


def _search(
    question: Question,
    *,
    beside: bool,
    proof: bool = False,
    aside: Aside = at_need,
    worth: Callable[[Plan], bool] | None = None,
    refuse: Refuse | None = None,
) -> Answer:
    asked = alternatives(question)
    check_some(question, check_layouts)
    one_format = len({own_formats(each) for each in asked}) == 1  # else the best ones have to be known
    here, work = _searched_here(question, len(asked), beside=beside), None
    known = worth is None or (beside and here == len(asked))  # whether the plan is worth it, before the other is asked
    if question.engines and one_format and known and (aside is not at_need or (beside and worth is None)):
        work = partial(_besides, asked[here:], asked[0] if beside else None)
    else:
        here = len(asked)
    with aside(work) if work else nullcontext() as besides:
        most_alone = question.goal.maximised and not beside
        found = _found(asked[:here], most_alone=most_alone)
        place = preferred([each.best for each in found], question.goal)
        unfit = place is None or (worth is not None and not worth(found[place].plans[0]))
        if unfit and (worth is not None or here == len(asked)):
            besides, beside = None, False
        told = besides() if besides and place is None else None
        tried = told.tried if told else ()
        if refuse is None or place is not None or any(each.plan for each in tried):
            table = not most_alone or place is None  # else those below the largest rate have no result
            return _answer(question, found, place, besides, told, beside=beside, proof=proof, table=table)
    engines = _of_engines([*map(tried_of, found), *tried], question) if question.engines else ()
    costing = Costing()
    found += [Found(separate=gather_fleet(Fleet.of(each), costing=costing), choice=None) for each in asked[here:]]
    return replace(refuse(found, question), engines=engines)  # a long search, with nothing beside it


def _searched_here(question: Question, engines: int, *, beside: bool) -> int:
    """Return how many engines the process searches that asks, so that the one aside has about as much to do.

    With ``beside`` that one has the reference runtime, whose space is that of one engine or two; of a model with
    experts on a supernode, where attention and experts stand apart, that of all engines together.
    """
    if not beside:
        return engines - engines // 2
    apart = question.model.moe is not None and supernode_step(question.decode) is not None
    return engines if apart else engines - engines // 3


def _answer(
    question: Question,
    found: Sequence[Found],
    place: int | None,
    besides: Callable[[], Besides] | None,
    told: Besides | None,
    *,
    beside: bool,
    proof: bool,
    table: bool,
) -> Answer:
    """Return the best answer of the results ``found`` here, the best at ``place``, and of those of the ``besides``.

    The best of those here is told while the others are searched, unless these are ``told`` already, and so is the best
    of those. With ``table`` the result of each engine is told.
    """
    answer = answer_of(found[place], beside=beside) if besides and place is not None else None
    further = told or (besides() if besides else Besides())
    plans = [*(each.best for each in found), *(each.plan for each in further.tried)]
    place = preferred(plans, question.goal)
    chosen, plan = place or 0, plans[place or 0]
    beside = beside and plan is not None
    if besides and (beside or chosen >= len(found)):
        further = besides()
    if besides and chosen >= len(found):
        answer = besides().answer
    answer = answer or answer_of(found[chosen], beside=beside, proof=proof)
    proof = proof or beside
    if beside:
        compared = further if besides else _comparisons(answer.question, Costing(), chosen=bool(question.engines))
        answer = replace(answer, published=compared.published, unrestricted=compared.unrestricted)
    tried = (*map(tried_of, found), *further.tried) if table else ()
    if question.engines and table:
        answer = replace(answer, engines=_of_engines(tried, question))
    if len(plans) == 1:
        return answer
    own = tuple(each for each in tried if each.engine == answer.question.engine)
    pareto = front_of(answer.best, [*answer.pareto, *filter(None, plans)]) if answer.best else ()
    bounds = [each.bound() if each.plans and proof and at != chosen else None for at, each in enumerate(found)]
    bounds += further.bounds
    bounds[chosen] = answer.bound
    evaluated = answer.candidates_evaluated if chosen < len(found) else found[0].separate.count.evaluated
    return replace(
        answer,
        pareto=tuple(pareto),
        formats=own if len(own) > 1 else (),
        bound=over_parts(answer.bound, list(filter(None, bounds)), _queues_solved(found) + further.queues_solved),
        candidates_evaluated=evaluated + further.candidates_evaluated,
    )


def _found(
    asked: Sequence[Question], costing: Costing | None = None, *, most_alone: bool = False, further: int = 0
) -> list[Found]:
    """Return the result of every alternative, told over as many requests as its queue needs.

    With ``most_alone`` lower rates than the largest so far are no plans, and only the best is told so, which may make
    another one the best. The turns that may be played are also for so many ``further`` searches.
    """
    costing, found, known = costing or Costing(), list[Found](), 0.0
    for number, each in enumerate(asked):
        costing.count.allow(0, len(asked) - number + further)
        own = _raised(find(gather_fleet(Fleet.of(each), costing=costing), known=known))
        found.append(own if most_alone else lasting(own))
        if most_alone:
            known = max(known, own.growth / (1 + own.gap))
    lowered = set[int]()
    while most_alone and (place := preferred([each.best for each in found], asked[0].goal)) is not None:
        if place in lowered:
            break
        found[place] = lasting(found[place])
        lowered.add(place)
    return found


def _raised(found: Found) -> Found:
    """Return a result with its best runner-up, where its plan was lowered below that: KV made it later than planned."""
    if not found.gap or found.best is None or found.choice is None or not found.best.question.goal.maximised:
        return found
    others = tuple(others_of(found.choice))
    plans = [found.best, *others]
    best = plans[preferred(plans, found.best.question.goal) or 0]
    gap = max((1 + found.gap) * found.best.requests_per_second / best.requests_per_second - 1, 0.0)
    return replace(found, plans=(best,), gap=gap, others=others)


def _queues_solved(found: Sequence[Found]) -> int:
    """Return how many queues were solved; engines may share columns."""
    queues = {
        id(side): side.queues_solved
        for each in found
        for own in (each.choice.gathered if each.choice else each.separate).options
        for option in own
        for side in option.sides
    }
    return sum(queues.values())


def _of_engines(tried: Sequence[Tried], question: Question) -> tuple[Tried, ...]:
    """Return the result of each engine in its best format, the best first."""
    every = []
    for engine in question.engines:
        own = [each for each in tried if each.engine == engine]
        every.append(own[preferred([each.plan for each in own], question.goal) or 0])
    return tuple(sorted(every, key=lambda tried: question.goal.key(tried.plan) if tried.plan else (math.inf, 0.0)))


def _besides(engines: Sequence[Question], question: Question | None = None) -> Iterator[Besides]:
    """Yield the results of some engines, or of none; then with ``_comparisons``; then with the answer of the best.

    Beside a ``question`` they come with bounds and comparisons for it. Results come first: a refusal needs no more.
    """
    costing, beside = Costing(), question is not None
    goal = engines[0].goal if engines else None
    most_alone = goal is not None and goal.maximised and not beside
    found = _found(engines, costing, most_alone=most_alone, further=int(beside))
    told = Besides(
        tried=tuple(map(tried_of, found)),
        bounds=tuple(each.bound() if each.plans and beside else None for each in found),
        queues_solved=_queues_solved(found),
        candidates_evaluated=costing.count.evaluated,
    )
    yield told
    if question is not None:
        compared = _comparisons(question, costing, chosen=True)
        told = told._replace(published=compared.published, unrestricted=compared.unrestricted)
    yield told
    place = preferred([each.best for each in found], goal) if goal else None
    if place is not None:
        yield told._replace(answer=answer_of(found[place], beside=beside))


def _comparisons(question: Question, costing: Costing, *, chosen: bool) -> Besides:
    """Return published deployments of the model and machine of a question, in its formats.

    The plan of the reference engine comes with them if an engine was ``chosen``.
    """
    asked = replace(question, engine=REFERENCE)
    published = tuple(published_plan(asked, each) for each in matching(asked))
    costing.count.allow(0, 1)
    unrestricted = lasting(find(gather_fleet(Fleet.of(asked), costing=costing))).best if chosen else None
    return Besides(published, unrestricted)


def question_of(found: Found) -> Question:
    """Return the question of a result."""
    return found.separate.fleet.members[0].question


def tried_of(found: Found) -> Tried:
    """Return the result of a number format."""
    question, best = question_of(found), found.best
    encode = question.encode if question.workload.pictures else None
    limit = limit_of(found.separate) if best is None else best.binding_limit
    return Tried(
        engine=question.engine,
        formats=own_formats(question),
        plan=best,
        binding_limit=limit,
        cut=found.cut,
        encode=encode,
    )


def answer_of(found: Found, *, beside: bool, proof: bool = False) -> Answer:
    """Return a result as an answer; with ``proof`` with its bound, with ``beside`` with its runners-up, too."""
    best, choice = found.best, found.choice
    if best is None or choice is None:
        return replace(without_plan(found.separate, limit_of(found.separate)), cut=found.cut)
    answer = Answer(
        fleet=found.separate.fleet,
        plans=(best,),
        growth=found.growth,
        pareto=(best,),
        candidates_evaluated=0,
        bound=None,
        binding_limit=best.binding_limit,
        explanation=best.explanation,
        cut=found.cut,
    )
    if beside or proof:
        bound, given = found.bound(), answer.question.given
        if bound is not None and given:
            named = ", ".join(f"--{flag.replace('_', '-')} {text}" for flag, text in given.items())
            bound = bound._replace(covers=f"{bound.covers}, with {named}")
        answer = replace(answer, bound=bound)
    if beside:
        own = _built(best)
        others = others_of(choice) if found.others is None else found.others
        answer = replace(answer, pareto=tuple(front_of(best, [plan for plan in others if _built(plan) != own])))
    return replace(answer, candidates_evaluated=choice.gathered.count.evaluated)


def _built(plan: Plan) -> list[tuple[object, ...]]:
    """Return the instances of a plan, which may be told over more requests than the same ones elsewhere."""
    return [(role, pool.instances, pool.candidate) for role, pool in plan.pools()]


def published_plan(question: Question, published: Published) -> Beside:
    """Return the plan of a published deployment of this model and machine for the question.

    Where it misses the asked rate, the plan at its largest rate.
    """
    asked = as_deployed(question, published)
    plan = search(asked, beside=False).best
    if plan is None and not asked.goal.maximised:
        plan = search(replace(asked, objective="throughput", rate_per_second=None), beside=False).best
    return Beside(published=published, plan=plan)


def others_of(choice: Choice) -> list[Plan]:
    """Return runners-up: plans with fewer devices, a lower TPOT, or the other shape.

    After a search that ended early only that of the other shape, which is known.
    """
    (option, columns), aim = choice.chosen[0], choice.programme.aim
    option = option.whole or option
    timed, long = aim.goal.timed, choice.gathered.count.long
    tighter = [] if timed or long else [_tighter(choice, part) for part in TIGHTER_TPOT]
    found: list[Plan | None] = []
    if choice.ways.separate is not None and option.aggregated:
        found += [_plan(own, its, aim) for own, its in chosen_of(choice.gathered, choice.ways.separate)]
    own = choice.gathered.options[0] if timed else (_only(option, columns[-1]),)
    for part in FEWER_DEVICES if (aim.goal.maximised or timed) and not long else ():
        fewer = replace(aim, devices={budget: int(count * part) for budget, count in aim.devices.items()})
        found.append(_likely(own, fewer))
    found += [_likely((each,), aim) for each in tighter]
    return [plan for plan in found if plan is not None]


def _likely(options: Sequence[Option], aim: Aim) -> Plan | None:
    """Return the plan of the choice among some options that is likely best."""
    programme = Programme((tuple(option.sides for option in options),), aim)
    picks = programme.likely()
    return None if picks is None else _plan(options[picks[0].way], picks[0].columns, aim)


def _plan(option: Option, columns: Sequence[int], aim: Aim) -> Plan | None:
    share = (
        1.0
        if aim.rate is not None
        else min(float(side.rate[column]) for side, column in zip(option.sides, columns, strict=True))
    )
    return in_time(plan_of(option, columns, share))


def _only(option: Option, column: int) -> Option:
    """Return an option with aggregated columns of the chosen kind alone, whose queues take long; others unchanged."""
    if not option.aggregated:
        return option
    own = option.decode.of(option.decode.offers.select(option.decode.offer[[column]]))
    return option._replace(sides=(*option.encode, own))


def _tighter(choice: Choice, part: float) -> Option:
    """Return decode, or aggregated, columns of the leading rows, costed at a part of the TPOT limit."""
    (option, columns), count = choice.chosen[0], choice.gathered.count
    option = option.whole or option
    asked, aim = replace(option.question, tpot_seconds=option.question.tpot_seconds * part), choice.programme.aim
    side = option.decode
    if option.aggregated:
        kind = on_own_clock(side.server(int(side.offer[columns[-1]])))
        assert isinstance(kind, AggregatedKind)
        tighter = aggregated(asked, aim, None, [kind.row], count).option(asked)
        return tighter._replace(sides=(*option.encode, *tighter.sides))
    kinds = [kind for kind in _leading(side) if isinstance(kind, DecodeKind)]
    drafts = tuple(sorted({kind.full.candidate.drafts for kind in kinds}))
    asked, rows = replace(asked, drafts=drafts), list(dict.fromkeys(kind.row for kind in kinds))
    offers = decode_offers(asked.on_clock("decode"), rows, count, option.transfer_seconds)
    return Option(option.question, (*option.sides[:-1], make_side(asked, "decode", offers)))


def _leading(side: Side) -> list[Server]:
    return [on_own_clock(side.server(number)) for number in side.offers.leading(LEADING_OFFERS)]
