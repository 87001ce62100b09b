"""What more of a resource buys: the changed machine is the one that is solved."""

from dataclasses import replace

import pytest

from hardware.loader import load_hardware
from planner.costs.roofline import collective_fit, exchange_fit
from planner.search.changes.resources import (
    MORE,
    bought,
    changes_of,
    more_bandwidth,
    more_compute,
    more_memory,
    more_network,
    on_plan_devices,
    resources_of,
)
from planner.search.search import search
from tests.plans import small_plan


def test_each_change_scales_one_thing() -> None:
    """Peaks, bandwidth or capacity, a tenth more; the entry of the catalogue stays as it is."""
    spec = load_hardware("h800")
    device = spec.device
    fast = more_compute(spec).device
    assert fast.peak_flops_per_second["bf16"].value == pytest.approx(MORE * device.peak_flops_per_second["bf16"].value)
    assert fast.memory_bytes == device.memory_bytes
    wide = more_bandwidth(spec).device.memory_bandwidth_bytes_per_second.value
    assert wide == pytest.approx(MORE * device.memory_bandwidth_bytes_per_second.value)
    assert more_memory(spec).device.memory_bytes.value == pytest.approx(MORE * device.memory_bytes.value)
    assert spec == load_hardware("h800")


def test_a_faster_plane_takes_its_fits_with_it() -> None:
    """NVLink carries collectives inside a node, RDMA those beyond; each is scaled with its own plane only."""
    spec = load_hardware("h800")
    node, cluster = spec.scope_of(8).plane, spec.scope_of(64).plane
    assert node != cluster
    inside, beyond = more_network(spec, node), more_network(spec, cluster)

    def rate(machine: object, ranks: int) -> float:
        return collective_fit(machine, "all_reduce", ranks, True).protocols[-1].bandwidth_bytes_per_second  # type: ignore[arg-type]

    assert rate(inside, 8) == pytest.approx(MORE * rate(spec, 8))
    assert rate(beyond, 8) == rate(spec, 8)
    before, after = (exchange_fit(machine, "dispatch", "low_latency").points for machine in (spec, beyond))
    for old, new in zip(before, after, strict=True):
        factor = MORE if spec.scope_of(old.degree).plane == cluster else 1.0
        assert new.bandwidth_bytes_per_second == pytest.approx(factor * old.bandwidth_bytes_per_second)
        assert new.latency_seconds == old.latency_seconds


def test_what_is_bought_is_what_a_search_finds() -> None:
    """The row of memory bandwidth is the largest rate of the same devices with that machine; nothing makes it worse."""
    plan = small_plan()
    base = on_plan_devices(plan)
    resources = [each for each in resources_of(base) if each.name in ("memory bandwidth", "chips")]
    found = {each.resource: each for each in bought(plan, resources=resources)}
    machines = replace(base.prefill, hardware=more_bandwidth(base.prefill.hardware))
    best = search(replace(base, prefill=machines, decode=machines), beside=False).best
    assert found["memory bandwidth"].requests_per_second == pytest.approx(best.requests_per_second)
    assert all(each.gain > -0.01 for each in found.values())


def test_every_resource_of_the_issue_is_there() -> None:
    """Compute, memory bandwidth, memory size, each network plane, chips; per role where machines differ."""
    spec = load_hardware("cm384")
    assert len(changes_of(spec)) == 3 + len(spec.planes)
    base = on_plan_devices(small_plan())
    assert {"compute", "memory bandwidth", "memory size", "chips"} <= {each.name for each in resources_of(base)}
    other = replace(base.prefill, hardware=load_hardware("910b"), budget="prefill")
    names = {each.name for each in resources_of(replace(base, prefill=other))}
    assert {"compute of prefill (910b)", "compute of decode (cm384)", "chips of prefill"} <= names
