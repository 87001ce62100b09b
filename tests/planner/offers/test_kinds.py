"""Budgets and caps that instances choose, against trying every one of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.instances.candidates import Count, prefill_fits
from planner.instances.operating import PrefillServer
from planner.instances.space import role_rows
from planner.offers.aggregated_offers import aggregated_offers
from planner.offers.decode_kinds import DecodeKind
from planner.offers.decode_offers import decode_offers
from planner.offers.kinds import PrefillKind
from planner.offers.prefill_offers import prefill_offers
from planner.question import Question
from planner.search.changes.variations import has_plan
from planner.search.search import search
from planner.workload import TraceRows
from tests.questions import small_question

# A better budget or cap has to carry 0.3 % more, of what is kept to 1e-3 where all caps are told at once.
SOLVED = 0.0031


def prefill_kinds(question: Question) -> list[PrefillKind]:
    """Return every prefill row as a server."""
    offers = prefill_offers(question, role_rows(question, "prefill"), Count())
    kinds = [offers.build(number) for number in range(len(offers))]
    return [kind for kind in kinds if isinstance(kind, PrefillKind)]


def decode_kinds(question: Question) -> list[DecodeKind]:
    """Return every decode row as a server."""
    offers = decode_offers(question, role_rows(question, "decode"), Count(), 0.002)
    kinds = [offers.build(number) for number in range(len(offers))]
    return [kind for kind in kinds if isinstance(kind, DecodeKind)]


def every_budget(kind: PrefillKind) -> list[PrefillServer]:
    """Return a server of each count of prompts up to twice the largest that the kind tries, whatever it says of them.

    Those whose full pass is late or does not fit are left out, but for one prompt.
    """
    question, candidate = kind.question, kind.at(1).candidate
    servers = []
    for prompts in range(1, 2 * kind.most_prompts + 2):
        changed = replace(candidate, prompts=prompts)
        server = PrefillServer(question, changed)
        held = server.most_prompts
        seconds = float(server.pass_seconds(np.array([float(held)]))[0])
        fits = bool(prefill_fits(kind.deployment, question.workload, prompts, 1).all())
        if prompts == 1 or (seconds <= question.ttft_seconds and fits):
            servers.append(server)
    return servers


@pytest.mark.parametrize(
    ("asked", "instances"),
    [
        ({"model": "qwen3-8b", "devices": 1, "lengths": (512.0, 64.0), "ttft_seconds": 0.2}, 1),
        ({"model": "qwen3-8b", "devices": 1, "lengths": (1024.0, 64.0), "ttft_seconds": 0.2}, 3),
        ({"model": "deepseek-v2-lite", "hardware": "cm384", "devices": 2, "ttft_seconds": 0.2}, 2),
    ],
    ids=str,
)
def test_no_budget_carries_more(asked: dict[str, Any], instances: int) -> None:
    """Every whole number of prompts that keeps the limit and fits, each with its queue solved."""
    for kind in prefill_kinds(small_question(**asked))[:2]:
        more = kind.pool_capacity(instances) * (1 + SOLVED)

        assert not any(server.pool_carries(instances, more) for server in every_budget(kind))
        assert kind.pool_capacity(instances) <= kind.bound_per_second * instances * (1 + 1e-9)
        assert kind.at(instances).pool_carries(instances, kind.pool_capacity(instances) * (1 - 1e-9))


@settings(max_examples=4, deadline=None)
@given(
    prompt=st.sampled_from([300.0, 900.0, 2500.0]),
    limit=st.sampled_from([0.12, 0.3, 0.7]),
    hardware=st.sampled_from(["h100", "910b"]),
)
def test_no_budget_passes_the_bound_of_its_row(prompt: float, limit: float, hardware: str) -> None:
    """What a row is counted at before it is looked at bounds each of its budgets, and each budget its queue."""
    question = small_question("qwen3-8b", hardware, 2, lengths=(prompt, 64.0), ttft_seconds=limit, microbatches=(1,))
    offers = prefill_offers(question, role_rows(question, "prefill"), Count())
    for number in range(len(offers)):
        kind = offers.build(number)
        assert kind.bound_per_second <= offers.bound_per_second[number] * (1 + 1e-9)
        for server in every_budget(kind)[::4]:
            assert 0.98 * server.saturation_per_second <= offers.bound_per_second[number] * (1 + 1e-9)


def test_a_row_is_bounded_by_its_best_budget_even_below_the_largest() -> None:
    """Prompts per second of Qwen3-30B-A3B on an A100 are most at 27 prompts, between the points 24 and 32."""
    asked = {"model": "qwen3-30b-a3b", "hardware": "a100", "devices": 1, "lengths": (300, 64)}
    asked |= {"engine": "vllm@0.33.0"}
    for limit in (5.0, 50.0):
        question = small_question(**asked, ttft_seconds=limit)
        offers = prefill_offers(question, role_rows(question, "prefill"), Count())
        (kind,) = prefill_kinds(question)
        places = np.flatnonzero(kind.budgets.bound_per_second == kind.bound_per_second)
        assert kind.budgets.prompts[places].max() < kind.budgets.prompts.max()
        assert kind.bound_per_second == pytest.approx(offers.bound_per_second[0], rel=1e-9)


@pytest.mark.parametrize("instances", [1, 3])
def test_a_looser_ttft_never_carries_less(instances: int) -> None:
    """Not even by part of a step of the grid of rates, where the limit decides which budgets are tried."""
    asked = {"model": "llama-3.1-8b", "hardware": "rtx-pro-6000", "devices": 1, "lengths": (512, 16)}
    limits = (2.0, 2.02, 3.0, 5.0, 5.05, 7.5)
    kinds = [prefill_kinds(small_question(**asked, ttft_seconds=limit))[0] for limit in limits]
    carried = [kind.pool_capacity(instances) for kind in kinds]
    assert carried == sorted(carried)


def test_rows_without_room_take_a_prompt_in_the_fewest_parts_that_fit() -> None:
    """DeepSeek-V3 with 128k prompts on 32 dies; one part fewer does not fit."""
    question = small_question("deepseek-v3", "cm384", 32, lengths=(131072.0, 64.0), ttft_seconds=200.0)
    cut = [kind for kind in prefill_kinds(question) if kind.chunks > 1]
    assert cut
    for kind in cut[:20]:
        assert prefill_fits(kind.deployment, question.workload, 1, kind.chunks).all()
        assert not prefill_fits(kind.deployment, question.workload, 1, kind.chunks - 1).any()


@pytest.mark.parametrize(
    ("answer", "limit", "shares"),
    [(64.0, 0.012, {0.3: False, 0.35: True, 0.6: True, 0.7: None}), (256.0, 0.01, {0.35: False, 0.45: True})],
)
def test_slots_in_time_are_found_where_there_are_any(
    answer: float, limit: float, shares: dict[float, bool | None]
) -> None:
    """Against 40 numbers of slots, each played: fewer only where all are late, and in time even where two alone are."""
    question = small_question(
        "qwen3-8b", devices=1, lengths=(1024.0, answer), tpot_seconds=limit, shape="aggregated", engine="reference"
    )
    offers, _ = aggregated_offers(
        question, role_rows(question, "mixed"), Count(), lambda sizes: np.full(sizes.shape, 1e-9)
    )
    for share, fewer in shares.items():
        kind = offers.build(0)
        server = next(server for server in kind.servers if server.candidate.batched_tokens == 2048)
        rate, before = share * float(kind.bound_per_second.max()), len(kind._servers)
        found = kind._slotted(server, 1, rate)
        assert len(kind._servers) - before <= 6  # numbers tried
        told = found.player.verdict(rate, 1).excess
        excess = [kind._with_slots(2048, slots).player.verdict(rate, 1).excess for slots in range(1, 41)]
        assert (told <= 1) == (min(excess) <= 1) == (fewer is not None)
        assert (found is server) == (fewer is False)


@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize(("answer", "spread"), [(24.0, 0.0), (24.0, 1.0), (256.0, 0.0)])
def test_no_cap_of_a_batch_carries_more(answer: float, spread: float, instances: int) -> None:
    """Short answers feel the wait for room, long ones do not: every cap up to the largest, each solved."""
    question = small_question("qwen3-8b", "h100", 2, lengths=(512.0, answer), tpot_seconds=0.012)
    lengths = replace(question.workload.output_tokens, squared_cv=spread)
    question = replace(question, workload=replace(question.workload, output_tokens=lengths))
    for kind in decode_kinds(question)[:1]:
        caps = range(1, kind.full.candidate.batch + 1)
        each = kind.pool_capacity(instances) / instances
        more = each * (1 + 2 * SOLVED)

        assert max(kind._server(cap).pool_capacity(instances) for cap in caps) <= more * instances
        for cap in caps:
            state = kind._server(cap).state(more, instances)
            late = state is None or state.tpot.at(question.percentile) > question.tpot_seconds
            assert late or more > 0.98 * kind._server(cap).candidate.requests_per_second
        assert kind.pool_capacity(1) <= each <= kind.bound_per_second * (1 + 1e-9)
        state = kind.at(instances).state(each, instances)
        assert state.tpot.at(question.percentile) <= question.tpot_seconds
        for rate in (each, each * (1 + 2 * SOLVED)):
            unsolved = DecodeKind(kind.full, kind.room, kind.bound_per_second)
            assert unsolved.pool_carries(instances, rate * instances * (1 - 1e-9)) == (rate == each)


def test_a_batch_that_is_seldom_full_may_be_late_when_it_is() -> None:
    """Of ten requests one may be late: with three at once nearly as many wait, with any larger batch that fits none."""
    lengths = (512.0, 16.0)
    question = small_question(
        "qwen3-30b-a3b", "rtx-pro-6000", 2, lengths=lengths, tpot_seconds=0.015, percentile=90.0, microbatches=(1,)
    )
    kind = decode_kinds(question)[0]
    carried, most = kind.pool_capacity(1), max(kind._server(cap).pool_capacity(1) for cap in (8, 16, 64, 256))

    assert most * (1 - 2 * SOLVED) <= carried <= kind.bound_per_second
    assert carried > 1.05 * kind.full.pool_capacity(1)
    assert kind.at(1).candidate.iteration_seconds > question.tpot_seconds
    assert kind.pool_carries(1, carried) and kind.at(1, carried).state(carried).tpot.at(90) <= question.tpot_seconds


@pytest.mark.parametrize(("answer", "spread", "load"), [(24.0, 0.0, 0.8), (24.0, 1.0, 0.9), (256.0, 0.5, 0.9)])
def test_all_caps_at_once_say_what_each_queue_says(answer: float, spread: float, load: float) -> None:
    """The share of requests in time, where the limit is one of the queue's own percentiles."""
    question = small_question("qwen3-8b", "h100", 2, lengths=(512.0, answer), tpot_seconds=0.012)
    lengths = replace(question.workload.output_tokens, squared_cv=spread)
    question = replace(question, workload=replace(question.workload, output_tokens=lengths))
    kind = decode_kinds(question)[0]
    rate = load * kind.pool_capacity(1)
    caps = np.unique(np.geomspace(kind.full.candidate.batch / 3, kind.full.candidate.batch, 6).astype(np.int64))
    for cap in caps.tolist():
        state = kind._server(cap).state(rate)
        if state is None or rate > 0.98 * kind._server(cap).candidate.requests_per_second:
            continue
        for level in (90.0, 99.0):
            batches = replace(kind._batches(1), limit_seconds=state.tpot.at(level))
            assert batches.kept(np.array([cap * kind._groups]), rate)[0] == pytest.approx(level / 100, abs=0.006)


@settings(max_examples=5, deadline=None)
@given(
    model=st.sampled_from(["qwen3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"]), tokens=st.sampled_from([256.0, 4096.0])
)
def test_more_at_once_takes_the_less_per_prompt_and_request(model: str, tokens: float) -> None:
    """The argument of the bounds: seconds per prompt fall with the pass, seconds per request with the batch."""
    question = small_question(model, "cm384", 16, lengths=(tokens, 256.0), ttft_seconds=3.0)
    for kind in prefill_kinds(question)[::7]:
        budgets = kind.budgets
        assert (np.diff(budgets.seconds) >= -1e-12).all()
        assert (np.diff(budgets.seconds / budgets.prompts) <= 1e-9).all()
    for other in decode_kinds(question)[::7]:
        batches = np.arange(1.0, other.full.candidate.batch + 1)
        seconds = other._seconds(batches)
        assert (np.diff(seconds) >= -1e-12).all() and (np.diff(seconds / batches) <= 1e-12).all()


def test_a_burst_that_no_cap_keeps_leaves_no_rate() -> None:
    """Requests that all come at once wait for slots, or make full iterations late, whatever the rate."""
    count = 6000
    rows = np.arange(count) == count - 1, np.full(count, 1024), np.full(count, 128)
    trace = TraceRows(arrival_seconds=rows[0].astype(float), input_tokens=rows[1], output_tokens=rows[2])
    question = small_question("qwen3-8b", devices=1, tpot_seconds=0.01)
    kinds = decode_kinds(replace(question, workload=replace(question.workload, trace=trace)))
    assert kinds and [kind.pool_capacity(1) for kind in kinds] == [0.0] * len(kinds)


def test_what_few_prompts_show_late_but_not_surely_is_played_on_many() -> None:
    """Unloaded TTFT lies so near its limit that 2,500 prompts pass it and 60,000 keep it: a rate is carried."""
    asked = {"squared_cv": 1.0, "ttft_seconds": 0.856, "tpot_seconds": 0.1, "percentile": 95.0}
    engine = {"engine": "vllm-ascend@0.23.0", "lengths": (2048.0, 256.0)}
    question = small_question("deepseek-v3", "910b", 32, **asked, **engine)
    found = search(question, beside=False).best

    assert found is not None and 0 < found.requests_per_second < 0.1
    assert has_plan(question) and not has_plan(replace(question, ttft_seconds=0.8))


def test_a_plan_has_the_rate_that_its_decode_instances_carry_together() -> None:
    """Five that are filled alike vary less than one; the plan is late a little above the rate that it tells."""
    question = small_question("qwen3-8b", "l40s", 8, lengths=(1200.0, 300.0), ttft_seconds=2.0)
    plan = search(question, beside=False).best
    assert plan.decode.instances > 1 and plan.requests_per_second == plan.decode.capacity_per_second
    later = plan.under(question)(plan.requests_per_second * 1.003)
    assert later is None or later.tpot.at(question.percentile) > question.tpot_seconds
