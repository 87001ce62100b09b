"""Pools at work: service times rise with what is held, full ones are the candidates', capacities keep limits."""

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest

from planner.costs.latency import balanced_cost
from planner.instances.candidates import Count, busiest_prompts, pass_seconds
from planner.instances.kv_links import transfer_seconds
from planner.instances.operating import DecodeServer, PrefillServer
from planner.instances.space import role_rows
from planner.offers.prefill_offers import prefill_offers
from planner.serving.capacity import Limits
from planner.serving.played import PlayedPrefill
from planner.serving.prefill import PrefillPool
from planner.workload import Lengths, Workload
from tests.instances import decode_all, prefill_found
from tests.questions import rate_of, small_question

CASES = [("qwen3-8b", "h100", 0.0), ("qwen3-30b-a3b", "cm384", 0.5), ("deepseek-v2-lite", "h100", 1.0)]


@pytest.mark.parametrize(("model", "hardware", "squared_cv"), CASES)
def test_a_full_decode_instance_is_its_candidate(model: str, hardware: str, squared_cv: float) -> None:
    """With every rank full an iteration lasts what the search said, or less where one microbatch is quicker."""
    question = small_question(model=model, hardware=hardware, squared_cv=squared_cv)
    for candidate in decode_all(question):
        server = DecodeServer(question, candidate, 0.0)
        table = server.decoding.table()
        assert table.size == server.queue.most_requests
        assert table[-1] <= candidate.iteration_seconds * (1 + 1e-9)
        if candidate.microbatches == 1:
            assert table[-1] == pytest.approx(candidate.iteration_seconds, rel=1e-9)


@pytest.mark.parametrize(("model", "hardware", "squared_cv"), CASES)
def test_a_full_prefill_pass_is_its_candidate(model: str, hardware: str, squared_cv: float) -> None:
    """With every group full a pass lasts what the search said, or less where one microbatch is quicker."""
    question = small_question(model=model, hardware=hardware, squared_cv=squared_cv)
    for candidate in prefill_found(question):
        server = PrefillServer(question, candidate)
        full = float(server.pass_seconds(np.array([float(server.most_prompts)]))[0])
        assert full <= candidate.pass_seconds * (1 + 1e-9)
        if candidate.microbatches == 1:
            assert full == pytest.approx(candidate.pass_seconds, rel=1e-9)


@pytest.mark.parametrize(("model", "hardware", "squared_cv"), CASES)
def test_capacities_keep_their_limits_and_are_not_far_below(model: str, hardware: str, squared_cv: float) -> None:
    """At the capacity the percentile keeps the limit; 3 % above, it does not or the instance is at its 98 %."""
    question = small_question(model=model, hardware=hardware, squared_cv=squared_cv)
    for candidate in prefill_found(question)[:2]:
        server = PrefillServer(question, candidate)
        rate = server.pool_capacity(1)
        if rate:
            here, above = server.ttft(rate), server.ttft(rate * 1.03)
            assert here is not None and here.at(99) <= question.ttft_seconds
            # Pooling takes load from the tail: several instances served in turn do no worse.
            several = server.ttft(rate, 4)
            assert several is not None and several.at(99) <= here.at(99) * 1.001
            full = server.most_prompts / float(server.pass_seconds(np.array([float(server.most_prompts)]))[0])
            assert above is None or above.at(99) > question.ttft_seconds * 0.99 or rate >= 0.975 * full
    for candidate in decode_all(question)[:2]:
        decode = DecodeServer(question, candidate, 0.001)
        rate = decode.pool_capacity(1)
        if rate:
            state, over = decode.state(rate), decode.state(rate * 1.03)
            assert state is not None and state.tpot.at(99) <= question.tpot_seconds
            assert over is None or over.tpot.at(99) > question.tpot_seconds * 0.99 or state.utilisation >= 0.975


def test_nobody_queues_for_decode_after_a_single_token() -> None:
    """Where all requests have one token a decode instance carries what it is planned with at most, without a queue."""
    question = small_question(model="qwen3-8b", hardware="h100", lengths=(1024.0, 1.0))
    assert not question.workload.decodes
    for candidate in decode_all(question)[:2]:
        server = DecodeServer(question, candidate, 0.0)
        state = server.state(server.pool_capacity(1))
        assert server.pool_capacity(1) == server.most_per_second
        assert state.utilisation == 0


def test_a_single_token_has_no_time_per_token_to_keep() -> None:
    """A TPOT that no instance keeps is no reason to refuse requests of one token, nor to hold fewer of them."""
    rates = [rate_of(model="qwen3-8b", devices=4, lengths=(1024.0, 1.0), tpot_seconds=tpot) for tpot in (1e-6, 1.0)]
    assert rates[0] == rates[1] > 0


def test_requests_dealt_to_groups_cost_their_fullest_group() -> None:
    """One request more never makes an iteration shorter, and one request is held by one group."""
    question = small_question(squared_cv=0.5)
    candidate = max(decode_all(question), key=lambda each: each.row.strategy.attention_dp)
    decoding = DecodeServer(question, candidate, 0.0).decoding
    most = float(decoding.ranks * decoding.slots)

    assert decoding.ranks > 1
    assert (np.diff(decoding.table()) >= -1e-12).all()
    assert decoding.busiest(np.array([1.0, most])) == pytest.approx([1.0, decoding.slots])
    assert decoding._replace(ranks=1).busiest(np.array([1.0, 2.5])) == pytest.approx([1.0, 2.5])


@pytest.mark.parametrize(("ranks", "running", "iterations"), [(16, 8, 20), (16, 40, 100), (96, 40, 20), (96, 40, 100)])
def test_the_busiest_rank_is_that_of_requests_that_are_dealt_out(ranks: int, running: int, iterations: int) -> None:
    """Poisson arrivals each go to the rank with fewest, and leave after that many iterations: within 0.2 requests."""
    random, held = np.random.default_rng(1), np.full(ranks, running)
    leaving = np.zeros((iterations, ranks), dtype=np.int64)
    for rank in range(ranks):
        leaving[:, rank] = np.bincount(random.integers(0, iterations, running), minlength=iterations)
    most, mean = list[float](), list[float]()
    for step in range(8 * iterations):
        most.append(held.max())
        mean.append(held.mean())
        gone, fewest = leaving[step % iterations].copy(), [(count, rank) for rank, count in enumerate(held.tolist())]
        leaving[step % iterations] = 0
        heapq.heapify(fewest)
        for _ in range(random.poisson(ranks * running / iterations)):
            count, rank = fewest[0]
            heapq.heapreplace(fewest, (count + 1, rank))
            leaving[step % iterations, rank] += 1
            held[rank] += 1
        held -= gone
    workload = Workload(input_tokens=Lengths(mean=100), output_tokens=Lengths(mean=iterations + 1))
    server = DecodeServer(small_question(), decode_all(small_question())[0], 0.0)
    decoding = server.decoding._replace(workload=workload, ranks=ranks, slots=1000, drafts=0)

    told = decoding.busiest(np.array([np.mean(mean) * ranks]))[0]

    assert told == pytest.approx(np.mean(most), abs=0.2)
    assert told > np.mean(mean) + 0.4


def test_kv_goes_over_the_slower_plane_and_the_links_of_its_group() -> None:
    """Twice the prompt takes twice the bytes; bytes over efficient bandwidth, plus one latency."""
    question, longer = small_question(model="qwen3-8b"), small_question(model="qwen3-8b", lengths=(2048.0, 128.0))
    candidate = prefill_found(question)[0]
    plane = question.prefill.hardware.plane(question.prefill.hardware.kv_plane)
    # 36 layers, 8 KV heads of 128, K and V in BF16 (Qwen3-8B config.json)
    sent = 1024 * 36 * 2 * 8 * 128 * 2
    rate = plane.bandwidth_bytes_per_second.value * plane.efficiency.value
    links = candidate.row.strategy.attention_tp

    seconds = transfer_seconds(question, candidate.deployment)

    assert seconds == pytest.approx(sent / (rate * links) + plane.latency_seconds.value, rel=1e-9)
    more = transfer_seconds(longer, candidate.deployment)
    assert more - seconds == pytest.approx(sent / (rate * links), rel=1e-9)


def test_a_chunked_prompt_takes_its_parts_in_turn() -> None:
    """The parts of a prompt see what came before: together they are not shorter than the whole."""
    question = small_question(lengths=(16_384.0, 128.0), ttft_seconds=8.0)
    candidate = prefill_found(question)[0]
    cost = balanced_cost(candidate.deployment, question.balance)
    one = busiest_prompts(question.workload, 1.0, candidate.row.strategy.attention_dp)
    whole, parts = (pass_seconds(cost, question.workload, one, 1.0, chunks, 1) for chunks in (1, 8))

    assert parts >= whole


@pytest.mark.parametrize(("groups", "instances", "load"), [(1, 1, 0.85), (1, 6, 0.6), (4, 1, 0.6), (4, 6, 0.85)])
def test_equal_prompts_are_served_as_the_core_plays_them(groups: int, instances: int, load: float) -> None:
    """The closed form of bulk service and the played rule tell one TTFT, mean and p99."""
    question = small_question(lengths=(1024.0, 128.0))
    candidate = next(each for each in prefill_found(question) if each.row.strategy.attention_dp == groups)
    server = PrefillServer(question, candidate)
    assert server.player is None
    pool = PrefillPool(times=server.times, ranks=groups, budget_tokens=server.budget_tokens)
    player = PlayedPrefill.of(pool, question.workload, Limits(percentile=99.0), math.inf)
    assert player.saturation_per_second == pytest.approx(server.saturation_per_second, rel=0.02)

    rate = load * server.saturation_per_second
    told, played = server.ttft(rate, instances), player.trial(rate, instances, 500_000).ttft
    assert played.mean == pytest.approx(told.mean, rel=0.02)
    assert played.p99 == pytest.approx(told.p99, rel=0.05)


@pytest.mark.parametrize(("squared_cv", "reuse"), [(0.25, 0.6), (1.0, 0.0), (4.0, 0.0)])
def test_no_run_passes_the_bounds(squared_cv: float, reuse: float) -> None:
    """Neither throughput at saturation nor latency unloaded; capacities keep limits, and more instances carry more."""
    question = small_question("qwen3-8b", "h100", squared_cv=squared_cv)
    question = replace(question, workload=replace(question.workload, prefix_reuse=reuse))
    offers = prefill_offers(question, role_rows(question, "prefill"), Count())
    for number in offers.leading(3):
        kind = offers.build(number)
        for place, bound in enumerate(kind.budgets.bound_per_second.tolist()):
            server = kind.server(place)
            assert server.player is not None
            assert server.most_per_second <= bound * 1.01  # of the step table
        single, several = kind.pool_capacity(1), kind.pool_capacity(5)
        assert 0 < single <= several / 5 * 1.02
        assert kind.pool_carries(1, single * (1 - 1e-9))
        chosen, rate = kind.at(5), several / 5
        latency, played = chosen.ttft(rate, 5), chosen.player.told(rate, 5, (rate, math.inf))
        assert latency.at(99) <= question.ttft_seconds * (1 + 1e-9)
        assert played.requests_per_second[0] <= several <= played.requests_per_second[1]
        assert played.ttft_seconds[0] <= latency.at(99) <= played.ttft_seconds[1]
    tight = replace(question, ttft_seconds=1e-3)
    assert not len(prefill_offers(tight, role_rows(tight, "prefill"), Count()))
