"""Pools at work: service times rise with what is held, full ones are the candidates', capacities keep limits."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.latency import balanced_cost
from planner.instances.candidates import decode_all, prefill_found
from planner.instances.decode_candidates import Count
from planner.instances.operating import (
    Dealing,
    DecodeServer,
    PrefillServer,
    dealt_iteration_seconds,
    kv_transfer_seconds,
)
from planner.instances.prefill_candidates import busiest_prompts, pass_seconds
from tests.questions import small_question

CASES = [("qwen3-8b", "h100", 0.0), ("qwen3-30b-a3b", "cm384", 0.5), ("deepseek-v2-lite", "h100", 1.0)]


@pytest.mark.parametrize(("model", "hardware", "squared_cv"), CASES)
def test_a_full_decode_instance_is_its_candidate(model: str, hardware: str, squared_cv: float) -> None:
    """With every rank full an iteration lasts what the search said, or less where one microbatch is quicker."""
    question = small_question(model=model, hardware=hardware, squared_cv=squared_cv)
    for candidate in decode_all(question, Count()):
        server = DecodeServer(question, candidate, 0.0)
        table = server.iteration_table()
        assert table.size == server.most_requests
        assert table[-1] <= candidate.iteration_seconds * (1 + 1e-9)
        if candidate.microbatches == 1:
            assert table[-1] == pytest.approx(candidate.iteration_seconds, rel=1e-9)


@pytest.mark.parametrize(("model", "hardware", "squared_cv"), CASES)
def test_a_full_prefill_pass_is_its_candidate(model: str, hardware: str, squared_cv: float) -> None:
    """With every group full a pass lasts what the search said, or less where one microbatch is quicker."""
    question = small_question(model=model, hardware=hardware, squared_cv=squared_cv)
    for candidate in prefill_found(question, Count()):
        server = PrefillServer(question, candidate)
        full = float(server.pass_seconds(np.array([float(server.most_prompts)]))[0])
        assert full <= candidate.pass_seconds * (1 + 1e-9)
        if candidate.microbatches == 1:
            assert full == pytest.approx(candidate.pass_seconds, rel=1e-9)


@pytest.mark.parametrize(("model", "hardware", "squared_cv"), CASES)
def test_capacities_keep_their_limits_and_are_not_far_below(model: str, hardware: str, squared_cv: float) -> None:
    """At the capacity the percentile keeps the limit; 3 % above, it does not or the instance is at its 98 %."""
    question = small_question(model=model, hardware=hardware, squared_cv=squared_cv)
    for candidate in prefill_found(question, Count())[:2]:
        server = PrefillServer(question, candidate)
        rate = server.capacity()
        if rate:
            here, above = server.ttft(rate), server.ttft(rate * 1.03)
            assert here is not None and here.at(99) <= question.ttft_seconds
            # Pooling takes load from the tail: several instances served in turn do no worse.
            several = server.ttft(rate, 4)
            assert several is not None and several.at(99) <= here.at(99) * 1.001
            full = server.most_prompts / float(server.pass_seconds(np.array([float(server.most_prompts)]))[0])
            assert above is None or above.at(99) > question.ttft_seconds * 0.99 or rate >= 0.975 * full
    for candidate in decode_all(question, Count())[:2]:
        decode = DecodeServer(question, candidate, 0.001)
        rate = decode.capacity()
        if rate:
            state, over = decode.state(rate), decode.state(rate * 1.03)
            assert state is not None and state.tpot.at(99) <= question.tpot_seconds
            assert over is None or over.tpot.at(99) > question.tpot_seconds * 0.99 or state.utilisation >= 0.975


def test_requests_dealt_to_groups_cost_their_fullest_group() -> None:
    """One request more never makes an iteration shorter, and one request is held by one group."""
    question = small_question(squared_cv=0.5)
    candidate = max(decode_all(question, Count()), key=lambda each: each.row.strategy.attention_dp)
    ranks = candidate.row.strategy.attention_dp
    dealing = Dealing(balanced_cost(candidate.deployment, question.balance), question.workload, ranks, 1)
    seconds = dealt_iteration_seconds(dealing, np.arange(1.0, 40.0 * ranks))

    assert ranks > 1
    assert (np.diff(seconds) >= -1e-12).all()


def test_kv_goes_over_the_slower_plane_and_the_links_of_its_group() -> None:
    """Twice the prompt takes twice the bytes; bytes over efficient bandwidth, plus one latency."""
    question, longer = small_question(model="qwen3-8b"), small_question(model="qwen3-8b", lengths=(2048.0, 128.0))
    candidate = prefill_found(question, Count())[0]
    plane = question.prefill.hardware.plane(question.prefill.hardware.kv_plane)
    # 36 layers, 8 KV heads of 128, K and V in BF16 (Qwen3-8B config.json)
    sent = 1024 * 36 * 2 * 8 * 128 * 2
    rate = plane.bandwidth_bytes_per_second.value * plane.efficiency.value
    links = candidate.row.strategy.attention_tp

    seconds = kv_transfer_seconds(question, candidate.deployment)

    assert seconds == pytest.approx(sent / (rate * links) + plane.latency_seconds.value, rel=1e-9)
    more = kv_transfer_seconds(longer, candidate.deployment)
    assert more - seconds == pytest.approx(sent / (rate * links), rel=1e-9)


def test_a_chunked_prompt_takes_its_parts_in_turn() -> None:
    """The parts of a prompt see what came before: together they are not shorter than the whole."""
    question = small_question(lengths=(16_384.0, 128.0), ttft_seconds=8.0)
    candidate = prefill_found(question, Count())[0]
    cost = balanced_cost(candidate.deployment, question.balance)
    one = busiest_prompts(question.workload, 1.0, candidate.row.strategy.attention_dp)
    whole, parts = (pass_seconds(cost, question.workload, one, 1.0, chunks, 1) for chunks in (1, 8))

    assert parts >= whole


def test_what_a_sample_tells_comes_with_its_error() -> None:
    """Where several groups share passes the mean is a sample's; elsewhere it is a chain's."""
    question = small_question(model="deepseek-v2-lite", hardware="h100", squared_cv=1.0)
    rows = prefill_found(question, Count())
    single, whole = (next(each for each in rows if each.row.strategy.attention_dp == groups) for groups in (1, 4))
    assert PrefillServer(question, single).ttft_error(1.0) is None
    server = PrefillServer(question, replace(whole, tokens_per_device=512, chunks=1))
    error = server.ttft_error(0.5 * server.saturation_per_second)
    assert error is not None and 0.001 < error < 0.05
