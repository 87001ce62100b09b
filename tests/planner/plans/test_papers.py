"""Published deployments beside plans: evaluated like any candidate, and never better than the plan."""

import pytest

from hardware.loader import load_hardware
from models.loader import load_model
from planner.plans.papers import matching, published_deployments
from planner.question import Question
from planner.search.search import search
from planner.strategy import check_strategy
from tests.questions import small_answer, small_question


def cloudmatrix(output_tokens: float) -> Question:
    """Return DeepSeek-R1 on 256 NPUs, 4,096-token prompts, 8 s to the first token (CloudMatrix384 section 5.1)."""
    return small_question(
        "deepseek-r1", "cm384", 512, lengths=(4096, output_tokens), ttft_seconds=8.0, drafts=(1,), shape="auto"
    )


def test_the_plan_matches_or_beats_cloudmatrix() -> None:
    """Against its prefill EP32 and decode EP320 instances in the numbers that serve best, on the same devices."""
    answer = search(cloudmatrix(2350))
    beside, other = answer.published

    assert (beside.published.name, other.published.name) == ("CloudMatrix384", "xDeepServe")
    assert beside.published.instances == (6, 1) and other.published.instances == (4, 1)
    assert [beside.plan.prefill.candidate.devices, beside.plan.decode.candidate.devices] == [32, 320]
    assert beside.plan.ttft.at(99) <= 8.0 and beside.plan.tpot.at(99) <= 0.05
    assert answer.best.requests_per_second >= max(beside.plan.requests_per_second, other.plan.requests_per_second)


@pytest.mark.parametrize("published", published_deployments(), ids=lambda each: each.name)
def test_the_table_is_sourced_and_fits_its_models(published) -> None:
    """Every row names models and a machine of the catalogue, strategies that the models allow, and its source."""
    load_hardware(published.hardware)
    for name in published.models:
        for _, pin in published.pins:
            check_strategy(pin.strategy, load_model(name))
    assert published.source.startswith("https://") and published.where


def test_other_machines_have_nothing_beside_them() -> None:
    """A small model on a machine that nobody published for."""
    answer = small_answer(devices=8)

    assert answer.published == () == tuple(matching(answer.question))
