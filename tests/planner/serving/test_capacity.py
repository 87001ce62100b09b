"""The search for the largest rate, and what ends a play, by laws of latency whose answers are known."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.serving.capacity import (
    STEP,
    Limits,
    Outcome,
    Play,
    Trial,
    Until,
    at_percentile,
    capacity,
    largest_rate,
    on_grid,
    on_grid_above,
    percentile_interval,
    trial,
)
from planner.serving.streams import Stream
from tests.planner.serving.costs import stream_of

Law = Callable[[float], float]
BOTH = Limits(percentile=90.0, ttft_seconds=2.0, tpot_seconds=0.5)
NONE = np.zeros(0)


def _queue(rate: float) -> float:
    return 1 / (1 - rate) if rate < 1 else math.inf


def _jump(rate: float) -> float:
    return 0.1 if rate <= 0.37 else math.inf


def _stairs(rate: float) -> float:
    return 0.3 + math.floor(rate * 40)


def _power(rate: float) -> float:
    return (rate / 0.61) ** 20


SEARCHES = [  # seconds, limit, upper, about, known rate: the answer, and calls that it took when this was written
    (_queue, 10.0, 1.0, None, 0.0, 0.9, 10),
    (_queue, 10.0, 1.0, 0.85, 0.0, 0.9, 5),
    (_queue, 10.0, 1.0, 0.97, 0.0, 0.9, 4),
    (_queue, 10.0, 1.0, 0.5, 0.7, 0.9, 7),
    (_queue, 10.0, 4.0, None, 0.0, 0.9, 12),
    (_jump, 1.0, 1.0, None, 0.0, 0.37, 14),
    (_stairs, 12.0, 1.0, 0.4, 0.0, 0.3, 17),
    (_power, 1.0, 0.9, 0.6, 0.0, 0.61, 5),
    (_power, 1.0, 0.9, 0.8, 0.0, 0.61, 4),
    (_power, 1.0, 0.9, None, 0.0, 0.61, 17),
]


@pytest.mark.parametrize(("law", "limit", "upper", "about", "known", "answer", "calls"), SEARCHES)
def test_a_search_finds_the_last_rate_of_the_grid_in_few_calls(
    law: Law, limit: float, upper: float, about: float | None, known: float, answer: float, calls: int
) -> None:
    """Wherever it begins, and never a rate twice but the known one; a rate within limits is never passed by."""
    asked: list[float] = []

    def seconds(rate: float) -> float:
        asked.append(rate)
        return law(rate)

    found = largest_rate(seconds, limit, upper, about, known)
    assert found is not None and law(found) <= limit < law(found * math.exp(STEP))
    assert found == pytest.approx(answer, rel=STEP) and found == on_grid(found)
    assert len(asked) == len(set(asked)) <= calls


@pytest.mark.parametrize("about", [None, 0.5, 3.0])
def test_the_upper_rate_and_none_at_all(about: float | None) -> None:
    """Where nothing is late the answer is the upper rate; where all is late, or what keeps is below a thousandth."""
    assert largest_rate(lambda rate: 1.0, 1.0, 2.0, about) == 2.0
    assert largest_rate(lambda rate: 1.1, 1.0, 2.0, about) is None
    assert largest_rate(lambda rate: rate / 0.0019, 1.0, 2.0, about) is None
    low = largest_rate(lambda rate: rate / 0.0021, 1.0, 2.0, about)
    assert low == pytest.approx(0.0021, rel=STEP)


def test_rates_of_the_grid() -> None:
    """A step apart; a rate on it, but for rounding, is its own, from below and from above."""
    own = on_grid(5.3)
    assert 5.3 * math.exp(-STEP) < own <= 5.3 < on_grid(5.3, 1)
    for rate in (own, own * (1 + 1e-12), own * (1 - 1e-12)):
        assert on_grid(rate) == on_grid_above(rate) == own
    assert on_grid_above(5.3) == on_grid(5.3, 1) and on_grid(5.3, 2) / own == pytest.approx(math.exp(2 * STEP))
    assert on_grid(0.0) == on_grid(-1.0) == 0.0


def _outcome(ttft: object, tpot: object = NONE) -> Outcome:
    return Outcome(ttft_seconds=np.asarray(ttft, dtype=float), tpot_seconds=np.asarray(tpot, dtype=float))


def test_excess_is_the_latency_over_its_limit() -> None:
    """At the percentile; 0 without a limit or without a latency."""
    outcome = _outcome(np.arange(0.0, 11.0), [1.0, np.nan, 2.0])
    assert outcome.excesses(BOTH) == pytest.approx((4.5, 1.9 / 0.5))
    assert outcome.excesses(BOTH._replace(tpot_seconds=None)) == (4.5, 0)
    assert _outcome(NONE).excesses(BOTH) == (0, 0)
    assert outcome.counted(slice(1, 3)).ttft_seconds.tolist() == [1, 2]
    assert np.nanmax(outcome.counted(slice(0, 2)).tpot_seconds) == 1
    assert Limits.of(BOTH) == BOTH


@pytest.mark.parametrize(
    ("late", "last", "half"), [((1,) * 10, 1, 0.0), ((0, 2) * 5, 2, 1.833 * 0.1 * math.sqrt(10 / 9) / math.sqrt(10))]
)
def test_an_interval_follows_from_the_parts_of_a_sample(late: tuple[int, ...], last: int, half: float) -> None:
    """Ten parts of ten: all alike tell the share for certain; else Student's t with nine degrees of freedom."""
    parts = [np.arange(10.0) + 10 * (np.arange(10) >= 10 - count) for count in late]
    seconds = np.concatenate(parts)
    low, high = percentile_interval(seconds, 90.0, 0.9)
    ends = [at_percentile(seconds, 90 + 100 * sign * half) for sign in (-1, 1)]
    assert (low, high) == pytest.approx(ends, rel=1e-3)
    assert percentile_interval(np.array([3.0, np.nan]), 90.0) == (3, 3)
    assert percentile_interval(np.array([3.0, 3.5]), 100.0)[1] == 3.5


def test_an_interval_ends_with_the_sample() -> None:
    """Wide ones reach its least and its most at most."""
    seconds = np.concatenate([np.full(50, 1.0), np.full(50, 9.0)])
    assert percentile_interval(seconds, 50.0, 0.999) == (1, 9)


def _trial(ttft: object, tpot: object = NONE, **fields: object) -> Trial:
    outcome = _outcome(ttft, tpot)
    return Trial(rate_per_second=1.0, outcome=outcome, excesses=outcome.excesses(BOTH), limits=BOTH, **fields)  # type: ignore[arg-type]


def test_who_is_surely_late() -> None:
    """Whose whole interval is beyond the limit, or who was ended for it; a trace has no interval."""
    late, spread = (
        _trial(np.full(100, 2.1)),
        _trial([1.0] * 50 + [each for k in range(25) for each in (1.0, 3 + k / 100)]),
    )
    assert (
        late.excess == pytest.approx(1.05) and late.surely_late(0.99) and late.interval() == pytest.approx((1.05,) * 2)
    )
    assert not _trial(np.full(100, 2.0)).surely_late(0.99)
    assert spread.excess == pytest.approx(1.5705) and spread.surely_late(0.9) and not spread.surely_late(0.99)
    assert spread.interval(0.99)[0] == 0.5 and spread.ttft_interval(0.99)[0] == 1
    whole = replace(spread, whole=True)
    assert whole.surely_late(0.99) and whole.interval() == (whole.excess, whole.excess)
    assert whole.ttft_interval() == pytest.approx((3.141, 3.141))
    assert _trial(NONE, ended=True).surely_late(0.99) and _trial(NONE).interval() == (0, 0)
    assert spread.ttft.mean == pytest.approx((75 + 25 * 3.12) / 100)
    both = _trial(np.full(100, 1.0), np.full(100, 0.7))
    assert both.excesses == (0.5, 1.4) and both.excess == 1.4 and both.interval() == pytest.approx((1.4, 1.4))


def _stream(answers: object = 5) -> Stream:
    return stream_of(np.arange(1000.0), np.full(1000, 10), answers)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_play_ends_with_the_request_that_decides_it(beyond: int) -> None:
    """Of 800 that count a tenth may be late: 80; of 400 with a TPOT, 40. Neither first nor last ones count."""
    stream = _stream(np.where(np.arange(1000) % 2, 1, 5))
    until = Until.certain(stream, BOTH)
    assert until.most_late == (80, 40)
    ttft, tpot = np.full(1000, 1.0), np.where(stream.answer_tokens > 1, 0.1, np.nan)
    ttft[:100] = ttft[900:] = 9.0
    ttft[100 : 180 + beyond] = 2.01
    assert until(_outcome(ttft, tpot)) == bool(beyond)
    tpot[100 : 180 + 2 * beyond : 2] = 0.51
    assert until(_outcome(np.zeros(1000), tpot)) == bool(beyond)
    assert not until._replace(limits=Limits(percentile=90.0))(_outcome(np.full(1000, 9.0), tpot))
    assert Until.certain(stream, BOTH._replace(tpot_seconds=None)).most_late == (80, 1000)


def test_a_whole_interval_takes_more_late_requests() -> None:
    """With confidence 0.9 half of it is t sqrt(q (1 - q) / 9) wide, or as q where that is less; q is 0.1."""
    assert Until.certain(_stream(), BOTH, 0.9).most_late[0] == math.ceil(799 * (0.1 + 1.833 * 0.1))
    half = Limits(percentile=50.0, ttft_seconds=1.0)
    assert Until.certain(_stream(), half, 0.9).most_late[0] == math.ceil(799 * (0.5 + 1.8331 * 0.5 / 3))


def test_a_part_of_a_play_may_decide_it() -> None:
    """A fifth of those that count, each tenth of which is late twice as often as allowed; of a trace none."""
    until, alike = Until.sure(_stream(), BOTH, 0.99), np.tile([3.0] * 2 + [1.0] * 6, 150)
    assert until.level == pytest.approx(1 - 0.01 / 24)
    assert [until(_outcome(alike[: 100 + count])) for count in (152, 160, 240)] == [False, True, True]
    assert not until(_outcome(np.tile([3.0] * 2 + [1.0] * 18, 20)))
    uneven = np.concatenate([np.full(300, 1.0), np.full(60, 3.0)])
    assert not until(_outcome(uneven))
    assert Until.sure(replace(_stream(), whole=True), BOTH, 0.99).level is None
    there, none = np.array([80, 80, 0, 0, 0, 0, 0, 0, 0, 0]), np.zeros(10, dtype=np.int64)
    assert until.late_prompts(there // 5, there) and not until.late_prompts(there // 11, there)
    assert not until.late_prompts(there // 5, there - (there > 0)) and not until.late_prompts(none, there)
    assert not until.late_prompts(np.array([32, 0] + [0] * 8), there)
    assert until.late_prompts(np.array([81] + [0] * 9), there)
    assert not Until.certain(_stream(), BOTH).late_prompts(there // 5, there)


def _played(power: float, spread: float = 0.0) -> Callable[[Stream, Until | None], Outcome]:
    """Latency rises with a power of the rate: it is 1 s, more or less by the spread, at one request per second."""

    def play(at: Stream, _: Until | None) -> Outcome:
        rate = (len(at) - 1) / float(at.arrival_seconds[-1])
        alternating = 1 + spread * (-1.0) ** ((np.arange(len(at)) - 100) // 80)
        return _outcome(rate**power * alternating)

    return play


ONE = Limits(percentile=50.0, ttft_seconds=1.0)


def _tried(play: Play, limits: Limits = ONE) -> Callable[[float], Trial]:
    return lambda rate: trial(play, _stream(), rate, limits)


def test_a_capacity_without_noise_is_a_point() -> None:
    """At the limit, on the grid, whose ends are those of the latency's interval; its trial is told."""
    found = capacity(_tried(_played(8.0)), 2.0)
    assert found is not None and found.rate_per_second == pytest.approx(1, rel=1.01 * STEP)
    assert found.rate_per_second == found.trial.rate_per_second and found.trial.excess <= 1
    assert found.low == pytest.approx(found.rate_per_second) and found.high == pytest.approx(found.rate_per_second)
    assert capacity(_tried(_played(8.0)), 0.5) is not None
    assert capacity(_tried(_played(0.0), Limits(percentile=50.0, ttft_seconds=0.5)), 2.0) is None


def test_where_nothing_binds_the_upper_rate_is_certain() -> None:
    """Its interval is a point if all of the latency's keeps the limit, and else only ends there."""
    sure = capacity(_tried(_played(8.0, 0.1)), 0.9)
    assert sure is not None and (sure.low, sure.rate_per_second, sure.high) == (0.9, 0.9, 0.9)
    unsure = capacity(_tried(_played(8.0, 0.1)), 0.99)
    assert unsure is not None and unsure.low < unsure.rate_per_second == unsure.high == 0.99


def test_an_interval_of_latency_becomes_one_of_the_rate() -> None:
    """By the slope of their logarithms, here 8; a known trial is where the search begins."""
    found = capacity(_tried(_played(8.0, 0.1)), 2.0, 0.97)
    low, high = found.trial.interval()
    assert math.log(found.high / found.low) == pytest.approx(math.log(high / low) / 8, rel=1e-6)
    assert found.low <= found.rate_per_second <= found.high
    asked: list[float] = []

    def tried(rate: float) -> Trial:
        asked.append(rate)
        return _tried(_played(8.0, 0.1))(rate)

    again = capacity(tried, 2.0, known=[found.trial])
    assert again is not None and again.rate_per_second == found.rate_per_second and len(asked) <= 2


def test_a_wide_interval_of_ttft_is_divided_by_the_slope_of_ttft() -> None:
    """TPOT binds, is known exactly and hardly rises; what is not known of TTFT takes little where it rises steeply."""

    def play(at: Stream, until: Until | None) -> Outcome:
        wide = _played(8.0, 0.6)(at, until).ttft_seconds
        return _outcome(0.9 * wide, _played(1.0)(at, until).ttft_seconds)

    found = capacity(_tried(play, ONE._replace(tpot_seconds=1.0)), 2.0)
    high = found.trial.intervals()[0][1]
    assert high > 1.2 and found.low / found.rate_per_second == pytest.approx((high / found.trial.excess) ** -0.125)


def test_a_trial_counts_the_middle_of_its_stream() -> None:
    """An ended play keeps no latencies; a trace counts whole."""
    stream = _stream()

    def play(at: Stream, until: Until | None) -> Outcome:
        return replace(_outcome(np.arange(1000.0)), ended=until is not None)

    whole = trial(play, stream, 2.0, ONE)
    assert (whole.excess, whole.outcome.ttft_seconds.size, whole.rate_per_second) == (499.5, 800, 2.0)
    ended = trial(play, stream, 2.0, ONE, Until.certain(stream, ONE))
    assert ended.ended and not ended.outcome.ttft_seconds.size and ended.excess == 499.5
    traced = trial(play, replace(stream, whole=True), 2.0, ONE)
    assert traced.whole and traced.outcome.ttft_seconds.size == 1000 and not whole.whole
