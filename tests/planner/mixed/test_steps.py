"""Steps of aggregated instances: what is cached before the parts of long prompts."""

import numpy as np
import pytest

from planner.manifest.layout import Degrees
from planner.mixed.steps import Aggregate, StepTable, _most_before, step_seconds
from planner.workload import Lengths, Workload
from tests.manifests import cost


def _aggregate(prompt: float, prompt_cv2: float, budget: float) -> Aggregate:
    lengths = Lengths(mean=prompt, squared_cv=prompt_cv2)
    return Aggregate(
        cost=cost(Degrees(attention_tp=1, attention_dp=8, moe_ep=8), 2.0),
        workload=Workload(input_tokens=lengths, output_tokens=Lengths(mean=128.0)),
        ranks=8,
        budget_tokens=budget,
        most_requests=64,
    )


@pytest.mark.parametrize("busy", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("prompt_cv2", [0.0, 1.0])
def test_the_most_before_parts_is_that_of_parts_drawn(busy: float, prompt_cv2: float) -> None:
    """Of so many ranks with full parts the slowest has most before its own: against parts that are drawn."""
    aggregate, room = _aggregate(6000.0, prompt_cv2, 256.0), 256.0
    followed = np.maximum(np.ceil(aggregate.new_tokens / room) - 1, 0.0)
    found = _most_before(aggregate, np.array([[room]]), followed[None], np.array([busy]))
    draw = np.random.default_rng(3)
    shares = followed * aggregate.prompts.weights
    kinds = draw.choice(shares.size, (20_000, int(busy)), p=shares / shares.sum())
    before = np.floor(draw.random(kinds.shape) * followed[kinds]) * room
    assert found[0] == pytest.approx(float(before.max(axis=1).mean()), rel=0.03)


def test_more_ranks_with_long_prompts_make_steps_longer() -> None:
    """Experts take longer for eight parts than for one; beside that, a step waits for the longest prompt before one."""
    running, room = np.array([16.0]), np.array([510.0])

    def growth(aggregate: Aggregate) -> float:
        one, every = (step_seconds(aggregate, running, room, ranks * room) for ranks in (1, 8))
        return float(every[0] / one[0])

    assert growth(_aggregate(20_000.0, 1.0, 512.0)) > 1.05 * growth(_aggregate(500.0, 0.0, 512.0))
    table = StepTable(_aggregate(20_000.0, 1.0, 512.0))
    assert (np.diff(table.mixed[2, -1]) > 0).all()
