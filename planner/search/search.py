"""All candidates of both pools, their instance counts as an integer programme, the plan and its proof."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np

from ground.aside import Aside, aside
from ground.errors import Fault
from ground.identity import Same
from planner.instances.decode_candidates import Count
from planner.instances.operating import DecodeServer, PrefillServer
from planner.instances.space import Role, check_layouts
from planner.mixed.kinds import MixedKind
from planner.offers.asides import CountedAside
from planner.offers.choice import Aim, Choice, carried_by, likely, settle
from planner.offers.columns import Side
from planner.offers.decode_offers import decode_offers
from planner.offers.kinds import DecodeKind
from planner.offers.programme import ready
from planner.plans.aggregated import make_aggregated
from planner.plans.plan import Plan, make_plan, slowed_down
from planner.plans.quantised import Tried, in_formats, own_formats, preferred
from planner.question import Question
from planner.search.front import front_of
from planner.search.infeasible import fitting_sizes, missing, slowest_transfer, unsurvivable
from planner.search.infeasible_mixed import missing_anyhow, mixed_sizes, unsurvivable_aggregated
from planner.search.papers import Beside, Published, best_counts, matching, published_sides, rate_of
from planner.search.parts import Chosen, Pools, aim_of, choose, gather, gather_each, make_side, with_mixed
from planner.search.proof import Bound, begin_proof, certify, never_costed, never_queued, over_parts
from planner.search.quickest_plans import quickest_choice
from planner.search.shapes import not_aggregated, on_machines

# Binding limit and explanation of a refusal that nobody asked the reason of.
UNTOLD = ("", "")
# For the front: parts of the devices, and of the TPOT limit, with so many of the best decode instances.
FEWER_DEVICES = (0.75, 0.5)
TIGHTER_TPOT = (0.6,)
LEADING_OFFERS = 24
# Transfers that made a plan late are counted so much longer in the next search, which carries a little less.
LONGER = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a search found. ``best`` is None where no plan keeps the limits."""

    question: Question
    best: Plan | None
    pareto: tuple[Plan, ...]
    candidates_evaluated: int
    bound: Bound | None
    binding_limit: str
    explanation: str
    cut: dict[Role, dict[str, int]] = field(default_factory=dict)
    """Strategies and layouts that were not costed, by role and rule."""
    published: tuple[Beside, ...] = ()
    """What others deployed for this model on this machine, on the same devices."""
    formats: tuple[Tried, ...] = ()
    """What each number format came to, where there were several; ``question`` is then in the best one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best plan of a question in one number format, None where there is none; the rest only where it is asked."""

    question: Question
    pools: Pools
    plan: Plan | None
    prove: Callable[[], Callable[[], Bound | None]] = lambda: lambda: None
    """Begin to prove the best that the covered space reaches; what it returns waits for it."""
    others: Callable[[], Callable[[], list[Plan]]] = lambda: list
    """Begin plans that trade what the best one has; what it returns finds the rest of them."""
    why: Callable[[], tuple[str, str]] = lambda: UNTOLD
    """What keeps a question from any plan: its binding limit, and a sentence."""
    cut: dict[Role, dict[str, int]] = field(default_factory=dict)
    sides: tuple[Side, ...] = ()
    """All columns that were searched."""

    @property
    def tried(self) -> Tried:
        """What it came to, beside other formats."""
        limit = self.plan.binding_limit if self.plan else limit_of(self.question, self.pools)
        return Tried(formats=own_formats(self.question), plan=self.plan, binding_limit=limit, cut=self.cut)


def search(question: Question, *, explain: bool = True, beside: bool = True) -> Answer:
    """Return the best plan for a question, the runners-up, and what is proven.

    A refusal says why and what would help, which takes searches of its own; without ``explain`` it does not. The best
    plan is the same without what stands ``beside`` it: the runners-up, the certificate and published deployments. Of
    several number formats each role is costed once in each, every combination is a part of the space, and the best is
    taken; runners-up are its own and the best of the others.

    Raises BadInput where the asked expert layout fits no strategy.
    """
    asked = in_formats(question)
    for each in asked:
        check_layouts(each)
    gathered = gather_each(asked)
    begin = cache(begin_beside)
    then = partial(begin, Same(asked[0])) if beside and len(asked) == 1 else None
    found = [find(each, pools, then=then) for each, pools in zip(asked, gathered, strict=True)]
    place = preferred([each.plan for each in found], question)
    best = found[place or 0]
    answer = answer_of(best, begin(Same(best.question)) if beside else None, explain=explain)
    if len(found) == 1:
        return answer
    plans = [each.plan for each in found if each.plan is not None]
    others = [each for number, each in enumerate(found) if number != place and each.plan is not None and beside]
    bounds = [answer.bound, *(each.prove()() for each in others)]
    queues = {id(side): side.queues_solved for each in found for side in each.sides}
    return replace(
        answer,
        pareto=tuple(front_of(answer.best, [*answer.pareto, *plans])) if answer.best else (),
        bound=over_parts(answer.bound, [bound for bound in bounds if bound is not None], sum(queues.values())),
        formats=tuple(each.tried for each in found),
    )


def answer_of(found: Found, published: Sequence[Aside[Beside]] | None, *, explain: bool) -> Answer:
    """Return what is found as an answer, with what stands beside it where published deployments do."""
    question, pools, best = found.question, found.pools, found.plan
    if best is None:
        return refused(question, pools, *(found.why() if explain else UNTOLD))
    front: tuple[Plan, ...] = (best,)
    bound: Bound | None = None
    deployed: tuple[Beside, ...] = ()
    if published is not None:
        others, proof = found.others(), found.prove()
        front = tuple(front_of(best, others()))
        deployed = tuple(each.result() for each in published)
        bound = proof()
    return Answer(
        question=question,
        best=best,
        pareto=front,
        candidates_evaluated=pools.count.total,
        bound=bound,
        binding_limit=best.binding_limit,
        explanation=best.explanation,
        cut=found.cut,
        published=deployed,
    )


def find(
    question: Question, pools: Pools, transfer_seconds: float = 0.0, then: Callable[[], object] | None = None
) -> Found:
    """Return the best plan of a question in one number format, of what is costed.

    Decode was costed for prompts whose KV takes ``transfer_seconds``, or as long as the slowest transfer. Where
    waiting for links makes the plan's transfers longer than that and TPOT late, all is done again with transfers as
    long as those; if the first plan at a lower rate carries more, it is that one, with a gap to the bound. ``then``
    begins what another process may do once it has all that the choice waits for.
    """
    aim = aim_of(question)
    if question.objective == "latency" and question.rate_per_second is not None:
        return find_quickest(question, pools, aim)
    chosen = choose(question, pools, aim, then=then)
    if not isinstance(chosen, Chosen):
        last = chosen
        return Found(question=question, pools=pools, plan=None, why=lambda: reason(question, last, aim), cut=pools.cut)
    best = plan_of(question, chosen.pools, chosen.choice)
    if best is None:
        raise Fault("the fleet programme chose a rate that the chosen queues cannot carry")
    found = Found(
        question=question,
        pools=pools,
        plan=best,
        prove=lambda: begin_bound(chosen, aim, best),
        others=lambda: begin_others(question, chosen, aim),
        cut=chosen.parts[-1].cut,
        sides=tuple(side for part in chosen.parts for side in part.sides),
    )
    if best.tpot.at(question.percentile) > question.tpot_seconds and best.transfer_seconds > transfer_seconds:
        return without_waiting(found, LONGER * best.transfer_seconds)
    return found


def without_waiting(found: Found, transfer_seconds: float) -> Found:
    """Return what carries more: a plan for transfers that take so long, or the found one at the rate that it keeps."""
    question, late = found.question, found.plan
    assert late is not None
    again = find(question, gather(question, transfer_seconds=transfer_seconds), transfer_seconds)
    slower = slowed_down(late)
    if slower is None or (again.plan and again.plan.requests_per_second >= slower.requests_per_second):
        return again
    gap = 1 - slower.requests_per_second / late.requests_per_second
    return replace(found, plan=slower, prove=lambda: with_gap(found.prove(), gap))


def with_gap(proof: Callable[[], Bound | None], gap: float) -> Callable[[], Bound | None]:
    """Return what waits for a bound that a plan misses by so much."""

    def missed() -> Bound | None:
        bound = proof()
        return None if bound is None else replace(bound, gap=gap)

    return missed


def find_quickest(question: Question, pools: Pools, aim: Aim) -> Found:
    """Return the plan whose requests take least from arrival to their last token, at the asked rate."""
    found = quickest_choice(question, pools, aim)
    if found is None:
        return Found(question=question, pools=pools, plan=None, why=lambda: reason(question, pools, aim), cut=pools.cut)
    best = found.plan()
    if best is None:
        raise Fault("the quickest columns cannot keep up with the asked rate")
    return Found(
        question=question,
        pools=pools,
        plan=best,
        prove=lambda: lambda: found.bound(best.e2e_mean_seconds),
        others=lambda: lambda: found.others(FEWER_DEVICES),
        cut=found.cut,
        sides=tuple(side for part in found.parts for side in part.pools.sides),
    )


def begin_bound(chosen: Chosen, aim: Aim, best: Plan) -> Callable[[], Bound]:
    """Begin to find the bound over all parts, and which aggregated instances no queue was solved for."""
    proof = begin_proof([part.sides for part in chosen.parts], chosen.pools.sides, aim, chosen.choice)
    left_out = (
        *never_costed(chosen.apart_dropped, best.requests_per_second),
        *never_queued(chosen.parts[-1].dropped.slow, best.requests_per_second),
    )

    def bound() -> Bound:
        found = proof()
        if found.gap > 1e-6:
            raise Fault(f"the fleet programme's bound {found.value:g} is not what the chosen columns reach")
        return replace(found, pruned=(*found.pruned, *left_out))

    return bound


def begin_beside(same: Same[Question]) -> list[Aside[Beside]]:
    """Begin what no choice waits for: to import the solver of the certificate, and each published deployment."""
    aside(ready)
    return [aside(partial(published_plan, same.value, each)) for each in matching(same.value)]


def published_plan(question: Question, published: Published) -> Beside:
    """Return a published deployment of this model and machine, as it would serve the question."""
    prefill, decode = published_sides(question, published, slowest_transfer(question, [published.prefill]))
    own, plan = Pools(prefill, decode, Count(), {}), None
    choice = best_counts(own.sides, aim_of(question)) if prefill.size and decode.size else None
    if choice is not None:
        plan = plan_at(question, own, choice, rate_of(own.sides, choice, question))
    return Beside(published=published, plan=plan)


def reason(question: Question, pools: Pools, aim: Aim) -> tuple[str, str]:
    """Return (binding limit, sentence) where no choice of columns is feasible.

    Where some rate is carried in either shape, it is the devices; else what prefill and decode instances lack, or
    aggregated ones where these alone are asked for or where memory lacks, of which they need least.
    """
    pools = replace(pools, mixed=None)
    most = choose(question, pools, replace(aim, objective="throughput", rate=None))
    if isinstance(most, Chosen):
        from planner.search.shortage import shortage  # searches larger machines; only a refusal needs it

        return shortage(question, most.pools, aim, carried_by(most.pools.sides, most.choice))
    if question.shape == "aggregated" or not pools.prefill.offers or not pools.decode.offers:
        return missing_anyhow(question, not pools.prefill.offers)
    for side in pools.sides:
        if side.size and settle([side], replace(aim, objective="throughput", rate=None)) is None:
            return missing(question, side.role == "prefill")
    if question.survive is not None and not_aggregated(question) is None and mixed_sizes(question):
        return unsurvivable_aggregated(question)
    if question.survive is not None:
        sizes = (side.offers.devices.tolist() for side in pools.sides)
        return unsurvivable(question, *sizes)
    return "devices", certify(pools.sides, aim).message


def plan_of(question: Question, pools: Pools, choice: Choice) -> Plan | None:
    """Return the plan of chosen columns at their rate, or at the asked one."""
    rate = carried_by(pools.sides, choice)
    if question.rate_per_second is not None and question.objective != "throughput":
        rate = question.rate_per_second
    return plan_at(question, pools, choice, rate)


def plan_at(question: Question, pools: Pools, choice: Choice, rate_per_second: float) -> Plan | None:
    """Return the plan of chosen columns at a rate; None where they cannot keep up."""
    if pools.mixed is not None:
        return aggregated_at(question, pools.mixed, choice[0], rate_per_second)
    first, second = choice
    prefill, decode = pools.prefill.chosen(first), pools.decode.chosen(second)
    assert isinstance(prefill, PrefillServer) and isinstance(decode, DecodeServer)
    return make_plan(
        question,
        (prefill, int(pools.prefill.instances[first]), pools.prefill.rate_of_each(first)),
        (decode, int(pools.decode.instances[second]), pools.decode.rate_of_each(second)),
        rate_per_second,
    )


def aggregated_at(question: Question, side: Side, column: int, rate_per_second: float) -> Plan | None:
    """Return the plan of a column of aggregated instances at a rate; None where they cannot keep up."""
    kind = side.server(int(side.offer[column]))
    assert isinstance(kind, MixedKind)
    left = int(side.left[column])
    each = kind.capacity_at(left) / left
    question = on_machines(question, side.machines)
    return make_aggregated(question, kind.at(left), int(side.instances[column]), each, rate_per_second)


def begin_others(question: Question, chosen: Chosen, aim: Aim) -> Callable[[], list[Plan]]:
    """Begin plans that trade what the best one has: fewer devices, less time per token, the other shape."""
    pools = only(question, chosen.pools, chosen.choice)
    begun = [begin_tighter(question, pools, part) for part in TIGHTER_TPOT]

    def plans() -> list[Plan]:
        found: list[tuple[Pools, Choice | None]] = [] if chosen.other is None else [chosen.other]
        for part in FEWER_DEVICES if aim.objective == "throughput" else ():
            fewer = replace(aim, devices={budget: int(count * part) for budget, count in aim.devices.items()})
            found.append((pools, likely(pools.sides, fewer)))
        for costed in begun:
            tighter = costed()
            found.append((tighter, likely(tighter.sides, aim)))
        made = (plan_of(question, own, choice) for own, choice in found if choice is not None)
        return [plan for plan in made if plan is not None]

    return plans


def only(question: Question, pools: Pools, choice: Choice) -> Pools:
    """Return of aggregated columns those of the chosen kind, for their queues take long; others as they are."""
    if pools.mixed is None:
        return pools
    chosen = np.array([int(pools.mixed.offer[choice[0]])])
    question = on_machines(question, pools.mixed.machines)
    return replace(pools, mixed=make_side(question, "mixed", pools.mixed.offers.select(chosen)))


def begin_tighter(question: Question, pools: Pools, part: float) -> Callable[[], Pools]:
    """Begin to cost decode, or aggregated, instances of the leading rows at a part of the TPOT limit: their columns."""
    limit = question.tpot_seconds * part
    if pools.mixed is not None:
        asked = replace(on_machines(question, pools.mixed.machines), tpot_seconds=limit)
        servers = [pools.mixed.server(number) for number in range(len(pools.mixed.offers))]
        rows = list(dict.fromkeys(kind.row for kind in servers if isinstance(kind, MixedKind)))
        return lambda: with_mixed(asked, pools, aim_of(asked), None, rows)
    leading = [pools.decode.server(number) for number in pools.decode.offers.leading(LEADING_OFFERS)]
    kinds = [kind for kind in leading if isinstance(kind, DecodeKind)]
    drafts = tuple(sorted({kind.full.candidate.drafts for kind in kinds}))
    asked, rows = replace(question, tpot_seconds=limit, drafts=drafts), list(dict.fromkeys(kind.row for kind in kinds))
    transfer = kinds[-1].full.transfer_seconds if kinds else 0.0
    offers = CountedAside(pools.count, partial(decode_offers, asked, rows, slowest_seconds=transfer))
    return lambda: replace(pools, decode=make_side(question, "decode", offers.result()))


def limit_of(question: Question, pools: Pools) -> str:
    """Name what leaves a question without a plan, as ``reason`` does, without what it would take to say more."""
    most = replace(aim_of(question), objective="throughput", rate=None)
    latency = {"prefill": "ttft", "decode": "tpot"}
    for side in pools.sides:
        if not side.offers:
            fits = fitting_sizes(question, side.role == "prefill")
            return latency.get(side.role, "devices") if fits else "memory"
    if question.rate_per_second is not None and likely(pools.sides, most) is not None:
        return "devices"
    for side in pools.sides:
        if side.size and settle([side], most) is None:
            return latency.get(side.role, "devices")
    return "devices" if question.survive is None else "survive"


def refused(question: Question, pools: Pools, binding: str, explanation: str) -> Answer:
    """Return the answer of a question without a plan."""
    return Answer(
        question=question,
        best=None,
        pareto=(),
        candidates_evaluated=pools.count.total,
        bound=None,
        binding_limit=binding or limit_of(question, pools),
        explanation=explanation,
        cut=pools.cut,
    )
