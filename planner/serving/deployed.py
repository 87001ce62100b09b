"""The pools of a manifest, ready to be played."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from planner.loops.arrays import TableArrays
from planner.manifest.stacks import stacked
from planner.manifest.terms import StepCost
from planner.serving.aggregated import AggregatedPool
from planner.serving.prefill import PrefillPool
from planner.serving.rules import manifest_rule
from planner.serving.separate import DecodeSide, PrefillSide, SeparatePools
from planner.serving.streams import Floats
from planner.serving.tables import Loads, step_table

if TYPE_CHECKING:
    from planner.manifest.schema import Manifest, PhaseName, Pool


def separate_pools(
    manifest: "Manifest",
    pools: "tuple[Pool, Pool]",
    costs: Mapping[str, StepCost] | None = None,
    kv_tokens_per_request: float | None = None,
) -> SeparatePools:
    """Return a prefill and a decode pool with the links between them.

    Args:
        manifest: with a KV transfer.
        pools: prefill and decode.
        costs: step costs by role; None: those of the pools.
        kv_tokens_per_request: cached tokens of a running request on average, near which iterations are known best;
            None: of the manifest's workload.
    """
    prefill, decode = pools
    transfer = manifest.kv_transfer
    assert transfer is not None, "a manifest with prefill and decode pools has links"
    costs = costs or {pool.role: pool.step_costs[pool.role].to_step_cost() for pool in pools}
    widths = [pool.degrees.attention_tp * pool.degrees.pp for pool in pools]
    links = min(widths)
    sources = [each for each in manifest.pools if each.role == "prefill"]

    def transfer_seconds(prompts: Floats) -> Floats:
        seconds = transfer.bytes_per_token / (links * transfer.bandwidth_bytes_per_second)
        return np.asarray(transfer.charged(prompts) * seconds, dtype=np.float64)

    return SeparatePools(
        prefill=_prefill(manifest, prefill, costs["prefill"]),
        decode=_decode(manifest, decode, costs["decode"]).pool(
            kv_tokens_per_request or _usual_kv(manifest),
            {
                "source_groups": sum(len(each.instances) * each.degrees.attention_groups for each in sources),
                "source_channels": widths[0] // links,
                "target_channels": widths[1] // links,
                "latency_seconds": transfer.latency_seconds,
            },
        ),
        transfer_seconds=transfer_seconds,
        reserved_tokens=partial(in_blocks, decode),
        links=links,
    )


def step_times(manifest: "Manifest", pool: "Pool", phase: "PhaseName", cost: StepCost) -> TableArrays:
    """Return the seconds of an instance's steps in a phase, at a cost that may be of fewer ranks than the pool's."""
    if phase == "mixed":
        return aggregated_pools(manifest, pool, cost).pool.times
    if phase == "prefill":
        return _prefill(manifest, pool, cost).times
    side = replace(_decode(manifest, pool, cost), ranks=int(cost.attention_groups))
    return side.pool(_usual_kv(manifest), {}).times


def _usual_kv(manifest: "Manifest") -> float:
    """Cached tokens of a running request of the manifest's workload, on average."""
    return manifest.workload.input_tokens + manifest.workload.output_tokens / 2


def in_blocks(pool: "Pool", tokens: Floats) -> Floats:
    """Return the KV tokens that requests of so many tokens take of a rank of a pool, in whole blocks, [requests]."""
    block = pool.kv.block_tokens
    return np.asarray(np.ceil(np.asarray(pool.kv.charged(tokens)) / block) * block, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedPools:
    """A pool of aggregated instances as it is played."""

    pool: AggregatedPool
    charged: Callable[[Floats], Floats]
    """KV tokens that requests of so many tokens are granted."""


def aggregated_pools(
    manifest: "Manifest",
    pool: "Pool",
    cost: StepCost | None = None,
    kv_tokens_per_request: float | None = None,
    times: TableArrays | None = None,
) -> AggregatedPools:
    """Return a pool of aggregated instances; ``cost`` and ``kv_tokens_per_request`` as in ``separate_pools``.

    Args: ``times`` of its steps, where they are known already.
    """
    ranks, drafts = pool.degrees.attention_groups, pool.mtp
    budget = pool.limits.tokens_per_device * pool.degrees.attention_tp * pool.degrees.pp
    loads = Loads(
        ranks=ranks,
        budget_tokens=budget,
        longest_prompt=float(manifest.model.spec.max_position),
        most_running=ranks * pool.limits.requests_per_dp_rank,
        kv_tokens_per_request=kv_tokens_per_request or _usual_kv(manifest),
        microbatches=pool.microbatches,
    )
    return AggregatedPools(
        pool=AggregatedPool(
            times=times or step_table(stacked(cost or pool.step_costs["mixed"].to_step_cost()), loads),
            ranks=ranks,
            budget_tokens=budget,
            slots=pool.limits.requests_per_dp_rank,
            capacity_tokens=float(pool.kv.capacity_tokens_per_rank),
            rule=manifest_rule(manifest),
            queries=1 + drafts.drafts,
            acceptance=drafts.acceptance,
            instances=len(pool.instances),
            policy="round_robin" if manifest.routing.prefill == "round_robin" else "least_load",
        ),
        charged=partial(in_blocks, pool),
    )


def _prefill(manifest: "Manifest", pool: "Pool", cost: StepCost) -> PrefillPool:
    """Return the prefill instances; a shared queue counts as dealing to the least load."""
    side = PrefillSide(
        cost=stacked(cost),
        ranks=pool.degrees.attention_dp,
        budget_tokens=pool.limits.tokens_per_device * pool.degrees.attention_tp * pool.degrees.pp,
        microbatches=pool.microbatches,
        instances=len(pool.instances),
        policy="round_robin" if manifest.routing.prefill == "round_robin" else "least_load",
    )
    return side.pool(float(manifest.model.spec.max_position))


def _decode(manifest: "Manifest", pool: "Pool", cost: StepCost) -> DecodeSide:
    return DecodeSide(
        cost=stacked(cost),
        ranks=pool.degrees.attention_groups,
        slots=pool.limits.requests_per_dp_rank,
        capacity_tokens=float(pool.kv.capacity_tokens_per_rank),
        microbatches=pool.microbatches,
        instances=len(pool.instances),
        drafts=pool.mtp.drafts,
        acceptance=pool.mtp.acceptance,
        policy=manifest.routing.decode,
    )
