"""Changes between small manifests: what is kept, flipped and loaded, and that every stage is a manifest."""

from dataclasses import replace

import pytest

from ground.errors import BadInput, Infeasible
from ground.yamldata import parse_yaml
from planner.changeover.change import Conditions, change
from planner.changeover.moving import Terms
from planner.manifest.document import dump_manifest, parse_manifest
from planner.manifest.layout import Degrees
from planner.manifest.migration import instance_names, same_content
from planner.manifest.schema import Manifest
from tests.changes import tight


def counts(manifest: Manifest) -> dict[str, int]:
    """Return the instances of each role."""
    return {pool.role: len(pool.instances) for pool in manifest.pools}


def test_same_weights_flip_without_a_load() -> None:
    """Two prefill instances become decode ones where they stand: nothing is loaded, four stay."""
    found = change(tight(4, 2), tight(2, 4), Conditions(rate_per_second=10.0))
    assert {start.how for step in found.migration.steps for start in step.start} == {"flip"}
    assert found.bytes == 0
    assert found.kept == 4
    assert counts(found.stages[-1]) == {"prefill": 2, "decode": 4}


def test_other_degrees_are_loaded_off_peers() -> None:
    """Decode of another degree is loaded whole from the instances that serve; what both have stays by name."""
    wide = tight(2, 2, nodes=6, decode_degrees=Degrees(attention_tp=2, attention_dp=8, moe_tp=2, moe_ep=8))
    found = change(tight(4, 2), wide, Conditions(rate_per_second=5.0))
    starts = [start for step in found.migration.steps for start in step.start]
    assert {start.how for start in starts} == {"load"}
    assert {start.source for start in starts} == {"peers"}
    assert sum(start.bytes for start in starts) == pytest.approx(2 * 16 * 1e9)
    assert found.migration.promise.below_seconds == found.order.below_seconds
    assert {"prefill-0", "prefill-1"} <= instance_names(found.stages[-1])


def test_other_maps_load_only_what_moves() -> None:
    """Two experts change places: two ranks load one expert in each layer."""
    swapped = [8, 9, *range(2, 8), 0, 1, *range(10, 16)]
    found = change(tight(2, 2), tight(2, 2, decode_slots=swapped), Conditions(rate_per_second=5.0))
    assert {start.how for step in found.migration.steps for start in step.start} == {"experts"}
    expert = 3 * 64 * 32 * 2
    assert sum(move.bytes for move in found.order.moves) == pytest.approx(2 * 3 * 4 * expert)
    assert sum(start.bytes for step in found.migration.steps for start in step.start) == pytest.approx(found.bytes)


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_every_stage_is_a_manifest(spare: int) -> None:
    """Stages pass the reader, share no device, and the last one is NEW but for names and node numbers."""
    new = tight(1, 2, nodes=5, decode_degrees=Degrees(attention_tp=2, attention_dp=8, moe_tp=2, moe_ep=8))
    found = change(tight(3, 2), new, Conditions(rate_per_second=5.0, spare_nodes=spare))
    for stage in found.stages:
        assert parse_manifest(parse_yaml(dump_manifest(stage), "stage"), "stage") == stage
    last = found.stages[-1]
    for mine, theirs in zip(last.pools, new.pools, strict=True):
        assert same_content(mine, theirs)
        assert len(mine.instances) == len(theirs.instances)
    assert last.workload == new.workload


def test_instances_start_as_new_states_it() -> None:
    """A start-up that the manifest to come states is the one that a change takes, unless another is asked for."""
    wide = tight(2, 2, nodes=6, decode_degrees=Degrees(attention_tp=2, attention_dp=8, moe_tp=2, moe_ep=8))
    slow = wide.model_copy(update={"recovery": wide.recovery.model_copy(update={"startup_seconds": 600.0})})
    asked = Conditions(rate_per_second=5.0)
    usual, later = change(tight(4, 2), wide, asked), change(tight(4, 2), slow, asked)
    loads = [max(start.seconds for step in each.migration.steps for start in step.start) for each in (usual, later)]
    assert loads[1] == pytest.approx(loads[0] + 540.0)
    again = change(tight(4, 2), slow, replace(asked, terms=Terms(startup_seconds=60.0)))
    assert again.order.seconds == pytest.approx(usual.order.seconds)


def test_fewer_at_once_take_more_steps() -> None:
    """With one instance at a time every step touches one, and the change takes longer."""
    every = change(tight(4, 2), tight(2, 4), Conditions(rate_per_second=1.0))
    single = change(tight(4, 2), tight(2, 4), Conditions(rate_per_second=1.0, most_at_once=1))
    assert all(max(len(step.drain), len(step.start)) == 1 for step in single.migration.steps)
    assert single.order.seconds > every.order.seconds


def test_equal_manifests_need_nothing() -> None:
    """From a manifest to itself there is no step."""
    found = change(tight(2, 2), tight(2, 2))
    assert found.order.moves == ()
    assert found.kept == 4


def test_an_end_that_carries_nothing_promises_nothing() -> None:
    """Where NEW carries none of the traffic, every second of its steps is below the limits, and the order is found."""
    new = tight(3, 2, nodes=6)
    idle = [pool.model_copy(update={"predicted": None}) for pool in new.pools]
    stated = [pool.predicted.model_copy(update={"requests_per_second": 0.0}) for pool in new.pools if pool.predicted]
    pools = [pool.model_copy(update={"predicted": none}) for pool, none in zip(idle, stated, strict=True)]
    found = change(tight(4, 2), new.model_copy(update={"pools": pools}), Conditions(rate_per_second=10.0))
    assert found.carries_after == 0
    assert found.migration.promise.requests_per_second == 10.0


def test_a_lost_node_is_left_out() -> None:
    """What stood on it is gone with the first step, another instance comes elsewhere, nothing stands on it again."""
    old = tight(4, 2)
    lost = next(pool.instances[0] for pool in old.pools if pool.role == "decode")
    gone = frozenset({("toy", lost.nodes[0])})
    found = change(old, old, Conditions(rate_per_second=15.0, spare_nodes=1, without=gone))
    first = found.migration.steps[0]
    assert lost.name in first.drain
    assert found.kept == 5
    assert counts(found.stages[-1]) == {"prefill": 4, "decode": 2}
    for stage in found.stages[1:]:
        assert parse_manifest(parse_yaml(dump_manifest(stage), "stage"), "stage") == stage
        assert not any(lost.nodes[0] in each.nodes for pool in stage.pools for each in pool.instances)
    assert found.migration.rollback == []
    assert found.migration.promise.below_seconds >= found.order.seconds  # one decode instance does not carry 15/s
    with pytest.raises(Infeasible, match="spare-nodes"):
        change(old, old, Conditions(rate_per_second=15.0, without=gone))


def test_a_lost_instance_that_is_not_wanted_is_only_dropped() -> None:
    """NEW is what the loss has left: one step in which nothing starts."""
    old = tight(4, 2)
    node = old.pools[0].instances[0].nodes[0]
    found = change(old, tight(3, 2, nodes=6), Conditions(rate_per_second=5.0, without=frozenset({("toy", node)})))
    (step,) = found.migration.steps
    assert step.drain == [old.pools[0].instances[0].name]
    assert not step.start


def test_of_both_traffics_all_that_comes_starts_first() -> None:
    """Neither end carries the other's traffic: OLD stays whole until NEW is there, and limits hold throughout."""
    wide = Degrees(attention_tp=2, attention_dp=8, moe_tp=2, moe_ep=8)
    old, new = tight(2, 1), tight(1, 2, decode_degrees=wide)
    busy = new.workload.model_copy(update={"requests_per_second": 10.0})
    old = old.model_copy(update={"workload": busy})
    new = new.model_copy(update={"workload": busy})
    asked = Conditions(both=True, rate_per_second=10.0, spare_nodes=4)
    found = change(old, new, asked)
    assert found.order.below_seconds == 0
    assert found.migration.promise.requests_per_second == 10.0
    before, after = instance_names(found.stages[0]), instance_names(found.stages[-1])
    for stage in found.stages[1:-1]:
        names = instance_names(stage)
        assert before <= names or after <= names
    assert any(before | after <= instance_names(stage) for stage in found.stages)
    assert change(old, new, replace(asked, spare_nodes=2)).order.below_seconds > 0  # no room beside each other


def test_of_both_traffics_each_kind_carries_what_comes_then() -> None:
    """An instance that stays carries OLD's requests until NEW is there: its rate under NEW's counts only after that."""
    wide = Degrees(attention_tp=2, attention_dp=8, moe_tp=2, moe_ep=8)
    old, new = tight(1, 2), tight(1, 4, nodes=9, decode_degrees=wide)
    heavy = [
        pool.model_copy(
            update={"predicted": pool.predicted and pool.predicted.model_copy(update={"requests_per_second": 40.0})}
        )
        for pool in new.pools
    ]
    rates = [
        each.workload.model_copy(update={"requests_per_second": rate}) for each, rate in ((old, 10.0), (new, 40.0))
    ]
    old = old.model_copy(update={"workload": rates[0]})
    new = new.model_copy(update={"workload": rates[1], "pools": heavy})
    found = change(old, new, Conditions(both=True, rate_per_second=10.0, spare_nodes=2))
    assert found.order.below_seconds == 0
    assert found.migration.steps[0].carries_per_second == 10.0
    assert found.carries_after == 10.0


def test_kv_that_cannot_be_read_is_refused() -> None:
    """Another KV format never serves beside the old one."""
    with pytest.raises(Infeasible, match="cannot read the KV"):
        change(tight(2, 2), tight(2, 2, kv_dtype="fp8"))


def test_another_model_is_refused() -> None:
    """A change keeps the model."""
    new = tight(2, 2)
    other = new.model.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(BadInput, match="NEW: serves"):
        change(tight(2, 2), new.model_copy(update={"model": other}))
