"""Streams: lengths, reuse and gaps by the laws that they are drawn from."""

import math
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest

from planner.serving.streams import (
    Stream,
    answer_kinds,
    decoded_share,
    gamma_quantiles,
    histogram_kinds,
    length_kinds,
    lengths_at,
    longest_prompt,
    parts_of,
    prompts_of,
    stationary,
    traced,
    with_answers,
)
from planner.workload import Lengths, TraceRows, Workload
from tests.planner.serving.costs import stream_of

COUNT = 20_000
EXPONENTIAL = Workload(
    input_tokens=Lengths(mean=1000, squared_cv=1.0, shape="gamma"), output_tokens=Lengths(mean=400, squared_cv=0.25)
)
LEVELS = np.array([0.05, 0.3, 0.5, 0.9, 0.99])


def _cv(values: np.ndarray) -> float:
    return float(values.std() / values.mean())


def test_a_stationary_stream_has_the_moments_of_its_laws() -> None:
    """Stratified: means are met far better than by independent draws. Lengths and gaps are independent."""
    drawn = stationary(EXPONENTIAL, COUNT)
    columns = np.diff(drawn.arrival_seconds), drawn.prompt_tokens, drawn.answer_tokens
    assert drawn.arrival_seconds[-1] == pytest.approx(COUNT)
    assert [each.mean() for each in columns] == pytest.approx([1, 1000, 400], rel=1e-3)
    assert [_cv(each) for each in columns] == pytest.approx([1, 1, 0.5], rel=0.01)
    assert np.abs(np.corrcoef([each[: COUNT - 1] for each in columns]) - np.eye(3)).max() < 0.03
    assert not drawn.reused_tokens.any() and not drawn.whole
    other = stationary(EXPONENTIAL, COUNT, seed=1)
    assert (other.prompt_tokens != drawn.prompt_tokens).any() and (other.arrival_seconds != drawn.arrival_seconds).any()


def test_one_of_four_instances_has_more_even_gaps() -> None:
    """The sum of four exponential gaps: a quarter of the squared CV, and the same lengths."""
    drawn, whole = stationary(EXPONENTIAL, COUNT, every=4), stationary(EXPONENTIAL, COUNT)
    assert _cv(np.diff(drawn.arrival_seconds)) == pytest.approx(0.5, rel=0.01)
    assert drawn.prompt_tokens.tolist() == whole.prompt_tokens.tolist()


def test_prompts_with_answers_are_those_that_the_context_leaves_room_for() -> None:
    """A third of the prompts reach the context, and have no answer; a wide context changes nothing."""
    workload = Workload(
        input_tokens=Lengths(mean=6000.0, squared_cv=1.0), output_tokens=Lengths(mean=10.0), length_covariance=0.0
    )
    stream = stationary(workload, 40_000, most_tokens=6000)
    answered = stream.prompt_tokens[stream.answer_tokens > 1]
    prompt = with_answers(workload, 6000.0).input_tokens
    assert prompt.mean == pytest.approx(answered.mean(), rel=0.03)
    assert prompt.variance == pytest.approx(answered.var(), rel=0.1)
    assert with_answers(workload, 1e9) is workload


def test_lengths_end_at_the_context() -> None:
    """A prompt leaves a token for the answer, which takes what is left at most."""
    drawn, cut = stationary(EXPONENTIAL, COUNT), stationary(EXPONENTIAL, COUNT, most_tokens=1200.0)
    assert cut.prompt_tokens.tolist() == np.minimum(drawn.prompt_tokens, 1199).tolist()
    assert cut.answer_tokens.tolist() == np.minimum(drawn.answer_tokens, 1200 - cut.prompt_tokens).tolist()
    assert set(stationary(EXPONENTIAL, 100, most_tokens=1.0).prompt_tokens.tolist()) == {1}


@pytest.mark.parametrize(("reuse", "share"), [(0.38, 0.95), (0.97, 0.97)])
def test_mean_reuse_is_met_by_some_that_hit(reuse: float, share: float) -> None:
    """A prompt that hits has 95 % of its tokens, or more where the mean asks for that; one token is left."""
    fixed = Workload(input_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=7), prefix_reuse=reuse)
    drawn = stationary(fixed, COUNT)
    assert drawn.reused_tokens.mean() == pytest.approx(1000 * reuse, rel=2e-3)
    assert set(drawn.reused_tokens.tolist()) <= {0, round(1000 * share)}
    assert set(drawn.prompt_tokens.tolist()) == {1000} and set(drawn.answer_tokens.tolist()) == {7}
    kinds = prompts_of(fixed)
    assert kinds.mean_tokens == pytest.approx(1000) and kinds.weights.sum() == pytest.approx(1)
    assert kinds.reused @ kinds.weights == pytest.approx(1000 * reuse)
    assert kinds.reused.tolist() == pytest.approx([0, 1000 * share])


def test_kinds_come_as_often_as_they_weigh() -> None:
    """Prompts with what they reuse, less than all of it, and answers; ``stationary`` rounds tokens."""
    kinds = ((100.4, 30.6, 3.0), (500.0, 500.0, 1.0))
    workload = Workload(
        input_tokens=Lengths(mean=200), output_tokens=Lengths(mean=10), prompts=kinds, answers=((4.0, 1.0), (0.2, 1.0))
    )
    drawn = stationary(workload, 400)
    pairs = list(zip(drawn.prompt_tokens.tolist(), drawn.reused_tokens.tolist(), strict=True))
    assert [pairs.count(pair) for pair in ((100, 31), (500, 499))] == [300, 100]
    assert np.bincount(drawn.answer_tokens).tolist() == [0, 200, 0, 0, 200]
    assert longest_prompt(workload) == 500
    found = prompts_of(workload)
    assert found.weights.tolist() == [0.75, 0.25] and found.reused.tolist() == [30.6, 500]


def test_length_quantiles() -> None:
    """Log-normal lengths have the median mean / sqrt(1 + c^2); fixed ones are all alike."""
    lengths = Lengths(mean=1000, squared_cv=3.0)
    sigma = math.sqrt(math.log(4))
    scores = np.array([NormalDist().inv_cdf(level) for level in LEVELS])
    assert lengths_at(lengths, LEVELS) == pytest.approx(500 * np.exp(sigma * scores))
    assert lengths_at(Lengths(mean=9), LEVELS).tolist() == [9] * 5
    gamma = Lengths(mean=20, squared_cv=1.0, shape="gamma")
    assert lengths_at(gamma, LEVELS) == pytest.approx(-20 * np.log(1 - LEVELS))
    for law in (lengths, gamma):
        workload = Workload(input_tokens=law, output_tokens=Lengths(mean=1))
        assert longest_prompt(workload) == lengths_at(law, np.array([1 - 1e-6]))[0]


def test_gamma_quantiles() -> None:
    """Erlang's law of two and four stages, exponential ones, and none where the CV is next to nothing."""
    for stages in (2, 4):
        x = stages * gamma_quantiles(1 / stages, LEVELS)
        below = 1 - np.exp(-x) * sum(x**n / math.factorial(n) for n in range(stages))
        assert below == pytest.approx(LEVELS, rel=0.01)
    assert gamma_quantiles(0.9999, LEVELS) == pytest.approx(gamma_quantiles(1.0, LEVELS), rel=0.01)
    assert gamma_quantiles(9e-6, LEVELS).tolist() == [1] * 5
    assert gamma_quantiles(1.1e-5, LEVELS)[0] < 1
    broad = gamma_quantiles(4.0, (np.arange(COUNT) + 0.5) / COUNT)
    assert (broad.mean(), _cv(broad)) == pytest.approx((1, 2), rel=0.01)


def test_requests_whose_answers_go_on() -> None:
    """Of log-normal answers those above 1.5 tokens, of kinds and traces those above one."""
    varied = Workload(input_tokens=Lengths(mean=100), output_tokens=Lengths(mean=32, squared_cv=4.0))
    score = (math.log(1.5 / 32) + math.log(5) / 2) / math.sqrt(math.log(5))
    assert decoded_share(varied) == pytest.approx(1 - NormalDist().cdf(score), abs=1e-3)
    assert decoded_share(replace(varied, answers=((1.0, 0.25), (9.0, 0.75)))) == pytest.approx(0.75, abs=1e-3)
    rows = TraceRows(arrival_seconds=(0.0, 1.0), input_tokens=(9, 9), output_tokens=(1, 2))
    assert decoded_share(replace(varied, trace=rows)) == 0.5
    assert [decoded_share(replace(varied, output_tokens=Lengths(mean=mean))) for mean in (1, 2)] == [0, 1]


def test_what_counts_of_a_stream() -> None:
    """The first and the last tenth do not, except of a trace."""
    stream = stream_of(np.arange(25.0), range(10, 35), range(25), range(25))
    assert stream.counting == slice(2, 23) and len(stream.counted()) == 21
    assert stream.at_rate(4.0).arrival_seconds.tolist() == (np.arange(25) / 4).tolist()
    chosen = stream.select(np.array([3, 1]))
    columns = chosen.arrival_seconds, chosen.prompt_tokens, chosen.reused_tokens, chosen.answer_tokens
    assert [column.tolist() for column in columns] == [[3, 1], [13, 11], [3, 1], [3, 1]]


def test_a_trace_is_a_stream_of_its_rows() -> None:
    """A prompt has at least a token, one of them is computed, and an answer has at least one; all of them count."""
    rows = TraceRows(
        arrival_seconds=[0, 3, 6], input_tokens=[5, 1, 9], output_tokens=[2, 1, 3], reused_tokens=[5, 4, 2]
    )
    stream = Stream.from_trace(rows)
    assert (stream.prompt_tokens.tolist(), stream.answer_tokens.tolist()) == ([5, 1, 9], [2, 1, 3])
    assert (stream.reused_tokens.tolist(), stream.counting) == ([4, 0, 2], slice(0, 3))
    assert traced(rows, 2).arrival_seconds == pytest.approx([0, 0.5, 1])
    empty = Stream.from_trace(TraceRows(arrival_seconds=[0], input_tokens=[0], output_tokens=[0]))
    assert (empty.prompt_tokens[0], empty.answer_tokens[0], empty.reused_tokens[0]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("requests", "least", "edges"),
    [(10, 400, [0, 10]), (1000, 400, [0, 500, 1000]), (48, 1, list(range(0, 49, 2))), (3, 1, [0, 1, 2, 3])],
)
def test_parts_of_a_stream(requests: int, least: int, edges: list[int]) -> None:
    """At most 24, each of so many requests at least."""
    assert list(parts_of(requests, least)) == list(pairwise(edges))


@pytest.mark.parametrize("shape", ["gamma", "lognormal"])
def test_kinds_of_a_law_have_its_moments(shape: str) -> None:
    """The mean exactly, and nearly all of the variance; heavier tails lose more."""
    lengths, weights = length_kinds(Lengths(mean=1000, squared_cv=0.5, shape=shape))  # type: ignore[arg-type]
    assert weights.sum() == pytest.approx(1) and lengths @ weights == pytest.approx(1000, rel=1e-3)
    assert (lengths**2 @ weights) / 1e6 - 1 == pytest.approx(0.5, rel=0.02)
    assert (np.diff(lengths) > 0).all()
    assert length_kinds(Lengths(mean=1, squared_cv=0.5, shape=shape))[0].min() == 1  # type: ignore[arg-type]
    fixed, alone = length_kinds(Lengths(mean=7))
    assert (fixed.tolist(), alone.tolist()) == ([7], [1])


def test_histograms_become_few_kinds() -> None:
    """A small one stays as it is; of a large one each kind is the mean between two levels."""
    assert histogram_kinds(np.array([5.0, 9.0]), np.array([0.75, 0.25]), 0.0) == ((5, 0, 0.75), (9, 0, 0.25))
    assert answer_kinds(np.array([5.0, 9.0]), np.array([0.75, 0.25])) == ((5, 0.75), (9, 0.25))
    tokens, weights = np.arange(1.0, 1001.0), np.full(1000, 1e-3)
    kinds = np.array(answer_kinds(tokens, weights))
    assert kinds[:, 0] @ kinds[:, 1] == pytest.approx(500.5)
    assert kinds[0].tolist() == pytest.approx([19.25, 0.0375], rel=0.02)
    assert len(kinds) == 36 and kinds[-1, 0] == pytest.approx(1000)
