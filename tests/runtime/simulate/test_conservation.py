"""Nothing is lost: requests, slots, KV and tokens over random manifests, policies and faults."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from planner.manifest.layout import Degrees, Instance
from planner.manifest.schema import Manifest, Recovery, Routing
from runtime.simulate.faults import Outage
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import backlog, open_loop
from tests.manifests import build, manifest, pool, requests

ROUTINGS = st.fixed_dictionaries(
    {
        "prefill": st.sampled_from(["least_load", "round_robin", "collaborative", "prefix_aware"]),
        "decode": st.sampled_from(["least_kv", "least_requests", "round_robin"]),
        "decode_reservation": st.sampled_from(["whole", "prompt"]),
        "chunks": st.sampled_from(["decode_first", "prefill_first"]),
        "roles": st.sampled_from(["fixed", "dynamic"]),
        "ranks": st.sampled_from(["placed", "even"]),
        "offline": st.sampled_from(["equal", "priority", "slo"]),
    }
)
RECOVERIES = st.fixed_dictionaries(
    {
        "stage": st.sampled_from(["restart", "failover", "recompute"]),
        "kv": st.sampled_from(["recompute", "migrate", "cheaper"]),
        "heartbeat_seconds": st.sampled_from([0.0, 0.04, 10.0]),
        "restart_seconds": st.sampled_from([0.0, 0.3]),
        "reconfigure_seconds": st.sampled_from([0.01, 0.1]),
        "kill_prefill": st.booleans(),
    }
)
LENGTHS = st.floats(0.01, 0.5) | st.sampled_from([60.0, 86_400.0, 8.64e7, 3e9])
DEVICES = st.tuples(st.just("device"), st.sampled_from(["prefill-0/0", "decode-0/1", "decode-0/2", "decode-1/3"]))
OTHERS = st.tuples(st.sampled_from(["link", "node"]), st.sampled_from(["0", "2"]))
FAULTS = st.lists(
    st.builds(
        lambda what, at, length: Outage(kind=what[0], target=what[1], at_seconds=at, for_seconds=length),
        *(DEVICES | OTHERS, st.floats(0.0, 0.6), LENGTHS),
    ),
    max_size=3,
)
WORKLOADS = st.fixed_dictionaries(
    {
        "input_tokens": st.integers(1, 3000),
        "output_tokens": st.integers(1, 80),
        "input_cv2": st.sampled_from([0.0, 2.0]),
        "output_cv2": st.sampled_from([0.0, 2.0]),
        "prefix_reuse": st.sampled_from([0.0, 0.5]),
    }
)
REDUNDANT = [expert for expert in range(16)] + [(expert + 5) % 16 for expert in range(16)]


def with_rules(made: Manifest, routing: dict[str, Any], recovery: dict[str, Any]) -> Manifest:
    """Return the manifest with other policies."""
    return made.model_copy(update={"routing": Routing(**routing), "recovery": Recovery(**recovery)})


def named(faults: list[Outage]) -> tuple[Outage, ...]:
    """Return the faults with links named by instances."""
    links = {"0": "prefill-0", "2": "decode-0"}
    return tuple(replace(each, target=links[each.target]) if each.kind == "link" else each for each in faults)


@settings(max_examples=20, deadline=None)
@given(ROUTINGS, RECOVERIES, FAULTS, WORKLOADS, st.integers(0, 1), st.sampled_from([0, 5]), st.booleans())
def test_every_request_ends_or_runs(routing, recovery, faults, workload, drafts, offline, stepping):
    """Offered = completed + failed + running for faults of any length; all that fit in a rank's cache complete."""
    kv = {"block_tokens": 16, "bytes_per_token_per_device": 160.0, "capacity_tokens_per_rank": 6000}
    made = manifest(prefill=2, decode=2, drafts=drafts, workload=workload, kv=kv, slots=REDUNDANT)
    made = with_rules(made, routing, recovery)
    options = SimulationOptions(
        faults=named(faults), offline=backlog(made.workload, offline, 1) if offline else None, stepping=stepping
    )
    offered = open_loop(made.workload, 100.0, 60, seed=3)
    result = simulate(made, offered, options)
    assert result.requests == 60 == result.completed + result.failed + result.running
    assert result.running == 0
    too_long = -(-(offered.input_tokens + offered.output_tokens) // 16) * 16 > 6000
    lost = int((too_long & (offered.output_tokens > 1)).sum())
    assert sum(result.failures.values()) == result.failed == lost or offline
    if result.offline:
        assert result.offline["requests"] == offline


@settings(max_examples=15, deadline=None)
@given(
    ROUTINGS,
    RECOVERIES,
    WORKLOADS,
    st.sampled_from([None, "a/0", "b/3"]),
    st.floats(0.05, 2.0) | st.just(math.inf),
    st.sampled_from(["reference", "vllm", "sglang"]),
)
def test_mixed_instances_and_horizons_lose_nothing(routing, recovery, workload, hit, until, engine):
    """Cut at any time, what is left counts as running."""
    degrees = Degrees(attention_tp=1, attention_dp=4, moe_ep=4)
    instances = [Instance(name="a", nodes=[0]), Instance(name="b", nodes=[1])]
    kv = {"block_tokens": 16, "bytes_per_token_per_device": 160.0, "capacity_tokens_per_rank": 12_000}
    made = build([pool("mixed", degrees, instances, kv=kv)], workload)
    made = Manifest.model_validate(made.model_dump() | {"engine": {"id": engine, "version": "0.0"}})
    made = with_rules(made, routing, recovery)
    faults = () if hit is None else (Outage(kind="device", target=hit, at_seconds=0.2, for_seconds=0.1),)
    options = SimulationOptions(until_seconds=until, faults=faults, offline=backlog(made.workload, 4, 1))
    result = simulate(made, open_loop(made.workload, 60.0, 60, seed=5), options)
    assert result.requests == result.completed + result.failed + result.running
    if until == math.inf:
        assert result.running == 0 and result.offline is not None and result.offline["running"] == 0


def test_tokens_are_counted_once() -> None:
    """A run of known answers gives as many tokens as they have, drafts and preemption or not."""
    for reservation in ("whole", "prompt"):
        kv = {"block_tokens": 16, "bytes_per_token_per_device": 160.0, "capacity_tokens_per_rank": 700}
        made = manifest(drafts=1, kv=kv).model_copy(update={"routing": Routing(decode_reservation=reservation)})
        result = simulate(made, requests(*[(0.0, 200, 200, 0)] * 40))
        assert result.completed == 40
        assert result.output_tokens_per_second * result.duration_seconds == pytest.approx(40 * 200)
        assert (result.retried_requests > 0) == (reservation == "prompt")
