"""One rank as a line of one server: against Pollaczek and Khinchine, and what several ranks add."""

from dataclasses import replace

import numpy as np
import pytest

from planner.mixed.rank_line import RankLine
from planner.mixed.sampled import SampledPrompts
from planner.mixed.steps import Aggregate
from planner.serving.closed_forms.waits import pollaczek_khinchine_wait
from tests.planner.mixed.test_sampled import instance


def _line(aggregate: Aggregate, rate: float) -> RankLine:
    return SampledPrompts(aggregate, 8.0 * aggregate.ranks).line((rate, 1.0), 0.02, 0.5)


def test_one_rank_waits_as_m_g_1() -> None:
    """Poisson arrivals: the mean wait of the services' own first two moments."""
    line = _line(instance(1), 4.0)
    mean = float(line.usual @ line.weights)
    squared_cv = float(line.usual**2 @ line.weights) / mean**2 - 1
    assert 0.2 < 4.0 * mean < 0.95
    assert line.wait.mean_seconds == pytest.approx(pollaczek_khinchine_wait(4.0, mean, squared_cv), rel=0.02)


def test_long_prompts_take_more_than_their_share() -> None:
    """Parts of a prompt read what is before them, so seconds a token rise with the length."""
    aggregate = instance(1)
    line = _line(aggregate, 1.0)
    assert np.all(np.diff(line.usual) >= 0)
    assert line.usual[-1] / line.usual[60] > 0.9 * aggregate.new_tokens[-1] / aggregate.new_tokens[15]


def test_parts_wait_for_those_of_other_ranks() -> None:
    """The slower the slowest part on other ranks, the longer all prompts take; alone a rank waits for none."""
    line = _line(instance(4), 6.0)
    assert line.chances.sum() == pytest.approx(1.0)
    assert np.all(np.diff(line.services, axis=0) >= -1e-12)
    assert _line(instance(1), 1.5).services.shape[0] == 1


def test_ttft_is_wait_and_service_and_the_rest_of_a_step() -> None:
    """Means add up."""
    line = _line(instance(4), 6.0)
    mean = line.wait.mean_seconds + float(line.usual @ line.weights) + line.rest_seconds
    assert line.ttft().mean == pytest.approx(mean)
    assert line.ttft().p50 < mean < line.ttft().p99


def test_delays_vary_more_the_fewer_prompts_are_slowest() -> None:
    """Of two kinds, of which one lengthens steps: (1 - p) / p; what comes meanwhile counts by its share of ranks."""
    line = _line(instance(1), 1.0)
    alike = replace(line, weights=np.array([0.75, 0.25]), delays=np.array([0.0, 4.0]))
    assert alike.delays_squared_cv(1.0, 8) == pytest.approx(3.0)
    assert alike.delays_squared_cv(2.0, 1) == pytest.approx(3.0)
    assert alike.delays_squared_cv(2.0, 1000) == pytest.approx(0.75, rel=0.01)


def test_hardly_any_prompts_leave_half_a_step() -> None:
    """The mean step leaves rounding for steps with prompts; it is not taken to be seconds of one in a million."""
    aggregate = instance(1)
    bare = SampledPrompts(aggregate, 0.1).line((1e-4, 1.0), 0.02, 1e-7)
    assert bare.rest_seconds < 0.02
    assert bare.ttft().p99 == pytest.approx(_line(aggregate, 1e-3).ttft().p99, rel=0.05)
