"""Attention and experts on nodes of their own, in every split: bounds leave out nothing that could win."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.instances.apart import MOST_DOMAINS, apart_rows
from planner.instances.candidates import Count
from planner.instances.grid import smallest_redundancy
from planner.instances.space import Row, layouts, pool_counts, role_rows
from planner.offers.decode_offers import decode_offers
from planner.question import Question
from planner.search.gather import why_not_apart
from planner.search.search import search
from planner.strategy import Strategy, model_conflicts
from tests.questions import plan_over, small_question

APART: dict[str, Any] = {"lengths": (1024.0, 1024.0), "ttft_seconds": 2.0, "tpot_seconds": 0.06, "microbatches": (2,)}
"""Short prompts and little time per token: better with attention and experts apart."""


def every_row(question: Question) -> list[Row]:
    """Return every row there could be: whole nodes of attention, or of experts, a domain on no more than these."""
    machines, moe = question.decode, question.model.moe
    step = machines.devices_per_node
    strategies = [
        Strategy(attention_tp=tp, attention_dp=dp, moe_ep=experts, domains=domains)
        for size in pool_counts(machines)
        if size % step == 0
        for experts in range(step, size, step)
        if smallest_redundancy(moe.experts, experts) is not None
        for tp in (1, 2, 4, 8, 16)
        for domains in range(1, MOST_DOMAINS + 1)
        for dp in [(size - experts) // (tp * domains)]
        if dp > 1 and tp * dp * domains == size - experts and tp * dp <= experts and tp <= step
    ]
    return [
        Row(strategy, redundant, dedicated)
        for strategy in strategies
        if next(model_conflicts(strategy, question.model), None) is None
        for redundant, dedicated in layouts(question, strategy, "decode")
    ]


@pytest.mark.parametrize(
    ("model", "hardware", "devices", "tpot"),
    [("kimi-k2", "cm384", 128, 0.1), ("qwen3-30b-a3b", "cm384", 80, 0.03), ("deepseek-r1", "h800", 56, 0.06)],
)
def test_no_row_that_carries_what_is_needed_is_left_out(model: str, hardware: str, devices: int, tpot: float) -> None:
    """Every row costed in full: at several rates needed per device, those that reach it pass both bounds."""
    question = small_question(model, hardware, devices, lengths=(1024.0, 1024.0), tpot_seconds=tpot)
    rows = every_row(question)
    offers = decode_offers(question, rows, Count(), 0.0)
    kinds = [offers.build(number) for number in range(len(offers))]
    each = np.array([kind.bound_per_second for kind in kinds]) / offers.devices  # type: ignore[attr-defined]

    for share in (*np.quantile(each, [0.5, 0.9, 0.99]), float(each.max())):
        found = apart_rows(question, lambda sizes, least=share: least * sizes.astype(float), Count())  # type: ignore[misc]
        kept = set(found.rows)
        passed = {kinds[number].row for number in np.flatnonzero(each >= share)}  # type: ignore[attr-defined]
        assert passed and passed <= kept <= set(rows)
    assert len(kept) < len(rows) / 2 and found.dropped


def test_the_search_is_as_good_as_with_every_row_costed() -> None:
    """Kimi-K2 on seven nodes: the grid and all rows beyond it, against the search, which costs few of them."""
    question = small_question("kimi-k2", "cm384", 112, **APART)
    rows = {"prefill": role_rows(question, "prefill"), "decode": [*role_rows(question, "decode"), *every_row(question)]}
    every = plan_over(question, rows)  # type: ignore[arg-type]
    answer = search(question)

    assert answer.best.requests_per_second == pytest.approx(every.requests_per_second, rel=1e-3)
    assert answer.best.answering.candidate.row not in role_rows(question, "decode")
    assert answer.bound.gap < 1e-6 and any("beyond the grid" in each.what for each in answer.bound.pruned)


def test_a_rate_that_only_rows_beyond_the_grid_carry_is_carried() -> None:
    """What the devices carry at most, asked for as a rate, needs no more of them: sizing and planning agree."""
    most = search(small_question("kimi-k2", "cm384", 112, **APART), beside=False).best
    rate = 0.999 * most.requests_per_second
    asked = small_question("kimi-k2", "cm384", 112, rate_per_second=rate, objective="chips", **APART)
    sized = search(asked, beside=False).best

    assert sized.devices <= most.devices


def test_engines_without_domains_and_dense_models_have_none() -> None:
    """The reason is named; the reference engine reaches all."""
    question = small_question("qwen3-30b-a3b", "cm384", 64)

    assert why_not_apart(question) is None
    assert why_not_apart(replace(question, engine="vllm@0.10.0")) == "vllm@0.10.0: domains"
    assert "dense" in (why_not_apart(small_question("qwen3-8b", "h100", 8)) or "")
