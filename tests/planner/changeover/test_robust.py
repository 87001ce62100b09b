"""One plan over scenarios and a policy over windows: against every choice of small cases, and what must hold."""

import itertools
import math
from dataclasses import replace
from functools import cache

import pytest

from ground.units import HOUR_SECONDS
from ground.yamldata import parse_yaml
from planner.changeover.moving import Terms, drain_seconds
from planner.changeover.policy import (
    Joint,
    Policy,
    Space,
    WindowScenarios,
    late_starts,
    moves_of,
    one_plan,
    policy,
    space_of,
)
from planner.changeover.robust import Layout, Option, Scenario, layouts_of, stood
from planner.manifest.document import dump_manifest, parse_manifest
from planner.manifest.schema import Recovery
from planner.search.search import search
from tests.changes import tight
from tests.plans import small_plan
from tests.questions import small_question

HOURS = (2.0, 1.0, 3.0)


def scenarios(leasts: tuple[float, ...] = (16.0, 24.0, 16.0), devices: int = 64) -> list[Scenario]:
    """Return windows of hours on so many devices, of whose questions nothing else is looked at."""
    question = small_question(devices=devices)
    return [
        Scenario(name=f"w{n}", question=question, weight=1.0, hours=hours, best=None, least_chips=least)
        for n, (hours, least) in enumerate(zip(HOURS, leasts, strict=True))
    ]


def options() -> list[Option]:
    """Return two options of 8-device instances that need other counts in each window."""
    manifests = [tight(1, 1), tight(1, 1, decode_kv_dtype="fp8", prefill_kv_dtype="fp8")]
    needs = [((1, 1), (2, 2), (1, 2)), ((1, 1), None, (1, 1))]
    return [Option(manifest=made, needs=need) for made, need in zip(manifests, needs, strict=True)]


def space(asked: list[Scenario], models: int = 1, devices: int = 64) -> Space:
    """Return the layouts of so many models, each asked the same; the last of several is not there in window 0."""
    layouts = [tuple(layouts_of(options(), devices))]
    windows = [WindowScenarios(name=each.name, asked=(each,) * models) for each in asked]
    if models > 1:
        later = [Option(manifest=each.manifest, needs=each.needs[1:]) for each in options()]
        empty = Layout(option=later[0], counts=(0, 0))
        layouts += [(empty, *layouts_of(later, devices))]
        windows[0] = replace(windows[0], asked=(asked[0], None))
    return Space(windows=tuple(windows), layouts=tuple(layouts))


def ways(found: Space) -> list[list[Joint]]:
    """Return the joint layouts that serve each window, by hand: counts, and nodes of 8 where there are two models."""
    held = []
    for number, window in enumerate(found.windows):
        own = []
        for joint in itertools.product(*found.layouts):
            nodes = sum(-(-sum(8 * count for count in each.counts) // 8) for each in joint)
            good = 8 * nodes <= window.devices
            for model, each in enumerate(joint):
                if window.asked[model] is not None:
                    needs = each.option.needs[number - (model > 0)]
                    good &= needs is not None and all(a >= b for a, b in zip(each.counts, needs, strict=True))
            if good:
                own.append(joint)
        held.append(own)
    return held


def cost(path: tuple[Joint, ...], moves: dict[tuple[int, int], float]) -> float:
    """Return the chip-hours of layouts one after the other."""
    held = sum(each.chips * hours for joint, hours in zip(path, HOURS, strict=True) for each in joint)
    return held + sum(
        moves[id(first), id(second)]
        for one, other in itertools.pairwise(path)
        for first, second in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("startup", [0.0, 3600.0, 360_000.0])
@pytest.mark.parametrize(("models", "devices"), [(1, 64), (2, 64), (2, 48)])
def test_the_policy_is_the_cheapest_of_all(startup: float, models: int, devices: int) -> None:
    """Every way through the windows is tried; slow starts keep a layout, quick ones change it; models share devices."""
    made, terms = space(scenarios(devices=devices), models, devices), Terms(startup_seconds=startup)
    found = policy(made, terms)
    moves = {}
    for layouts in made.layouts:
        table = moves_of(layouts, terms)
        moves |= {(id(a), id(b)): float(table[i, j]) for i, a in enumerate(layouts) for j, b in enumerate(layouts)}
    held = ways(made)
    if all(held):
        assert found.chip_hours == pytest.approx(min(cost(way, moves) for way in itertools.product(*held)))
    assert [bool(each) for each in held] == [each is not None for each in found.layouts]
    assert found.chip_hours <= found.peak_chip_hours * (1 + 1e-12)
    assert found.chip_hours <= found.replanned_chip_hours * (1 + 1e-12)


def test_moves_take_what_manifests_state() -> None:
    """Start-up and pooled host memory are those of the recovery that a manifest states."""

    def stating(**recovery: float) -> list[Layout]:
        own = {
            id(each.option): replace(
                each.option, manifest=each.option.manifest.model_copy(update={"recovery": Recovery(**recovery)})
            )
            for each in layouts
        }
        return [replace(each, option=own[id(each.option)]) for each in layouts]

    layouts = space(scenarios()).layouts[0]
    usual = moves_of(layouts)
    assert (moves_of(stating(startup_seconds=600.0)) == moves_of(layouts, Terms(startup_seconds=600.0))).all()
    assert moves_of(stating(startup_seconds=600.0)).sum() > usual.sum()
    assert moves_of(stating(pool_bytes_per_second=1e15)).sum() < usual.sum()


def test_a_model_that_nobody_has_is_loaded_off_the_store() -> None:
    """From no instance to some takes the store's rate, which all that start share; with peers it is quicker."""
    (option, _) = options()
    stated = {"recovery": Recovery(storage_bytes_per_second=1e7)}
    option = replace(option, manifest=option.manifest.model_copy(update=stated))
    some = [Layout(option=option, counts=each) for each in ((0, 0), (1, 1), (2, 2))]
    took, chips = moves_of(some), option.pools[0].chips_per_instance
    own = sum(2 * option.manifest.start_seconds(pool, 2) * chips for pool in option.pools)
    assert took[0, 2] * HOUR_SECONDS == pytest.approx(own)
    assert took[0, 2] > 2 * took[1, 2]


def test_starts_are_late_where_both_layouts_do_not_fit() -> None:
    """Two models swap four instances for two: on eight nodes they load ahead, on six the larger waits for the other."""
    (option, _) = options()
    few, many = (Layout(option=option, counts=each) for each in ((1, 1), (2, 2)))
    for devices, late in ((64, 0), (48, 2)):
        asked = scenarios(devices=devices)[:2]
        windows = tuple(WindowScenarios(name=each.name, asked=(each, each)) for each in asked)
        made = Space(windows=windows, layouts=((few, many), (few, many)))
        found = replace(policy(made), layouts=((few, many), (many, few)))
        starts = late_starts(made, found, around=True)
        assert len(starts) == late
        assert len(late_starts(made, found, around=False)) == late / 2
        for each in starts:
            assert each.instances == 2
            assert each.seconds > max(drain_seconds(option.manifest, pool) for pool in option.pools)


def test_one_plan_holds_in_its_share() -> None:
    """All of it needs the dearest; a smaller share a smaller plan, never below the bound."""
    made = space(scenarios((16, 32, 16)))
    whole, most = one_plan(made, 1.0), one_plan(made, 0.6)
    assert all(whole.holds)
    assert most.chips < whole.chips
    assert most.chips >= most.least_chips
    assert whole.least_chips == 32


def test_too_few_devices_leave_a_window_without_a_plan() -> None:
    """A window that nothing serves has no layout, and is in nobody's bound or peak."""
    made = space(scenarios((16.0, 0.0, 16.0), devices=24), devices=24)
    found = policy(made)
    assert found.layouts[1] is None
    assert found.layouts[0] is not None
    assert math.isfinite(found.peak_chip_hours)
    assert one_plan(made, 1.0) is None


def test_what_was_late_is_taken_no_more() -> None:
    """A layout that missed a window's limits, and all within it, leave the window to dearer ones."""
    made = space(scenarios())
    first = policy(made).layouts[0]
    second = policy(replace(made, late=((0, 0, first[0]),))).layouts[0]
    assert not second[0].within(first[0])
    assert second[0].chips >= first[0].chips


def test_a_window_with_fewer_devices_has_no_larger_layout() -> None:
    """Where a node is lost, what was kept from the window before has to go."""
    asked = scenarios()
    asked[2] = replace(asked[2], question=small_question(devices=24))
    found = policy(space(asked), Terms(startup_seconds=1e9))
    assert sum(each.devices for each in found.layouts[2]) <= 24


@cache
def solved() -> tuple[list[Scenario], Policy]:
    """Two windows of a real question, at a third and at all of what its devices carry."""
    plan = small_plan()
    found = []
    for name, share in (("low", 0.3), ("high", 0.95)):
        question = replace(plan.question, objective="chips", rate_per_second=plan.requests_per_second * share)
        answer = search(question, beside=False)
        found.append(
            Scenario(
                name=name, question=question, weight=1.0, hours=6.0, best=answer.best, least_chips=answer.best.chips
            )
        )
    made = space_of(found)
    return found, policy(made)


def test_a_searched_policy_moves_where_that_pays() -> None:
    """The low window takes fewer chips than the high one, and the policy fewer chip-hours than the peak."""
    windows, found = solved()
    first, last = found.layouts
    (low,), (high,) = first, last
    assert low.chips < high.chips
    assert found.chip_hours < found.peak_chip_hours
    assert found.chip_hours >= found.bound_chip_hours
    (made,) = stood([(high, windows[1].question)])
    assert sum(len(pool.instances) for pool in made.pools) == sum(high.counts)
    assert made.predicted == stood([(high, windows[1].question)])[0].predicted


def test_manifests_of_two_models_share_no_node() -> None:
    """Each states its own window's traffic, and a prediction for it."""
    windows, found = solved()
    first, last = found.layouts
    sides = replace(windows[0].question.prefill, devices=96)
    roomy = [replace(each.question, prefill=sides, decode=sides) for each in windows]
    one, other = stood([(first[0], roomy[0]), (last[0], roomy[1])])
    nodes = [{node for pool in each.pools for own in pool.instances for node in own.nodes} for each in (one, other)]
    assert not nodes[0] & nodes[1]
    assert one.workload.requests_per_second == windows[0].question.rate_per_second
    assert one.predicted.ttft_seconds is not None
    for each in (one, other):
        assert parse_manifest(parse_yaml(dump_manifest(each), "m"), "m") == each
