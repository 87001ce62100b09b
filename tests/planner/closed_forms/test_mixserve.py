"""MixServe's equations against executed collectives and each other, and its queueing's tail and saturation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def exchanged_per_pair(d: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Run a reduce-scatter and an all-gather over d ranks; return the sums and what each pair sent in each."""
    rng = np.random.default_rng(7)
    held = rng.integers(0, 9, (d, size))
    sent = np.zeros((2, d, d), dtype=int)
    shards = np.zeros((d, size // d), dtype=int)
    for rank in range(d):
        own = slice(rank * size // d, (rank + 1) * size // d)
        shards[rank] = held[rank, own]
        for peer in set(range(d)) - {rank}:
            shards[rank] += held[peer, own]
            sent[0, peer, rank] += held[peer, own].size
    gathered = np.zeros((d, size), dtype=int)
    for rank in range(d):
        for peer in range(d):
            gathered[rank, peer * size // d : (peer + 1) * size // d] = shards[peer]
            sent[1, peer, rank] += shards[peer].size if peer != rank else 0
    assert (gathered == held.sum(axis=0)).all()
    return gathered, sent


@pytest.mark.parametrize("d", [2, 4, 8])
def test_eq1_and_eq2_are_what_each_pair_sends_in_an_executed_all_reduce(d: int) -> None:
    """Eq. (1), Eq. (2): size/d per pair in each half, so 2*size/d and not 2*size/d^2."""
    size = 64
    _, sent = exchanged_per_pair(d, size)
    pairs = ~np.eye(d, dtype=bool)
    assert (sent[0][pairs] == mixserve.eq1_round(size, d)).all()
    assert (sent[1][pairs] == mixserve.eq1_round(size, d)).all()
    assert sent.sum(axis=0)[pairs].max() == mixserve.eq2_all_reduce(size, d) == 2 * size / d


@pytest.mark.parametrize("d", [1, 2, 5, 8])
def test_eq3_is_what_a_rank_sends_in_an_executed_pairwise_exchange(d: int) -> None:
    """Eq. (3): d - 1 rounds, in round i rank r sends size/d elements to rank r + i."""
    size, held = 40, np.arange(40).reshape(d, -1)
    sent = sum(held[(rank + 1) % d].size for rank in range(d - 1))
    assert sent == mixserve.eq3_all_to_all(size, d)


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


def pipelined(inter: float, intra: float, rounds: int) -> float:
    """Time the dispatch's rounds on two links, each shard gathered after it arrived."""
    sent = gathered = 0.0
    for _ in range(rounds):
        sent += inter
        gathered = max(gathered, sent) + intra
    return gathered


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.integers(0, 47))
def test_the_fused_closed_form_is_the_pipelines_makespan(inter: float, intra: float, rounds: int) -> None:
    """Section III-D2: max(inter, intra) over all rounds + one round of the other."""
    expected = pipelined(inter, intra, rounds)
    assert mixserve.fused(inter, intra, rounds) == pytest.approx(expected)
    if rounds:
        assert expected == pytest.approx(rounds * max(inter, intra) + min(inter, intra))


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-9, 1e-6), st.floats(1e-9, 1e-6), st.integers(1, 16))
def test_the_fused_combine_is_its_pipelines_makespan(intra_beta: float, inter_beta: float, n_node: int) -> None:
    """Algorithm 1 as RS, A2A, AG: reduce-scatters one after another, each slice sent when reduced."""
    one = Shape(b=4, s=2, h=64, k=2)
    links = Links(intra=Line(beta_seconds_per_element=intra_beta), inter=Line(beta_seconds_per_element=inter_beta))
    slice_elements = one.bshk / (8 * n_node)
    intra, inter = float(slice_elements * intra_beta), float(slice_elements * inter_beta)
    reduced = sent = 0.0
    for _ in range(n_node - 1):
        reduced += intra
        sent = max(sent, reduced) + inter
    expected = max(reduced + intra, sent) + one.bsh / 8 * intra_beta
    assert mixserve.fused_combine(one, 8, n_node, links) == pytest.approx(expected)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", MODELS)
def test_fusing_hides_most_of_the_links_inside_a_node(cluster: str, model: str) -> None:
    """Section III-D: little more than the exchange between nodes alone; with one round there is nothing to overlap."""
    n_node, n_proc, links = CLUSTERS[cluster]
    one = shape(model, 16, 4096)
    exchange = mixserve.eq3_all_to_all(one.bshk / n_proc, n_node, links.inter)
    dispatch = mixserve.fused_dispatch(one, n_proc, n_node, links)
    assert exchange < dispatch <= exchange * (1 + 1 / (n_node - 1))
    saved = mixserve.sequential_dispatch(one, n_proc, n_node, links) - dispatch
    assert saved == pytest.approx((n_node - 2) * mixserve.eq1_round(one.bshk / n_node, n_proc, links.intra))
    combine = mixserve.fused_combine(one, n_proc, n_node, links)
    assert combine < mixserve.sequential_combine(one, n_proc, n_node, links)


def test_one_node_has_nothing_to_dispatch_and_combines_by_all_reduce() -> None:
    """n = 1: no shard travels; RS of bshk and AG of bsh are left."""
    one = shape("Qwen3-235B-A22B", 16, 1)
    assert mixserve.fused_dispatch(one, 8, 1, H20) == 0
    left = mixserve.eq1_round(one.bshk, 8, H20.intra) + mixserve.eq1_round(one.bsh, 8, H20.intra)
    assert mixserve.fused_combine(one, 8, 1, H20) == pytest.approx(left)
