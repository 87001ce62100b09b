"""TTFT by a sample of steps: against the reference runtime, against other streams, and what must hold of it."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.manifest.layout import Degrees, Instance
from planner.manifest.schema import Routing
from planner.mixed import sampled
from planner.mixed.queue import MixedQueue
from planner.mixed.sampled import SampledPrompts, differ_and_are_cut
from planner.mixed.steps import Aggregate
from planner.workload import Lengths, Workload
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import open_loop
from tests.manifests import build, cost, pool


def instance(ranks: int, prompt_cv2: float = 1.0, budget: float = 512.0) -> Aggregate:
    """Return a made-up instance: prompts of 2,000 tokens, four or so parts each, and answers of 1,024."""
    return Aggregate(
        cost=cost(Degrees(attention_tp=1, attention_dp=ranks, moe_ep=ranks), 16 / ranks),
        workload=Workload(input_tokens=Lengths(mean=2000.0, squared_cv=prompt_cv2), output_tokens=Lengths(mean=1024.0)),
        ranks=ranks,
        budget_tokens=budget,
        most_requests=128,
    )


@cache
def _queue(ranks: int, prompt_cv2: float = 1.0) -> MixedQueue:
    return MixedQueue(instance(ranks, prompt_cv2))


def test_prompts_that_differ_and_are_cut_are_sampled() -> None:
    """Equal ones are not, nor are those that all but always fit."""
    assert differ_and_are_cut(instance(4))
    assert not differ_and_are_cut(instance(4, prompt_cv2=0.0))
    assert not differ_and_are_cut(instance(4, prompt_cv2=0.1, budget=8192.0))


def test_more_load_takes_longer() -> None:
    """TTFT rises with the rate; the guess is no longer than it by much."""
    queue = _queue(4)
    last = 0.0
    for utilisation in (0.4, 0.7):
        state = queue.state(utilisation * queue.saturation_per_second)
        assert state is not None and state.find_guess is not None
        guess, ttft = state.find_guess(), state.ttft
        assert 0.4 * ttft.mean < guess.mean < 1.1 * ttft.mean
        assert ttft.mean > last
        assert state.ttft_error is not None and 0 < state.ttft_error < 0.06
        last = ttft.mean


def test_another_sample_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other streams: the mean within four of its standard errors, which are below 5 %, and steps within 5 %."""
    queue = _queue(4)
    rate = 0.7 * queue.saturation_per_second
    state = queue.state(rate)
    assert state is not None
    arrivals, prompts = (rate, 1.0), SampledPrompts(queue.aggregate, state.mean_requests)
    line = prompts.line(arrivals, state.mean_step_seconds, state.prompt_steps)
    one = prompts.found(arrivals, line, state.mean_requests)
    assert prompts.found(arrivals, line, state.mean_requests) == one
    monkeypatch.setattr(sampled, "_SEED", 11)
    other = prompts.found(arrivals, line, state.mean_requests)
    assert max(one.error, other.error) < 0.05
    assert abs(one.ttft.mean - other.ttft.mean) < 4 * np.hypot(one.error, other.error) * one.ttft.mean
    assert one.step_seconds == pytest.approx(other.step_seconds, rel=0.05)


@pytest.mark.parametrize(("ranks", "tpot_error"), [(1, 0.05), (4, 0.15)])
def test_against_the_runtime(ranks: int, tpot_error: float) -> None:
    """Prompts of CV 0.5 at 70 % of saturation: mean TTFT within 10 %, p99 within 20 %, mean TPOT within 5 and 15 %."""
    queue = _queue(ranks, 0.25)
    rate = 0.7 * queue.saturation_per_second
    state = queue.state(rate)
    assert state is not None
    degrees = Degrees(attention_tp=1, attention_dp=ranks, moe_ep=ranks)
    own = pool(
        "mixed",
        degrees,
        [Instance(name="m", nodes=[0])],
        limits={"requests_per_dp_rank": 128, "tokens_per_device": 512},
        microbatches=1,
        kv={"block_tokens": 16, "bytes_per_token_per_device": 160.0, "capacity_tokens_per_rank": 10_000_000},
    )
    made = build([own], {"input_tokens": 2000, "output_tokens": 1024, "input_cv2": 0.25})
    made = made.model_copy(update={"routing": Routing(prefill="round_robin", decode="round_robin")})
    runs = []
    for seed in range(2):
        stream = open_loop(made.workload, rate, 2000, seed)
        last = float(stream.arrival_seconds[-1])
        options = SimulationOptions(seed=seed, warmup_seconds=0.1 * last, measured_until_seconds=0.95 * last)
        runs.append(simulate(made, stream, options).to_dict())
    ttft, p99, tpot = (
        sum(run[name][level] for run in runs) / len(runs)
        for name, level in (("ttft_seconds", "mean"), ("ttft_seconds", "p99"), ("tpot_seconds", "mean"))
    )
    assert state.ttft.mean == pytest.approx(ttft, rel=0.1)
    assert state.ttft.p99 == pytest.approx(p99, rel=0.2)
    assert state.tpot.mean == pytest.approx(tpot, rel=tpot_error)


def test_lengths_of_a_histogram_stay_what_they_are() -> None:
    """Kinds of a distribution are cut finer with the same mean; those of a list are atoms."""
    aggregate = instance(2)
    finer = sampled._finer(aggregate)
    assert finer.tokens.size == 4 * (aggregate.prompts.tokens.size - 2) + 2  # the longest of 10,000 stay two
    assert finer.weights.sum() == pytest.approx(1.0)
    assert finer.mean_tokens == pytest.approx(aggregate.prompts.mean_tokens)
    kinds = ((100.0, 0.0, 0.5), (4000.0, 0.0, 0.5))
    listed = replace(aggregate, workload=replace(aggregate.workload, prompts=kinds))
    assert sampled._finer(listed).tokens.tolist() == [100.0, 4000.0]
