"""Why a role, or aggregated instances, have no candidate at all, and what would help."""

import math
from dataclasses import replace

import numpy as np

from ground.units import counted, format_bytes, format_duration
from planner.closed_forms.fullest import FullestRank
from planner.costs.latency import accepted_tokens
from planner.costs.memory import weight_bytes
from planner.instances.candidates import (
    Count,
    budgets,
    iteration,
    largest_room,
    least_batch,
    pass_seconds,
    prefill_fits,
)
from planner.instances.encoding import encode_seconds
from planner.instances.prefill_passes import longest_alone
from planner.instances.reachable import Reach
from planner.instances.space import ROLES, Role, built, groups, machines_of, role_rows
from planner.objective import Aim
from planner.offers.aggregated_offers import bounds_of, holding
from planner.plans.quantised import alternatives
from planner.programme.programme import Programme
from planner.question import Question
from planner.search.answer import Answer, Change
from planner.search.gather import aggregated, not_aggregated
from planner.search.ways import Gathered
from planner.workload import reserved_kv_tokens

_LATENCY = {"prefill": "ttft", "decode": "tpot"}


def missing(question: Question, role: Role) -> tuple[str, str]:
    """Return (binding limit, sentence) for a pool without any candidate."""
    best = fastest(question, ttft=role == "prefill") if fitting_sizes(question, role) else 0.0
    if not best:
        return "memory", memory_sentence(question, role)
    return out_of_reach(question, role, best, ttft=role == "prefill")


def out_of_reach(question: Question, role: Role, seconds: float, *, ttft: bool) -> tuple[str, str]:
    """Return (binding limit, sentence) where the fastest instance of a role takes so long with nothing else to do."""
    flag, limit = asked_limit(question, ttft)
    share = question.encode_share if ttft else 0.0
    before = f", and encode instances have {share:.0%} of the limit before it" if share else ""
    if not before and seconds <= limit:
        before = ", and longer in as many passes as its memory asks for, or beside other requests"
    return flag.strip("-"), (
        f"{flag} {format_duration(limit)} cannot be kept at percentile {question.percentile:g}: the fastest "
        f"{'aggregated' if role == 'mixed' else role} instance on up to "
        f"{counted(machines_of(question, role).devices, 'device')} takes {format_duration(seconds)} with nothing else "
        f"to do{before}"
    )


def late_in_encode(question: Question) -> str:
    """Return a sentence on idle encode instances that miss their part of the TTFT limit; empty if they keep it."""
    share, limit = question.encode_share, question.ttft_seconds
    alone = encode_seconds(question) if share else 0.0
    if alone <= share * limit:
        return ""
    return (
        f"--ttft {format_duration(limit)} cannot be kept at percentile {question.percentile:g}: the pictures of a "
        f"request take an encode instance {format_duration(alone)} with nothing else to do, and encode instances have "
        f"at most {share:.0%} of the limit"
    )


def fastest(question: Question, *, ttft: bool) -> float:
    """Return the least TTFT, or TPOT, of any idle instance; 0 where none fits."""
    if question.shape == "aggregated":
        found = fastest_alone(question)[0 if ttft else 1]
    else:
        found = fastest_ttft(question) if ttft else fastest_tpot(question)
    return found if math.isfinite(found) else 0.0


def fitting_sizes(question: Question, role: Role) -> list[int]:
    """Devices of every row of the role that holds the least load: a prompt in the smallest chunks, or one request."""
    workload, finest = question.workload, max(chunks for _, chunks in budgets(question.workload))
    sizes: list[int] = []
    for group in groups(question, role, role_rows(question, role), 0 if role == "prefill" else min(question.drafts)):
        if role == "prefill":
            fits = np.broadcast_to(prefill_fits(group.deployment, workload, 1, finest), (len(group.rows),))
            held = np.flatnonzero(fits)
        elif role == "decode":
            held = np.flatnonzero(largest_room(group, 1, reserved_kv_tokens(question.decoded)) >= least_batch(group, 1))
        else:
            held = holding(question, group)
        sizes += [group.rows[number].strategy.devices for number in held.tolist()]
    return sizes


def memory_sentence(question: Question, role: Role) -> str:
    """Return a sentence with the missing memory and the smallest number of devices that would hold the model."""
    machines = machines_of(question, role)
    device = machines.hardware.device
    room = device.memory_bytes.value - device.reserve_bytes.value
    needs = [
        float(np.min(weight_bytes(group.deployment)))
        for group in groups(question, role, role_rows(question, role), 0)
        if group.rows
    ]
    held = counted(machines.devices, "device")
    if not needs and (refused := Reach(question, role).apart):
        return refused.sentence
    if not needs:
        most = question.max_instance_devices
        bound = f" with at most {counted(most, 'device')} an instance (--max-instance-devices)" if most else ""
        return f"{question.model.name} has no strategy on {held} of {machines.hardware.name}{bound}"
    least, smallest = min(needs), smallest_devices(question, role)
    nearest = "no number of them does"
    if smallest and role == "mixed":
        nearest = f"the smallest number that holds an aggregated instance is {smallest}"
    elif smallest:
        nearest = f"the smallest number that holds a {role} instance is {smallest}, and a plan needs one of each role"
    start = f"{question.model.name} does not fit {held} of {machines.hardware.name}: its weights take"
    if least > room:
        return (
            f"{start} at least {format_bytes(least)} per device beside a KV cache, {format_bytes(room)} are free, "
            f"{format_bytes(least - room)} too much; {nearest}"
        )
    workload = question.decoded if role == "decode" else question.workload
    tokens = workload.input_tokens.mean if role == "prefill" else reserved_kv_tokens(workload).mean_tokens
    return (
        f"{start} {format_bytes(least)} of the {format_bytes(room)} that are free on a device, and no instance has the "
        f"rest hold one {role} request of {tokens:.0f} tokens; {nearest}"
    )


def smallest_devices(question: Question, role: Role) -> int | None:
    """Return the devices of the smallest instance of the role that fits, on pools doubled until one does."""
    machines = machines_of(question, role)
    devices = machines.devices
    while devices <= 64 * max(machines.devices, machines.devices_per_node):
        devices *= 2
        sizes = fitting_sizes(with_devices(question, devices), role)
        if sizes:
            return min(sizes)
    return None


def smallest_plan(question: Question) -> float:
    """Devices of the smallest aggregated instance that fits, or of one instance per role; infinite where none fits."""
    roles: tuple[Role, ...] = ("mixed",) if not_aggregated(question) is None else ROLES
    return float(sum(smallest_devices(question, role) or math.inf for role in roles))


def with_devices(question: Question, devices: int) -> Question:
    """Return the question with both pools at another size."""
    return question.on_roles(lambda machines: replace(machines, devices=devices))


def fastest_tpot(question: Question) -> float:
    """Least time per token of any decode instance that fits, at its smallest batch; infinite where none fits."""
    best = math.inf
    for whole in built(question, "decode", role_rows(question, "decode")):
        least = least_batch(whole.group, 1)
        fits = largest_room(whole.group, 1, reserved_kv_tokens(question.decoded)) >= least
        fullest = FullestRank.of(question.decoded, whole.group.deployment.strategy.attention_groups)
        seconds = iteration(whole.cost, fullest, least, 1)
        each = seconds / accepted_tokens(whole.group.deployment, question.acceptance)
        best = min(best, float(np.min(np.where(fits, each, math.inf))))
    return best


def fastest_ttft(question: Question) -> float:
    """Shortest time of one prompt alone, whole or in chunks, on any prefill instance that fits; infinite: none fits.

    Where prompts differ that of the one at the percentile, in one pass.
    """
    best = math.inf
    for whole in built(question, "prefill", role_rows(question, "prefill")):
        deployment = whole.group.deployment
        alone = 1.0 / np.asarray(deployment.strategy.attention_dp)
        for chunks in sorted({chunks for _, chunks in budgets(question.workload)}):
            fits = prefill_fits(deployment, question.workload, 1, chunks)
            seconds = pass_seconds(whole.cost, question.workload, 1.0, alone, chunks, 1)
            if question.workload.varied:
                ranks = deployment.strategy.attention_dp
                longest = [longest_alone(question, whole.cost, ranks, parts) for parts in question.microbatches]
                seconds = np.maximum(seconds, np.minimum.reduce(longest))
            best = min(best, float(np.min(np.where(fits, seconds, math.inf))))
    return best


def fastest_alone(question: Question) -> tuple[float, float]:
    """Least seconds of a prompt, and per token of its answer, on any aggregated instance; infinite where none fits."""
    ttft = tpot = math.inf
    for whole in built(question, "mixed", role_rows(question, "mixed")):
        held = whole.select(holding(question, whole.group))
        if held.group.rows:
            bounds = bounds_of(question, held, Count())
            ttft = min(ttft, float(bounds.alone(bounds.means.timely).min()))
            tpot = min(tpot, float((bounds.bare(1 / bounds.ranks) / bounds.accepted).min()))
    return ttft, tpot


def in_reach(question: Question) -> bool:
    """Whether idle instances of either shape keep both limits, which every plan needs; quick to tell."""

    def kept(ttft: float, tpot: float) -> bool:
        return ttft <= question.ttft_seconds and (tpot <= question.tpot_seconds or not question.workload.decodes)

    return any(
        (each.shape != "aggregated" and kept(fastest_ttft(each), fastest_tpot(each)))
        or (not_aggregated(each) is None and kept(*fastest_alone(each)))
        for each in alternatives(question)
    )


def unsurvivable(question: Question) -> tuple[str, str]:
    """Return (binding limit, sentence) where instances fit, but too few remain after a loss."""
    held = f" on {counted(question.prefill.devices, 'device')}" if question.one_pool else ""
    loss = question.survive or "instance"
    return "survive", f"--survive: losing one {loss} would leave no instance of a role{held}"


def most_devices(question: Question) -> float:
    """Most devices of both roles: those of a supernode, or any number where machines are sold by the node."""
    specs = {machines.hardware.name: machines.hardware for machines in (question.prefill, question.decode)}
    if any(spec.sold_by_node for spec in specs.values()):
        return math.inf
    return float(sum(spec.nodes.value * spec.devices_per_node.value for spec in specs.values()))


def missing_anyhow(question: Question, role: Role) -> tuple[str, str]:
    """Return (binding limit, sentence) where separate pools lack a role and aggregated instances carry nothing.

    The sentence is about separate pools, unless only aggregated instances are asked for or memory lacks, of which
    aggregated instances need least.
    """
    if question.shape == "aggregated":
        return missing_aggregated(question)
    told = missing(question, role)
    return missing_aggregated(question) if told[0] == "memory" and not_aggregated(question) is None else told


def missing_aggregated(question: Question) -> tuple[str, str]:
    """Return (binding limit, sentence) where no aggregated instance carries any rate within the limits."""
    ttft, tpot = fastest_alone(question)
    if math.isinf(ttft):
        return "memory", memory_sentence(question, "mixed")
    if question.survive is not None and carries(replace(question, survive=None)):
        return unsurvivable(question)
    late = tpot <= question.tpot_seconds
    return out_of_reach(question, "mixed", ttft if late else tpot, ttft=late)


def carries(question: Question) -> bool:
    """Whether some aggregated instance that fits carries any rate within the limits."""
    aim = Aim(devices={question.decode.budget: question.decode.devices}, objective="throughput")
    found = aggregated(question, aim, None, role_rows(question, "mixed"), Count())
    return Programme(((found.option(question).sides,),), aim).carries_any()


def asked_limit(question: Question, ttft: bool) -> tuple[str, float]:
    """Return (flag, seconds) of the limit on TTFT, or of that on TPOT."""
    return ("--ttft", question.ttft_seconds) if ttft else ("--tpot", question.tpot_seconds)


def with_limit(question: Question, ttft: bool, seconds: float) -> Question:
    """Return the question with another limit on TTFT, or on TPOT."""
    return replace(question, ttft_seconds=seconds) if ttft else replace(question, tpot_seconds=seconds)


def limit_of(separate: Gathered) -> str:
    """Return the binding limit of a question without a plan, without further searches."""
    (question, pools), aim = separate.roles[0], Aim(devices=separate.fleet.devices, objective="throughput")
    for side in pools.sides:
        if not side.offers:
            return _LATENCY[side.role] if fitting_sizes(question, side.role) else "memory"
    if question.rate_per_second is not None and not separate.closed and separate.programme(aim).likely() is not None:
        return "devices"
    for side in pools.sides:
        if side.size and not Programme((((side,),),), aim).carries_any():
            return _LATENCY[side.role]
    return "devices" if question.survive is None else "survive"


def without_plan(
    gathered: Gathered, limit: str, told: str = "", *, growth: float = 0.0, changes: tuple[Change, ...] = ()
) -> Answer:
    """Return the answer without a plan: what binds, a reason, and the changes that would help."""
    helps = "; ".join(f"{change.direction}: {change.told}" for change in changes)
    return Answer(
        fleet=gathered.fleet,
        plans=(),
        growth=growth,
        candidates_evaluated=gathered.count.evaluated,
        bound=None,
        binding_limit=limit,
        explanation=f"{told}; nearest changes, each solved: {helps}" if helps else told,
        changes=changes,
    )
