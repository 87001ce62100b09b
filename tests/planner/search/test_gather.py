"""What is costed of one question is costed of others that differ in nothing that a role depends on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.instances.space import Row
from planner.search.fleet import Fleet
from planner.search.gather import Costing
from planner.search.ways import gather_fleet
from planner.strategy import Strategy
from tests.questions import plan_over, small_question


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


def test_decode_is_costed_for_the_links_of_its_instances() -> None:
    """Between pairs of TP=2 KV takes half as long as from TP=1: with all at the slowest, given pairs carried more."""
    asked: dict[str, Any] = {"hardware": "a100", "devices": 4, "lengths": (2048.0, 1024.0), "tpot_seconds": 0.015}
    question = small_question(**asked)
    options = [option for option in gather_fleet(Fleet.of(question)).options[0] if option.whole]
    latency = question.prefill.hardware.plane(question.prefill.hardware.kv_plane).latency_seconds.value
    links = [min(int(side.offers.links.max()) for side in option.sides) for option in options]
    sent = {width: option.transfer_seconds - latency for width, option in zip(links, options, strict=True)}
    assert [sent[width] * width for width in (2, 4)] == pytest.approx([sent[1]] * 2)
    wide, narrow = ([Row(Strategy(attention_tp=tp, moe_tp=tp), 0, 0)] for tp in (2, 1))
    alone = plan_over(question, {"prefill": wide, "decode": wide})
    among = plan_over(question, {"prefill": narrow + wide, "decode": wide})
    assert alone is not None and among is not None and among.requests_per_second >= alone.requests_per_second
