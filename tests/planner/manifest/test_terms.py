"""Variables, linear forms and single terms of a step."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.operators import build_step_cost
from planner.manifest.terms import (
    CommunicationTerm,
    ComputeTerm,
    StepLoad,
    communication_seconds,
    timing,
    variables,
)
from tests.instances import cloudmatrix_decode

TERM = ComputeTerm("x", "dense", {"tokens": 1e9}, {"one": 1e10}, 1e13, {"tokens": 1e6}, 1e12, 1e-6, serial=0.5)


def test_seconds_of_a_kernel_by_hand():
    """100 tokens: compute 11 ms, memory 0.1 ms, half of the shorter not hidden, 1 us to start."""
    own = timing(TERM, {"one": 1.0, "tokens": 100.0})
    assert own.seconds() == pytest.approx(11e-3 + 0.5 * 1e-4 + 1e-6)
    assert own.seconds(cores=0.5, dilation=2.0) == pytest.approx(22e-3 + 0.5 * 2e-4 + 1e-6)


def test_empty_kernel_takes_no_time_in_arrays_either():
    """Only the loads with tokens pay for start-up and unfilled tiles."""
    seconds = timing(TERM, {"one": 1.0, "tokens": np.array([0.0, 100.0])}).seconds()
    assert np.asarray(seconds) == pytest.approx(np.array([0.0, 11e-3 + 0.5e-4 + 1e-6]))


def test_few_bytes_are_read_slower():
    """Half as long again for 100 tokens' 0.1 ms, and 0.2 ms in all for many."""
    term = TERM._replace(slow=0.5, slow_seconds=2e-4)
    for tokens, more in ((0.0, 0.0), (100.0, 5e-5), (1e3, 2e-4)):
        values = {"one": 1.0, "tokens": tokens}
        assert timing(term, values).seconds() - timing(TERM, values).seconds() == pytest.approx(more)


def test_fastest_protocol_wins():
    """1 MB: 10 us + 1 ms against 50 us + 0.1 ms."""
    term = CommunicationTerm("x", "dispatch", {"routed": 1.0}, ((1e-5, 1e9), (5e-5, 1e10)))
    assert communication_seconds(term, {"routed": 1e6}) == pytest.approx(15e-5)
    assert communication_seconds(term, {"routed": 100.0}) == pytest.approx(1e-5 + 1e-7)
    assert communication_seconds(term._replace(protocols=()), {"routed": 1.0}) == 0.0


def test_experts_hit_match_sampled_routing():
    """64 tokens choose 8 of 256 experts in 288 slots over 32 ranks: slots hit per rank, sampled."""
    cost = replace(build_step_cost(cloudmatrix_decode()), expert_ranks=32, slots_per_rank=9.0, attention_ranks=32)
    hit = variables(cost, StepLoad(mean_tokens=2.0), 1)["hit"]
    random, sampled = np.random.default_rng(0), []
    for _ in range(300):
        chosen = np.concatenate([random.permutation(288)[:8] for _ in range(64)])
        sampled.append(len(np.unique(chosen)) / 32)
    assert hit == pytest.approx(np.mean(sampled), rel=0.01)
