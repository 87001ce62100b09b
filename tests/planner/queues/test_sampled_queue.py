"""The queue by a sample: against answers that are known, long streams, and what must hold of any queue."""

from functools import cache

import numpy as np
import pytest

from planner.balance.imbalance import parse_balance
from planner.costs.latency import balanced_cost
from planner.queues.machine import Machine, pass_durations
from planner.queues.pass_surface import PassSurface
from planner.queues.passes import varied_service
from planner.queues.prefill_queue import latency_of
from planner.queues.prompts import Prompts, length_kinds
from planner.queues.queueing import Array, between, pollaczek_khinchine_wait
from planner.queues.recorded_prefill import prefill_recorded
from planner.queues.sampled_passes import Lanes, PassRecursion, Streams
from planner.queues.sampled_queue import SampledQueue
from planner.serving.latency import Latency
from planner.workload import Lengths, Trace
from tests.instances import instance


def _machine(ranks: int, budget: float, hardware: str = "h800") -> Machine:
    degrees = {"attention_dp": ranks, "moe_ep": ranks} if ranks > 1 else {}
    deployment = instance("qwen3-30b-a3b", hardware, "prefill", "bf16", **degrees)
    return Machine(balanced_cost(deployment, parse_balance("perfect")), ranks, budget, 1)


def _seconds(machine: Machine, tokens: float, prompts: int) -> float:
    """A pass of so many equal prompts on each group."""
    ones = np.ones(1) * prompts
    load = (ones * tokens, 0 * ones, ones * tokens * (tokens + 1) / 2, ones)
    return float(pass_durations(machine, load, ones * tokens)[0])


def _equal(machine: Machine, tokens: float) -> SampledQueue:
    alone = _seconds(machine, tokens, 1)
    return SampledQueue(machine, Prompts(np.array([tokens]), np.zeros(1), np.ones(1)), np.array([alone]))


@cache
def _varied(hardware: str = "h800") -> SampledQueue:
    return _new_varied(hardware)


def _new_varied(hardware: str = "h800") -> SampledQueue:
    tokens, weights = length_kinds(Lengths(mean=2048, squared_cv=1.0))
    found = varied_service(_machine(4, 4096.0, hardware), Prompts(tokens, np.zeros_like(tokens), weights)).sample
    assert isinstance(found, SampledQueue)
    return found


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
def test_passes_of_one_equal_prompt_are_m_d_1(load: float) -> None:
    """Mean TTFT within 1.5 % of Pollaczek and Khinchine's wait and the pass."""
    machine = _machine(1, 2000.0)
    alone = _seconds(machine, 2000.0, 1)
    found = _equal(machine, 2000.0).ttft(load / alone, 1.0)
    assert found is not None
    assert found.mean == pytest.approx(alone + pollaczek_khinchine_wait(load / alone, alone, 0.0), rel=0.015)


@pytest.mark.parametrize("squared_cv", [0.5, 1.0])
def test_equal_prompts_on_one_group_are_those_of_the_chain(squared_cv: float) -> None:
    """Passes of up to four: mean within 2 %, 99th percentile within 6 %."""
    machine, prompts = _machine(1, 8000.0), Prompts(np.array([2000.0]), np.zeros(1), np.ones(1))
    service = varied_service(machine, prompts)
    assert service.sample is None
    queue = _equal(machine, 2000.0)
    for load in (0.4, 0.7, 0.85):
        rate = load * service.saturation_per_second
        chain, found = latency_of(service, rate, squared_cv), queue.ttft(rate, squared_cv)
        assert chain is not None
        assert found is not None
        assert found.mean == pytest.approx(chain.mean, rel=0.02)
        assert found.p99 == pytest.approx(chain.p99, rel=0.06)


def test_saturation_of_equal_prompts_is_that_of_full_passes() -> None:
    """Three prompts on each of four groups: twelve a pass."""
    machine = _machine(4, 6000.0)
    assert _equal(machine, 2000.0).saturation_per_second == pytest.approx(12 / _seconds(machine, 2000.0, 3), rel=0.005)


def test_it_is_a_long_stream_of_cut_prompts() -> None:
    """Log-normal prompts of CV 1 at budgets of two means on four groups, 30,000 of another seed: mean within 6 %."""
    machine, queue = _machine(4, 4096.0), _varied()
    rate = 0.7 * queue.saturation_per_second
    tokens, weights = length_kinds(Lengths(mean=2048, squared_cv=1.0))
    rng = np.random.default_rng(11)
    arrivals = np.cumsum(rng.exponential(1 / rate, 30_000))
    drawn = np.rint(rng.choice(tokens, arrivals.size, p=weights))
    trace = Trace(arrival_seconds=arrivals, input_tokens=drawn, output_tokens=np.ones(arrivals.size))
    waited = prefill_recorded(machine, 1, "round_robin", trace).first_token_seconds - arrivals
    found = queue.ttft(rate, 1.0)
    assert found is not None
    assert found.mean == pytest.approx(waited[2000:].mean(), rel=0.06)
    assert found.p90 == pytest.approx(np.quantile(waited[2000:], 0.9), rel=0.08)


def test_ttft_rises_with_the_rate_and_ends_at_saturation() -> None:
    """The mean and every percentile, from next to nothing to all there is; none beyond."""
    queue = _varied()
    found = [queue.ttft(load * queue.saturation_per_second, 1.0) for load in np.linspace(0.0, 0.99, 23)]
    told = np.array([[each.mean, *each.seconds] for each in found if each is not None])
    assert told.shape[0] == len(found)
    assert (np.diff(told, axis=0) >= 0).all()
    assert queue.ttft(queue.saturation_per_second, 1.0) is None


def test_evener_arrivals_wait_less() -> None:
    """Squared CV of gaps 0.25, 1, 4 at the same rate."""
    queue = _varied()
    told = [queue.ttft(0.8 * queue.saturation_per_second, squared_cv) for squared_cv in (0.25, 1.0, 4.0)]
    means = [each.mean for each in told if each is not None]
    assert means == sorted(means)
    assert len(means) == 3


def test_answers_do_not_depend_on_what_was_asked_before() -> None:
    """The same rates in another order, of another object: the same to the last digit."""
    one, other = _new_varied(), _new_varied()
    rates = [load * one.saturation_per_second for load in (0.55, 0.9, 0.2)]
    told = {rate: one.ttft(rate, 0.5) for rate in rates}
    assert {rate: other.ttft(rate, 0.5) for rate in reversed(rates)} == told


def test_quicker_links_make_no_longer_waits() -> None:
    """An H100 is an H800 with more bandwidth between GPUs: at the same rate nobody waits longer."""
    slow, quick = _varied(), _varied(hardware="h100")
    for load in (0.3, 0.6, 0.8, 0.9):
        rate = load * slow.saturation_per_second
        longer, shorter = slow.ttft(rate, 1.0), quick.ttft(rate, 1.0)
        assert longer is not None
        assert shorter is not None
        assert shorter.mean <= longer.mean
        assert shorter.p99 <= longer.p99


def test_passes_that_several_groups_share_are_sampled() -> None:
    """One group has its chain, and so have passes of more than 512 prompts."""
    tokens, weights = length_kinds(Lengths(mean=2048, squared_cv=1.0))
    prompts = Prompts(tokens, np.zeros_like(tokens), weights)
    assert varied_service(_machine(1, 4096.0), prompts).sample is None
    assert varied_service(_machine(4, 524_288.0), prompts).sample is None
    assert varied_service(_machine(4, 131_072.0), prompts).sample is not None
    assert varied_service(_machine(4, 4096.0), prompts).sample is not None


HISTOGRAM = Prompts(
    np.array([128.0, 512.0, 2048.0, 8192.0, 32_000.0]), np.zeros(5), np.array([0.28, 0.38, 0.22, 0.11, 0.01])
)


def _streams(machine: Machine, prompts: Prompts, load: float, seed: int) -> tuple[float, Array]:
    """Return a rate at a load of full passes, and TTFT of random streams that settled, [streams, prompts]."""
    recursion = PassRecursion(machine, prompts, PassSurface(machine, float(prompts.tokens.max())))
    rng, streams, settle, prompts_each = np.random.default_rng(seed), 256, 1500, 500
    kinds = rng.choice(prompts.weights.size, (streams, settle + prompts_each), p=prompts.weights)
    none, ones = np.zeros(streams, dtype=np.int64), np.ones(streams)

    def ends(arrivals: Array, rate: float, first: int) -> Array:
        all_of = (np.arange(streams), ones * rate, 0 * ones, none, none + first, none + kinds.shape[1])
        return recursion.finished(Streams.of(arrivals, kinds, machine.ranks), Lanes(*all_of))

    rate = load * kinds.shape[1] / float(ends(np.zeros(kinds.shape), 1.0, 0).max(axis=1).mean())
    arrivals = np.cumsum(rng.exponential(1.0, kinds.shape), axis=1)
    return rate, ends(arrivals, rate, settle) - arrivals[:, settle:] / rate


@pytest.mark.parametrize(("ranks", "budget"), [(2, 8192.0), (4, 32_768.0)])
def test_a_histogram_is_as_streams_that_have_settled(ranks: int, budget: float) -> None:
    """Prompts of four passes, and all within one: mean of 128,000 prompts at 0.8 within 8 % and p99 within 20 %."""
    machine = _machine(ranks, budget)
    queue = varied_service(machine, HISTOGRAM).sample
    assert queue is not None
    rate, waits = _streams(machine, HISTOGRAM, 0.8, 23)
    found = queue.ttft(rate, 1.0)
    assert found is not None
    assert found.mean == pytest.approx(waits.mean(), rel=0.08)
    assert found.p99 == pytest.approx(np.quantile(waits, 0.99), rel=0.2)


def test_what_prompts_add_to_full_passes_is_what_these_take() -> None:
    """Mean seconds of a prompt are those of saturation; longer ones add more, short ones far less than alone."""
    machine = _machine(2, 8192.0)
    queue = varied_service(machine, HISTOGRAM).sample
    assert isinstance(queue, SampledQueue)
    work = queue.work_seconds
    assert work @ HISTOGRAM.weights == pytest.approx(1 / queue.saturation_per_second)
    assert (np.diff(work) > 0).all()
    assert work[0] < 0.3 * _seconds(machine, 128.0, 1)


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_who_waits_in_line_waits_for_the_first_token(load: float) -> None:
    """The wait alone is shorter on average, and at p99 no more than a fifth beyond TTFT."""
    for queue in (_varied(), varied_service(_machine(4, 32_768.0), HISTOGRAM).sample):
        assert isinstance(queue, SampledQueue)
        rate = load * queue.saturation_per_second
        wait, found = queue.least_wait(rate, 1.0), queue.ttft(rate, 1.0)
        assert wait is not None
        assert found is not None
        assert wait.mean < found.mean
        assert wait.p99 < 1.2 * found.p99


def test_its_error_is_told() -> None:
    """Standard error of the mean: some parts in a hundred at 0.85, never nothing."""
    queue = _varied()
    assert 0.001 < queue.error(0.85 * queue.saturation_per_second, 1.0) < 0.05


def test_between_two_rates_one_over_seconds_is_straight() -> None:
    """Halfway from 1 to 3 s it is 1.5; what falls by chance stays."""
    low = Latency(mean=1.0, levels=(50.0,), seconds=(2.0,))
    high = Latency(mean=3.0, levels=(50.0,), seconds=(1.9,))
    found = between(low, high, 0.5)
    assert (found.mean, found.seconds) == (pytest.approx(1.5), (2.0,))


def test_the_node_below_a_rate_is_below_what_is_told_of_it() -> None:
    """At every level, so that what is late there need not be told at the rate; nothing beyond saturation."""
    queue = _varied()
    for load in (0.05, 0.4, 0.55, 0.9):
        rate = load * queue.saturation_per_second
        below, told = queue.least_ttft(rate, 0.25), queue.ttft(rate, 0.25)
        assert below is not None and told is not None
        assert all(below.at(level) <= told.at(level) * (1 + 1e-9) for level in (50.0, 90.0, 99.0))
    assert queue.least_ttft(queue.saturation_per_second, 0.25) is None
