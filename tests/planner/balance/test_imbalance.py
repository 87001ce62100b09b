"""The load distribution and the expected maxima, against published measurements and simulation."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ground.errors import BadInput
from planner.balance.imbalance import (
    MIXED,
    SINGLE_DOMAIN,
    Balance,
    expected_maximum_normal,
    measured_distribution,
    parse_balance,
    parse_skew,
    quantile_loads,
    sample_expert_loads,
    static_factor,
)
from planner.manifest.terms import of_experts
from planner.placement.methods import place
from planner.placement.problem import Problem
from tests.expert_loads import power_law
from tests.shell import answered, refused

DECODE = ["--hw", "cm384", "--phase", "decode", "--batch", "32", "--kv-len", "4k"]


def sampling_factor(static, tokens_per_rank, ranks):
    """What step costs make of the busiest rank of ``ranks`` with so many tokens each, over the mean one."""
    noise = expected_maximum_normal(ranks)
    cost = SimpleNamespace(experts_per_token=1, expert_ranks=ranks, balance=static, sampling_deviations=noise)
    cost.slots_per_rank, cost.shared_ranks = 9.0, 0
    return float(of_experts(cost, tokens_per_rank * ranks)["routed"]) / tokens_per_rank


@pytest.mark.parametrize(
    ("ranks", "redundant", "balanced", "tokens", "published", "within"),
    [
        (32, 0, False, 1024.0, 2.564, 0.15),  # the busiest of EP32's ranks
        (256, 0, False, 128.0, 11.948, 0.2),  # of its 256 expert slots, as if each were a rank
        (288, 32, True, 1024 * 32 / 288, 2.792, 0.15),  # of its 288 slots with replicas
        (32, 32, True, 1024.0, 1.109, 0.01),  # of its balanced ranks: the drift is fitted to this
        (36, 32, True, 1024.0, 1.1154, 0.01),  # examples/wide_ep/ep_load_balancer/README.md at EP36, not fitted
    ],
)
def test_busiest_of_tensorrt_llm(ranks, redundant, balanced, tokens, published, within):
    """Tech blog 4, DeepSeek-R1 on a translation data set, 1024 routed tokens per rank: 1 + (max - mean)/mean."""
    static = static_factor(256, ranks, redundant, SINGLE_DOMAIN, balanced)
    assert sampling_factor(static, tokens, ranks) == pytest.approx(published, rel=within)


def test_expert_loads_are_the_quantiles_of_the_log_normal():
    """Mean one, falling, with the stated spread of logarithms."""
    loads = quantile_loads(SINGLE_DOMAIN, 256)
    assert loads.mean() == pytest.approx(1)
    assert (np.diff(loads) < 0).all()
    assert np.log(loads).std() == pytest.approx(1.04, rel=0.02)


def test_sampled_expert_loads_depend_on_the_seed_alone():
    """Layers differ, runs do not."""
    loads = sample_expert_loads(MIXED, 58, 256, seed=7)
    assert (loads == sample_expert_loads(MIXED, 58, 256, seed=7)).all()
    assert np.allclose(loads.mean(axis=1), 1)
    assert np.log(loads).std(axis=1).mean() == pytest.approx(0.51, rel=0.03)
    assert not np.allclose(loads[0], loads[1])


@pytest.mark.parametrize("distribution", [MIXED, SINGLE_DOMAIN], ids=lambda d: d.name)
def test_static_factor_falls_with_balancing_and_redundancy(distribution):
    """Balancing helps, redundant experts help it, and one rank has nothing to balance."""
    none = static_factor(256, 32, 0, distribution, False)
    balanced = static_factor(256, 32, 0, distribution, True)
    redundant = static_factor(256, 32, 32, distribution, True)
    assert none > balanced > redundant > 1
    assert static_factor(256, 1, 0, distribution, True) == pytest.approx(1)
    assert static_factor(256, 1, 0, distribution, False) == pytest.approx(1)


def test_static_factor_without_drift_is_what_placement_reaches():
    """With drift off, the quick path without swaps is within 5 % of the full placement, and never better."""
    still = MIXED.__class__(name="still", log_sigma=0.51, drift_log_sigma=0.0, source="test")
    for ranks, redundant in ((32, 32), (72, 32), (144, 32), (288, 32)):
        problem = Problem(loads=quantile_loads(still, 256)[None], ranks=ranks, redundant=redundant)
        full = place(problem, "local-search").imbalance[0]
        quick = static_factor(256, ranks, redundant, still, True)
        assert full * (1 - 1e-9) <= quick <= full * 1.05


@pytest.mark.parametrize(
    ("count", "expected"), [(1, 0.0), (2, 0.56419), (5, 1.16296), (10, 1.53875), (100, 2.50759), (1000, 3.24144)]
)
def test_expected_maximum_normal_of_tippett(count, expected):
    """Expected maxima of n normals, half the mean ranges of Tippett 1925 (Biometrika 17:364), table X."""
    assert expected_maximum_normal(count) == pytest.approx(expected, abs=1e-5)


def test_expected_maximum_normal_broadcasts():
    """An array of rank counts gives the array of the scalar answers."""
    counts = np.array([[1, 32], [320, 32]])
    assert np.allclose(expected_maximum_normal(counts), [[expected_maximum_normal(int(c)) for c in r] for r in counts])


@settings(max_examples=30, deadline=None)
@given(static=st.floats(1.0, 8.0), tokens=st.floats(1.0, 1e6), ranks=st.integers(8, 512))
def test_sampling_factor_lies_between_static_and_ranks(static, tokens, ranks):
    """Noise never helps, more tokens never hurt, and no rank gets more than all tokens."""
    factor = sampling_factor(static, tokens, ranks)
    assert static * (1 - 1e-12) <= factor <= ranks
    assert sampling_factor(static, tokens * 2, ranks) <= factor
    assert sampling_factor(static, 1e12, ranks) == pytest.approx(static, rel=1e-3)


@pytest.mark.parametrize("tokens", [64, 256, 1024])
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize(("ranks", "redundant"), [(32, 32), (144, 32), (320, 64)])
def test_sampling_factor_agrees_with_simulated_routing(tokens, balanced, ranks, redundant):
    """Drawing every expert's tokens from a Poisson law gives the same busiest rank within 5 %."""
    rng = np.random.default_rng(3)
    draws, per_rank = 300, (256 + redundant) // ranks
    typical = quantile_loads(MIXED, 256)
    if balanced:
        problem = Problem(loads=typical[None], ranks=ranks, redundant=redundant)
        slots = place(problem, "local-search").slots[0]
        loads = typical * np.exp(MIXED.drift_log_sigma * rng.standard_normal((draws, 256)))
    else:
        slots = np.arange(256 + redundant) % 256
        loads = rng.permuted(np.tile(typical, (draws, 1)), axis=1)
    shares = (loads / np.bincount(slots))[:, slots].reshape(draws, ranks, per_rank).sum(axis=2)
    shares /= shares.mean(axis=1, keepdims=True)
    simulated = (rng.poisson(shares * tokens).max(axis=1) / tokens).mean()
    static = static_factor(256, ranks, redundant, MIXED, balanced)
    assert sampling_factor(static, float(tokens), ranks) == pytest.approx(simulated, rel=0.05)


def test_parse_balance_reads_the_four_forms():
    """Words in any case, or a number."""
    assert parse_balance("Perfect") == Balance(kind="perfect")
    assert parse_balance("measured") == Balance(kind="measured")
    assert parse_balance(" none ") == Balance(kind="none")
    assert parse_balance("1.3") == Balance(kind="factor", factor=1.3)


def test_names_and_parameters():
    """The two named ones, and a stated log-normal or power law."""
    assert parse_skew("Single-Domain") is SINGLE_DOMAIN
    assert parse_skew("log-normal=0.51").log_sigma == MIXED.log_sigma
    loads = quantile_loads(parse_skew("power-law=1"), 64)
    assert loads[0] / loads[9] == pytest.approx(10)
    assert loads.mean() == pytest.approx(1)
    assert quantile_loads(parse_skew("power-law=0"), 4).tolist() == [1, 1, 1, 1]


def test_measured_loads_are_their_own_distribution():
    """The typical layer of power-law counts is that power law; another number of experts is refused."""
    measured = measured_distribution(power_law(20, 64, 0.8), "loads.csv")
    stated = quantile_loads(parse_skew("power-law=0.8"), 64)
    assert quantile_loads(measured, 64) == pytest.approx(stated, rel=0.3)
    with pytest.raises(BadInput, match="of 64 experts per layer, the model has 256"):
        quantile_loads(measured, 256)


def test_more_skew_is_a_busier_rank():
    """Under both layouts, and drawn loads have the shape of the typical ones."""
    for balanced in (True, False):
        factors = [static_factor(64, 64, 16 * 4, parse_skew(f"power-law={a}"), balanced) for a in (0, 0.6, 1.2)]
        assert factors == sorted(factors)
    drawn = sample_expert_loads(parse_skew("power-law=1"), 3, 16, seed=1)
    assert np.allclose(np.sort(drawn, axis=1)[:, ::-1], quantile_loads(parse_skew("power-law=1"), 16))


def test_predict_takes_the_flag_and_says_so(tmp_path, capsys):
    """A skewer distribution is slower without balancing; the assumption names it; a file of loads works too."""
    path = tmp_path / "loads.npy"
    np.save(path, power_law(3, 256, 1.0))

    def tpot(*flags):
        command = ["predict", "deepseek-r1", *DECODE, "--strategy", "DP=64, EP=64", "--expert-balance", "none"]
        answer = answered(capsys, *command, *flags)
        return answer["tpot_seconds"], answer["assumptions"]["expert_load_distribution"]

    usual, told = tpot()
    assert told.startswith("mixed-domains")
    skewed, told = tpot("--expert-skew", "power-law=1.0")
    assert skewed > usual and told.startswith("power law 1")
    measured, told = tpot("--expert-skew", str(path))
    assert measured == pytest.approx(skewed, rel=0.1) and "loads.npy" in told


def test_a_factor_and_a_skew_contradict_each_other(capsys):
    """A factor is what was observed; no distribution stands behind it."""
    command = ["predict", "deepseek-r1", *DECODE, "--strategy", "DP=64, EP=64", "--expert-balance", "1.2"]
    refused(capsys, "leave one out", *command, "--expert-skew", "power-law=1")
