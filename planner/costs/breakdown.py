"""Where a step goes: every operator with busy and exposed seconds; exposed seconds add up to the step."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from planner.manifest.stepcost import (
    StepSeconds,
    draft_seconds,
    drain,
    expert_stream,
    layer_bounds,
    layer_count,
    moe_layer,
    on_cores,
    passage,
    pipeline_seconds,
    slot_seconds,
    slots,
    slowed,
    split_seconds,
    stage_sum,
)
from planner.manifest.terms import (
    EXPERT_STAGES,
    CommunicationTerm,
    ComputeTerm,
    CurveTerm,
    Number,
    Stage,
    StepCost,
    StepLoad,
    Term,
    Timing,
    Timings,
    communication_seconds,
    dedicated,
    form,
    layer_share,
    timings,
    variables,
)

Bound = Literal["compute", "memory", "network", "overhead"]
_EXPERTS: tuple[Stage, Stage] = ("experts", "shared")


@dataclass(frozen=True, slots=True)
class Operator:
    """Totals of one operator over one iteration on one device; seconds are busy time."""

    name: str
    stream: str
    count: int
    seconds: float
    exposed_seconds: float
    flops: float
    bytes: float
    message_bytes: float
    bound: Bound
    residual: float


class _Step(NamedTuple):
    """One step evaluated at the even load, and what the busiest rank adds to a layer.

    Where two streams split the cores (``split``): how much slower each reads memory, and its seconds.
    """

    cost: StepCost
    values: dict[str, Number]
    whole: dict[str, Number]
    stages: Timings
    microbatches: int
    share: float
    straggler_layer: float
    split: bool
    dilations: tuple[float, float]
    streams: tuple[float, float]


def operators(cost: StepCost, load: StepLoad, timed: StepSeconds) -> tuple[Operator, ...]:
    """Return the operators of one step (numbers only); their exposed seconds sum to its duration.

    ``timed`` is what ``evaluate`` returned for the same cost and load.
    """
    loading = float(load.loaded_tokens * cost.loading_seconds)
    microbatches, seconds, share = timed.microbatches, float(timed.seconds) - loading, float(timed.stream_share)
    even = replace(cost, balance=1.0, sampling_deviations=0.0)
    values = variables(even, load, microbatches)
    busy_values = variables(cost, load, microbatches)
    stages = timings(cost.terms, values)
    busy = {**stages, **timings(tuple(term for term in cost.terms if term.stage in EXPERT_STAGES), busy_values)}
    layer = float(_layer_at(cost, busy, microbatches, share))
    whole = values if microbatches == 1 else variables(even, load, 1)
    context = _step(cost, values, whole, stages, (microbatches, share, layer))
    heads = _head_rows(context)
    rows = [row for stage in stages for row in _stage_rows(context, stage)] + heads
    head = sum(row.seconds for row in heads)
    loads = [_plain("prefix_load", "pool", 1, loading, "network")] if loading else []
    return (*rows, *_composition_rows(context, layer, busy, busy_values, (seconds, head)), *loads)


def _step(
    cost: StepCost,
    values: dict[str, Number],
    whole: dict[str, Number],
    stages: Timings,
    busiest: tuple[int, float, float],
) -> _Step:
    """Return the step at the even load; ``busiest`` has microbatches, core share and seconds of a busiest layer."""
    microbatches, share, layer = busiest
    split = bool(microbatches > 1 and cost.rule == "attention_experts" and cost.moe_layers)
    straggler = layer - float(_layer_at(cost, stages, microbatches, share))
    dilations = streams = (1.0, 1.0)
    if split:
        own, other = (float(number) for number in slowed(cost, on_cores(stages, share)))
        dilations = own, other
        attention = float(stage_sum(stages, ("attention",), share, own))
        streams = attention, float(expert_stream(cost, stages, 1 - share, other))
    return _Step(cost, values, whole, stages, microbatches, share, straggler, split, dilations, streams)


def _layer_at(cost: StepCost, stages: Timings, microbatches: int, share: float) -> Number:
    """Seconds of one MoE layer with the core share given instead of chosen."""
    if not cost.moe_layers or microbatches == 1 or cost.rule != "attention_experts":
        return moe_layer(cost, stages, microbatches)[0]
    return split_seconds(cost, stages, share)


def _stage_rows(step: _Step, stage: Stage) -> list[Operator]:
    cost = step.cost
    cores, dilation = _pace(step, stage)
    exposed = _exposed_share(step, stage)
    rows = []
    for term, timing in step.stages[stage].terms:
        count = layer_count(cost, stage) * step.microbatches * _turns(cost, stage)
        seconds = float(timing.seconds(cores, dilation)) * count
        exposure = seconds * exposed
        if stage == "attention" and (cores != 1.0 or cost.rule == "disaggregated"):
            # Dense layers run unsplit and alone: their share of the attention operators is at all cores.
            alone = float(timing.seconds()) * cost.dense_layers * step.microbatches
            seconds = seconds * cost.moe_layers / layer_count(cost, stage) + alone
            exposure = (seconds - alone) * exposed + alone
        row = _row(term, timing, _stream(stage, cost), count, (seconds, exposure))
        rows.append(replace(row, count=round(count * layer_share(term))))
    return rows


def _head_rows(step: _Step) -> list[Operator]:
    """Embedding, head and sampling run once on the whole batch; the manifest of a stranger may have none."""
    stages = timings(step.cost.head_terms, step.whole).values()
    return [_row(t, own, "0", 1, (float(own.seconds()),) * 2) for stage in stages for t, own in stage.terms]


def _exposed_share(step: _Step, stage: Stage) -> float:
    """Part of a stage's busy time in MoE layers that nothing hides."""
    cost, stages = step.cost, step.stages
    beside = _beside(step, stage)
    if cost.rule == "disaggregated" and cost.moe_layers:
        return _apart_share(step, stage) * beside
    if step.microbatches == 1 or stage == "dense" or not cost.moe_layers:
        return beside
    if step.split:
        leading = step.streams[0] >= step.streams[1]
        return (1.0 if leading else 0.0) if stage == "attention" else (0.0 if leading else beside)
    if stage not in ("dispatch", "combine"):
        return beside
    busy = 2 * float(stage_sum(stages, (stage,)))
    waits = [
        float(slot_seconds(cost, compute, transfer)) - float(compute)
        for number, (compute, transfer) in enumerate(slots(cost, stages))
        if (number < 2) == (stage == "dispatch")
    ]
    return sum(waits) / busy if busy else 0.0


def _turns(cost: StepCost, stage: Stage) -> int:
    """How often a stage runs per layer and microbatch: an expert device serves every domain."""
    apart = cost.rule == "disaggregated" and stage in ("dispatch", "experts", "shared", "combine")
    return int(cost.domains) if apart else 1


def _apart_share(step: _Step, stage: Stage) -> float:
    """Part of a stage's busy time that a disaggregated layer consists of: its largest bound says whose."""
    parts, domains, count = passage(step.cost, step.stages), int(step.cost.domains), step.microbatches
    bounds = [float(bound) for bound in layer_bounds(parts, domains, count)]
    binding = bounds.index(max(bounds))
    ours = stage in ("attention", "gate", "dense")
    if stage == "dense":
        return 1.0
    if binding == 0:
        return 1.0 if ours else 0.0
    if binding == 2:
        return 1.0 / count if ours else 1.0 / (count * domains)
    stages = {"dispatch": parts.dispatch, "experts": parts.experts, "shared": parts.experts, "combine": parts.combine}
    return 1.0 if not ours and float(stages[stage]) == float(parts.occupied) else 0.0


def _beside(step: _Step, stage: Stage) -> float:
    """Dedicated ranks run the shared expert beside the routed ones: only its excess is exposed."""
    cost, stages = step.cost, step.stages
    if not dedicated(cost) or stage != "shared":
        return 1.0
    cores, dilation = _pace(step, stage)
    routed, shared = (float(stage_sum(stages, (name,), cores, dilation)) for name in _EXPERTS)
    return max(0.0, shared - routed) / shared if shared else 0.0


def _pace(step: _Step, stage: Stage) -> tuple[float, float]:
    """Core share and memory dilation of a stage's terms in MoE layers."""
    if not step.split or stage == "dense":
        return 1.0, 1.0
    own, other = step.dilations
    return (step.share, own) if stage == "attention" else (1 - step.share, other)


def _row(term: Term, timing: Timing, stream: str, count: int, seconds: tuple[float, float]) -> Operator:
    flops, moved = float(timing.flops) * count, float(timing.bytes) * count
    if isinstance(term, ComputeTerm):
        bound = _bound(float(timing.compute), float(timing.memory), float(timing.fixed))
    elif isinstance(term, CurveTerm) and term.flops:
        bound = _bound(flops / term.flops_per_second, moved / term.bytes_per_second, 0.0)
    else:
        return Operator(term.name, stream, count, *seconds, 0.0, 0.0, moved, "network", term.residual)
    return Operator(term.name, stream, count, *seconds, flops, moved, 0.0, bound, term.residual)


def _bound(compute: float, memory: float, overhead: float) -> Bound:
    """Return what takes a kernel longest."""
    if compute >= memory and compute >= overhead:
        return "compute"
    return "memory" if memory >= overhead else "overhead"


def _stream(stage: Stage, cost: StepCost) -> str:
    if cost.rule == "disaggregated":
        return "1" if stage in EXPERT_STAGES and stage != "gate" else "0"
    if cost.rule == "attention_experts":
        return "1" if stage in EXPERT_STAGES else "0"
    return "1" if stage in ("dispatch", "combine") else "0"


def _composition_rows(
    step: _Step, layer: float, busy: Timings, values: dict[str, Number], known: tuple[float, float]
) -> list[Operator]:
    """Rows of what is no operator of a stage; ``known`` are the seconds of the step and of its head."""
    cost, count, (seconds, head) = step.cost, step.microbatches, known
    rows = []
    waiting = step.straggler_layer * cost.moe_layers
    memory_wait = memory_wait_seconds(step)
    if memory_wait:
        rows.append(_plain("memory_wait", "0", cost.moe_layers * count, memory_wait, "memory"))
    if cost.moe_layers and cost.experts:
        rows.append(_plain("straggler_wait", "1", cost.moe_layers * count, waiting, "network"))
    last = float(drain(cost, busy, layer, count))
    if last:
        rows.append(_plain("expert_drain", "1", 1, last, "network"))
    drafts = int(cost.queries_per_sequence) - 1 if cost.draft_terms else 0
    draft = 0.0
    if drafts:
        draft = float(draft_seconds(cost, busy, timings(cost.draft_terms, step.whole), layer, count))
        rows.append(_draft_row(step, draft, drafts))
    dense = cost.dense_layers * count * float(stage_sum(step.stages, ("attention", "dense")))
    layers = dense + cost.moe_layers * layer + last
    device = layers + draft + head
    stages = int(cost.pipeline_stages)
    if stages > 1 and cost.pipeline_hop is not None:
        hops = stages * float(communication_seconds(cost.pipeline_hop, values))
        rows.append(_plain("pipeline_hop", "0", stages, hops, "network"))
        through = float(pipeline_seconds(cost, values, layers, (draft, head)))
        rows.append(_plain("pipeline_bubble", "0", 1, through - device - hops, "overhead"))
        device = through
    return [*rows, _plain("host", "host", 1, seconds - device, "overhead")]


def memory_wait_seconds(step: _Step) -> float:
    """What both streams' memory traffic takes beyond the longer stream, over all layers."""
    cost, stages = step.cost, step.stages
    if not step.split:
        return 0.0
    longer = 2 * max(step.streams)
    return (float(split_seconds(cost, stages, step.share)) - longer) * cost.moe_layers


def _plain(name: str, stream: str, count: int, seconds: float, bound: Bound) -> Operator:
    return Operator(name, stream, count, seconds, seconds, 0.0, 0.0, 0.0, bound, 0.0)


def _draft_row(step: _Step, seconds: float, drafts: int) -> Operator:
    """One row for all draft layers: a further layer each, and their projection, head and sampling."""
    main: tuple[Stage, ...] = ("attention", *EXPERT_STAGES) if step.cost.moe_layers else ("attention", "dense")
    terms = [term for stage in main if stage in step.stages for term, _ in step.stages[stage].terms]
    apart = any(term.stage == "attention" for term in step.cost.draft_terms)
    terms = [*([] if apart else terms), *step.cost.draft_terms]
    times = drafts * step.microbatches
    flops = moved = message = memory = busy = 0.0
    for term in terms:
        if isinstance(term, CommunicationTerm):
            message += float(form(term.bytes, step.values)) * times
            continue
        work, traffic = float(form(term.flops, step.values)), float(form(term.bytes, step.values))
        flops, moved = flops + work * times, moved + traffic * times
        memory, busy = memory + traffic / float(term.bytes_per_second), busy + work / float(term.flops_per_second)
    bound: Bound = "memory" if memory >= busy else "compute"
    return Operator("mtp_layer", "0", times, seconds, seconds, flops, moved, message, bound, 0.0)
