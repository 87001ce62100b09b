"""Migrations between plans of the catalogue: what was promised is kept when it is played, and nothing is lost."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from planner.changeover.change import Conditions, change
from planner.manifest.migration import Staged, union
from planner.manifest.schema import Manifest
from planner.plans.assemble import assemble
from planner.search.search import search
from planner.workload import Lengths
from runtime.simulate.changes import Migrating
from runtime.simulate.faults import Outage
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import open_loop
from tests.questions import small_question

BEGIN_SECONDS = 20.0
PLACES: dict[str, dict[str, Any]] = {
    "h100": {"model": "qwen3-8b", "hardware": "h100"},
    "cm384": {"model": "qwen3-30b-a3b", "hardware": "cm384", "devices": 32},
}
PLANS: dict[str, tuple[float, float]] = {"few": (4.0, 512.0), "many": (30.0, 512.0), "longer": (4.0, 4096.0)}
"""Requests per second and prompt tokens."""


@cache
def plan(place: str, name: str) -> Manifest:
    """Return the plan with the fewest chips for a rate and prompts."""
    rate, prompt = PLANS[name]
    question = small_question(**PLACES[place], squared_cv=1.0)
    workload = replace(question.workload, input_tokens=Lengths(mean=prompt, squared_cv=1.0))
    asked = replace(question, workload=workload, rate_per_second=rate, objective="chips")
    best = search(asked, beside=False).best
    return assemble(best, {})


@pytest.mark.parametrize(
    ("place", "before", "after"),
    [("h100", "few", "many"), ("h100", "longer", "many"), ("cm384", "few", "many"), ("cm384", "many", "few")],
)
def test_what_is_promised_is_kept(place: str, before: str, after: str) -> None:
    """Under OLD's own requests; with the node of NEW's last instance lost in the middle, all are served."""
    old, new = plan(place, before), plan(place, after)
    found = change(old, new, Conditions(spare_nodes=1))
    staged, promise = Staged(found.migration, found.stages), found.migration.promise
    requests = open_loop(old.workload, promise.requests_per_second, int(promise.requests_per_second * 250))
    options = SimulationOptions(migrating=Migrating(staged=staged, at_seconds=BEGIN_SECONDS))
    plain = simulate(union(found.stages), requests, options)
    assert plain.completed == plain.requests
    assert plain.slo_attainment >= promise.attainment(plain.duration_seconds)
    middle = BEGIN_SECONDS + promise.seconds / 2
    node = found.stages[-1].pools[0].instances[-1].nodes[0]
    lost = Outage(kind="node", target=str(node), at_seconds=middle, for_seconds=20.0)
    broken = simulate(union(found.stages), requests, replace(options, faults=(lost,)))
    assert (broken.completed, broken.failed, broken.running) == (broken.requests, 0, 0)
