"""Aggregated instances under open arrivals: limits, conservation, and the reference runtime."""

from itertools import pairwise

import pytest

from planner.manifest.layout import Degrees
from planner.mixed_queue import MixedQueue
from planner.mixed_steps import Aggregate
from planner.workload import Lengths, Workload
from tests.manifests import cost


def _queue(ranks: int = 1, budget: float = 1024.0, prompt: float = 512.0, answer: float = 128.0, **more: float):
    """Return the queue of a made-up instance."""
    degrees = Degrees(attention_tp=1, attention_dp=ranks, moe_ep=ranks)
    workload = Workload(
        input_tokens=Lengths(mean=prompt, squared_cv=more.get("prompt_cv2", 0.0)),
        output_tokens=Lengths(mean=answer, squared_cv=more.get("answer_cv2", 0.0)),
    )
    return MixedQueue(
        Aggregate(
            cost=cost(degrees, 16 / ranks),
            workload=workload,
            ranks=ranks,
            budget_tokens=budget,
            most_requests=int(more.get("most", 64)),
        )
    )


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.85])
def test_requests_and_tokens_are_conserved(ranks: int, utilisation: float) -> None:
    """Little's law: running requests are the rate times the steps of an answer times their mean duration."""
    queue = _queue(ranks)
    rate = utilisation * queue.saturation_per_second
    state = queue.state(rate)
    assert state is not None
    assert state.mean_requests == pytest.approx(rate * 127 * state.mean_step_seconds)
    assert state.span.mean == pytest.approx(127 * state.tpot.mean)
    assert 0 < state.prompt_steps < 1


@pytest.mark.parametrize("ranks", [1, 4])
def test_more_load_never_helps(ranks: int) -> None:
    """TTFT, TPOT and running requests rise with the rate; past saturation there is no balance."""
    queue = _queue(ranks)
    found = [queue.state(part * queue.saturation_per_second) for part in (0.2, 0.4, 0.6, 0.8)]
    states = [state for state in found if state is not None]
    assert len(states) == 4
    for one, other in pairwise(states):
        assert other.mean_requests > one.mean_requests
        assert other.tpot.mean > one.tpot.mean
        assert other.ttft.mean > one.ttft.mean
    assert queue.state(queue.saturation_per_second * 1.05) is None
