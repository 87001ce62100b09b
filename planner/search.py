"""All candidates of both pools, their instance counts as an integer programme, the plan and its proof."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.candidates import decode_all, decode_found, prefill_found
from planner.decode_candidates import Count, DecodeCandidate
from planner.fleet import Column, FleetSolution, solve_fleet
from planner.infeasible import missing, refusal, unsurvivable
from planner.operating import DecodeServer, PrefillServer, kv_transfer_seconds
from planner.plan import Bound, Plan, make_plan
from planner.prefill_candidates import PrefillCandidate
from planner.question import Question
from planner.shortlist import shortlist
from planner.space import check_layouts
from planner.survival import lost_instances
from podplan.errors import Fault

# TPOT limits, as parts of the asked one, at which further decode candidates are sought for the front.
FRONT_LIMITS = (0.6,)
FRONT_CANDIDATES = 2
# Binding limit and explanation of a refusal that nobody asked the reason of.
UNTOLD = ("", "")


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


@dataclass(frozen=True, slots=True)
class Pools:
    """Candidates with a positive rate, and that rate per instance."""

    prefill: list[tuple[PrefillCandidate, PrefillServer, float]]
    decode: list[tuple[DecodeCandidate, DecodeServer, float]]
    evaluated: int


def search(question: Question, explain: bool = True) -> Answer:
    """Return the best plan for a question, the runners-up, and what is proven.

    A pool of c instances behind random routing carries exactly c times what one carries under
    Poisson arrivals (thinning), which better routing only raises; so a column's rate is count
    times the queueing rate of one instance.

    A refusal says why and what would help, which takes searches of its own; without ``explain`` it does not.

    Raises BadInput where the asked expert layout fits no strategy.
    """
    check_layouts(question)
    pools = gather(question)
    if not pools.prefill or not pools.decode:
        told = missing(question, not pools.prefill) if explain else UNTOLD
        return refused(question, pools.evaluated, *told)
    columns = fleet_columns(question, pools)
    budgets = {machines.budget: machines.devices for machines in (question.prefill, question.decode)}
    objective = "throughput" if question.objective == "latency" else question.objective
    solution = solve_fleet(columns, devices=budgets, objective=objective, rate=question.rate_per_second)
    if solution.status != "optimal" and not explain:
        return refused(question, pools.evaluated, *UNTOLD)
    if solution.status != "optimal":
        most = most_rate(columns, budgets)
        sizes = [c.devices for c, _, _ in pools.prefill], [c.devices for c, _, _ in pools.decode]
        lost = question.survive is not None and not most > 0
        told = unsurvivable(question, *sizes) if lost else refusal(question, solution.message, most)
        return refused(question, pools.evaluated, *told)
    best = plan_of(question, pools, solution)
    if best is None:
        raise Fault("the fleet programme chose a rate that the chosen queues cannot carry")
    front = pareto_front(question, pools, best)
    # The programme breaks ties by devices; among equals the one with the shorter waiting is the plan.
    best = next((plan for plan in front if dominates(plan, best)), best)
    if question.objective == "latency":
        best = min(front, key=lambda plan: (plan.e2e_mean_seconds, plan.devices))
    goal = "throughput" if question.objective == "latency" else question.objective
    bound = Bound(objective=goal, value=solution.bound, gap=solution.gap, covers=covers(question, pools))
    return Answer(
        question=question,
        best=best,
        pareto=tuple(front),
        candidates_evaluated=pools.evaluated,
        bound=bound,
        binding_limit=best.binding_limit,
        explanation=best.explanation,
    )


def gather(question: Question) -> Pools:
    """Cost every candidate of both pools and solve the queues of the instance sizes that a plan could use."""
    count = Count()
    prefill, decode = shortlist(question, prefill_found(question, count), decode_all(question, count))
    decode += front_candidates(question, count, prefill, decode)
    # The slowest transfer of any prefill instance that may feed the pool: the limit holds whichever does.
    transfer = max((kv_transfer_seconds(question, c.deployment) for c in prefill), default=0.0)
    served_prefill = [(c, PrefillServer(question, c)) for c in prefill]
    served_decode = [(c, DecodeServer(question, c, transfer)) for c in decode]
    return Pools(
        [(c, s, rate) for c, s in served_prefill if (rate := s.capacity()) > 0],
        [(c, s, rate) for c, s in served_decode if (rate := s.capacity()) > 0],
        count.evaluated,
    )


def front_candidates(
    question: Question, count: Count, prefill: Sequence[PrefillCandidate], decode: Sequence[DecodeCandidate]
) -> list[DecodeCandidate]:
    """Return the leading strategies at tighter TPOT limits, for the front; they can only widen the choice."""
    leading = decode[:FRONT_CANDIDATES]
    rows = [candidate.row for candidate in leading]
    drafts = tuple(sorted({candidate.drafts for candidate in leading}))
    found: list[DecodeCandidate] = []
    for part in FRONT_LIMITS if leading else ():
        found += decode_found(replace(question, drafts=drafts), count, question.tpot_seconds * part, rows)
    return found


def fleet_columns(question: Question, pools: Pools) -> list[Column]:
    """Return one column per candidate and instance count that its budget holds."""
    return [
        *role_columns("prefill", question, [(c.devices, rate) for c, _, rate in pools.prefill]),
        *role_columns("decode", question, [(c.devices, rate) for c, _, rate in pools.decode]),
    ]


def role_columns(role: str, question: Question, members: list[tuple[int, float]]) -> list[Column]:
    """Return the columns of one role from (devices, rate) of one instance of each candidate.

    A column's rate is what is left of it carries after the loss that the question asks it to survive.
    """
    machines = question.prefill if role == "prefill" else question.decode
    price = machines.hardware.price_usd_per_chip_hour
    hourly = price.value / machines.devices_per_chip if price else 1.0
    return [
        Column(
            role=role,
            candidate=number,
            instances=instances,
            devices=instances * devices,
            rate_per_second=(instances - lost) * rate,
            pool=machines.budget,
            cost_per_hour=instances * devices * hourly,
        )
        for number, (devices, rate) in enumerate(members)
        for lost in (lost_instances(question.survive, devices, machines.devices_per_node),)
        for instances in range(1 + lost, machines.devices // devices + 1)
    ]


def most_rate(columns: list[Column], budgets: dict[str, int]) -> float:
    """Largest rate that the devices carry, whatever was asked."""
    return solve_fleet(columns, devices=budgets, objective="throughput").rate_per_second


def plan_of(question: Question, pools: Pools, solution: FleetSolution) -> Plan | None:
    """Return the plan of a fleet solution at its rate, or at the asked one."""
    chosen = {column.role: column for column in solution.columns}
    first, second = chosen["prefill"], chosen["decode"]
    rate = min(first.rate_per_second, second.rate_per_second)
    if question.rate_per_second is not None and question.objective != "throughput":
        rate = question.rate_per_second
    _, prefill, prefill_rate = pools.prefill[first.candidate]
    _, decode, decode_rate = pools.decode[second.candidate]
    return make_plan(question, (prefill, first.instances, prefill_rate), (decode, second.instances, decode_rate), rate)


def pareto_front(question: Question, pools: Pools, best: Plan) -> list[Plan]:
    """Return the best plan of each decode candidate that no other beats in rate, chips, TTFT and TPOT at once."""
    plans = [best]
    budgets = {machines.budget: machines.devices for machines in (question.prefill, question.decode)}
    columns = fleet_columns(question, pools)
    prefill = [column for column in columns if column.role == "prefill"]
    for number in range(len(pools.decode)):
        decode = [column for column in columns if column.role == "decode" and column.candidate == number]
        pair = best_pair(prefill, decode, budgets, question)
        if pair is None:
            continue
        first, second = pair
        rate = min(first.rate_per_second, second.rate_per_second)
        if question.rate_per_second is not None and question.objective != "throughput":
            rate = question.rate_per_second
        _, prefill_server, prefill_rate = pools.prefill[first.candidate]
        _, decode_server, decode_rate = pools.decode[number]
        plan = make_plan(
            question,
            (prefill_server, first.instances, prefill_rate),
            (decode_server, second.instances, decode_rate),
            rate,
        )
        if plan is not None:
            plans.append(plan)
    kept = [plan for plan in plans if not any(dominates(other, plan) for other in plans)]
    return sorted(distinct(kept), key=lambda plan: -plan.requests_per_second)


def best_pair(
    prefill: list[Column], decode: list[Column], budgets: dict[str, int], question: Question
) -> tuple[Column, Column] | None:
    """Return the pair of columns with the highest rate, or by objective the least devices or cost, in the budgets.

    A pair that does not carry the asked rate is none.
    """
    best: tuple[tuple[float, float], tuple[Column, Column]] | None = None
    for first in prefill:
        for second in decode:
            shared = first.pool == second.pool
            if shared and first.devices + second.devices > budgets[first.pool]:
                continue
            rate = min(first.rate_per_second, second.rate_per_second)
            if rate < (question.rate_per_second or 0.0):
                continue
            devices = float(first.devices + second.devices)
            spent = first.cost_per_hour + second.cost_per_hour if question.objective == "cost" else devices
            key = (spent, -rate) if question.objective in ("chips", "cost") else (-rate, devices)
            if best is None or key < best[0]:
                best = (key, (first, second))
    return best[1] if best else None


def dominates(one: Plan, other: Plan) -> bool:
    """Whether ``one`` is nowhere worse and somewhere better."""
    ours, theirs = figures(one), figures(other)
    return all(a <= b * (1 + 1e-6) for a, b in zip(ours, theirs, strict=True)) and any(
        a < b * (1 - 1e-6) for a, b in zip(ours, theirs, strict=True)
    )


def figures(plan: Plan) -> tuple[float, float, float, float]:
    """What the front compares, all to be made small: 1/rate, devices (or cost, if asked for), mean TTFT, mean TPOT."""
    cost = plan.cost_per_million_tokens if plan.question.objective == "cost" else None
    return 1 / plan.requests_per_second, cost or float(plan.devices), plan.ttft.mean, plan.tpot.mean


def distinct(plans: list[Plan]) -> list[Plan]:
    """Drop plans with about the same rate, devices and TPOT as an earlier one."""
    seen: dict[tuple[float, ...], Plan] = {}
    for plan in plans:
        rate, spent, _, tpot = figures(plan)
        seen.setdefault((float(f"{rate:.3g}"), float(f"{spent:.6g}"), float(f"{tpot:.3g}")), plan)
    return list(seen.values())


def covers(question: Question, pools: Pools) -> str:
    """Say what the bound is a bound of."""
    return (
        f"instance counts of both pools over the queueing rates of the {len(pools.prefill)} prefill and "
        f"{len(pools.decode)} decode instances that pack best; each is the best of its size over every strategy, "
        "redundancy, MTP depth and microbatching of the grid and every integer batch (decode, by monotonicity) or "
        "listed token budget (prefill)"
    )


def refused(question: Question, evaluated: int, binding: str, explanation: str) -> Answer:
    """Return the answer of a question without a plan."""
    return Answer(
        question=question,
        best=None,
        pareto=(),
        candidates_evaluated=evaluated,
        bound=None,
        binding_limit=binding,
        explanation=explanation,
    )
