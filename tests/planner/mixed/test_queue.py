"""Aggregated instances under open arrivals: limits, conservation, oracles, and the reference runtime."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.costs.deployment import Deployment
from planner.manifest.layout import Degrees, Instance
from planner.manifest.schema import Routing
from planner.manifest.terms import ComputeTerm, StepCost
from planner.mixed.chain import PromptState, rank_state
from planner.mixed.even import gap_beyond, wait_share, with_mates
from planner.mixed.occupancy import occupancy
from planner.mixed.pace import Pace
from planner.mixed.queue import MixedQueue
from planner.mixed.ranks import ranks_state
from planner.mixed.server import MOST_UTILISATION, MixedServer
from planner.mixed.steps import Aggregate, StepTable, step_seconds
from planner.serving.closed_forms.birth_death import decode_state
from planner.strategy import Strategy
from planner.workload import Lengths, Workload
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import open_loop
from tests.manifests import build, cost, pool
from tests.questions import small_question


def _aggregate(ranks: int = 1, budget: float = 1024.0, **more: float) -> Aggregate:
    """Return a made-up instance: prompts of 512 tokens and answers of 128, 64 places on a rank."""
    workload = Workload(
        input_tokens=Lengths(mean=more.get("prompt", 512.0), squared_cv=more.get("prompt_cv2", 0.0)),
        output_tokens=Lengths(mean=more.get("answer", 128.0), squared_cv=more.get("answer_cv2", 0.0)),
    )
    return Aggregate(
        cost=cost(Degrees(attention_tp=1, attention_dp=ranks, moe_ep=ranks), 16 / ranks),
        workload=workload,
        ranks=ranks,
        budget_tokens=budget,
        most_requests=int(more.get("most", 64)),
    )


@cache
def _queue(ranks: int = 1, budget: float = 1024.0) -> MixedQueue:
    return MixedQueue(_aggregate(ranks, budget))


def _constant(ranks: int, seconds: float = 0.01) -> StepCost:
    """Return a step that always takes as long."""
    term = ComputeTerm("step", "head", {"one": 1e-12}, {"one": 1.0}, 1.0 / seconds, {}, 1.0, 0.0)
    plain = cost(Degrees(attention_tp=1, attention_dp=ranks, moe_ep=ranks), 16 / ranks)
    return replace(plain, terms=(), head_terms=(term,), draft_terms=(), dense_layers=1, moe_layers=0, host_seconds=0.0)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.85])
def test_requests_are_conserved(ranks: int, utilisation: float) -> None:
    """Little's law: running requests are the rate times the steps of an answer times their mean duration."""
    queue = _queue(ranks)
    rate = utilisation * queue.saturation_per_second
    state = queue.state(rate)
    assert state is not None
    assert state.mean_requests == pytest.approx(rate * 127 * state.mean_step_seconds)
    assert state.span.mean == pytest.approx(127 * state.tpot.mean)
    assert state.e2e.mean == pytest.approx(state.ttft.mean + state.span.mean)
    assert 0 < state.prompt_steps < 1


@pytest.mark.parametrize("ranks", [1, 4])
def test_more_load_never_helps(ranks: int) -> None:
    """TTFT, TPOT and running requests rise with the rate; past saturation there is no balance."""
    queue = _queue(ranks)
    found = [queue.state(part * queue.saturation_per_second) for part in (0.02, 0.2, 0.4, 0.6, 0.8)]
    states = [state for state in found if state is not None]
    assert len(states) == 5
    for one, other in pairwise(states):
        assert other.mean_requests > one.mean_requests
        assert other.tpot.mean > one.tpot.mean
        assert other.tpot.p99 > one.tpot.p99
        assert other.ttft.mean > one.ttft.mean
        assert other.utilisation > one.utilisation
    assert queue.state(queue.saturation_per_second * 1.05) is None


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([1, 2, 8]), st.floats(40, 4000), st.floats(20, 2000), st.floats(64, 4096))
def test_no_saturation_passes_the_bound(ranks: int, prompt: float, answer: float, budget: float) -> None:
    """Steps of any mix lie above the hull, so what requests wait for forever lies at or below ``most_per_second``."""
    queue = MixedQueue(_aggregate(ranks, budget, prompt=prompt, answer=answer))
    assert 0 < queue.saturation_per_second <= queue.most_per_second * (1 + 1e-9)
    low = queue.state(0.5 * queue.saturation_per_second)
    assert low is not None
    assert low.utilisation < 1


def test_full_steps_are_the_saturation_of_small_budgets() -> None:
    """A budget B that feeds n = I B / (p + I) requests: room B - n, a prompt takes p / room steps."""
    queue = _queue(budget=64.0)
    running = 127 * 64 / (512 + 127)
    full = step_seconds(queue.aggregate, *(np.array([x]) for x in (running, 64 - running, 64 - running)))
    assert queue.saturation_per_second == pytest.approx((64 - running) / 512 / float(full[0]), rel=0.01)
    state = queue.state(0.9 * queue.saturation_per_second)
    assert state is not None
    assert state.utilisation == pytest.approx(0.9)


def test_without_prompts_it_is_the_decode_queue() -> None:
    """Prompts of one token leave only decode: occupancy and TPOT of ``serving.closed_forms.birth_death``."""
    aggregate = _aggregate(prompt=1.0, answer=600.0)
    queue = MixedQueue(aggregate)
    rate = 0.5 * queue.saturation_per_second
    state = queue.state(rate)
    decode = decode_state(
        arrival_rate_per_second=rate,
        iterations_per_request=aggregate.iterations,
        iteration_seconds=lambda n: step_seconds(aggregate, n, 0 * n, 0 * n),
        most_requests=64,
    )
    assert state is not None and decode is not None
    assert state.mean_requests == pytest.approx(decode.mean_requests, rel=0.03)
    assert state.tpot.mean == pytest.approx(decode.tpot.mean, rel=0.03)
    assert state.tpot.p99 == pytest.approx(decode.tpot.p99, rel=0.05)


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_one_prompt_a_step_is_m_d_1_with_vacations(load: float) -> None:
    """Steps S that take one prompt each and never pause: rest S/2, wait load S / (2 (1 - load)), own step S.

    Ref: S. W. Fuhrmann and R. B. Cooper, Stochastic decompositions in the M/G/1 queue with generalized vacations,
    Operations Research 33:1117, 1985.
    """
    aggregate = replace(_aggregate(budget=513.0), cost=_constant(1))
    state = rank_state(StepTable(aggregate), 1.0, load / 0.01, 1.0)
    assert state is not None
    assert state.mean_step_seconds == pytest.approx(0.01, rel=1e-3)
    assert state.prompt_steps == pytest.approx(load, rel=0.02)
    assert state.mean_sojourn_seconds == pytest.approx(0.015 + load * 0.01 / (2 * (1 - load)), rel=0.03)


def test_many_ranks_wait_for_the_step_only() -> None:
    """Constant steps, 32 ranks and few prompts: half a step and as many as a prompt has parts."""
    for budget, parts in ((514.0, 1), (258.0, 2), (130.0, 4)):
        aggregate = replace(_aggregate(32, budget), cost=_constant(32))
        state = ranks_state(StepTable(aggregate), 32.0, 300.0, 1.0)
        assert state is not None
        assert state.mean_sojourn_seconds == pytest.approx(0.01 * (0.5 + parts), rel=0.02)


def test_one_token_has_no_time_per_token() -> None:
    """An answer that ends with its first token is limited by TTFT alone, however long the steps are."""
    state = MixedQueue(_aggregate(answer=1.0)).state(10.0)
    assert state is not None
    assert state.tpot.mean == state.tpot.at(99) == state.span.at(99) == 0
    assert state.e2e.mean == state.ttft.mean > 0


def test_steps_without_prompts_are_those_without_arrivals() -> None:
    """With a constant step and few prompts, steps without any are those in which none came: exp(-rate S)."""
    aggregate = replace(_aggregate(4, 514.0), cost=_constant(4))
    state = ranks_state(StepTable(aggregate), 4.0, 60.0, 1.0)
    assert state is not None
    assert state.prompt_steps == pytest.approx(1 - np.exp(-0.6), rel=0.01)


def test_even_arrivals_wait_less() -> None:
    """Arrivals dealt in turn to ten instances meet shorter queues than at random."""
    queue = _queue(budget=64.0)
    rate = 0.9 * queue.saturation_per_second
    even, random = queue.state(rate, 0.1), queue.state(rate, 1.0)
    assert even is not None and random is not None
    assert even.ttft.p99 < random.ttft.p99
    assert even.tpot.p99 < random.tpot.p99


def test_even_arrivals_shorten_no_step_below_one_alone() -> None:
    """At a low rate hardly any request meets another's prompt, however the arrivals are spread."""
    queue = _queue()
    rate = 0.01 * queue.most_per_second
    even, drawn = (queue.state(rate, squared_cv) for squared_cv in (0.2, 1.0))

    assert even is not None and drawn is not None
    assert even.mean_step_seconds == pytest.approx(drawn.mean_step_seconds, rel=0.02)
    assert float(queue.table.alone[1]) * (1 - 1e-6) <= even.mean_step_seconds <= drawn.mean_step_seconds


def test_bursts_wait_longer() -> None:
    """Arrivals of dispersion 4 come three at a time: longer TTFT and TPOT at the same rate."""
    queue = _queue()
    rate = 0.4 * queue.saturation_per_second
    random, bursts = queue.state(rate, 1.0), queue.state(rate, 4.0)
    assert random is not None and bursts is not None
    assert bursts.ttft.mean > 1.2 * random.ttft.mean
    assert bursts.tpot.mean > random.tpot.mean
    assert with_mates(np.array([[1.0, 0.0, 0.0]]), 1.0)[0] == pytest.approx([0.5, 0.25, 0.25])


def test_far_too_few_places_have_no_balance() -> None:
    """A thousand requests would run at once, and five have places."""
    empty = PromptState(
        mean_step_seconds=0.01,
        step_variance=0.0,
        prompt_steps=0.0,
        sojourn=lambda: (np.zeros(1), np.ones(1)),
        per_prompt=lambda: 0.0,
    )
    assert occupancy(100_000.0, np.array([1000.0]), [empty], 5.0, 0.0) is None
    some = occupancy(100.0, np.array([1.0]), [empty], 5.0, 0.0)
    assert some is not None
    assert some.mean == pytest.approx(1.0, rel=0.01)  # M/M/5 with an offered load of 1


def test_few_places_make_requests_wait_before_their_prompt() -> None:
    """A wait for room is part of TTFT, not of TPOT."""
    queue = MixedQueue(_aggregate(most=8))
    state = queue.state(0.9 * queue.saturation_per_second)
    assert state is not None
    assert state.waiting_probability > 0.1
    chains = state.ttft.mean - state.mean_wait_seconds
    assert chains > 0.005
    assert state.tpot.mean == pytest.approx(state.mean_step_seconds)


def test_pace_varies_by_running_requests_by_prompts_and_by_both() -> None:
    """Fixed answers, no feedback: V (2/3) and the prompts of a residence, as sums by hand."""
    steps = Lengths(mean=100.0)
    only = Pace(
        rate_per_second=2.0,
        step_seconds=0.02,
        running=4.0,
        running_variance=4.0,
        slope=1e-9,
        per_prompt=0.1,
        work_squared_cv=0.0,
        bare=(np.array([0.0, 64.0]), np.array([0.01, 0.01])),
        step_variance=4e-4,
    )
    one = np.ones(1)
    # 4 prompts come in a residence of 2 s; each delays it by 0.1 s, a step by 1 ms: variance 4 · 1e-6.
    assert float(only.variance(one, steps)[0]) == pytest.approx(4e-6, rel=1e-3)
    running = replace(only, slope=1e-4, per_prompt=0.0)
    assert float(running.variance(one, steps)[0]) == pytest.approx(1e-8 * 4 * 2 / 3, rel=0.03)
    assert float(replace(only, slope=1e-4).variance(one, steps)[0]) > 4e-6 + 1e-8 * 4 * 2 / 3


@pytest.mark.parametrize(
    ("answer", "busy", "squared_cv"), [(4, 0.5, 0.0), (16, 0.8, 0.0), (16, 0.5, 1.0), (64, 0.8, 1.0)]
)
def test_requests_run_among_the_prompts_behind_their_own(answer: int, busy: float, squared_cv: float) -> None:
    """Steps of 10 ms and of what came in the step before, played: those behind a prompt are as much longer as told."""
    rate, bare, rng = 10.0, 0.01, np.random.default_rng(3)
    each, steps = busy / rate, 400_000
    seconds, ended = np.full(steps, bare), np.zeros(steps)
    shape = 1 / squared_cv if squared_cv else 0.0
    for step in range(1, steps):
        came = rng.poisson(rate * seconds[step - 1])
        ended[step] = came
        if came:
            seconds[step] += each * (rng.gamma(shape * came) / shape if shape else came)
    mean, until = seconds.mean(), np.append(0.0, np.cumsum(seconds))
    behind = (until[1 + answer :] - until[1:-answer]) / answer
    told = Pace(
        rate_per_second=rate,
        step_seconds=bare / (1 - busy),
        running=1.0,
        running_variance=1.0,
        slope=0.0,
        bare=(np.array([0.0, 64.0]), np.array([bare, bare])),
        per_prompt=each / (1 - busy),
        work_squared_cv=squared_cv,
        step_variance=rate * bare / (1 - busy) * each**2 * (1 + squared_cv) / (1 - busy**2),
    )
    found = float(behind @ ended[: behind.size]) / float(ended[: behind.size].sum()) / mean
    assert found > 1.05
    assert told.seen_longer(Lengths(mean=float(answer))) == pytest.approx(found, rel=0.04)


def _measured(
    ranks: int, budget: int, rate: float, requests: int = 2000, **workload: float
) -> tuple[dict[str, float], MixedQueue]:
    """Return means and p99 of the runtime, and the queue of the same instance."""
    degrees = Degrees(attention_tp=1, attention_dp=ranks, moe_ep=ranks)
    limits = {"requests_per_dp_rank": 64, "tokens_per_device": budget}
    made = build([pool("mixed", degrees, [Instance(name="m", nodes=[0])], limits=limits, microbatches=1)], workload)
    made = made.model_copy(update={"routing": Routing(prefill="round_robin", decode="round_robin")})
    stream = open_loop(made.workload, rate, requests, 5)
    last = float(stream.arrival_seconds[-1])
    result = simulate(made, stream, SimulationOptions(warmup_seconds=0.1 * last, measured_until_seconds=0.95 * last))
    ttft, tpot = result.ttft_seconds, result.tpot_seconds
    assert ttft is not None and tpot is not None
    planned = made.workload
    aggregate = Aggregate(
        cost=made.pools[0].step_costs["mixed"].to_step_cost(),
        workload=Workload(
            input_tokens=Lengths(mean=planned.input_tokens, squared_cv=planned.input_cv2),
            output_tokens=Lengths(mean=planned.output_tokens, squared_cv=planned.output_cv2),
        ),
        ranks=ranks,
        budget_tokens=float(budget),
        most_requests=64,
    )
    figures = {"ttft": ttft.mean, "ttft p99": ttft.p99, "tpot": tpot.mean, "tpot p99": tpot.p99}
    return figures, MixedQueue(aggregate)


@pytest.mark.parametrize(
    ("ranks", "budget", "rate", "workload"),
    [(1, 256, 10.0, {}), (4, 384, 70.0, {}), (1, 1024, 10.0, {"input_cv2": 0.5, "output_cv2": 0.5})],
)
def test_against_the_runtime(ranks: int, budget: int, rate: float, workload: dict[str, float]) -> None:
    """Mean TTFT within 10 %, its p99 within 20 %, TPOT within 5 %: one rank and four, equal lengths and varied."""
    measured, queue = _measured(ranks, budget, rate, output_tokens=512, **workload)
    state = queue.state(rate)
    assert state is not None
    assert 0.3 < state.utilisation < 0.9
    assert state.ttft.mean == pytest.approx(measured["ttft"], rel=0.1)
    assert state.ttft.p99 == pytest.approx(measured["ttft p99"], rel=0.2)
    assert state.tpot.mean == pytest.approx(measured["tpot"], rel=0.05)
    assert state.tpot.p99 == pytest.approx(measured["tpot p99"], rel=0.1)


@pytest.mark.parametrize(("answer", "rate"), [(8, 25.0), (32, 15.0), (32, 25.0)])
def test_short_answers_run_among_prompts(answer: int, rate: float) -> None:
    """Answers no longer than a few prompts: mean TPOT and its p99 within 12 %, two to six times a step on average."""
    measured, queue = _measured(1, 1500, rate, 8000, input_tokens=1024, output_tokens=answer)
    state = queue.state(rate)
    assert state is not None
    assert 0.4 < state.utilisation < 0.9
    assert state.tpot.mean == pytest.approx(measured["tpot"], rel=0.12)
    assert state.tpot.p99 == pytest.approx(measured["tpot p99"], rel=0.12)


@pytest.mark.parametrize(("answer", "utilisation"), [(4, 0.3), (8, 0.8), (64, 0.8)])
def test_no_request_is_quicker_than_a_bare_step_nor_slower_than_a_full_one(answer: int, utilisation: float) -> None:
    """Whatever a request meets, its steps lie between that of one request alone and a full one."""
    queue = MixedQueue(_aggregate(answer=answer))
    state = queue.state(utilisation * queue.saturation_per_second)
    assert state is not None
    bare = float(queue.table.seconds(1.0, np.zeros(1), np.zeros(1))[0])
    assert state.tpot.at(0.5) >= bare * (1 - 1e-9)
    assert state.tpot.at(99.9) <= float(queue.table.mixed[-1, -1, -1])


@dataclass(frozen=True)
class _Candidate:
    deployment: Deployment
    batch: int
    batched_tokens: int
    microbatches: int = 1


def _server(tpot_seconds: float = 0.05, ttft_seconds: float = 1.0) -> MixedServer:
    question = small_question(
        model="qwen3-8b", hardware="h100", devices=8, tpot_seconds=tpot_seconds, ttft_seconds=ttft_seconds
    )
    machines = question.decode
    deployment = Deployment(
        model=question.model, hardware=machines.hardware, strategy=Strategy(), phase="mixed", weights=machines.weights
    )
    return MixedServer(question, _Candidate(deployment, 64, 2048))


@pytest.mark.parametrize(("tpot_seconds", "ttft_seconds"), [(0.015, 1.0), (0.05, 0.12), (0.05, 1.0)])
def test_capacity_keeps_the_limits_and_no_more_is_carried(tpot_seconds: float, ttft_seconds: float) -> None:
    """Both percentiles, and 80 % of saturation: one of the three is just met."""
    server = _server(tpot_seconds, ttft_seconds)
    rate = server.pool_capacity(1)
    state = server.state(rate)
    assert state is not None
    most = MOST_UTILISATION * server.queue.most_per_second
    shares = (state.tpot.p99 / tpot_seconds, state.ttft.p99 / ttft_seconds, rate / most)
    assert 0.95 < max(shares) <= 1
    assert server.pool_carries(1, 0.99 * rate)
    assert not server.pool_carries(1, 1.05 * rate)


def test_instances_that_take_turns_carry_more_than_one_each() -> None:
    """Evener arrivals: four instances carry at least four times what one does within a tight TTFT."""
    server = _server(ttft_seconds=0.12)
    assert not server.independent
    assert server.pool_capacity(4) > 4 * server.pool_capacity(1)


def test_no_rate_keeps_a_limit_below_one_step() -> None:
    """A TPOT shorter than a step of one request is out of reach."""
    assert _server(tpot_seconds=0.001).pool_capacity(1) == 0


def test_gaps_of_phases() -> None:
    """Exponential gaps, and Erlang gaps of mean 1: exp(-2x)(1 + 2x)."""
    places = np.array([0.0, 0.5, 2.0])
    assert gap_beyond(places, 1) == pytest.approx(np.exp(-places))
    assert gap_beyond(places, 2) == pytest.approx(np.exp(-2 * places) * (1 + 2 * places))
    assert wait_share(0.7, 1.0, 0.4) == pytest.approx(1.0)


def test_tails_do_not_leap_with_the_rate() -> None:
    """Prompts cut into dozens of parts on eight ranks: TPOT's p99 rises by little from rate to rate, and never falls
    far, though other states are told apart from some rates on.
    """
    queue = MixedQueue(_aggregate(8, 256.0, prompt=6000.0, answer=128.0, prompt_cv2=1.0))
    rates = np.linspace(0.3, 0.6, 13) * queue.most_per_second
    tails = [state.tpot.p99 for state in map(queue.state, rates) if state is not None]
    assert len(tails) == 13
    assert all(0.95 < other / one < 1.15 for one, other in pairwise(tails))
