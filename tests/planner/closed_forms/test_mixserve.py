"""MixServe's queueing on podplan's service times: its equations, the tail of M/M/1, and saturation."""

import math

import pytest

from planner.closed_forms.mixserve import full_batch_state, memoryless_ttft, stream_tokens_per_second
from planner.instances.operating import DecodeServer, PrefillServer
from planner.workload import Lengths
from tests.questions import small_answer


@pytest.mark.parametrize("rho", [0.05, 0.5, 0.9])
def test_the_mean_is_the_paper_s(rho: float) -> None:
    """Eq. (9) with the wait of Eq. (7), both on passes."""
    prompts, seconds = 8, 0.4
    found = memoryless_ttft(rho * prompts / seconds, prompts, seconds)
    assert found is not None
    assert found.mean == pytest.approx(rho / (1 - rho) * seconds + seconds)


def test_the_tail_is_that_of_the_m_m_1_queue() -> None:
    """1 - rho of the passes do not wait; the others' wait is exponential with the mean service/(1 - rho)."""
    found = memoryless_ttft(0.8, 1, 1.0)
    assert found is not None
    assert found.at(15) == 1.0
    assert found.at(60) == pytest.approx(1 + 5 * math.log(2))
    assert found.at(99) == pytest.approx(1 + 5 * math.log(80))
    assert found.at(99.99) == pytest.approx(1 + 5 * math.log(8000), rel=0.001)


def test_nothing_keeps_up_from_saturation_on() -> None:
    """A pass of 8 prompts in 0.4 s takes 20 prompts a second, and no more."""
    assert memoryless_ttft(20.0, 8, 0.4) is None
    assert full_batch_state(10.0, Lengths(mean=100), (10.0, 0.03), 0.0, 1.0) is None


def test_decode_goes_at_the_speed_of_the_full_batch() -> None:
    """Eq. (10), at any rate; 1.7 tokens an iteration; requests in decode by Little's law."""
    found = full_batch_state(5.0, Lengths(mean=100), (10.0, 0.034), 0.1, 1.7)
    assert found is not None
    assert found.tpot.mean == found.tpot.at(99.99) == pytest.approx(0.02)
    assert found.span.mean == pytest.approx(3.5)
    assert found.mean_requests == pytest.approx(17.0)
    assert found.utilisation == 0.5


def test_the_throughput_of_a_stream_is_equation_11() -> None:
    """(L_in + L_out) / (W + prefill + L_out decode)."""
    assert stream_tokens_per_second((1000.0, 200.0), 2.0, 0.02) == pytest.approx(1200 / 6)


def test_a_plan_made_with_it_keeps_its_limits() -> None:
    """Both pools by its equations, below saturation, and sized for what it serves it takes no more devices."""
    best = small_answer(queueing="mixserve").best
    assert best is not None
    question, rate = best.question, best.requests_per_second
    assert best.ttft.at(99) <= question.ttft_seconds
    assert best.tpot.mean == pytest.approx(best.decode.candidate.iteration_seconds)
    server = PrefillServer(question, best.prefill.candidate)
    assert server.ttft(rate / best.prefill.instances) == best.ttft
    decode = DecodeServer(question, best.decode.candidate, best.transfer_seconds)
    assert decode.pool_capacity(best.decode.instances) >= rate * (1 - 1e-9)
    sized = small_answer(queueing="mixserve", objective="chips", rate_per_second=rate * 0.999).best
    assert sized is not None
    assert sized.devices <= best.devices
