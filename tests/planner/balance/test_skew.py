"""Stated and measured distributions of expert loads, and that every command rests on the same one."""

import numpy as np
import pytest

from ground.errors import BadInput
from planner.balance.counts import longest_first, replica_counts
from planner.balance.imbalance import static_factor
from planner.balance.skew import (
    MIXED,
    SINGLE_DOMAIN,
    expert_loads,
    measured_distribution,
    parse_skew,
    sample_expert_loads,
)
from tests.expert_loads import power_law
from tests.shell import answered, refused

DECODE = ["--hw", "cm384", "--phase", "decode", "--batch", "32", "--kv-len", "4k"]


def test_names_and_parameters():
    """The two named ones, and a stated log-normal or power law."""
    assert parse_skew("Single-Domain") is SINGLE_DOMAIN
    assert parse_skew("log-normal=0.51").log_sigma == MIXED.log_sigma
    loads = expert_loads(parse_skew("power-law=1"), 64)
    assert loads[0] / loads[9] == pytest.approx(10)
    assert loads.mean() == pytest.approx(1)
    assert expert_loads(parse_skew("power-law=0"), 4).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("text", ["mixed", "power-law", "power-law=x", "log-normal=-1", "log-normal=nan"])
def test_what_is_no_distribution_is_refused(text):
    """One sentence that names the flag."""
    with pytest.raises(BadInput, match="--expert-skew"):
        parse_skew(text)


def test_measured_loads_are_their_own_distribution():
    """The typical layer of power-law counts is that power law; another number of experts is refused."""
    measured = measured_distribution(power_law(20, 64, 0.8), "loads.csv")
    stated = expert_loads(parse_skew("power-law=0.8"), 64)
    assert expert_loads(measured, 64) == pytest.approx(stated, rel=0.3)
    with pytest.raises(BadInput, match="of 64 experts per layer, the model has 256"):
        expert_loads(measured, 256)


def test_more_skew_is_a_busier_rank():
    """Under both layouts, and drawn loads have the shape of the typical ones."""
    for balanced in (True, False):
        factors = [static_factor(64, 64, 16 * 4, parse_skew(f"power-law={a}"), balanced) for a in (0, 0.6, 1.2)]
        assert factors == sorted(factors)
    drawn = sample_expert_loads(parse_skew("power-law=1"), 3, 16, seed=1)
    assert np.allclose(np.sort(drawn, axis=1)[:, ::-1], expert_loads(parse_skew("power-law=1"), 16))


def test_balanced_static_factor_is_the_placement_of_the_stated_loads_after_drift():
    """The factor of predict and search lies above what the same placement has before the loads drift."""
    distribution = parse_skew("power-law=0.8")
    loads = expert_loads(distribution, 256)
    counts = replica_counts(loads, 288, 32)
    held = longest_first(loads, counts, 32)
    still = (loads / counts)[held].sum(axis=1).max() * 32 / 256
    assert still <= static_factor(256, 32, 32, distribution, True) <= still * 1.2


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
