"""MixServe's equations against executed collectives and each other, and its queueing's tail and saturation."""

import math

import pytest

from planner.closed_forms import mixserve
from planner.closed_forms.mixserve import (
    Line,
    Links,
    Shape,
    full_batch_state,
    memoryless_ttft,
    stream_tokens_per_second,
)
from planner.instances.operating import DecodeServer, PrefillServer
from planner.workload import Lengths
from tests.questions import best_of

# Section IV-A. H20: NVLink 450 GB/s one way, shared by the 7 pairs of a server; InfiniBand 400 Gbit/s.
H20 = Links(intra=mixserve.port_line(5e-6, 450e9, 8), inter=mixserve.line(10e-6, 50e9))
# 910B: HCCS full mesh, 480 Gbit/s of both directions and so 30 GB/s one way per pair; RoCE 200 Gbit/s.
ASCEND_910B = Links(intra=mixserve.line(5e-6, 30e9), inter=mixserve.line(10e-6, 25e9))
CLUSTERS = {"2x8 H20": (2, 8, H20), "4x8 910B": (4, 8, ASCEND_910B)}

# Section IV-A and the models' config.json: hidden size, experts per token, layers.
MODELS = {"DeepSeek-R1": (7168, 8, 61), "Qwen3-235B-A22B": (4096, 8, 94)}


@pytest.mark.parametrize("rho", [0.05, 0.5, 0.9])
def test_the_mean_is_the_paper_s(rho: float) -> None:
    """Eq. (9) with the wait of Eq. (7), both on passes."""
    prompts, seconds = 8, 0.4
    found = memoryless_ttft(rho * prompts / seconds, prompts, seconds)
    assert found.mean == pytest.approx(rho / (1 - rho) * seconds + seconds)


def test_the_tail_is_that_of_the_m_m_1_queue() -> None:
    """1 - rho of the passes do not wait; the others' wait is exponential with the mean service/(1 - rho)."""
    found = memoryless_ttft(0.8, 1, 1.0)
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
    assert found.tpot.mean == found.tpot.at(99.99) == pytest.approx(0.02)
    assert found.span.mean == pytest.approx(3.5)
    assert found.mean_requests == pytest.approx(17.0)
    assert found.utilisation == 0.5


def test_the_throughput_of_a_stream_is_equation_11() -> None:
    """(L_in + L_out) / (W + prefill + L_out decode)."""
    assert stream_tokens_per_second((1000.0, 200.0), 2.0, 0.02) == pytest.approx(1200 / 6)


def test_a_plan_made_with_it_keeps_its_limits() -> None:
    """Both pools by its equations, below saturation, and sized for what it serves it takes no more devices."""
    best = best_of(queueing="mixserve")
    question, rate = best.question, best.requests_per_second
    assert best.ttft.at(99) <= question.ttft_seconds
    assert best.tpot.mean == pytest.approx(best.decode.candidate.iteration_seconds)
    server = PrefillServer(question, best.prefill.candidate)
    assert server.ttft(rate / best.prefill.instances) == best.ttft
    decode = DecodeServer(question, best.decode.candidate, best.transfer_seconds)
    assert decode.pool_capacity(best.decode.instances) >= rate * (1 - 1e-9)
    sized = best_of(queueing="mixserve", objective="chips", rate_per_second=rate * 0.999)
    assert sized.devices <= best.devices


def shape(model: str, b: float, s: float) -> Shape:
    """One pass of a model of the paper."""
    h, k, _ = MODELS[model]
    return Shape(b=b, s=s, h=h, k=k)


def test_a_collective_of_one_rank_costs_nothing() -> None:
    """The equations' d = 1, with a latency that must not be paid."""
    slow = Line(alpha_seconds=1.0, beta_seconds_per_element=1.0)
    assert mixserve.eq2_all_reduce(8.0, 1, slow) == 0 == mixserve.eq3_all_to_all(8.0, 1, slow)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("b", "s"), [(16, 4096), (16, 256), (16, 1), (1, 1)])
def test_the_hybrid_communicates_less_than_pure_ep(cluster: str, model: str, b: int, s: int) -> None:
    """Section III-C: Eq. (13) < Eq. (12) on both clusters, in elements and in seconds, prefill and decode."""
    n_node, n_proc, links = CLUSTERS[cluster]
    one = shape(model, b, s)
    assert mixserve.eq13_hybrid(one, n_proc, n_node) < mixserve.eq12_expert_parallel(one, n_proc, n_node)
    if b * s > 1:
        hybrid = mixserve.eq13_hybrid(one, n_proc, n_node, links)
        assert hybrid < mixserve.eq12_expert_parallel(one, n_proc, n_node, links)


def test_the_hybrid_pays_a_latency_that_one_token_does_not_earn_back() -> None:
    """Eq. (13) has one collective more: with free bandwidth pure EP is the cheaper."""
    free = Line(alpha_seconds=1e-5, beta_seconds_per_element=0.0)
    links = Links(intra=Line(alpha_seconds=5e-6, beta_seconds_per_element=0.0), inter=free)
    one = shape("DeepSeek-R1", 1, 1)
    more = mixserve.eq13_hybrid(one, 8, 4, links) - mixserve.eq12_expert_parallel(one, 8, 4, links)
    assert more == pytest.approx(5e-6)


def test_one_node_has_nothing_to_dispatch_and_combines_by_all_reduce() -> None:
    """n = 1: no shard travels; RS of bshk and AG of bsh are left."""
    one = shape("Qwen3-235B-A22B", 16, 1)
    assert mixserve.fused_dispatch(one, 8, 1, H20) == 0
    left = mixserve.eq1_round(one.bshk, 8, H20.intra) + mixserve.eq1_round(one.bsh, 8, H20.intra)
    assert mixserve.fused_combine(one, 8, 1, H20) == pytest.approx(left)
