"""The rate of a manifest with measured step times, and the question that asks for a better manifest."""

from dataclasses import replace

from ground.errors import BadInput
from planner.changeover.capacity import carried, total_carried
from planner.changeover.observed import Observed
from planner.checks.manifests import from_manifest
from planner.checks.margins import Limits
from planner.manifest.schema import Manifest
from planner.plans.expectation import expect, workload_of
from planner.question import Machines, Question
from planner.workload import Workload

STEP_DEVIATION = 0.1
"""Relative standard deviation of a predicted TPOT where the plan states no interval: about the median error."""


def carries(manifest: Manifest, workload: Workload, slow: float) -> float:
    """Return the rate of a manifest within its limits with steps ``slow`` times as long as predicted.

    The queue at rate R with service times f times as long is the predicted queue at f R under limits f times as tight.
    """
    stated = Limits.of(manifest.service_levels, 1.0)
    ttft, tpot = stated.ttft_seconds, stated.tpot_seconds
    limits = replace(stated, ttft_seconds=ttft and ttft / slow, tpot_seconds=tpot and tpot / slow)
    return total_carried(manifest, carried(manifest, workload, limits)) / slow


def step_factor(manifest: Manifest, seen: Observed) -> float:
    """Return measured over predicted step times, from verified runs or from the mean TPOT at the observed rate."""
    if seen.step_factor is not None:
        return seen.step_factor
    if seen.mean_tpot_seconds is None:
        return 1.0
    found = expect(manifest, seen.workload, seen.rate_per_second).prediction
    if found is None or found.tpot_seconds is None or not found.tpot_seconds.mean:
        return 1.0
    return seen.mean_tpot_seconds / found.tpot_seconds.mean


def step_interval(manifest: Manifest) -> tuple[float, float]:
    """Return the 80 % interval of measured over predicted step times, from the plan's own deviation."""
    try:
        deviation = from_manifest(manifest, workload_of(manifest.workload)).deviation
    except BadInput:
        deviation = STEP_DEVIATION
    return 1 - 1.2816 * deviation, 1 + 1.2816 * deviation


def question_of(manifest: Manifest, workload: Workload, rate: float) -> Question:
    """Return the question whose answer the manifest is, at another rate and for other traffic."""
    pools = {pool.role: pool for pool in manifest.pools}
    sides = {}
    for role in ("prefill", "decode"):
        pool = pools.get(role) or manifest.pools[0]
        cluster = manifest.clusters[pool.hardware]
        devices = max(cluster.nodes, int(cluster.spec.nodes.value)) * int(cluster.spec.devices_per_node.value)
        sides[role] = Machines(hardware=cluster.spec, devices=devices, weights=pool.weights_dtype, budget=pool.hardware)
    levels, answering = manifest.service_levels, pools.get("decode") or manifest.pools[0]
    if levels.ttft_seconds is None or levels.tpot_seconds is None:
        raise BadInput("--manifest: states no service levels that a plan could keep; plan it with --ttft and --tpot")
    engine = manifest.engine
    return Question(
        model=manifest.model.spec,
        prefill=sides["prefill"],
        decode=sides["decode"],
        workload=workload,
        ttft_seconds=levels.ttft_seconds,
        tpot_seconds=levels.tpot_seconds,
        percentile=levels.percentile,
        rate_per_second=rate,
        objective="chips",
        kv_dtype=answering.kv_dtype,
        drafts=tuple(range(answering.mtp.drafts + 1)),
        acceptance=answering.mtp.acceptance,
        engine=engine.id if engine.id == "reference" else f"{engine.id}@{engine.version}",
        shape="aggregated" if "mixed" in pools else "disaggregated",
    )
