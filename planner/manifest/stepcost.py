"""How the terms of a step compose to its duration: streams, microbatches, stages, host.

One formula for one step and for a million: every function takes numbers or arrays of one
broadcast shape.

Attention and experts on devices of their own: attention devices form ``domains`` that talk to the expert devices one
after the other; inside a domain the microbatches alternate (xDeepServe section 5.2, arXiv 2508.02520).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ground.arrays import Bools
from planner.manifest.stacks import Stages, stage_launches, stage_timings
from planner.manifest.terms import (
    Number,
    Stage,
    StepCost,
    StepLoad,
    communication_seconds,
    dedicated,
    larger,
    plus,
    smaller,
    variables,
)


class Passage(NamedTuple):
    """Seconds of one microbatch of one domain in one layer.

    ``attention`` on the attention devices, gate and the send to the trampolines included;
    ``dispatch`` (A2E), ``experts`` and ``combine`` (E2A) on the expert devices.
    """

    attention: Number
    dispatch: Number
    experts: Number
    combine: Number

    @property
    def away(self) -> Number:
        """Seconds for which the microbatch is with the experts."""
        return self.dispatch + self.experts + self.combine

    @property
    def occupied(self) -> Number:
        """Seconds until the expert devices can take the next microbatch.

        They run three persistent kernels (receive, compute, send), so the longest of them sets the pace.
        """
        return larger(larger(self.dispatch, self.experts), self.combine)


def layer_bounds(passage: Passage, domains: Number, microbatches: int) -> tuple[Number, Number, Number]:
    """Return what a layer of all microbatches takes at least: attention devices, expert devices, one round trip.

    Attention computes ``microbatches`` in turn; the experts serve those of every domain in turn; a
    microbatch cannot start a layer before it is back from the one before.
    """
    return (
        microbatches * passage.attention,
        domains * microbatches * passage.occupied,
        passage.attention + passage.away,
    )


def layer_seconds(passage: Passage, domains: Number, microbatches: int) -> Number:
    """Return the seconds of a layer of all microbatches: the largest of its bounds.

    >>> published = Passage(attention=700e-6, dispatch=172e-6, experts=120e-6, combine=193e-6)
    >>> round(layer_seconds(published, domains=3, microbatches=2) * 1e6)
    1400
    """
    attention, experts, trip = layer_bounds(passage, domains, microbatches)
    return larger(larger(attention, experts), trip)


def drain_seconds(passage: Passage, layer: Number, microbatches: int) -> Number:
    """Return what the last microbatch takes beyond the last layer, which nothing overlaps (xDeepServe section 7.1).

    In the layer that attention binds it is one A2E, experts, E2A.
    """
    return larger(microbatches * passage.attention + passage.away - layer, 0.0)


class StepSeconds(NamedTuple):
    """Duration of a step; ``stream_share`` is the part of the cores that attention gets when two
    microbatches split them (1 otherwise). ``head_seconds`` of one part are the last pipeline stage's alone: drafts,
    output head and sampling.
    """

    seconds: Number
    microbatches: int
    stream_share: Number
    head_seconds: Number = 0.0


def evaluate(cost: StepCost, load: StepLoad, microbatches: int = 1) -> StepSeconds:
    """Return the duration of one step that carries ``load`` in ``microbatches`` equal parts.

    Args: fields of ``load`` and ``cost.slots_per_rank`` are numbers or arrays of one broadcast
    shape; the result has that shape.

    One microbatch: the sum of all terms. The head runs once on the whole batch. Two: per pair of MoE layers either
    2 · max(attention stream, expert stream), cores split so that both take about the same time and
    memory bandwidth shared by demand, or four slots (attention with dispatch, attention with
    combine, experts with dispatch, experts with combine), each max(communication,
    compute + core share · communication). On devices of their own, attention and experts follow
    ``planner.manifest.stepcost``.
    """
    return evaluate_each(cost, load, (microbatches,))[0]


def evaluate_each(cost: StepCost, load: StepLoad, counts: Sequence[int]) -> list[StepSeconds]:
    """Return the durations with each number of microbatches; what runs once a step is evaluated once."""
    whole = variables(cost, load, 1, experts=1 in counts)
    # Timings of what runs once a step, on the whole batch: embedding, head, and the drafts' own work
    once = {**stage_timings(cost.head_terms, whole), **stage_timings(cost.draft_terms, whole)}
    parts = (whole if each == 1 else variables(cost, load, each) for each in counts)
    return [_composed(cost, load, each, values, once) for each, values in zip(counts, parts, strict=True)]


def evaluate_best(cost: StepCost, load: StepLoad, most: int = 2) -> StepSeconds:
    """Return the faster of one and, where allowed and possible, two microbatches (numbers only)."""
    both = most > 1 and cost.moe_layers and splittable(load)
    return min(evaluate_each(cost, load, (1, 2) if both else (1,)), key=lambda each: each.seconds)


def _composed(
    cost: StepCost, load: StepLoad, microbatches: int, values: Mapping[str, Number], once: Stages
) -> StepSeconds:
    """Compose the terms at the ``values`` of one microbatch with what runs ``once``: see ``evaluate``."""
    stages = stage_timings(cost.terms, values)
    layer, share = moe_layer(cost, stages, microbatches)
    draft, head = draft_seconds(cost, stages, once, layer, microbatches), stage_sum(once, ("head",))
    dense = cost.dense_layers * microbatches * stage_sum(stages, ("attention", "dense"))
    last = drain(cost, stages, layer, microbatches)
    device = pipeline_seconds(cost, values, dense + cost.moe_layers * layer + last, (draft, head))
    host: Number = launches(cost, microbatches) * cost.launch_seconds if cost.launch_seconds else 0.0
    if cost.prompt_seconds:
        host = larger(host, either(load.prefill_tokens > 0, cost.prompt_seconds, 0.0))
    gap = cost.host_seconds
    if cost.pipeline_hop is not None:  # every stage has a host of its own, which launches every part
        host, gap = host * stage_turns(cost) / cost.pipeline_stages, gap * stage_turns(cost)
    seconds = (larger(device, host) if cost.runs_ahead else device + host) + gap
    return StepSeconds(plus(seconds, load.loaded_tokens * cost.loading_seconds), microbatches, share, plus(draft, head))


def splittable(load: StepLoad) -> bool:
    """Whether the step holds two sequences, or two prompt tokens, for two microbatches."""
    return bool(load.decode_sequences >= 2 or load.prefill_tokens >= 2)


def moe_layer(cost: StepCost, stages: Stages, microbatches: int) -> tuple[Number, Number]:
    """Return the seconds of one MoE layer for all microbatches, and the core share of attention."""
    if not cost.moe_layers:
        return 0.0, 1.0
    if cost.rule == "disaggregated":
        return layer_seconds(passage(cost, stages), cost.domains, microbatches), 1.0
    if microbatches == 1:
        return stage_sum(stages, ("attention",)) + expert_stream(cost, stages), 1.0
    if cost.rule == "attention_experts":
        return split_layer(cost, stages)
    total: Number = 0.0
    for compute, communication in slots(cost, stages):
        total = total + slot_seconds(cost, compute, communication)
    return total, 1.0


def passage(cost: StepCost, stages: Stages) -> Passage:
    """What one microbatch of one domain takes on attention devices and on expert devices."""
    return Passage(
        attention=stage_sum(stages, ("attention", "gate")),
        dispatch=stage_sum(stages, ("dispatch",)),
        experts=experts_seconds(cost, stages),
        combine=stage_sum(stages, ("combine",)),
    )


def drain(cost: StepCost, stages: Stages, layer: Number, microbatches: int) -> Number:
    """What follows the last layer of a disaggregated instance; nothing elsewhere."""
    if cost.rule != "disaggregated" or not cost.moe_layers:
        return 0.0
    return drain_seconds(passage(cost, stages), layer, microbatches)


def stage_sum(stages: Stages, names: tuple[Stage, ...], cores: Number = 1.0, dilation: Number = 1.0) -> Number:
    """Return the seconds of all terms of the named stages, one after the other."""
    total: Number | None = None
    for name in names:
        if name in stages:
            seconds = stages[name].seconds(cores, dilation)
            total = seconds if total is None else total + seconds
    return 0.0 if total is None else total


def experts_seconds(cost: StepCost, stages: Stages, cores: Number = 1.0, dilation: Number = 1.0) -> Number:
    """Routed and shared experts: in turn on one rank, side by side on dedicated ones."""
    routed = stage_sum(stages, ("experts",), cores, dilation)
    shared = stage_sum(stages, ("shared",), cores, dilation)
    return larger(routed, shared) if dedicated(cost) else plus(routed, shared)


def expert_stream(cost: StepCost, stages: Stages, cores: Number = 1.0, dilation: Number = 1.0) -> Number:
    """Gate, dispatch, experts and combine, one after the other."""
    transfers = stage_sum(stages, ("gate", "dispatch", "combine"), cores, dilation)
    return plus(transfers, experts_seconds(cost, stages, cores, dilation))


def split_layer(cost: StepCost, stages: Stages) -> tuple[Number, Number]:
    """Two microbatches on two streams that partition the cores; the share of attention is chosen.

    Attention time falls and expert time rises with the share, each slowed by what the other reads meanwhile, so
    bisection over the partitions closes in on where they cross; the best of the partitions on the way is taken
    (CloudMatrix384 section 4.2.3: 16 of 24 matrix cores for attention).
    """
    traffic = sum(memory_demand(cost, stages))
    below: Number = 0.0  # most partitions with which attention still takes longer, so far
    best: Number = math.inf
    chosen: Number = 0.5
    for step in reversed(range(int(cost.cores - 1).bit_length())):
        tried = smaller(below + (1 << step), cost.cores - 1.0)
        share = tried / cost.cores
        attention, experts = split_streams(cost, stages, share)
        longer = larger(attention, experts)
        best, chosen = smaller(best, longer), either(longer < best, share, chosen)
        below = either(attention > experts, tried, below)
    return 2 * larger(best, traffic), chosen


def either(condition: bool | Bools, one: Number, other: Number) -> Number:
    """Return ``one`` where the condition holds and ``other`` elsewhere, element by element."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, one, other)
    return one if condition else other


def split_seconds(cost: StepCost, stages: Stages, share: Number) -> Number:
    """Seconds of a layer of two microbatches at a core share: the longer stream, at least all memory traffic."""
    attention, experts = memory_demand(cost, stages)
    return 2 * larger(larger(*split_streams(cost, stages, share)), attention + experts)


def split_streams(cost: StepCost, stages: Stages, share: Number) -> tuple[Number, Number]:
    """Seconds of the attention and of the expert stream of one microbatch at a core share."""
    split = on_cores(stages, share)
    own, other = slowed(cost, split)
    return stage_sum(split, ("attention",), dilation=own), expert_stream(cost, split, dilation=other)


def on_cores(stages: Stages, share: Number) -> Stages:
    """Return attention on its share of the cores and the stages of the expert stream on the others."""
    rest = 1 - share
    return {name: stage.on(share if name == "attention" else rest) for name, stage in stages.items() if name != "dense"}


def slowed(cost: StepCost, split: Stages) -> tuple[Number, Number]:
    """How much slower each stream, on its cores, reads memory beside the other: bandwidth is shared by demand.

    While a stream reads, the other one reads a fraction d of the time, and then each gets half,
    so the reader slows by 1 / (1 - d/2).
    """
    period = larger(stage_sum(split, ("attention",)), expert_stream(cost, split))
    demand, other = memory_demand(cost, split)  # neither is longer than its stream
    twice = 2 * larger(period, 1e-12)
    return twice / (twice - other), twice / (twice - demand)


def memory_demand(cost: StepCost, stages: Stages) -> tuple[Number, Number]:
    """Seconds for which the attention and the expert stream of one microbatch keep the memory busy.

    A dedicated shared expert reads another device's memory than the routed ones do.
    """
    attention, gate, routed, shared = (
        stages[name].demand if name in stages else 0.0 for name in ("attention", "gate", "experts", "shared")
    )
    return attention, plus(gate, larger(routed, shared) if dedicated(cost) else plus(routed, shared))


def slots(cost: StepCost, stages: Stages) -> list[tuple[Number, Number]]:
    """(compute, communication) seconds of the four slots of a layer of two microbatches.

    Communication is slower beside compute (xLLM Table 7: 9.3 -> 12.4 ms beside it).
    """
    attention = stage_sum(stages, ("attention", "gate"))
    experts = experts_seconds(cost, stages)
    dispatch = stage_sum(stages, ("dispatch",)) * cost.communication_dilation
    combine = stage_sum(stages, ("combine",)) * cost.communication_dilation
    return [(attention, dispatch), (experts, dispatch), (experts, combine), (attention, combine)]


def slot_seconds(cost: StepCost, compute: Number, communication: Number) -> Number:
    """max(communication, compute + share·communication): compute lacks the cores that transfer."""
    return larger(communication, compute + cost.communication_share * communication)


def draft_seconds(cost: StepCost, stages: Stages, drafts: Stages, layer: Number, microbatches: int) -> Number:
    """MTP drafts: each runs one further layer and, on the whole batch, projection, head and sampling.

    A draft model beside the model has a layer of its own, among its terms.
    """
    count = cost.queries_per_sequence - 1
    if "draft" not in drafts or (not isinstance(count, np.ndarray) and not count):
        return 0.0
    if "attention" in drafts:
        layer = stage_sum(drafts, ("attention", "dense"))
    elif not cost.moe_layers:
        layer = microbatches * stage_sum(stages, ("attention", "dense"))
    return count * (layer + stage_sum(drafts, ("draft",)))


def pipeline_seconds(
    cost: StepCost, values: Mapping[str, Number], layers: Number, head: tuple[Number, Number]
) -> Number:
    """Seconds of a step over its pipeline stages: d_PP equal parts, of which each stage computes one at a time.

    A part takes its layers and d_PP hops (MixServe Eq. (6) adds d_PP - 1; the last stage returns its tokens to the
    first), and on the last stage drafts and the head. Alone in the pipeline it takes the sum. While parts follow each
    other, the slowest stage sets the pace, and so with all of them in flight it does d_PP times a round. A prefill pass
    is cut into d_PP parts and is alone: its last part follows d_PP - 1 others.

    Args: ``layers`` are seconds of one part on all layers, ``head`` those of its drafts and of its head.
    """
    draft, output = head
    if cost.pipeline_hop is None:
        return layers + draft + output
    stages, tail = cost.pipeline_stages, draft + output
    hop = either(stages > 1, communication_seconds(cost.pipeline_hop, values), 0.0)
    if not cost.pipeline_bubble and not cost.pipeline_round:
        return layers + stages * hop + tail
    most, fewest = stage_layers(cost)
    slowest = larger(layers * most, layers * fewest + tail) + hop
    if cost.pipeline_round:
        return stages * slowest
    return layers + stages * hop + tail + (stages - 1) * slowest


def stage_turns(cost: StepCost) -> Number:
    """How many parts one stage after the other computes in a step: d_PP, in a prefill pass d_PP - 1 before the last."""
    return 2 * cost.pipeline_stages - 1 if cost.pipeline_bubble else cost.pipeline_stages


def stage_layers(cost: StepCost) -> tuple[Number, Number]:
    """Return the share of the layers on the fullest stage, and on the last one, which has the fewest.

    >>> 61 * (-(-61 // 2) / 61), 61 * (61 // 2 / 61)  # DeepSeek-R1 in two stages
    (31.0, 30.0)
    """
    layers = max(cost.dense_layers + cost.moe_layers, 1)
    own = layers / cost.pipeline_stages
    if isinstance(own, np.ndarray):
        return np.ceil(own) / layers, np.floor(own) / layers
    return math.ceil(own) / layers, math.floor(own) / layers


def layers_per_stage(layers: int, stages: int) -> list[int]:
    """Return layer counts per pipeline stage; the first stages take what does not divide."""
    return [layers // stages + (stage < layers % stages) for stage in range(stages)]


def layer_count(cost: StepCost, stage: Stage) -> int:
    """How often a term of ``stage`` runs per microbatch in the main model."""
    if stage == "attention":
        return cost.dense_layers + cost.moe_layers
    if stage == "dense":
        return cost.dense_layers
    return cost.moe_layers


def launches(cost: StepCost, microbatches: int) -> int:
    """Kernels launched in one iteration of the main model."""
    layers = sum(count * layer_count(cost, stage) for stage, count in stage_launches(cost.terms).items())
    return round(microbatches * layers + stage_launches(cost.head_terms).get("head", 0.0))
