"""MixServe's equations against its table, against executed collectives and against each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.serving.closed_forms import mixserve_equations as mixserve
from planner.serving.closed_forms.mixserve_equations import Degrees, Line, Links, Shape

# Section IV-A. H20: NVLink 450 GB/s one way, shared by the 7 pairs of a server; InfiniBand 400 Gbit/s.
H20 = Links(intra=mixserve.port_line(5e-6, 450e9, 8), inter=mixserve.line(10e-6, 50e9))
# 910B: HCCS full mesh, 480 Gbit/s of both directions and so 30 GB/s one way per pair; RoCE 200 Gbit/s.
ASCEND_910B = Links(intra=mixserve.line(5e-6, 30e9), inter=mixserve.line(10e-6, 25e9))
CLUSTERS = {"2x8 H20": (2, 8, H20), "4x8 910B": (4, 8, ASCEND_910B)}

# Section IV-A and the models' config.json: hidden size, experts per token, layers.
MODELS = {"DeepSeek-R1": (7168, 8, 61), "Qwen3-235B-A22B": (4096, 8, 94)}


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
    assert (sent[0][pairs] == mixserve.eq1_reduce_scatter(size, d)).all()
    assert (sent[1][pairs] == mixserve.eq1_all_gather(size, d)).all()
    assert sent.sum(axis=0)[pairs].max() == mixserve.eq2_all_reduce(size, d) == 2 * size / d


@pytest.mark.parametrize("d", [1, 2, 5, 8])
def test_eq3_is_what_a_rank_sends_in_an_executed_pairwise_exchange(d: int) -> None:
    """Eq. (3): d - 1 rounds, in round i rank r sends size/d elements to rank r + i."""
    size, held = 40, np.arange(40).reshape(d, -1)
    sent = sum(held[(rank + 1) % d].size for rank in range(d - 1))
    assert sent == mixserve.eq3_all_to_all(size, d)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("d", [2, 8, 32])
def test_table_1_volumes_times_rounds_are_the_equations(model: str, d: int) -> None:
    """Table I: TP b*s*h/d in 1 + 1 rounds, EP b*s/d*h*k in d - 1 rounds."""
    one = shape(model, 16, 4096)
    assert 2 * mixserve.table_1_tensor_volume(one.b, one.s, one.h, d) == mixserve.eq2_all_reduce(one.bsh, d)
    assert (d - 1) * mixserve.table_1_expert_volume(one, d) == mixserve.eq3_all_to_all(one.bshk, d)


def test_table_1_volumes_of_deepseek_r1() -> None:
    """Table I at b = 16, s = 4096, h = 7168, k = 8: TP over 8 and EP over 32 elements per round."""
    one = shape("DeepSeek-R1", 16, 4096)
    assert mixserve.table_1_tensor_volume(one.b, one.s, one.h, 8) == 16 * 4096 * 7168 / 8 == 58_720_256
    assert mixserve.table_1_expert_volume(one, 32) == 16 * 4096 * 7168 * 8 / 32 == 117_440_512


def test_a_collective_of_one_rank_costs_nothing() -> None:
    """The equations' d = 1, with a latency that must not be paid."""
    slow = Line(alpha_seconds=1.0, beta_seconds_per_element=1.0)
    assert mixserve.eq2_all_reduce(8.0, 1, slow) == 0 == mixserve.eq3_all_to_all(8.0, 1, slow)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 10**9), st.integers(1, 64), st.floats(0, 1e-3), st.floats(1e-12, 1e-6))
def test_all_reduce_is_reduce_scatter_and_all_gather(size: int, d: int, alpha: float, beta: float) -> None:
    """Eq. (2) = Eq. (1) twice for any link, and elements are the line of alpha 0 and beta 1."""
    over = Line(alpha_seconds=alpha, beta_seconds_per_element=beta)
    halves = mixserve.eq1_reduce_scatter(size, d, over) + mixserve.eq1_all_gather(size, d, over)
    assert mixserve.eq2_all_reduce(size, d, over) == halves
    elements = mixserve.eq2_all_reduce(size, d)
    assert mixserve.eq2_all_reduce(size, d, over) == pytest.approx((2 * alpha if d > 1 else 0) + beta * elements)


def test_eq4_scales_with_its_degrees() -> None:
    """Eq. (4): twice the TP, EP or DP halves a rank's compute."""
    one = shape("Qwen3-235B-A22B", 16, 512)
    base = mixserve.eq4_compute(1e6, one, Degrees())
    for degrees in (Degrees(d_tp=2), Degrees(d_ep=2), Degrees(d_dp=2)):
        assert mixserve.eq4_compute(1e6, one, degrees) == base / 2


def test_eq5_branches_on_dp_against_ep() -> None:
    """Eq. (5): the exchange spans d_EP while d_DP >= d_EP and d_DP below; both agree where they are equal."""
    one = shape("DeepSeek-R1", 16, 1)
    by_hand = {
        (4, 4): 2 * (one.bshk / 4) / 4 * 3,
        (8, 4): 2 * (one.bshk / 8) / 4 * 3,
        (4, 8): 2 * (one.bshk / 8) / 4 * 3,
        (2, 8): 2 * (one.bshk / 8) / 2 * 1,
    }
    for (d_dp, d_ep), exchanged in by_hand.items():
        reduced = 2 * 2 * (one.bsh / d_dp) / 8
        degrees = Degrees(d_tp=8, d_dp=d_dp, d_ep=d_ep)
        assert mixserve.eq5_communication(one, degrees) == pytest.approx(reduced + exchanged)


def test_eq5_takes_arrays_of_candidates() -> None:
    """A scalar loop and one call on arrays give the same."""
    one = shape("Qwen3-235B-A22B", 16, 64)
    d_dp, d_ep = np.array([4.0, 8.0, 4.0, 1.0]), np.array([4.0, 4.0, 8.0, 32.0])
    at_once = mixserve.eq5_communication(one, Degrees(d_tp=8, d_dp=d_dp, d_ep=d_ep), ASCEND_910B)
    singly = [
        mixserve.eq5_communication(one, Degrees(d_tp=8, d_dp=x, d_ep=y), ASCEND_910B)
        for x, y in zip(d_dp, d_ep, strict=True)
    ]
    assert at_once == pytest.approx(np.array(singly))


def test_eq6_pays_every_layer_and_the_hops_between_stages() -> None:
    """Eq. (6): 61 layers and 3 hops of PP=4."""
    assert mixserve.eq6_service(61, 2e-3, 1e-3, 5e-4, Degrees(d_pp=4)) == pytest.approx(61 * 3e-3 + 3 * 5e-4)


def test_eq7_is_the_wait_of_a_single_server_in_passes() -> None:
    """Eq. (7): both printed forms, and a full server never catches up."""
    arrivals, service = 4.0, 0.2
    mu = 1 / service
    assert mixserve.eq7_waiting(arrivals, service) == pytest.approx(arrivals / (mu * (mu - arrivals)))
    assert mixserve.eq7_waiting(arrivals, service) == pytest.approx(0.8)
    assert mixserve.eq7_waiting(5.0, 0.2) == np.inf
    assert mixserve.passes_per_second(8192.0, 2048.0) == 4.0


def test_eq8_counts_elements_as_printed() -> None:
    """Eq. (8) at TP=8, EP=4, PP=2 by hand."""
    one = Shape(b=2, s=3, h=5, k=1)
    degrees = Degrees(d_tp=8, d_ep=4, d_pp=2)
    assert mixserve.eq8_memory(80, 320, one, 7, degrees) == 80 / 8 + 320 / 32 + 2 * 2 * 3 * 5 * 7 / 2


def test_eq9_to_eq11_compose_the_service_time() -> None:
    """Eq. (9)-(11): TTFT at s = L_in, ITL at s = 1, throughput of one stream."""

    def service(s: mixserve.Number) -> mixserve.Number:
        return 0.02 + 1e-4 * s

    assert mixserve.eq9_ttft(0.1, service, 1000) == pytest.approx(0.22)
    assert mixserve.eq10_itl(service) == pytest.approx(0.0201)
    assert mixserve.eq11_throughput(1000, 100, 0.1, 0.12, 0.0201) == pytest.approx(1100 / (0.22 + 2.01))


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


@pytest.mark.parametrize("literal", [False, True])
def test_the_hybrid_wins_in_either_reading_of_its_all_gather(literal: bool) -> None:
    """Eq. (13)'s AG(bshk/n_proc, n_proc) read as shard or as whole tensor does not change who wins."""
    one = shape("DeepSeek-R1", 16, 4096)
    gathered = mixserve.eq1_all_gather(one.bshk / (8 if literal else 1), 8)
    hybrid = mixserve.eq2_all_reduce(one.bsh, 8) + gathered + 2 * mixserve.eq3_all_to_all(one.bshk / 8, 4)
    assert hybrid < mixserve.eq12_expert_parallel(one, 8, 4)
    assert literal or hybrid == mixserve.eq13_hybrid(one, 8, 4)


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
    assert saved == pytest.approx((n_node - 2) * mixserve.eq1_all_gather(one.bshk / n_node, n_proc, links.intra))
    combine = mixserve.fused_combine(one, n_proc, n_node, links)
    assert combine < mixserve.sequential_combine(one, n_proc, n_node, links)


def test_one_node_has_nothing_to_dispatch_and_combines_by_all_reduce() -> None:
    """n = 1: no shard travels; RS of bshk and AG of bsh are left."""
    one = shape("Qwen3-235B-A22B", 16, 1)
    assert mixserve.fused_dispatch(one, 8, 1, H20) == 0
    left = mixserve.eq1_reduce_scatter(one.bshk, 8, H20.intra) + mixserve.eq1_all_gather(one.bsh, 8, H20.intra)
    assert mixserve.fused_combine(one, 8, 1, H20) == pytest.approx(left)


def test_tensor_parallelism_loses_to_expert_parallelism_past_the_node() -> None:
    """Section IV's communication figure: cheap inside a node; over 32 devices all-reduce costs more than all-to-all.

    Past the node one pair's share of a port shrinks with the group, so a round of AR takes d - 1 times a
    pair's volume over the port; EP sends k/d of the batch's copies.
    """
    h, k, _ = MODELS["DeepSeek-R1"]
    tokens, d = 1024.0, 32
    port = mixserve.port_line(10e-6, 25e9, d)
    whole = mixserve.eq2_all_reduce(tokens * h, d, port)
    exchange = 2 * mixserve.eq3_all_to_all(tokens / d * h * k, d, mixserve.line(10e-6, 25e9))
    assert whole > exchange
