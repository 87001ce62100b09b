"""What bounds the rate of prefill passes, against their queues."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.instances.prefill_bounds import few_prompts, short_enough
from planner.queues.prefill_queue import MOST_UTILISATION, capacity_of
from planner.queues.prefill_service import by_share
from planner.queues.queueing import Array
from tests.questions import small_question

QUESTION = small_question("qwen3-8b", "h100", 2)


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 24),
    most=st.integers(1, 6),
    start=st.floats(0.01, 0.4),
    slope=st.floats(0.01, 0.3),
    uneven=st.floats(0.0, 1.0),
    spare=st.floats(1.0, 2.5),
    percentile=st.sampled_from([50.0, 90.0, 99.0, 99.9]),
    instances=st.sampled_from([1, 2, 5, 14, 40]),
)
def test_no_queue_passes_it(
    groups: int,
    most: int,
    start: float,
    slope: float,
    uneven: float,
    spare: float,
    percentile: float,
    instances: int,
) -> None:
    """Passes wait for their fullest group in part, arrivals are alone or in turn: each budget is solved."""

    def seconds(prompts: Array) -> Array:
        mean = np.asarray(prompts, dtype=np.float64) / groups
        return np.asarray(start + slope * ((1 - uneven) * mean + uneven * np.ceil(mean)))

    full = np.arange(1.0, most + 2) * groups
    question = replace(QUESTION, ttft_seconds=spare * float(seconds(full)[-2]), percentile=percentile)
    few = few_prompts(groups)
    bound = short_enough(question, (few, seconds(few)), (full, seconds(full)))
    for prompts in full[seconds(full) <= question.ttft_seconds]:
        service = by_share(seconds, int(prompts), 0.0, 0.0)
        if service.saturation_per_second * MOST_UTILISATION > bound:
            found = capacity_of(service, question.ttft_seconds, percentile, instances)
            assert found is None or found.rate_per_second / instances <= bound * (1 + 1e-9)


def test_passes_of_more_than_half_the_limit_are_too_long() -> None:
    """One group, 0.5 s + 0.1 s a prompt, 2 s at p99: the mean pass lasts (2.02 + 1.01/r) / 1.99 s, 6.1 prompts.

    That is 5.5/s; between whole numbers of prompts a pass is counted as the shorter, so it is a little more.
    """
    question = replace(QUESTION, ttft_seconds=2.0, percentile=99.0)
    full = np.arange(1.0, 17.0)
    bound = short_enough(question, (np.ones(1), np.array([0.6])), (full, 0.5 + 0.1 * full))

    assert 5.5 < bound < 6.0


def test_it_says_nothing_where_it_cannot() -> None:
    """MixServe's queue knows no passes, and a smallest budget that is late as a whole may be in time in part."""
    few, full = (np.ones(1), np.array([0.6])), (np.array([4.0, 8.0]), np.array([2.5, 5.0]))

    assert short_enough(replace(QUESTION, ttft_seconds=2.0), few, full) == math.inf
    assert short_enough(replace(QUESTION, ttft_seconds=3.0, queueing="mixserve"), few, full) == math.inf
    assert short_enough(replace(QUESTION, ttft_seconds=3.0), few, full) < math.inf
