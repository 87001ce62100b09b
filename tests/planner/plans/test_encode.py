"""Plans with encode pools: found by a search, bounded by what pictures that cost nothing leave, kept in a manifest."""

from dataclasses import replace
from functools import cache

import pytest

from ground.files import parse_yaml
from planner.checks.deployed import Lost, from_plan, standing
from planner.checks.manifests import from_manifest
from planner.manifest.document import dump_manifest, parse_manifest
from planner.plans.assemble import assemble
from planner.plans.expectation import expect, queued
from planner.plans.plan import Plan
from planner.question import Encode, Shape
from planner.search.search import search
from planner.serving.deployed import workload_of
from tests.planner.instances.test_encoding import question


@cache
def best(encode: Encode, shape: Shape = "disaggregated", rate: float | None = None) -> Plan:
    """Return the best plan on 8 H800."""
    asked = replace(question(encode), shape=shape, rate_per_second=rate, objective="chips" if rate else "throughput")
    return search(asked, beside=False).best


@pytest.mark.parametrize("shape", ["disaggregated", "aggregated"])
def test_no_plan_carries_more_than_without_anything_to_encode(shape: Shape) -> None:
    """Devices that encode are missing elsewhere: pictures that somebody else encodes for nothing bound the rate."""
    plan = best("separate", shape)
    free = replace(question("fused"), shape=shape)
    free = replace(free, workload=replace(free.workload, encoding="apart"))
    most = search(free, beside=False).best
    assert plan.requests_per_second < most.requests_per_second
    roles = [role for role, _ in plan.pools()]
    assert roles == ["encode", *(["prefill", "decode"] if shape == "disaggregated" else ["mixed"])]
    assert plan.devices == sum(pool.devices for _, pool in plan.pools()) <= 8
    assert plan.requests_per_second <= min(pool.capacity_per_second for _, pool in plan.pools()) * (1 + 1e-9)


def test_auto_is_no_worse_than_either_way() -> None:
    """The best of both ways is at least as good as each alone."""
    either = max(best("fused").requests_per_second, best("separate").requests_per_second)
    assert best("auto").requests_per_second >= either * (1 - 1e-6)


def test_a_request_alone_takes_both_passes_and_the_transfer() -> None:
    """At a rate at which nobody waits TTFT is an encode pass, the embeddings' way and a prefill pass."""
    plan = best("separate")
    assert plan.encode is not None
    idle = plan.under(plan.question)(1e-3)
    prefill = idle.prefill.server(plan.question).ttft(1e-3 / idle.prefill.instances, idle.prefill.instances)
    assert idle.ttft.mean == pytest.approx(idle.encode.latency.mean + prefill.mean, rel=0.02)
    assert idle.ttft.mean < plan.ttft.mean


def test_the_limit_holds_through_both_queues() -> None:
    """TTFT as played through encode and prefill in a row keeps the limit that each stage had a part of."""
    for shape in ("disaggregated", "aggregated"):
        plan = best("separate", shape)  # type: ignore[arg-type]
        assert plan.ttft.at(99.0) <= plan.question.ttft_seconds
        assert plan.tpot.at(99.0) <= plan.question.tpot_seconds


def test_a_manifest_keeps_the_encode_pool() -> None:
    """It reads back as it was written, and says what a plan's own figures and the queues anew come to."""
    plan = best("separate", rate=20.0)
    manifest = parse_manifest(parse_yaml(dump_manifest(assemble(plan, {})), "here"), "here")
    encode = manifest.pools[0]
    assert encode.role == "encode"
    assert manifest.embedding_transfer.bytes_per_token == 2 * manifest.model.spec.hidden_size
    assert manifest.workload.picture_tokens == 2392
    assert dump_manifest(manifest) == dump_manifest(assemble(plan, {}))
    known = expect(manifest, workload_of(manifest.workload), 20.0).prediction
    anew = queued(manifest, workload_of(manifest.workload), 20.0).prediction
    assert known.ttft_seconds.mean == pytest.approx(plan.ttft.mean)
    # As if waits were independent and arrivals at prefill Poisson: encode lets requests go more evenly than they come.
    assert plan.ttft.mean < anew.ttft_seconds.mean < 1.3 * plan.ttft.mean


@pytest.mark.parametrize("shape", ["disaggregated", "aggregated"])
def test_what_is_checked_has_encode_in_it(shape: Shape) -> None:
    """Plan and manifest as deployments tell the plan's TTFT, and none where the last encode instance is lost."""
    plan = best("separate", shape, 20.0)
    manifest = assemble(plan, {})
    for deployed in (from_plan(plan), from_manifest(manifest, workload_of(manifest.workload))):
        assert standing(deployed, 20.0).ttft.mean == pytest.approx(plan.ttft.mean, rel=0.3)
        assert (
            standing(deployed, 20.0).ttft.mean > standing(replace(deployed, pools=deployed.pools[1:]), 20.0).ttft.mean
        )
        assert Lost(encode=1) in deployed.losses["instance"]
        gone = standing(deployed, 20.0, lost=Lost(encode=deployed.pools[0].instances))
        assert gone.ttft is None
        assert gone.tpot is not None
