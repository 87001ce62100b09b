"""Samples of traffic: what they tell, and how sure that is."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from planner.serving.capacity import STEP, Limits, Outcome, Until, at_percentile, capacity, percentile_interval, trial
from planner.serving.played import EVENLY, FEW, MANY, SURE, PlayedPrefill, Player
from planner.serving.prefill import PrefillPool
from planner.serving.streams import Stream, parts_of, stationary
from planner.serving.tables import Loads, step_table
from planner.workload import Lengths, TraceRows, Workload
from tests.planner.serving.costs import linear_cost


def _player(squared_cv: float, ttft_seconds: float, ranks: int = 1, percentile: float = 99.0) -> PlayedPrefill:
    cost = linear_cost(0.01, 1e-5, ranks=ranks)
    times = step_table(cost, Loads(ranks=ranks, budget_tokens=8000, longest_prompt=40_000.0))
    workload = Workload(input_tokens=Lengths(mean=1000, squared_cv=squared_cv), output_tokens=Lengths(mean=1))
    pool = PrefillPool(times=times, ranks=ranks, budget_tokens=8000)
    return PlayedPrefill.of(pool, workload, Limits(percentile=percentile, ttft_seconds=ttft_seconds), 40_000.0)


def test_an_interval_covers_its_level() -> None:
    """Of independent samples about nine in ten intervals hold the true percentile."""
    rng = np.random.default_rng(3)
    true = -math.log(0.05)
    found = [percentile_interval(rng.exponential(size=4000), 95.0) for _ in range(200)]
    assert 0.84 <= np.mean([low <= true <= high for low, high in found]) <= 0.98


def test_a_percentile_is_that_of_numpy() -> None:
    """Between two neighbours, of those that are numbers."""
    rng = np.random.default_rng(7)
    for size, percentile in ((1, 99.0), (2, 50.0), (11, 0.0), (11, 100.0), (101, 37.0), (5000, 99.0)):
        samples = rng.exponential(size=size)
        found = at_percentile(np.append(samples, np.nan), percentile)
        assert found == pytest.approx(float(np.percentile(samples, percentile)), rel=1e-12)


@pytest.mark.parametrize("squared_cv", [0.25, 1.0])
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_many_requests_tell_what_very_many_do(squared_cv: float, load: float) -> None:
    """The mean within 3 %, the percentile within 8 % or its interval."""
    player = _player(squared_cv, 1.0)
    rate = load * player.saturation_per_second
    found, longer = player.trial(rate), player.trial(rate, 1, 10 * MANY)
    assert found.ttft.mean == pytest.approx(longer.ttft.mean, rel=0.03)
    low, high = found.interval()
    assert min(low, 0.92 * found.excess) <= longer.excess <= max(high, 1.08 * found.excess)


def test_a_stream_is_longer_where_requests_are_late_in_a_row() -> None:
    """Near saturation one queue makes thousands late, and a percentile of fewer requests is a third too low."""
    player = _player(1.0, 1.0, ranks=2)
    calm, busy = (load * player.saturation_per_second for load in (0.3, 0.98))
    assert player.lasting(calm) == MANY < player.lasting(busy)
    found, longest = player.trial(busy, 1, None), player.trial(busy, 1, 32 * MANY)
    assert player.trial(busy).excess < 0.7 * longest.excess
    assert found.excess == pytest.approx(longest.excess, rel=0.08)
    assert player.told(busy, 1, (busy, busy), None).asked_requests == player.lasting(busy)


def test_even_requests_wait_least() -> None:
    """What is late however evenly they come is late; so is what few of them tell is."""
    player = _player(1.0, 0.1, ranks=2)
    rate = 0.9 * player.saturation_per_second
    assert player.trial(rate, EVENLY).ttft.mean <= player.trial(rate, 4).ttft.mean <= player.trial(rate).ttft.mean
    assert player.surely_late(rate) and not player.keeps(rate)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.0])
def test_a_play_that_ends_early_has_the_verdict_of_the_whole(load: float, percentile: float) -> None:
    """It ends where limits are missed alone, with no longer latencies; few that are surely late are so in whole."""
    for limit in (0.05, 0.1, 0.2, 0.4):
        early = _player(1.0, limit, 2, percentile)
        whole = replace(early, _trials={}, _ended={})
        rate = load * whole.saturation_per_second
        found, longer = early.verdict(rate, 1, MANY), whole.trial(rate, 1, MANY)
        assert (found.ended or found.excess > 1) == (longer.excess > 1)
        assert found.excess <= longer.excess and (found.excess == longer.excess or found.ended)
        assert early.surely_late(rate) == whole.trial(rate, 1, FEW).surely_late(SURE)


def _ends(rng: np.random.Generator, share: float, looks: int) -> bool:
    """Whether a play ends by so many looks, where this share of independent requests passes a limit of 1 s at p99."""
    stream = stationary(Workload(input_tokens=Lengths(mean=10), output_tokens=Lengths(mean=1)), MANY)
    until = Until.sure(stream, Limits(percentile=99.0, ttft_seconds=1.0), SURE)
    seconds, none = np.where(rng.random(MANY) < share, 2.0, 0.5), np.full(MANY, np.nan)
    ends = [end for _, end in parts_of(MANY)][:looks]
    return any(until(Outcome(ttft_seconds=seconds[:end], tpot_seconds=none[:end])) for end in ends)


def test_a_part_of_a_play_tells_who_is_surely_late() -> None:
    """Who is late more than twice as often as allowed is told by a third, who is at the limit seldom at any look."""
    rng = np.random.default_rng(5)
    assert np.mean([_ends(rng, 0.022, 8) for _ in range(40)]) > 0.95
    assert np.mean([_ends(rng, 0.01, 16) for _ in range(200)]) <= 0.03


def test_what_is_late_is_late_at_larger_rates() -> None:
    """The same gaps closer together: nothing is played again."""
    player, again = _player(1.0, 0.11), replace(_player(1.0, 0.11), _late={})
    rate = 0.9 * player.saturation_per_second
    assert player.surely_late(rate) and not player.keeps(1.05 * rate)
    played = dict(player._trials), dict(player._ended)
    assert player.surely_late(1.02 * rate) and player.surely_late(1.2 * rate)
    assert again.trial(1.02 * rate, 1, FEW).surely_late(SURE) and again.trial(1.2 * rate, 1, FEW).surely_late(SURE)
    assert (dict(player._trials), dict(player._ended)) == played


def test_a_rate_that_is_late_by_chance_makes_no_interval_narrow() -> None:
    """Latency rises as the 10th power of the rate and wobbles by 5 % from one rate of the grid to the next."""
    stream = stationary(Workload(input_tokens=Lengths(mean=10), output_tokens=Lengths(mean=1)), 4000)
    spread = np.random.default_rng(0).uniform(0.5, 1.5, 4000)

    def play(at: Stream, _: object) -> Outcome:
        rate = len(at) / float(at.arrival_seconds[-1])
        wobble = 1 + 0.05 * math.cos(2 * math.log(rate) / STEP)
        return Outcome(ttft_seconds=spread * wobble * rate**10, tpot_seconds=np.zeros(0))

    limits = Limits(percentile=99, ttft_seconds=1.0)
    found = capacity(lambda rate: trial(play, stream, rate, limits), 2.0, 0.9)
    low, high = found.trial.interval()
    assert math.log(found.high / found.low) == pytest.approx(math.log(high / low) / 10, rel=0.3)


def test_saturation_is_the_throughput_of_a_line_that_never_ends() -> None:
    """Pass after pass of 8 prompts: 0.01 s and 10 us for each of 8,000 tokens."""
    assert _player(0.0, 1.0).saturation_per_second == pytest.approx(8 / 0.09, rel=0.02)


class _Known(Player):
    """An instance whose TTFT is the eighth power of the rate over ``about``, whatever arrives; 2/s saturate it."""

    saturation_per_second = 2.0

    @classmethod
    def of(cls, about: float = 1.0, workload: Workload | None = None, **fields: object) -> "_Known":
        """Return one with a limit of 1 s."""
        law = Lengths(mean=10, squared_cv=1.0)
        asked = workload or Workload(input_tokens=law, output_tokens=replace(law, squared_cv=0.5))
        made = cls(
            play=lambda at, _: cls.played(at, about),
            together=lambda number: lambda at, _: cls.played(at, float(number)),
            workload=asked,
            limits=Limits(percentile=90.0, ttft_seconds=1.0),
            most_tokens=math.inf,
            **fields,  # type: ignore[arg-type]
        )
        return made

    @staticmethod
    def played(at: Stream, about: float) -> Outcome:
        """Tell its latencies."""
        rate = round(len(at) / float(at.arrival_seconds[-1]), 9)
        return Outcome(ttft_seconds=np.full(len(at), (rate / about) ** 8), tpot_seconds=np.zeros(0))


@pytest.mark.parametrize(
    ("idle", "instances", "wide", "times"),
    [
        (0.085, 1, {}, 1),
        (0.08, 1, {}, 2),
        (0.08, 2, {}, 1),
        (0.04, 1, {}, 8),
        (-0.1, 1, {}, 8),
        (0.5, 1, {1: 1.0}, 1),
        (0.5, 1, {1: 1.01}, 2),
        (0.5, 1, {1: 1.6}, 4),
        (0.5, 1, {1: 1.1, 2: 1.5}, 8),
        (0.5, 1, {1: 9.0}, 8),
    ],
)
def test_a_stream_spans_relaxation_times_and_ends_where_intervals_are_close(
    idle: float, instances: int, wide: dict[int, float], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of gaps 2 (1 / instances + 1) / idle^2 a hundred times; then as the square of what an interval is too wide."""
    player = _Known.of()

    def trial(_: Player, rate: float, number: int, requests: int) -> SimpleNamespace:
        return SimpleNamespace(half_width=0.08 * wide.get(requests // MANY, 0.0))

    monkeypatch.setattr(_Known, "trial", trial)
    assert player.lasting(2 * (1 - idle), instances) == times * MANY


def test_a_rate_is_reached_up_to_the_capacity_on_the_grid_or_the_most() -> None:
    """A rate at its limit keeps it; one between two of the grid counts as the one above, or as the most there is."""
    player = _Known.of(1.0 + 0.4 * STEP)
    assert player.keeps(1.0 + 0.4 * STEP) and not player.keeps(1.0 + 0.6 * STEP)
    assert player.reaches(0.9, 1, lambda: 0.9) and not player.reaches(0.9, 1, lambda: 0.899)
    between = 1.0 + 0.2 * STEP
    found = [player.reaches(between, 1, lambda most=most: 1.0 + most * STEP) for most in (0.1, 0.2, 0.3, 0.5, 1.1)]
    assert found == [False, True, True, False, False]
    few = _Known.of()
    assert few.keeps(0.5, few=False) and {requests for _, _, requests in few._trials} == {MANY}
    assert few.keeps(0.6) and {requests for _, _, requests in few._trials} == {FEW, MANY}


def test_what_is_told_of_a_capacity_is_of_all_instances() -> None:
    """Before its interval is known the rate alone; it ends with the most that all carry, and spares count."""
    player = _Known.of()
    assert player.told(0.5, 3, (0.6, 9.0)).requests_per_second == pytest.approx((1.8, 1.8))
    found = player.capacity(2.0, 3)
    each, rate = found.rate_per_second, 3 * found.rate_per_second
    told = player.told(each / 2, 3, (each, 9.0))
    assert told.requests_per_second == pytest.approx((3 * found.low, 3 * found.high)) and told.requests == 0.8 * MANY
    assert player.told(each / 2, 4, (each, 9.0)).requests_per_second == pytest.approx((4 * found.low, 4 * found.high))
    assert player.told(each, 3, (each, 0.5)).requests_per_second == pytest.approx((0.5, rate))


def test_a_stream_fills_the_steps_of_its_pool_and_a_trace_is_played_whole() -> None:
    """25 full steps; of more instances than requests as many as those are dealt the trace."""
    assert [len(_Known.of(at_once=number).stream(FEW)) for number in (100, 101, 201)] == [2500, 5000, 10_000]
    rows = TraceRows(arrival_seconds=[0, 1, 2], input_tokens=[5, 5, 5], output_tokens=[2, 2, 2])
    law = Lengths(mean=5)
    player = _Known.of(workload=Workload(input_tokens=law, output_tokens=law, trace=rows))
    found = player.trial(1.0, 5, FEW)
    assert found.whole and found.outcome.ttft_seconds.size == 3 and player.trial(1.0, 5) is found
    assert found.excess == player.trial(1.0, 3).excess
    small = PrefillPool(times=_player(0.0, 1.0).pool.times, ranks=1, budget_tokens=500)
    assert PlayedPrefill.of(small, _player(0.0, 1.0).workload, Limits(percentile=99.0), 40_000.0).at_once == 1
