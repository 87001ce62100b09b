"""Where a step's time goes as arithmetic: every leading term with its numbers plugged in.

As in the JAX scaling book (Austin et al., How to Scale Your Model, 2025, chapter 1), amount over rate gives the least
time. Beside it stands the predicted time, which includes start-up, unfilled tiles, shared cores and waiting.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ground.units import format_bytes, format_duration
from planner.costs.breakdown import Operator
from planner.costs.cache import device_cache
from planner.costs.latency import balanced_cost
from planner.instances.kv_links import LinkState
from planner.manifest.drafts import tokens_per_iteration
from planner.manifest.terms import CommunicationTerm, CurveTerm, Term
from planner.plans.aggregated import PlannedAggregated
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.plans.pools import PlannedDecode, PlannedPool, PlannedPrefill
from planner.workload import reserved_kv_tokens

LEADING = 6
_UNITS = {"compute": "FLOP", "memory": "B", "network": "B"}
_TOLD = {
    "straggler_wait": "all ranks wait for the busiest expert rank and the fullest attention rank",
    "memory_wait": "both streams read memory at once",
    "mtp_layer": "the drafting layer, with its head",
    "pipeline_bubble": "stages idle while a pass fills and drains the pipeline, or the slowest stage computes",
    "pipeline_hop": "hidden states from stage to stage",
    "host": "the host between steps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """One operator of a step: ``count`` times ``amount`` over ``rate``, and its predicted seconds."""

    name: str
    bound: str
    count: int
    amount: float | None
    """FLOP or bytes of one launch, by what binds; None for waiting and other rows without an amount."""
    unit: str
    rate_per_second: float | None  # rate that the kernel or the link reaches
    least_seconds: float | None  # count · amount / rate
    seconds: float
    exposed_seconds: float
    share: float  # share of the step
    told: str


class PoolTerms(NamedTuple):
    """A pool's step: its leading terms, the time of the others, and shares of time by what binds."""

    role: str
    step_seconds: float
    terms: tuple[Worked, ...]
    rest_seconds: float
    by_bound: dict[str, float]  # share of the step that each of compute, memory, network and overhead binds
    lines: tuple[str, ...]  # capacity and memory as arithmetic

    @property
    def step(self) -> str:
        """Name of the step; aggregated instances have full steps only at saturation."""
        return "mean step with as many requests as at the plan's load" if self.role == "mixed" else "full step"


def worked_plan(plan: Plan) -> tuple[PoolTerms, ...]:
    """Return the arithmetic of every pool's full step."""
    return tuple(_pool(pool, _lines(plan, pool)) for _, pool in plan.pools())


def _lines(plan: Plan, pool: PlannedPool) -> tuple[str, ...]:
    if isinstance(pool, PlannedPrefill):
        return _prefill_lines(pool)
    if isinstance(pool, PlannedAggregated):
        return _mixed_lines(plan, pool)
    assert isinstance(pool, PlannedDecode)
    return _decode_lines(plan, pool)


def _pool(pool: PlannedPool, lines: tuple[str, ...]) -> PoolTerms:
    prediction = pool.prediction
    rows = sorted(prediction.operators, key=lambda row: -row.exposed_seconds)
    step = sum(row.exposed_seconds for row in rows)
    cost = balanced_cost(prediction.deployment, pool.question.balance)
    rates = {term.name: term for term in (*cost.terms, *cost.head_terms)}
    leading = tuple(_worked(row, rates.get(row.name), step) for row in rows[:LEADING])
    shares: dict[str, float] = {}
    for row in rows:
        shares[row.bound] = shares.get(row.bound, 0.0) + row.exposed_seconds / step
    return PoolTerms(
        role=pool.role,
        step_seconds=step,
        terms=leading,
        rest_seconds=sum(row.exposed_seconds for row in rows[LEADING:]),
        by_bound=dict(sorted(shares.items(), key=lambda item: -item[1])),
        lines=lines,
    )


def _worked(row: Operator, term: Term | None, step: float) -> Worked:
    amount, rate = _amount(row, term)
    return Worked(
        name=row.name,
        bound=row.bound,
        count=row.count,
        amount=amount,
        unit=_UNITS.get(row.bound, ""),
        rate_per_second=rate,
        least_seconds=row.count * amount / rate if amount is not None and rate else None,
        seconds=row.seconds,
        exposed_seconds=row.exposed_seconds,
        share=row.exposed_seconds / step,
        told=_TOLD.get(row.name, ""),
    )


def _amount(row: Operator, term: Term | None) -> tuple[float | None, float | None]:
    """Amount of one launch and the rate at which it is moved or computed; None where there is neither."""
    if term is None or not row.count:
        return None, None
    if isinstance(term, CurveTerm) and row.bound == "compute":  # timed whole; in which format it multiplies is not told
        return row.flops / row.count, None
    if isinstance(term, CommunicationTerm):
        payload = row.message_bytes / row.count
        fastest = min(term.protocols, key=lambda each: float(each[0]) + payload / float(each[1]), default=None)
        return (payload, float(fastest[1])) if fastest and payload else (None, None)
    if row.bound == "compute":
        return row.flops / row.count, float(term.flops_per_second)
    return (row.bytes / row.count, float(term.bytes_per_second)) if row.bound == "memory" else (None, None)


def _prefill_lines(pool: PlannedPrefill) -> tuple[str, ...]:
    candidate = pool.candidate
    ranks = candidate.row.strategy.attention_dp
    parts = f", each in {candidate.chunks} parts" if candidate.chunks > 1 else ""
    return (
        f"rate: {candidate.prompts} prompts x {ranks} DP ranks / {format_duration(candidate.pass_seconds)}{parts} = "
        f"{candidate.requests_per_second:.3g} requests/s when saturated; within TTFT {_carried(pool)}",
    )


def _carried(pool: PlannedPool) -> str:
    """Return the rate of an instance within the limits, and of all where there are several."""
    each = f"an instance carries {pool.capacity_per_second / pool.instances:.4g}"
    return each if pool.instances == 1 else f"{each}, {pool.instances} carry {pool.capacity_per_second:.4g}"


def _decode_lines(plan: Plan, pool: PlannedDecode) -> tuple[str, ...]:
    question = plan.question
    candidate, ranks = pool.candidate, pool.candidate.row.strategy.attention_groups
    accepted = tokens_per_iteration(candidate.drafts, question.acceptance)
    answer = question.workload.decoded_tokens
    step = format_duration(candidate.iteration_seconds)
    tpot = candidate.iteration_seconds / accepted
    return (
        f"rate: {candidate.batch} requests x {ranks} DP ranks x {accepted:.3g} tokens / ({step} x {answer:.0f} tokens) "
        f"= {candidate.requests_per_second:.3g} requests/s when full; within TPOT {_carried(pool)}",
        f"TPOT at the full batch: {step} / {accepted:.3g} tokens = {format_duration(tpot)} of "
        f"{format_duration(question.tpot_seconds)}; p{question.percentile:g} with waiting and transfer "
        f"{format_duration(plan.tpot.at(question.percentile))}",
        _room_line(pool, candidate.batch),
        *expert_devices_lines(pool),
        *([link_line(plan.links)] if isinstance(plan, DisaggregatedPlan) else []),
    )


def link_line(links: LinkState) -> str:
    """Return the KV transfer from prefill to decode as arithmetic."""
    busy = " and ".join(f"{share:.1%} of {role}'s" for role, share in links.utilisation.items())
    return (
        f"KV transfer: {format_bytes(links.sent_bytes)} a prompt / ({links.width} x "
        f"{format_bytes(links.link_bytes_per_second)}/s) + latency = {format_duration(links.transfer_seconds)}, and "
        f"{format_duration(links.wait_seconds)} of waiting while {busy} link time is taken"
    )


def _mixed_lines(plan: Plan, pool: PlannedAggregated) -> tuple[str, ...]:
    """Return Little's law of a rank: running requests over their time in decode."""
    candidate, state, question = pool.candidate, pool.state, plan.question
    ranks = candidate.row.strategy.attention_groups
    accepted = tokens_per_iteration(candidate.drafts, question.acceptance)
    answer = question.workload.decoded_tokens
    step, level = format_duration(state.mean_step_seconds), question.percentile
    running = state.mean_requests / ranks
    each = plan.requests_per_second / pool.instances
    answered = (
        f"rate: {running:.3g} requests x {ranks} DP ranks x {accepted:.3g} tokens / ({step} x {answer:.0f} tokens) = "
        f"{each:.3g} requests/s of one instance at the plan's rate; within TTFT and TPOT {_carried(pool)}",
        f"TPOT: {step} / {accepted:.3g} = {format_duration(state.mean_step_seconds / accepted)} of "
        f"{format_duration(question.tpot_seconds)}; p{level:g} {format_duration(plan.tpot.at(level))}. The {step} are "
        "the mean over tokens: requests come unevenly, and the longer steps answer more of them",
    )
    return (
        *(answered if state.mean_step_seconds else ()),  # of one token
        f"prompts: {candidate.batched_tokens} tokens a step and DP rank, {state.prompt_steps:.0%} of the steps carry "
        f"some; TTFT p{level:g} {format_duration(plan.ttft.at(level))} of {format_duration(question.ttft_seconds)}",
        _room_line(pool, candidate.batch),
    )


def expert_devices_lines(pool: PlannedPool) -> list[str]:
    """Return the memory of a device that runs only experts; nothing where attention and experts share devices."""
    held = pool.prediction.expert_memory
    if held is None:
        return []
    kinds = ("weights", "activations", "buffers", "reserve")
    parts = " + ".join(f"{format_bytes(float(getattr(held, kind)))} {kind}" for kind in kinds)
    experts = pool.candidate.row.strategy.expert_devices
    return [
        f"{experts} of the {pool.candidate.devices} devices run experts alone: {parts} = "
        f"{format_bytes(float(held.used))} of {format_bytes(held.capacity)} each"
    ]


def _room_line(pool: PlannedPool, batch: int) -> str:
    """Return the number of requests that a DP rank's memory holds, as arithmetic."""
    held = pool.memory
    kinds = ("capacity", "reserve", "weights", "buffers", "activations")
    capacity, *taken = (float(getattr(held, kind)) for kind in kinds)
    room = capacity - sum(taken)
    question = pool.question
    workload = question.decoded if pool.candidate.deployment.phase == "decode" else question.workload
    tokens, cache = reserved_kv_tokens(workload).mean_tokens, device_cache(pool.candidate.deployment)
    each, kept = float(cache.token_bytes), float(cache.charged(tokens, 1.0))  # windows keep fewer, states take more
    worth = "" if round(kept) == round(tokens) else f" for {tokens:.0f}"
    shown = " - ".join(f"{format_bytes(amount)} {kind}" for amount, kind in zip((capacity, *taken), kinds, strict=True))
    return (
        f"memory: ({shown}) / ({kept:.0f} tokens{worth} x {each:.3g} B) = {room / (kept * each):.0f} requests per DP "
        f"rank; it runs {batch}"
    )


def short_form(plan: Plan) -> list[str]:
    """Return a sentence per pool with its rate as arithmetic and the parts of its full step."""
    told = []
    for pool in worked_plan(plan):
        bounds = ", ".join(f"{share:.0%} {bound}" for bound, share in pool.by_bound.items())
        first = pool.terms[0]
        told.append(
            f"{pool.role.capitalize()} {pool.lines[0]}. Its {pool.step} is {bounds}; the longest part is {first.name} "
            f"({first.share:.0%})."
        )
    return told
