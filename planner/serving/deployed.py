"""The pools of a manifest, ready to be played."""

from collections.abc import Mapping

import numpy as np

from planner.manifest.schema import Manifest, Pool
from planner.manifest.stacks import stacked
from planner.manifest.terms import StepCost
from planner.serving.decode import DecodePool
from planner.serving.prefill import PrefillPool
from planner.serving.separate import SeparatePools
from planner.serving.streams import Floats
from planner.serving.tables import Loads, step_table


def separate_pools(
    manifest: Manifest,
    pools: tuple[Pool, Pool],
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
    kv, block = decode.kv, decode.kv.block_tokens

    def transfer_seconds(prompts: Floats) -> Floats:
        seconds = transfer.bytes_per_token / (links * transfer.bandwidth_bytes_per_second)
        return np.asarray(transfer.charged(prompts) * seconds, dtype=np.float64)

    def reserved_tokens(tokens: Floats) -> Floats:
        return np.asarray(np.ceil(np.asarray(kv.charged(tokens)) / block) * block, dtype=np.float64)

    usual = manifest.workload.input_tokens + manifest.workload.output_tokens / 2
    return SeparatePools(
        prefill=_prefill_pool(manifest, prefill, costs["prefill"]),
        decode=_decode_pool(manifest, decode, costs["decode"], widths, kv_tokens_per_request or usual),
        transfer_seconds=transfer_seconds,
        reserved_tokens=reserved_tokens,
        links=links,
    )


def _prefill_pool(manifest: Manifest, pool: Pool, cost: StepCost) -> PrefillPool:
    """Return the prefill instances; a shared queue counts as dealing to the least load."""
    ranks = pool.degrees.attention_dp
    budget = pool.limits.tokens_per_device * pool.degrees.attention_tp * pool.degrees.pp
    longest = float(manifest.model.spec.max_position)
    loads = Loads(ranks=ranks, budget_tokens=budget, longest_prompt=longest, microbatches=pool.microbatches)
    return PrefillPool(
        times=step_table(stacked(cost), loads),
        ranks=ranks,
        budget_tokens=budget,
        instances=len(pool.instances),
        policy="round_robin" if manifest.routing.prefill == "round_robin" else "least_load",
    )


def _decode_pool(
    manifest: Manifest, pool: Pool, cost: StepCost, widths: list[int], kv_tokens_per_request: float
) -> DecodePool:
    transfer, links = manifest.kv_transfer, min(widths)
    assert transfer is not None, "a manifest with prefill and decode pools has links"
    drafts, sources = pool.mtp, [each for each in manifest.pools if each.role == "prefill"]
    loads = Loads(
        ranks=pool.degrees.attention_groups,
        budget_tokens=2,
        longest_prompt=2.0,
        most_running=pool.degrees.attention_groups * pool.limits.requests_per_dp_rank,
        kv_tokens_per_request=kv_tokens_per_request,
        microbatches=pool.microbatches,
    )
    return DecodePool(
        times=step_table(stacked(cost), loads),
        ranks=loads.ranks,
        slots=pool.limits.requests_per_dp_rank,
        capacity_tokens=float(pool.kv.capacity_tokens_per_rank),
        instances=len(pool.instances),
        policy=manifest.routing.decode,
        tokens_per_iteration=sum(drafts.acceptance**depth for depth in range(drafts.drafts + 1)),
        source_groups=sum(len(each.instances) * each.degrees.attention_groups for each in sources),
        source_channels=widths[0] // links,
        target_channels=widths[1] // links,
        latency_seconds=transfer.latency_seconds,
    )
