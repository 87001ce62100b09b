"""What is costed of one question is costed of others that differ in nothing that a role depends on."""

from dataclasses import replace

import numpy as np

from planner.search.fleet import Fleet
from planner.search.gather import Costing
from planner.search.ways import gather_fleet
from tests.questions import small_question


def test_a_limit_leaves_the_other_role_as_it_was_costed() -> None:
    """Decode depends on no TTFT limit, prefill on no TPOT limit; passes of a tighter TTFT limit are there already."""
    question, costing = small_question(model="qwen3-8b", devices=4, squared_cv=1.0, ttft_seconds=1.0), Costing()

    def sides(ttft: float, tpot: float, known: Costing | None) -> tuple[object, ...]:
        asked = replace(question, ttft_seconds=ttft, tpot_seconds=tpot)
        return gather_fleet(Fleet.of(asked), costing=known).options[0][0].sides

    prefill, decode = sides(1.0, 0.05, costing)
    evaluated = costing.count.evaluated
    tighter, same = sides(0.2, 0.05, costing)
    assert same is decode and tighter is not prefill and costing.count.evaluated == evaluated
    fresh, _ = sides(0.2, 0.05, None)
    np.testing.assert_array_equal(tighter.offers.devices, fresh.offers.devices)
    np.testing.assert_array_equal(tighter.rate, fresh.rate)
    assert sides(1.0, 0.03, costing)[0] is prefill and costing.count.evaluated > evaluated
    looser, _ = sides(2.0, 0.05, costing)
    assert len(looser.offers) >= len(prefill.offers)
