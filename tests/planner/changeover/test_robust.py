"""One plan over scenarios and a policy over windows: against every choice of small cases, and what must hold."""

import itertools
import math
from functools import cache

import pytest

from planner.changeover.moving import Terms
from planner.changeover.robust import Layout, Option, Policy, Scenario, _moves, layouts_of, one_plan, options_of, policy
from planner.search.search import search
from tests.changes import tight
from tests.plans import small_plan
from tests.questions import small_question

HOURS = (2.0, 1.0, 3.0)


def scenarios(leasts: tuple[float, ...] = (16.0, 24.0, 16.0)) -> list[Scenario]:
    """Return windows of hours whose questions nobody looks at."""
    question = small_question()
    return [
        Scenario(name=f"w{n}", question=question, weight=1.0, hours=hours, best=None, least_chips=least)
        for n, (hours, least) in enumerate(zip(HOURS, leasts, strict=True))
    ]


def options() -> list[Option]:
    """Return two options of 8-device instances that need other counts in each window."""
    manifests = [tight(1, 1), tight(1, 1, decode_kv_dtype="fp8", prefill_kv_dtype="fp8")]
    needs = [((1, 1), (2, 2), (1, 2)), ((1, 1), None, (1, 1))]
    return [Option(manifest=made, needs=need) for made, need in zip(manifests, needs, strict=True)]


def cost(path: tuple[Layout, ...], moves: dict[tuple[int, int], float]) -> float:
    """Return the chip-hours of layouts one after the other."""
    held = sum(layout.chips * hours for layout, hours in zip(path, HOURS, strict=True))
    return held + sum(moves[id(first), id(second)] for first, second in itertools.pairwise(path))


@pytest.mark.parametrize("startup", [0.0, 60.0, 3600.0, 360_000.0])
def test_the_policy_is_the_cheapest_of_all(startup: float) -> None:
    """Every way through the windows is tried; slow starts keep a layout, quick ones change it."""
    layouts, terms = layouts_of(options(), 64), Terms(startup_seconds=startup)
    found = policy(scenarios(), layouts, terms)
    table = _moves(layouts, terms)
    moves = {(id(a), id(b)): float(table[i, j]) for i, a in enumerate(layouts) for j, b in enumerate(layouts)}
    ways = itertools.product(*([each for each in layouts if each.holds(n)] for n in range(3)))
    assert found.chip_hours == pytest.approx(min(cost(way, moves) for way in ways))
    assert found.bound_chip_hours <= found.chip_hours <= found.peak_chip_hours * (1 + 1e-12)


def test_one_plan_holds_in_its_share() -> None:
    """All of it needs the dearest; a smaller share a smaller plan, never below the bound."""
    layouts = layouts_of(options(), 64)
    whole, most = one_plan(scenarios((16, 32, 16)), layouts, 1.0), one_plan(scenarios((16, 32, 16)), layouts, 0.6)
    assert whole is not None
    assert most is not None
    assert all(whole.holds)
    assert most.layout.chips < whole.layout.chips
    assert most.layout.chips >= most.least_chips
    assert whole.least_chips == 32


def test_too_few_devices_leave_a_window_without_a_plan() -> None:
    """A window that nothing serves has no layout, and is in nobody's bound or peak."""
    layouts = layouts_of(options(), 24)
    found = policy(scenarios((16.0, 0.0, 16.0)), layouts)
    assert found.layouts[1] is None
    assert found.layouts[0] is not None
    assert math.isfinite(found.peak_chip_hours)
    assert one_plan(scenarios(), layouts, 1.0) is None


@cache
def solved() -> tuple[list[Scenario], Policy]:
    """Two windows of a real question, at a third and at all of what its devices carry."""
    plan = small_plan()
    found = []
    for name, share in (("low", 0.3), ("high", 0.95)):
        from dataclasses import replace

        question = replace(plan.question, objective="chips", rate_per_second=plan.requests_per_second * share)
        answer = search(question, explain=False, beside=False)
        assert answer.best is not None
        found.append(
            Scenario(
                name=name, question=question, weight=1.0, hours=6.0, best=answer.best, least_chips=answer.best.chips
            )
        )
    return found, policy(found, layouts_of(options_of(found), 32))


def test_a_searched_policy_moves_where_that_pays() -> None:
    """The low window takes fewer chips than the high one, and the policy fewer chip-hours than the peak."""
    windows, found = solved()
    low, high = found.layouts
    assert low is not None
    assert high is not None
    assert low.chips < high.chips
    assert found.chip_hours < found.peak_chip_hours
    assert found.chip_hours >= found.bound_chip_hours
    made = high.manifest(windows[1].question)
    assert sum(len(pool.instances) for pool in made.pools) == sum(high.counts)
