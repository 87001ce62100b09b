"""The capacity of each instance of a manifest within limits, under some traffic and with some confidence."""

import math
from collections.abc import Sequence
from functools import cache, partial

import numpy as np

from ground.errors import BadInput
from planner.changeover.order import ROLES, served
from planner.checks.deployed import DeployedPool
from planner.checks.manifests import from_manifest
from planner.instances.encoding import LATE, SHARES
from planner.manifest.schema import Manifest, Role
from planner.plans.expectation import encode_instances
from planner.plans.servers import PREDICTED, times_with
from planner.serving.capacity import Limits, largest_rate
from planner.serving.deployed import workload_of
from planner.workload import Workload

_LEAST = 0.000_001  # least rate that the search tries, over the first guess


def carried(manifest: Manifest, workload: Workload, limits: Limits, confidence: float = PREDICTED) -> list[float]:
    """Return the requests per second of one instance of each pool, in the order of the manifest.

    Service times are those that are not exceeded with the confidence. The rates that the plan states are returned for
    its own traffic and limits at predicted times, and where a role has several pools.

    Raises BadInput: a role has several pools and one of them states no rate.
    """
    stated = [pool.predicted.requests_per_second if pool.predicted else None for pool in manifest.pools]
    roles = [pool.role for pool in manifest.pools]
    own = limits == Limits.of(manifest.service_levels) and confidence == PREDICTED
    own = own and workload == workload_of(manifest.workload)
    several = len(set(roles)) < len(roles) or {*roles} - {"encode"} not in ({"mixed"}, {"prefill", "decode"})
    if several or (own and None not in stated):
        for number, rate in enumerate(stated):
            if rate is None:
                raise BadInput(
                    f"pools[{number}].predicted.requests_per_second: is missing, and a role has several pools"
                )
        return [rate or 0.0 for rate in stated]
    deployed = from_manifest(manifest, workload)
    pools = {pool.role: (pool, times_with(confidence, pool.deviation)) for pool in deployed.pools}
    named = list(zip(roles, stated, strict=True))
    found = [
        [_most(*pools[role], _part(limits, role, share), rate or 1.0) for role, rate in named]
        for share in (SHARES if "encode" in roles else (0.0,))
    ]
    return max(found, key=partial(total_carried, manifest))


def _part(limits: Limits, role: Role, share: float) -> Limits:
    """Return the limits of a role where encode instances have a share of TTFT (``instances.encoding``)."""
    if not share or limits.ttft_seconds is None:
        return limits
    own, late = (share, LATE) if role == "encode" else (1 - share, 1 - LATE)
    late *= 100 - limits.percentile
    return limits._replace(ttft_seconds=limits.ttft_seconds * own, percentile=100 - late)


def total_carried(manifest: Manifest, each: Sequence[float]) -> float:
    """Return the requests per second of a whole manifest, given ``each``: those of one instance of each pool."""
    by_role = dict.fromkeys(ROLES, 0.0)
    for pool, rate in zip(manifest.pools, each, strict=True):
        by_role[pool.role] += rate * len(pool.instances)
    if encode_instances(manifest) is None:
        by_role["encode"] = math.inf
    return float(served(np.array(list(by_role.values()))))


def _most(pool: DeployedPool, slow: float, limits: Limits, near: float) -> float:
    """Return the largest rate of an instance within the limits of its role, with steps ``slow`` times as long.

    The search begins at a rate ``near`` it; 0 where not even a millionth of that keeps the limits.
    """

    @cache
    def used(rate: float) -> float:
        """Return the used share of the limit with least room; infinite beyond saturation."""
        found = pool.at(slow * rate, pool.instances, None)
        asked = []
        if pool.role != "decode":
            asked.append((found.ttft, limits.ttft_seconds))
        if pool.role not in ("encode", "prefill"):
            asked.append((found.tpot, limits.tpot_seconds))
        return max(
            math.inf if latency is None else latency.scaled(slow).at(limits.percentile) / limit if limit else 0.0
            for latency, limit in asked
        )

    low, high = near, near / _LEAST
    while used(low) > 1:
        low, high = low / 2, low
        if low < _LEAST * near:
            return 0.0
    upper = 2 * low
    while upper < high and used(upper) <= 1:
        low, upper = upper, 2 * upper
    return largest_rate(used, 1.0, upper, known=low) or 0.0
