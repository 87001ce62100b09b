"""A deployment on a trace: latencies of its requests at any rate, with longer service times and after losses.

Instead of solving queues, the trace is played (``planner.serving``) with its gaps scaled to the asked mean rate. Longer
service times slow the clock of a trace as they do that of a stationary stream, so ``checks.deployed.standing`` treats
both alike. The figures of each role come from a run in which only that role has lost instances, or is slower.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from planner.checks.deployed import Deployed, DeployedPool, Standing, from_plan
from planner.checks.on_trace import MOST_PLAYED, at_rate, pools_of
from planner.instances.space import Role
from planner.plans.plan import Plan
from planner.serving.aggregated import AggregatedPool
from planner.serving.deployed import play
from planner.serving.latency import Latency
from planner.serving.separate import SeparatePools, Served
from planner.workload import Trace

Left = Callable[[Mapping[Role, int]], SeparatePools | AggregatedPool]
"""Returns the pools with so many instances left of each role."""


def plan_on(plan: Plan, trace: Trace | None) -> Deployed:
    """Return a plan as a deployment, on a trace if there is one."""
    deployed = from_plan(plan)
    return deployed if trace is None else played(deployed, lambda counts: pools_of(plan, counts), trace)


def played(deployed: Deployed, left: Left, trace: Trace) -> Deployed:
    """Return a deployment on a trace; ``left`` gives its pools after losses."""
    whole = {pool.role: pool.instances for pool in deployed.pools}
    known: dict[tuple[object, ...], Served] = {}
    pools = cache(lambda counts: left(dict(counts)))

    def recorded(rate: float, counts: dict[Role, int]) -> Served:
        key = (f"{rate:.12g}", *counts.values())
        if key not in known:
            known[key] = play(pools(tuple(counts.items())), at_rate(trace, rate))
        return known[key]

    def pool_on(pool: DeployedPool) -> DeployedPool:
        def at(rate_per_second: float, count: int) -> Standing:
            return _standing(recorded(rate_per_second * count, whole | {pool.role: count}), pool.role)

        return replace(pool, at=at)

    return replace(
        deployed,
        pools=tuple(pool_on(pool) for pool in deployed.pools),
        asked_at_most=3 * MOST_PLAYED // np.size(trace.arrival_seconds),
    )


def _standing(found: Served, role: Role) -> Standing:
    ttft = Latency.from_samples(found.ttft_seconds) if role != "decode" else None
    return Standing(ttft=ttft, tpot=Latency.from_samples(found.tpot_seconds) if role != "prefill" else None)
