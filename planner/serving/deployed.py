"""The pools of a manifest in the form that is played, and how they serve a trace."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ground.arrays import Floats
from planner.loops.arrays import TableArrays
from planner.manifest.stacks import stacked
from planner.manifest.terms import StepCost
from planner.serving.aggregated import AggregatedPool, Played, play_aggregated
from planner.serving.decode import (
    DecodePool,
    SeparatePools,
    Served,
    iteration_times,
    play_separate,
    prefill_pool,
    served,
)
from planner.serving.prefill import PrefillPool
from planner.serving.rules import manifest_rule
from planner.serving.streams import Stream, longest_prompt
from planner.serving.tables import aggregated_times
from planner.workload import Lengths, Sessions, TraceRows, Workload, running_kv_tokens

if TYPE_CHECKING:
    from planner.manifest.schema import Manifest, ManifestWorkload, PhaseName, Pool, SessionShape


def separate_pools(
    manifest: "Manifest",
    pools: "tuple[Pool, Pool]",
    costs: Mapping[str, StepCost] | None = None,
    workload: Workload | None = None,
) -> SeparatePools:
    """Return a prefill and a decode pool with the links between them.

    Args:
        manifest: a manifest with a KV transfer.
        pools: its prefill pool and its decode pool.
        costs: step costs by role; None: those of the pools.
        workload: near which step times are most accurate; None: the manifest's, so that a plan and its simulation
            have the same.
    """
    prefill, decode = pools
    transfer = manifest.kv_transfer
    assert transfer is not None, "a manifest with prefill and decode pools has links"
    workload = workload or workload_of(manifest.workload)
    costs = costs or {pool.role: pool.step_costs[pool.phase].to_step_cost() for pool in pools}
    widths = [pool.degrees.attention_tp * pool.degrees.pp for pool in pools]
    links, ranks = min(widths), decode.degrees.attention_groups
    sources = [each for each in manifest.pools if each.role == "prefill"]

    def transfer_seconds(prompts: Floats) -> Floats:
        seconds = transfer.bytes_per_token / (links * transfer.bandwidth_bytes_per_second)
        return np.asarray(transfer.charged(prompts) * seconds, dtype=np.float64)

    return SeparatePools(
        prefill=_prefill(manifest, prefill, costs["prefill"], workload),
        decode=DecodePool(
            times=_iterations(decode, costs["decode"], ranks, workload),
            ranks=ranks,
            slots=decode.limits.requests_per_dp_rank,
            capacity_tokens=float(decode.kv.capacity_tokens_per_rank),
            instances=len(decode.instances),
            policy=manifest.routing.decode,
            drafts=decode.mtp.drafts,
            acceptance=decode.mtp.acceptance,
            source_groups=sum(len(each.instances) * each.degrees.attention_groups for each in sources),
            source_channels=widths[0] // links,
            target_channels=widths[1] // links,
            latency_seconds=transfer.latency_seconds,
        ),
        transfer_seconds=transfer_seconds,
        reserved_tokens=partial(in_blocks, decode),
        links=links,
    )


def step_times(manifest: "Manifest", pool: "Pool", phase: "PhaseName", cost: StepCost) -> TableArrays:
    """Return the step times of an instance in a phase; ``cost`` may have fewer ranks than the pool."""
    if phase == "mixed":
        return aggregated_pool(manifest, pool, cost).times
    workload = workload_of(manifest.workload)
    if phase == "prefill":
        return _prefill(manifest, pool, cost, workload).times
    return _iterations(pool, cost, int(cost.attention_groups), workload)


def workload_of(planned: "ManifestWorkload") -> Workload:
    """Return the workload stated in a manifest."""
    prompts, answers, shape = planned.prompt_kinds, planned.answer_kinds, planned.sessions
    return Workload(
        input_tokens=Lengths(mean=planned.input_tokens, squared_cv=planned.input_cv2),
        output_tokens=Lengths(mean=planned.output_tokens, squared_cv=planned.output_cv2),
        prefix_reuse=planned.prefix_reuse,
        sessions=None if shape is None else sessions_of(shape),
        arrival_squared_cv=planned.arrival_cv2,
        prompts=None if prompts is None else tuple(zip(prompts.tokens, prompts.reused, prompts.weights, strict=True)),
        answers=None if answers is None else tuple(zip(answers.tokens, answers.weights, strict=True)),
    )


def sessions_of(shape: "SessionShape") -> Sessions:
    """Return the sessions stated in a manifest."""
    return Sessions(
        turns=shape.turns,
        new_tokens=Lengths(mean=shape.new_tokens, squared_cv=shape.new_cv2),
        think_seconds=shape.think_seconds,
        branches=shape.branches,
        keeps_answers=shape.keeps_answers,
    )


def group_budget(pool: "Pool") -> int:
    """Prompt tokens per DP group and pass."""
    return pool.limits.tokens_per_device * pool.degrees.attention_tp * pool.degrees.pp


def in_blocks(pool: "Pool", tokens: Floats) -> Floats:
    """Return the KV tokens, in whole blocks, that requests of so many tokens take on a rank of a pool, [requests]."""
    block = pool.kv.block_tokens
    return np.asarray(np.ceil(np.asarray(pool.kv.charged(tokens)) / block) * block, dtype=np.float64)


def aggregated_pool(
    manifest: "Manifest",
    pool: "Pool",
    cost: StepCost | None = None,
    workload: Workload | None = None,
    times: TableArrays | None = None,
) -> AggregatedPool:
    """Return a pool of aggregated instances; ``workload`` as in ``separate_pools``.

    Args: ``cost`` of a step, None: the pool's; ``times`` of its steps, where they are known already.
    """
    budget, drafts, context = group_budget(pool), pool.mtp, manifest.model.spec.max_position
    if times is None:
        cost, workload = cost or pool.step_costs["mixed"].to_step_cost(), workload or workload_of(manifest.workload)
        times = aggregated_times(cost, workload, budget, context, pool.microbatches, longer=True)
    return AggregatedPool(
        times=times,
        ranks=pool.degrees.attention_groups,
        budget_tokens=budget,
        slots=pool.limits.requests_per_dp_rank,
        capacity_tokens=float(pool.kv.capacity_tokens_per_rank),
        charged=partial(in_blocks, pool),
        rule=manifest_rule(manifest),
        queries=1 + drafts.drafts,
        acceptance=drafts.acceptance,
        instances=len(pool.instances),
        policy="round_robin" if manifest.routing.prefill == "round_robin" else "least_load",
    )


def play(pools: SeparatePools | AggregatedPool, trace: TraceRows) -> Served:
    """Play every request of a trace with its own arrival, lengths and reuse; return their times.

    A trace is not stationary: its rate drifts, a window begins empty and may end with a backlog, and a few long prompts
    may decide a minute. So its requests are played through passes, links and iterations, or through the steps of
    aggregated instances. Only the duration of a pass, transfer, iteration or step comes from a model.
    """
    stream = Stream.from_trace(trace)
    if isinstance(pools, SeparatePools):
        return play_separate(pools, stream)
    return aggregated_served(pools, play_aggregated(pools, stream), stream)


def aggregated_served(pool: AggregatedPool, played: Played, stream: Stream) -> Served:
    """Return the times of requests that aggregated instances played."""
    # A surplus step may end after the last answer.
    busy = min(played.busy_seconds, pool.instances * float(played.left_seconds.max()))
    sent = replace(stream, arrival_seconds=played.arrival_seconds)
    return served(sent, played.first_token_seconds, played.left_seconds, {"mixed": (busy, pool.instances)})


def _prefill(manifest: "Manifest", pool: "Pool", cost: StepCost, workload: Workload) -> PrefillPool:
    """Return the prefill instances; a shared queue counts as dealing to the least load."""
    context = float(manifest.model.spec.max_position)
    return prefill_pool(
        stacked(cost),
        ranks=pool.degrees.attention_dp,
        budget_tokens=group_budget(pool),
        longest_prompt=min(longest_prompt(workload), context),
        context_tokens=context,
        microbatches=pool.microbatches,
        instances=len(pool.instances),
        policy="round_robin" if manifest.routing.prefill == "round_robin" else "least_load",
    )


def _iterations(pool: "Pool", cost: StepCost, ranks: int, workload: Workload) -> TableArrays:
    return iteration_times(
        stacked(cost),
        ranks=ranks,
        slots=pool.limits.requests_per_dp_rank,
        kv_tokens_per_request=running_kv_tokens(workload).mean_tokens,
        microbatches=pool.microbatches,
    )
