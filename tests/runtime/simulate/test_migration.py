"""Migrations and autoscalers at work: nothing is lost, whatever fails in their middle, and the clock keeps the plan."""

import pytest
from hypothesis import given, settings, strategies as st

from planner.changeover.change import Conditions, change
from planner.changeover.moving import Terms
from planner.manifest.layout import Degrees
from planner.manifest.migration import Staged, union
from planner.manifest.schema import Manifest, Prediction, Recovery
from runtime.simulate.changes import Autoscale, Migrating, _Scaled
from runtime.simulate.faults import Outage
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import Requests, open_loop
from tests.changes import tight

QUICK = Terms(startup_seconds=0.5)
WIDE = Degrees(attention_tp=2, attention_dp=8, moe_tp=2, moe_ep=8)
FAULTS = st.lists(
    st.builds(
        lambda node, at, length: Outage(kind="node", target=str(node), at_seconds=at, for_seconds=length),
        st.integers(0, 5),
        st.floats(0.0, 6.0),
        st.floats(0.05, 3.0),
    ),
    max_size=3,
)


def staged(old: Manifest, new: Manifest, spare: int = 0) -> Staged:
    """Return a change whose instances start within a second."""
    found = change(old, new, Conditions(rate_per_second=20.0, spare_nodes=spare, terms=QUICK))
    return Staged(found.migration, found.stages)


def played(made: Staged, requests: Requests, *faults: Outage, at: float = 1.0) -> SimulationResult:
    """Run a migration."""
    options = SimulationOptions(migrating=Migrating(staged=made, at_seconds=at), faults=faults)
    return simulate(union(made.stages), requests, options)


def requests_of(manifest: Manifest, rate: float = 40.0, count: int = 400) -> Requests:
    """Return a stream that lasts longer than the change."""
    return open_loop(manifest.workload, rate, count)


def test_flips_take_what_they_are_planned_to_at_most() -> None:
    """Two flips: drained, turned and served by, with everything completed within the limits."""
    old = tight(4, 2)
    made = staged(old, tight(2, 4))
    found = played(made, requests_of(old))
    assert found.completed == found.requests == 400
    assert found.slo_attainment >= made.migration.promise.attainment(found.duration_seconds)
    assert 0 < found.changes["ended_seconds"] - 1.0 <= made.migration.promise.seconds + 0.5
    assert found.changes["steps_ended"] == len(made.migration.steps)


def test_devices_are_counted_while_they_are_held() -> None:
    """A change that halves prefill holds fewer device-seconds than the old manifest, more than the new one."""
    old = tight(4, 2)
    found = played(staged(old, tight(2, 2, nodes=6)), requests_of(old))
    end = found.duration_seconds
    assert 4 * 8 * end < found.changes["device_seconds"] < 6 * 8 * end


@settings(max_examples=25)
@given(faults=FAULTS, wide=st.booleans(), stage=st.sampled_from(["restart", "failover", "recompute"]))
def test_nothing_is_lost_under_faults_in_its_middle(faults: list[Outage], wide: bool, stage: str) -> None:
    """Whatever node is lost when, every request completes (the books are checked at the end of each run)."""
    recovery = Recovery.model_validate({"stage": stage, "restart_seconds": 0.3, "reconfigure_seconds": 0.05})
    old = tight(4, 2).model_copy(update={"recovery": recovery})
    new = tight(2, 2, nodes=6, decode_degrees=WIDE) if wide else tight(2, 4)
    made = staged(old, new.model_copy(update={"recovery": recovery}))
    known = {node for stage_ in made.stages for pool in stage_.pools for each in pool.instances for node in each.nodes}
    found = played(made, requests_of(old), *(fault for fault in faults if int(fault.target) in known))
    assert (found.completed, found.failed, found.running) == (400, 0, 0)
    assert found.changes["steps_ended"] == len(made.migration.steps)


def test_a_node_lost_under_a_load_delays_it() -> None:
    """An instance whose devices are lost while it is loaded begins when they are back."""
    old = tight(2, 1, nodes=3)
    recovery = Recovery(heartbeat_seconds=0.0, restart_seconds=1.0)
    made = staged(old.model_copy(update={"recovery": recovery}), tight(3, 1, nodes=4))
    start = next(each.name for step in made.migration.steps for each in step.start)
    node = next(each.nodes[0] for pool in made.stages[-1].pools for each in pool.instances if each.name == start)
    lost = Outage(kind="node", target=str(node), at_seconds=1.2, for_seconds=4.0)
    plain, late = played(made, requests_of(old)), played(made, requests_of(old), lost)
    assert plain.changes["ended_seconds"] < late.changes["ended_seconds"] == pytest.approx(1.2 + 4.0 + 1.0)
    assert late.completed == late.requests


@pytest.mark.parametrize("node", range(6))
def test_a_lost_node_is_recovered_from(node: int) -> None:
    """The node never comes back; the steps from its loss on bring another instance, and the promise holds."""
    old, lost = tight(4, 2), frozenset({("toy", node)})
    found = change(old, old, Conditions(rate_per_second=20.0, spare_nodes=1, terms=QUICK, without=lost))
    fault = Outage(kind="node", target=str(node), at_seconds=2.0, for_seconds=1e6)
    requests = requests_of(old, rate=20.0)
    played_ = played(Staged(found.migration, found.stages), requests, fault, at=2.0)
    assert played_.completed == 400
    assert played_.changes["steps_ended"] == len(found.migration.steps)
    assert played_.slo_attainment >= found.migration.promise.attainment(played_.duration_seconds)


def test_an_autoscaler_follows_the_requests() -> None:
    """It grows under load, shrinks when the load is gone, loses nothing and holds fewer devices than all."""
    whole = tight(4, 4, decode_limits={"requests_per_dp_rank": 2, "tokens_per_device": 2048})
    rule = Autoscale(startup_seconds=0.2, period_seconds=0.5, stabilisation_seconds=2.0, begin=1)
    busy = open_loop(whole.workload, 400.0, 1600)
    found = simulate(whole, busy, SimulationOptions(autoscale=rule))
    assert found.completed == found.requests
    assert found.changes["started"] > 0
    assert found.changes["device_seconds"] < 8 * 8 * found.duration_seconds


def test_an_autoscaler_that_may_not_move_changes_nothing() -> None:
    """With all instances as the least, runs are those without it."""
    whole = tight(2, 2)
    without = simulate(whole, requests_of(whole), SimulationOptions())
    found = simulate(whole, requests_of(whole), SimulationOptions(autoscale=Autoscale(least=2)))
    assert found.e2e_seconds == without.e2e_seconds
    assert found.changes["started"] == found.changes["stopped"] == 0


def test_a_threshold_of_the_plan_is_littles_law() -> None:
    """At the planned rate as many instances are wanted as the plan has, a fraction of it needs that fraction."""
    whole = tight(2, 4)
    stated = {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0}
    latencies = Prediction.model_validate({"ttft_seconds": stated, "e2e_seconds": stated | {"mean": 5.0}})
    whole = whole.model_copy(update={"predicted": latencies})
    decode = next(pool for pool in whole.pools if pool.role == "decode")
    scaled = _Scaled(decode, Autoscale(), whole)
    assert scaled.wanted(requests=80, now=0.0) == 4  # 20/s for 4 s
    scaled = _Scaled(decode, Autoscale(stabilisation_seconds=0.0), whole)
    assert scaled.wanted(requests=40, now=1.0) == 2
