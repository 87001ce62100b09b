"""All candidates of both pools, their instance counts as an integer programme, the plan and its proof."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner.columns import Aim, Choice, Offers, Side, carried_by, likely, settle
from planner.decode_candidates import Count
from planner.front import front_of
from planner.infeasible import fitting_sizes, missing, refusal, slowest_transfer, unsurvivable
from planner.kinds import DecodeKind
from planner.latency import static_balance
from planner.offers import decode_offers, prefill_offers
from planner.operating import DecodeServer, PrefillServer
from planner.papers import Beside, best_counts, matching, published_sides, rate_of
from planner.plan import Plan, make_plan
from planner.proof import Bound, certify, over_parts, proven
from planner.quantised import Tried, in_formats, own_formats, preferred
from planner.question import Question
from planner.quickest import TimedSide, quickest, reached
from planner.reachable import most_instances, pairs
from planner.space import ROLES, Role, Row, check_layouts, role_space
from podplan.errors import Fault

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


@dataclass(frozen=True, slots=True)
class Pools:
    """The columns of both roles, and the candidates that were costed for them."""

    prefill: Side
    decode: Side
    count: Count
    cut: dict[Role, dict[str, int]]
    """What was not costed, by role and rule."""

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both roles, in the order of a choice."""
        return self.prefill, self.decode


def search(question: Question, *, explain: bool = True, beside: bool = True) -> Answer:
    """Return the best plan for a question, the runners-up, and what is proven.

    A refusal says why and what would help, which takes searches of its own; without ``explain`` it does not. The best
    plan is the same without what stands ``beside`` it: the runners-up, the certificate and published deployments. Of
    several number formats each is searched, and the best is taken.

    Raises BadInput where the asked expert layout fits no strategy.
    """
    asked = in_formats(question)
    if len(asked) == 1:
        return search_format(asked[0], explain=explain, beside=beside)
    answers = [search_format(each, explain=explain, beside=beside) for each in asked]
    place = preferred([answer.best for answer in answers], question)
    if place is None:
        return replace(answers[0], formats=tried(answers), candidates_evaluated=evaluated(answers))
    best = answers[place]
    assert best.best is not None
    return replace(
        best,
        pareto=tuple(front_of(best.best, [plan for answer in answers for plan in answer.pareto])),
        candidates_evaluated=evaluated(answers),
        bound=over_parts(best.bound, [answer.bound for answer in answers if answer.bound is not None]),
        formats=tried(answers),
    )


def evaluated(answers: Sequence[Answer]) -> int:
    """Return the candidates that were costed for all answers."""
    return sum(answer.candidates_evaluated for answer in answers)


def tried(answers: Sequence[Answer]) -> tuple[Tried, ...]:
    """Return what each number format came to."""
    return tuple(
        Tried(formats=own_formats(each.question), plan=each.best, binding_limit=each.binding_limit, cut=each.cut)
        for each in answers
    )


def search_format(
    question: Question, *, explain: bool = True, beside: bool = True, transfer_seconds: float | None = None
) -> Answer:
    """Return the answer of a question in one number format, as ``search``.

    Decode is planned for prompts whose KV takes ``transfer_seconds``, the slowest transfer's where not given. Where
    waiting for links makes the plan's transfers longer than that and TPOT late, all is done again with theirs.

    Raises BadInput where the asked expert layout fits no strategy.
    """
    check_layouts(question)
    pools, aim = gather(question, transfer_seconds=transfer_seconds), aim_of(question)
    if not pools.prefill.offers or not pools.decode.offers:
        told = missing(question, not pools.prefill.offers) if explain else UNTOLD
        return refused(question, pools, *told)
    if question.objective == "latency" and question.rate_per_second is not None:
        return quickest_answer(question, pools, aim, explain=explain, beside=beside)
    pools, choice = best_of(compatible(question, pools), aim)
    if choice is None:
        return refused(question, pools, *(reason(question, pools, aim) if explain else UNTOLD))
    best = plan_of(question, pools, choice)
    if best is None:
        raise Fault("the fleet programme chose a rate that the chosen queues cannot carry")
    if best.tpot.at(question.percentile) > question.tpot_seconds and best.transfer_seconds > (transfer_seconds or 0.0):
        longer = LONGER * best.transfer_seconds
        return search_format(question, explain=explain, beside=beside, transfer_seconds=longer)
    bound = proven(pools.sides, aim, choice) if beside else None
    if bound is not None and bound.gap > 1e-6:
        raise Fault(f"the fleet programme's bound {bound.value:g} is not what the chosen columns reach")
    chosen_of_front = question.objective == "latency"
    front = front_of(best, other_plans(question, pools, aim)) if beside or chosen_of_front else [best]
    if chosen_of_front:
        best = min(front, key=lambda plan: (plan.e2e_mean_seconds, plan.devices))
    return Answer(
        question=question,
        best=best,
        pareto=tuple(front),
        candidates_evaluated=pools.count.evaluated,
        bound=bound,
        binding_limit=best.binding_limit,
        explanation=best.explanation,
        cut=pools.cut,
        published=published_plans(question, pools, aim) if beside else (),
    )


def quickest_answer(question: Question, pools: Pools, aim: Aim, *, explain: bool, beside: bool) -> Answer:
    """Return the plan whose requests take least from arrival to their last token, at the asked rate."""
    assert question.rate_per_second is not None
    parts = compatible(question, pools)
    timed = [[TimedSide(side, question.rate_per_second) for side in part.sides] for part in parts]
    found = [(part, own, quickest(own, aim)) for part, own in zip(parts, timed, strict=True)]
    known = [(part, own, each) for part, own, each in found if each is not None]
    if not known:
        return refused(question, pools, *(reason(question, pools, aim) if explain else UNTOLD))
    part, sides, first = min(known, key=lambda each: each[2].seconds)
    best = quick_plan(question, part, first.choice)
    if best is None:
        raise Fault("the quickest columns cannot keep up with the asked rate")
    others = []
    for share in FEWER_DEVICES if beside else ():
        fewer = replace(aim, devices={budget: int(count * share) for budget, count in aim.devices.items()})
        other = quickest(sides, fewer)
        others.append(quick_plan(question, part, other.choice) if other else None)
    return Answer(
        question=question,
        best=best,
        pareto=tuple(front_of(best, [plan for plan in others if plan is not None])),
        candidates_evaluated=pools.count.evaluated,
        bound=reached(first.bound, best.e2e_mean_seconds) if beside else None,
        binding_limit=best.binding_limit,
        explanation=best.explanation,
        cut=pools.cut,
        published=published_plans(question, pools, aim) if beside else (),
    )


def quick_plan(question: Question, pools: Pools, choice: Choice) -> Plan | None:
    """Return the plan of chosen columns at the asked rate, with the budgets and caps that are quickest at it."""
    rate, (first, second) = question.rate_per_second, choice
    assert rate is not None
    prefill, decode = pools.prefill.chosen(first, rate), pools.decode.chosen(second, rate)
    assert isinstance(prefill, PrefillServer) and isinstance(decode, DecodeServer)
    left = int(pools.prefill.left[first])
    return make_plan(
        question,
        (prefill, int(pools.prefill.instances[first]), prefill.pool_capacity(left) / left),
        (decode, int(pools.decode.instances[second]), decode.pool_capacity(1)),
        rate,
    )


def published_plans(question: Question, pools: Pools, aim: Aim) -> tuple[Beside, ...]:
    """Return the published deployments of this model and machine, as they would serve the question."""
    found = []
    for published in matching(question):
        prefill, decode = published_sides(question, published, slowest_transfer(question, [published.prefill]))
        own, plan = replace(pools, prefill=prefill, decode=decode), None
        choice = best_counts(own.sides, aim) if prefill.size and decode.size else None
        if choice is not None:
            plan = plan_at(question, own, choice, rate_of(own.sides, choice, question))
        found.append(Beside(published=published, plan=plan))
    return tuple(found)


def gather(
    question: Question, rows: dict[Role, list[Row]] | None = None, transfer_seconds: float | None = None
) -> Pools:
    """Cost every candidate of both roles, or those of given rows; no queue is solved yet.

    ``transfer_seconds`` is how long a prompt's KV takes at most where it may come from other machines than the
    question's; decode instances are costed then even where these machines' prefill has none.
    """
    count = Count()
    spaces = {} if rows else {role: role_space(question, role) for role in ROLES}
    rows = rows or {role: space.rows for role, space in spaces.items()}
    know_balance(question, [row for own in rows.values() for row in own])
    prefill = prefill_offers(question, rows["prefill"], count)
    # The slowest transfer of any prefill instance that may feed the pool: the limit holds whichever does.
    transfer = slowest_transfer(question, rows["prefill"]) if transfer_seconds is None else transfer_seconds
    alone = transfer_seconds is not None
    decode = decode_offers(question, rows["decode"], count, transfer) if prefill or alone else Offers.of([])
    return Pools(
        make_side(question, "prefill", prefill),
        make_side(question, "decode", decode),
        count,
        {role: space.cut for role, space in spaces.items()},
    )


def make_side(question: Question, role: Role, offers: Offers) -> Side:
    """Return the columns of a role."""
    machines = question.prefill if role == "prefill" else question.decode
    return Side(role, machines, offers, question.survive, most_instances=most_instances(question))


def compatible(question: Question, pools: Pools) -> list[Pools]:
    """Return the parts of the columns in which the engine lets every prefill share KV with every decode instance."""
    layers = [{(tp, pp) for tp, pp in side.offers.layers.tolist()} for side in pools.sides]
    found = pairs(question, layers[0], layers[1])
    if found == [(layers[0], layers[1])]:
        return [pools]
    return [
        replace(
            pools,
            prefill=make_side(question, "prefill", pools.prefill.offers.with_layers(ours)),
            decode=make_side(question, "decode", pools.decode.offers.with_layers(theirs)),
        )
        for ours, theirs in found
    ]


def best_of(parts: list[Pools], aim: Aim) -> tuple[Pools, Choice | None]:
    """Return the part with the best choice of columns, and that choice; None where none fits in any."""
    best: tuple[tuple[float, float], Pools, Choice] | None = None
    for pools in parts:
        choice = settle(pools.sides, aim)
        if choice is None:
            continue
        spent = sum(float(side.cost_per_hour[column]) for side, column in zip(pools.sides, choice, strict=True))
        used = float(sum(int(side.devices[column]) for side, column in zip(pools.sides, choice, strict=True)))
        rate = carried_by(pools.sides, choice)
        key = {"throughput": (-rate, used), "cost": (spent, -rate)}.get(aim.objective, (used, -rate))
        if best is None or key < best[0]:
            best = (key, pools, choice)
    return (best[1], best[2]) if best else (parts[0], None)


def know_balance(question: Question, rows: list[Row]) -> None:
    """Find the expert balance of all rows at once, which is quicker than group by group."""
    if question.model.moe is None or question.balance.kind not in ("measured", "none"):
        return
    layouts = {(row.strategy.moe_ep - row.dedicated, row.redundant) for row in rows if row.strategy.moe_ep > 1}
    static_balance(question.model.moe.experts, sorted(layouts), question.balance)


def aim_of(question: Question) -> Aim:
    """Return what the columns are chosen for: lowest latency starts from the most that the devices carry."""
    return Aim(
        devices={machines.budget: machines.devices for machines in (question.prefill, question.decode)},
        objective="throughput" if question.objective == "latency" else question.objective,
        rate=question.rate_per_second,
    )


def reason(question: Question, pools: Pools, aim: Aim) -> tuple[str, str]:
    """Return (binding limit, sentence) where no choice of columns is feasible."""
    most = settle(pools.sides, replace(aim, objective="throughput", rate=None))
    if most is not None:
        from planner.shortage import shortage  # searches larger machines; only a refusal needs it

        return shortage(question, pools, aim, carried_by(pools.sides, most))
    for side in pools.sides:
        if side.size and settle([side], replace(aim, objective="throughput", rate=None)) is None:
            return missing(question, side.role == "prefill")
    if question.survive is not None:
        sizes = (side.offers.devices.tolist() for side in pools.sides)
        return unsurvivable(question, *sizes)
    return refusal(question, certify(pools.sides, aim).message, 0.0)


def plan_of(question: Question, pools: Pools, choice: Choice) -> Plan | None:
    """Return the plan of chosen columns at their rate, or at the asked one."""
    rate = carried_by(pools.sides, choice)
    if question.rate_per_second is not None and question.objective != "throughput":
        rate = question.rate_per_second
    return plan_at(question, pools, choice, rate)


def plan_at(question: Question, pools: Pools, choice: Choice, rate_per_second: float) -> Plan | None:
    """Return the plan of chosen columns at a rate; None where they cannot keep up."""
    first, second = choice
    prefill, decode = pools.prefill.chosen(first), pools.decode.chosen(second)
    assert isinstance(prefill, PrefillServer) and isinstance(decode, DecodeServer)
    return make_plan(
        question,
        (prefill, int(pools.prefill.instances[first]), pools.prefill.rate_of_each(first)),
        (decode, int(pools.decode.instances[second]), pools.decode.rate_of_each(second)),
        rate_per_second,
    )


def other_plans(question: Question, pools: Pools, aim: Aim) -> list[Plan]:
    """Return plans that trade what the best one has: fewer devices, and less time per token."""
    found = []
    for part in FEWER_DEVICES if aim.objective == "throughput" else ():
        fewer = replace(aim, devices={budget: int(count * part) for budget, count in aim.devices.items()})
        found.append((pools, likely(pools.sides, fewer)))
    for part in TIGHTER_TPOT:
        tighter = replace(pools, decode=tighter_side(question, pools, part))
        found.append((tighter, likely(tighter.sides, aim)))
    plans = (plan_of(question, own, choice) for own, choice in found if choice is not None)
    return [plan for plan in plans if plan is not None]


def tighter_side(question: Question, pools: Pools, part: float) -> Side:
    """Return the decode columns of the leading rows at a part of the TPOT limit."""
    rows: list[Row] = []
    drafts: set[int] = set()
    transfer = 0.0
    for number in pools.decode.offers.leading(LEADING_OFFERS):
        kind = pools.decode.server(number)
        assert isinstance(kind, DecodeKind)
        transfer = kind.full.transfer_seconds
        drafts.add(kind.full.candidate.drafts)
        if kind.row not in rows:
            rows.append(kind.row)
    asked = replace(question, tpot_seconds=question.tpot_seconds * part, drafts=tuple(sorted(drafts)))
    return make_side(question, "decode", decode_offers(asked, rows, pools.count, transfer))


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
        candidates_evaluated=pools.count.evaluated,
        bound=None,
        binding_limit=binding or limit_of(question, pools),
        explanation=explanation,
        cut=pools.cut,
    )
