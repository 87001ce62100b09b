"""A deployment on a recorded trace: what its own requests meet, at any rate, with longer service and after losses.

Instead of asking queues, the trace is played (``plans.recorded``), so fast that its mean rate is the one asked for.
That the clock runs slower when all service times are longer holds for a recorded stream as for a stationary one, so
``checks.deployed.standing`` asks both alike; each role's figures are of a run in which that role alone has lost
instances, or is slower.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.checks.deployed import Deployed, DeployedPool, Standing, from_manifest, from_plan
from planner.checks.on_trace import MOST_PLAYED, at_rate, pools_of
from planner.instances.space import Role
from planner.manifest.schema import Manifest
from planner.plans.expectation import pool_pair
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.plans.recorded import Pools, Recorded, of_manifest, play
from planner.queues.queueing import Latency
from planner.workload import Trace, Workload

Left = Callable[[int, int], Pools]
"""The pools with so many prefill and decode instances left."""


def plan_on(plan: Plan, trace: Trace | None) -> Deployed:
    """Return a plan as it would be deployed, on a trace if there is one; aggregated instances cannot be played."""
    deployed = from_plan(plan)
    if trace is None or not isinstance(plan, DisaggregatedPlan):
        return deployed
    return _played(deployed, lambda prefill, decode: pools_of(plan, (prefill, decode)), trace)


def manifest_on(manifest: Manifest, workload: Workload, trace: Trace | None) -> Deployed:
    """Return what a manifest deploys, on a trace if there is one; aggregated instances cannot be played.

    Raises BadInput as ``checks.deployed.from_manifest``.
    """
    deployed, pools = from_manifest(manifest, workload), pool_pair(manifest)
    if trace is None or isinstance(pools, str):
        return deployed

    def left(prefill: int, decode: int) -> Pools:
        counts = zip(pools, (prefill, decode), strict=True)
        first, second = (pool.model_copy(update={"instances": pool.instances[:count]}) for pool, count in counts)
        return of_manifest(manifest, (first, second), workload)

    return _played(deployed, left, trace)


def _played(deployed: Deployed, left: Left, trace: Trace) -> Deployed:
    whole = {pool.role: pool.instances for pool in deployed.pools}
    known: dict[tuple[str, int, int], Recorded] = {}

    def recorded(rate: float, counts: tuple[int, int]) -> Recorded:
        key = (f"{rate:.12g}", *counts)
        if key not in known:
            known[key] = play(left(*counts), at_rate(trace, rate))
        return known[key]

    def pool_on(pool: DeployedPool) -> DeployedPool:
        def at(rate_per_second: float, count: int) -> Standing:
            counts = whole | {pool.role: count}
            found = recorded(rate_per_second * count, (counts["prefill"], counts["decode"]))
            return _standing(found, pool.role)

        return replace(pool, at=at)

    return replace(
        deployed,
        pools=tuple(pool_on(pool) for pool in deployed.pools),
        asked_at_most=3 * MOST_PLAYED // np.size(trace.arrival_seconds),
    )


def _standing(found: Recorded, role: Role) -> Standing:
    if role == "prefill":
        return Standing(ttft=Latency.from_samples(found.ttft_seconds))
    return Standing(tpot=Latency.from_samples(found.tpot_seconds))
