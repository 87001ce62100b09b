"""Plans that the search finds for small questions, each searched once per run of the tests."""

from functools import cache
from typing import Any

from planner.manifest.schema import Manifest
from planner.plans.assemble import assemble
from planner.plans.plan import Plan
from tests.questions import best_of


def small_plan(**asked: Any) -> Plan:
    """Return the plan with the largest rate on a few devices, in INT8 unless other weights are asked for."""
    plan = best_of(**{"hardware": "cm384", "devices": 32, "weights": "int8"} | asked)
    assert plan is not None
    return plan


@cache
def small_manifest(**asked: Any) -> Manifest:
    """Return the manifest of that plan."""
    return assemble(small_plan(**asked), {"model": "small"})
