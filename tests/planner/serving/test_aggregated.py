"""Aggregated instances: compiled loops against a plain scheduler, and what holds of any stream."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.loops import admission_loop, aggregated_loop
from planner.manifest.stepcost import layers_per_stage
from planner.serving.aggregated import AggregatedPool, play_aggregated, play_closed
from planner.serving.aggregated_run import AggregatedRun, DrivenInstance
from planner.serving.rules import Estimate, SchedulingRule
from planner.serving.streams import Stream
from planner.serving.tables import Loads, step_table
from tests.planner.serving.costs import linear_cost, stream_of
from tests.planner.serving.plain_scheduler import PlainScheduler, Request

SECONDS = (5e-3, 20e-6, 1e-4, 0.0)
SGLANG = Estimate(initial_share=0.7, least_share=0.098, falling_steps=600, retract_tokens=20, clip_tokens=4096)
HASTY = Estimate(initial_share=0.05, least_share=0.02, falling_steps=30, retract_tokens=2, clip_tokens=16)
RULES = {
    "reference": SchedulingRule(),
    "prompts first": SchedulingRule(order="prompts_first"),
    "vllm": SchedulingRule(admission="need", block_tokens=16, kept_blocks=1),
    "vllm overlapped": SchedulingRule(admission="need", block_tokens=16, kept_blocks=1, overlapped=True),
    "sglang": SchedulingRule(order="prompts_first", admission="estimate", estimate=SGLANG),
    "sglang overlapped": SchedulingRule(order="prompts_first", admission="estimate", estimate=SGLANG, overlapped=True),
    "sglang mixed": SchedulingRule(order="mixed_chunk", admission="estimate", estimate=SGLANG),
    "sglang fixed": SchedulingRule(
        order="prompts_first", admission="estimate", estimate=SGLANG, fixed_lengths=True, overlapped=True
    ),
    "hasty fixed mixed": SchedulingRule(order="mixed_chunk", admission="estimate", estimate=HASTY, fixed_lengths=True),
    "hasty": SchedulingRule(order="prompts_first", admission="estimate", estimate=HASTY),
    "hasty overlapped": SchedulingRule(order="prompts_first", admission="estimate", estimate=HASTY, overlapped=True),
    "hasty mixed overlapped": SchedulingRule(
        order="mixed_chunk", admission="estimate", estimate=HASTY, overlapped=True
    ),
    "waiting": SchedulingRule(wait_steps=7, wait_share=0.6),
    "balanced": SchedulingRule(balance_steps=9, dealing="least_kv"),
    "patient": SchedulingRule(order="prompts_first", admission="estimate", estimate=SGLANG, receive_interval=5),
}
STAGES = {
    "reference": SchedulingRule(),
    "reference, part of the slots": SchedulingRule(batch_slots=True),
    "prompts first": SchedulingRule(order="prompts_first"),
    "vllm": SchedulingRule(admission="need", block_tokens=16, kept_blocks=1, overlapped=True),
    "vllm, a batch more": SchedulingRule(
        admission="need", block_tokens=16, kept_blocks=1, overlapped=True, overlapped_stages=True
    ),
    "sglang": SchedulingRule(
        order="prompts_first", admission="estimate", estimate=SGLANG, overlapped=True, batch_slots=True
    ),
    "sglang mixed": SchedulingRule(order="mixed_chunk", admission="estimate", estimate=SGLANG, batch_slots=True),
}
HEAD_SECONDS = 1.5e-3
small_streams = st.lists(st.tuples(st.floats(0, 0.2), st.integers(1, 400), st.integers(1, 40)), min_size=1, max_size=25)


def pool_of(rule: SchedulingRule, ranks: int, budget: int, slots: int, capacity: int, cost=SECONDS, **fields):
    """Return an instance with linear seconds."""
    loads = Loads(
        ranks=ranks, budget_tokens=budget, longest_prompt=4000, most_running=slots * ranks, kv_tokens_per_request=300
    )
    times = step_table(linear_cost(*cost[:3], per_kv=cost[3]), loads)
    return AggregatedPool(
        times=times, ranks=ranks, budget_tokens=budget, slots=slots, capacity_tokens=capacity, rule=rule, **fields
    )


def both_serve_alike(plain: PlainScheduler, pool: AggregatedPool, stream: Stream, most: int = 120) -> None:
    """Compare tokens' times, steps and who gave way, with prompts of at most 500 tokens and answers of ``most``."""
    stream.prompt_tokens[:] = np.minimum(stream.prompt_tokens, 500)
    stream.answer_tokens[:] = np.minimum(stream.answer_tokens, most)
    columns = (stream.arrival_seconds.tolist(), stream.prompt_tokens.tolist(), stream.answer_tokens.tolist())
    requests = [Request(*row) for row in zip(*columns, strict=True)]
    plain.play(requests)
    played = play_aggregated(pool, stream)
    np.testing.assert_allclose(played.first_token_seconds, [q.first for q in requests], rtol=0, atol=1e-7)
    np.testing.assert_allclose(played.left_seconds, [q.left for q in requests], rtol=0, atol=1e-7)
    assert played.preemptions.tolist() == [q.retracted for q in requests]
    assert (played.steps, played.busy_seconds) == (plain.steps, pytest.approx(plain.busy))


def random_stream(seed: int, count: int, gap: float, prompt: float = 150.0, answer: float = 20.0) -> Stream:
    """Return a stream with arrivals at random, sometimes many at once."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(gap, count) * (random.random(count) < 0.8)
    return stream_of(
        np.cumsum(gaps),
        np.maximum(random.exponential(prompt, count), 1).astype(int),
        np.maximum(random.exponential(answer, count), 1).astype(int),
    )


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seed", range(8))
def test_a_plain_scheduler_serves_every_request_alike(name, seed):
    """Budgets that cut prompts, few slots, KV for a handful of requests, one rank or several, any dealing."""
    random = np.random.default_rng([seed, 7])
    rule = RULES[name]
    dealing = ["round_robin", "least_requests", "least_kv"][seed % 3]
    rule = rule._replace(dealing=dealing)
    ranks, budget = int(random.choice([1, 1, 2, 5])), int(random.choice([64, 200, 1000]))
    slots, capacity = int(random.choice([3, 8, 40])), int(random.choice([800, 1600, 100_000]))
    plain = PlainScheduler(rule, ranks, budget, slots, capacity, SECONDS)
    both_serve_alike(plain, pool_of(rule, ranks, budget, slots, capacity), random_stream(seed, 100, 0.06 / ranks))


def staged_pool(
    rule: SchedulingRule, stages: int, ranks: int, budget: int, slots: int, capacity: int, layers: int, cost=SECONDS
):
    """Return an instance with so many layers over its stages; a batch has the budget, and takes linear seconds."""
    fixed, *others = cost
    part = [(fixed - HEAD_SECONDS) / layers, *(each / layers for each in others)]
    cost = linear_cost(*part[:3], per_kv=part[3])
    head = linear_cost(HEAD_SECONDS, 0.0).terms[0]
    cost = replace(
        cost, dense_layers=layers, pipeline_stages=stages, head_terms=(head._replace(stage="head", name="head"),)
    )
    loads = Loads(
        ranks=ranks,
        budget_tokens=budget,
        longest_prompt=4000,
        most_running=slots * ranks,
        kv_tokens_per_request=300,
        stages=stages,
    )
    return AggregatedPool(
        times=step_table(cost, loads),
        ranks=ranks,
        budget_tokens=budget * stages,
        slots=slots,
        capacity_tokens=capacity,
        rule=rule,
    )


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("seed", range(6))
def test_a_plain_scheduler_keeps_the_same_batches_in_flight(name, seed):
    """Layers that do not divide by the stages, a head on the last one, and KV of all batches, ample or short."""
    random = np.random.default_rng([seed, 11])
    rule = STAGES[name]._replace(dealing=["round_robin", "least_requests", "least_kv"][seed % 3])
    ranks, budget, stages = int(random.choice([1, 1, 3])), int(random.choice([64, 200, 1000])), [2, 3, 4][seed % 3]
    slots, layers = int(random.choice([5, 12, 40])), int(random.choice([4, 7, 12]))
    capacity = int(random.choice([1600, 3200, 100_000]))
    shares = tuple(count / layers for count in layers_per_stage(layers, stages))
    plain = PlainScheduler(rule, ranks, budget, slots, capacity, SECONDS, (shares, HEAD_SECONDS))
    pool = staged_pool(rule, stages, ranks, budget, slots, capacity, layers)
    both_serve_alike(plain, pool, random_stream(seed, 120, (0.06, 0.3)[seed // 3] / ranks))


@pytest.mark.parametrize("name", [*RULES, *STAGES])
@pytest.mark.parametrize("ample", [(1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 30), (8, 8, 30)])
def test_other_limits_that_a_play_does_not_need_change_nothing(name, ample):
    """The least budget, batch slots and memory, and far more of each; where none matters, all of them are free."""
    stream, free = random_stream(7, 60, 0.05), 0
    budget, slots, capacity = (most * limit for most, limit in zip(ample, (160, 5, 700), strict=True))
    if name in STAGES:
        pool = staged_pool(STAGES[name], 2, 2, budget, slots, capacity, 2)
    else:
        pool = pool_of(RULES[name], 2, budget, slots, capacity)
    played = play_aggregated(pool, stream)
    assert played.needs.met_by(pool)
    for limit, (low, high) in zip(("budget_tokens", "slots", "capacity_tokens"), played.needs, strict=True):
        for other in (low, min(high, 1e6)):
            free += other != getattr(pool, limit)
            again = play_aggregated(replace(pool, **{limit: int(other)}), stream)
            np.testing.assert_allclose(again.first_token_seconds, played.first_token_seconds, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(again.left_seconds, played.left_seconds, rtol=1e-9, atol=1e-9)
    assert free >= 4 or ample != (8, 8, 30) or pool.rule.wait_steps or pool.rule.whole_prompts


@settings(max_examples=40, deadline=None)
@given(
    rows=small_streams,
    name=st.sampled_from(sorted(RULES)),
    ranks=st.integers(1, 3),
    budget=st.sampled_from([32, 100, 512]),
    slots=st.integers(1, 6),
    capacity=st.sampled_from([480, 1000, 50_000]),
    accepted=st.sampled_from([1.0, 1.6]),
)
def test_everyone_is_served_once_and_no_sooner_than_alone(rows, name, ranks, budget, slots, capacity, accepted):
    """First tokens follow arrivals, last tokens first ones, and busy seconds fit between begin and end."""
    gaps, prompts, answers = zip(*rows, strict=True)
    stream = stream_of(np.cumsum(gaps), prompts, answers)
    rule = RULES[name]
    played = play_aggregated(pool_of(rule, ranks, budget, slots, capacity, accepted=accepted), stream)
    steps = np.ceil(stream.prompt_tokens / budget)
    alone = SECONDS[0] * steps + SECONDS[1] * stream.prompt_tokens
    iterations = np.ceil((stream.answer_tokens - 1) / accepted - 1e-9)
    again = np.where(played.preemptions > 0, 1, 0)  # a preempted request has a token from its second prompt
    assert (played.first_token_seconds - stream.arrival_seconds >= alone - 1e-9).all()
    least = SECONDS[0] * np.maximum(iterations - again * played.preemptions, 0)
    assert (played.left_seconds - played.first_token_seconds >= least - 1e-9).all()
    assert played.busy_seconds <= played.left_seconds.max() - stream.arrival_seconds[0] + SECONDS[0] * 2 + 1e-2
    if rule.admission == "reserve":
        assert not played.preemptions.any()


@pytest.mark.parametrize("name", ["reference", "vllm", "sglang", "sglang overlapped"])
def test_a_play_does_not_depend_on_how_often_it_is_looked_at(name):
    """Instances that are advanced to each arrival of the other ones do what they do alone."""
    stream = random_stream(5, 300, 0.02)
    pool = pool_of(RULES[name], 2, 256, 12, 4000, instances=3)
    turns = play_aggregated(pool, stream)
    for instance in range(3):
        own = stream.select(np.arange(instance, 300, 3))
        alone = play_aggregated(pool_of(RULES[name], 2, 256, 12, 4000), own)
        assert alone.left_seconds.tolist() == turns.left_seconds[instance::3].tolist()
    balanced = play_aggregated(pool_of(RULES[name], 2, 256, 12, 4000, instances=3, policy="least_load"), stream)
    assert balanced.first_token_seconds.mean() <= turns.first_token_seconds.mean() + 0.05


def test_equal_requests_with_a_place_each_are_told_by_hand():
    """Two arrive at once: one step for both prompts, then nine of decode together."""
    played = play_aggregated(pool_of(SchedulingRule(), 1, 1000, 4, 10_000), stream_of([0.0, 0.0], [100, 200], [10, 10]))
    first = 5e-3 + 300 * 20e-6
    assert played.first_token_seconds == pytest.approx([first, first])
    assert played.left_seconds == pytest.approx([first + 9 * (5e-3 + 2e-4)] * 2)
    assert played.steps == 10


def test_closed_loops_replace_who_leaves_at_once():
    """Two at a time: the third is sent when the first leaves, and joins the step after the one under way."""
    count = 40
    stream = stream_of(np.arange(count), np.full(count, 50), np.resize([5, 50, 20], count))
    played = play_closed(pool_of(SchedulingRule(), 1, 1000, 100, 10**6), stream, 2)
    sent, left = np.sort(played.arrival_seconds), np.sort(played.left_seconds)
    assert sent[:2].tolist() == [0.0, 0.0]
    assert sent[2:].tolist() == left[:-2].tolist()
    waits = played.first_token_seconds - played.arrival_seconds
    assert waits.min() > 0.0 and waits.max() < 2 * (SECONDS[0] + 100 * SECONDS[1] + SECONDS[2])


@pytest.mark.parametrize("rule", RULES)
def test_hosts_delay_prompts_one_after_another_by_hand(rule):
    """A lone request waits for its own prompt; of two that leave at once, the second for the first one's, too."""
    host = {"request_seconds": 0.003, "token_seconds": 1e-3}
    lone = play_closed(pool_of(RULES[rule], 1, 1000, 4, 10**6, **host), stream_of([0.0] * 3, [50] * 3, [5] * 3), 1)
    waits = lone.first_token_seconds - lone.arrival_seconds
    assert waits[0] == pytest.approx(0.053 + 6e-3)
    assert (waits >= 0.053 + 6e-3 - 1e-12).all()
    four = stream_of([0.0] * 4, [50] * 4, [50, 40, 5, 5])
    played = play_closed(pool_of(RULES[rule], 1, 1000, 4, 10**6, **host), four, 2)
    first, sent = played.first_token_seconds, played.arrival_seconds
    assert sent[2:].tolist() == np.sort(played.left_seconds)[:2].tolist()
    assert first[1] - sent[1] >= 0.103 + 6e-3 - 1e-12
    assert (first[2:] >= sent[2:] + 0.053 + 6e-3 - 1e-12).all() and (np.diff(first[2:]) >= 0.0).all()


def test_drafts_shorten_answers():
    """Iterations are answers over the tokens that one yields: as stated, or as drawn where one draft is accepted."""
    pools = [
        pool_of(SchedulingRule(), 1, 100, 4, 10_000, **more)
        for more in ({}, {"accepted": 2.0}, {"queries": 2, "acceptance": 1.0})
    ]
    played = [play_aggregated(pool, stream_of([0.0], [10], [41])) for pool in pools]
    lasts = [float(p.left_seconds[0] - p.first_token_seconds[0]) for p in played]
    assert lasts == pytest.approx([40 * 5.1e-3, 20 * 5.1e-3, 20 * 5.1e-3])


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("policy", ["round_robin", "least_load"])
def test_parts_of_a_stream_are_served_as_the_whole(name, policy):
    """Who is in the system between two parts keeps place and turn, with scarce KV too."""
    pool = pool_of(RULES[name], 2, 512, 6, 6000, instances=3, policy=policy)
    stream, cuts = random_stream(5, 400, 0.02, 300.0, 60.0), [0, 1, 90, 91, 200, 400]
    whole, run = play_aggregated(pool, stream), AggregatedRun(pool)
    first, left = np.full(400, np.nan), np.full(400, np.nan)
    for begin, end in pairwise(cuts):
        numbers = np.arange(begin, end)
        until = np.inf if end == 400 else float(stream.arrival_seconds[end - 1])
        gone = run.play(stream.select(numbers), until, numbers)
        first[gone.number], left[gone.number] = gone.first_token_seconds, gone.left_seconds
        assert (gone.begun_seconds >= stream.arrival_seconds[gone.number] - 1e-12).all()
        assert (gone.begun_seconds < gone.first_token_seconds).all()
    assert first == pytest.approx(whole.first_token_seconds, rel=1e-9)
    assert left == pytest.approx(whole.left_seconds, rel=1e-9)
    assert run.busy_seconds() == pytest.approx(whole.busy_seconds, rel=1e-9)
    assert run.steps >= whole.steps


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("gap", [0.03, 0.15])
def test_batches_in_flight_go_on_from_part_to_part_and_step_by_step(name, gap):
    """An instance with stages that is played in parts, or driven from event to event, does what it does at one go.

    It often has one batch alone in the pipeline, whose iterations are added up, where requests come seldom.
    """
    stream = random_stream(6, 200, gap)
    pool = staged_pool(STAGES[name], 3, 1, 256, 12, 6000, 7)
    whole, run, driven = play_aggregated(pool, stream), AggregatedRun(pool), DrivenInstance(pool)
    left, told, numbers = np.zeros(200), np.zeros(200), {}
    for begin in range(0, 200, 25):
        until = np.inf if begin == 175 else float(stream.arrival_seconds[begin + 24])
        gone = run.play(stream.select(np.arange(begin, begin + 25)), until, np.arange(begin, begin + 25))
        left[gone.number] = gone.left_seconds
    coming = 0
    while coming < 200 or driven.due_seconds < np.inf:
        now = min(driven.due_seconds, stream.arrival_seconds[coming] if coming < 200 else np.inf)
        while coming < 200 and stream.arrival_seconds[coming] <= now:
            answer = int(stream.answer_tokens[coming])
            tokens = (int(stream.prompt_tokens[coming]), 0, answer)
            numbers[driven.add(now, tokens, answer - 1, sum(tokens))] = coming
            coming += 1
        for record in driven.proceed(now, schedule=True):
            if driven.seconds_of(record)[2] >= 0 and record in numbers:
                told[numbers.pop(record)] = driven.seconds_of(record)[2]
                driven.release(record)
    assert left == pytest.approx(whole.left_seconds, rel=1e-9)
    assert told == pytest.approx(whole.left_seconds, rel=1e-9)
    assert run.busy_seconds() == pytest.approx(whole.busy_seconds, rel=1e-9)
    assert driven.busy_seconds(np.inf) == pytest.approx(whole.busy_seconds, rel=1e-9)
    assert not driven.held_tokens()[1].any()


def test_large_loops_are_compiled_for_one_sort_of_arguments():
    """A literal number among them, or an integer for a float, makes numba compile all that they call anew."""
    pool = pool_of(RULES["vllm"], 1, 64, 4, 4096)
    play_closed(pool, stream_of([0.0] * 3, [40, 50, 60], [3, 4, 5]), 2)
    AggregatedRun(pool).play(stream_of([0.0], [40], [3]), 1.0, np.arange(1))
    loops = (aggregated_loop.play, aggregated_loop.advance, aggregated_loop.add, admission_loop.fill)
    assert all(len(getattr(loop, "signatures", ())) <= 1 for loop in loops)


@pytest.mark.parametrize("name", ["reference", "sglang overlapped"])
def test_a_play_that_is_looked_at_is_the_whole_one_and_ends_where_that_is_enough(name):
    """Each look tells the tokens that are out by then, and of all others that they come then or later."""
    stream, pool = random_stream(3, 2000, 0.04), pool_of(RULES[name], 1, 256, 12, 6000)
    whole, looks = play_aggregated(pool, stream), []
    seen = play_aggregated(pool, stream, lambda *told: looks.append([each.copy() for each in told]) is not None)
    ended = play_aggregated(pool, stream, lambda first, _: first.size == 1200)
    np.testing.assert_array_equal(seen.left_seconds, whole.left_seconds)
    assert [first.size for first, _ in looks] == [400, 800, 1200, 1600, 2000]
    told = [(first.size, first, left) for first, left in looks]
    for played, first, left in (*told, (1200, ended.first_token_seconds, ended.left_seconds)):
        until = np.maximum(stream.arrival_seconds[min(played, 1999)], stream.arrival_seconds[: first.size])
        np.testing.assert_allclose(first, np.minimum(whole.first_token_seconds[: first.size], until))
        np.testing.assert_allclose(left, np.minimum(whole.left_seconds[: first.size], until))
    assert 0.5 * whole.busy_seconds < ended.busy_seconds < 0.7 * whole.busy_seconds
