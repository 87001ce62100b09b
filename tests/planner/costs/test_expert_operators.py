"""Experts whose sizes no kernel was measured with."""

import numpy as np
import pytest

from hardware import engines
from planner.costs.expert_operators import curve_of, products
from planner.costs.roofline import Roofline
from planner.manifest.terms import timing
from scripts.fit_held_out import experts, without


@pytest.mark.parametrize(
    ("machine", "engine", "weights"),
    [("h200", "vllm", "fp8"), ("b200", "vllm", "nvfp4"), ("a100", "sglang", "bf16"), ("b200", "trtllm", "fp8")],
)
def test_left_out_curves_are_met_by_those_of_other_sizes(machine: str, engine: str, weights: str):
    """Better than by the nearest alone or a roofline, and without bias at thousands of tokens."""
    like, nearest, roofline = [], [], []
    for key, line in list(engines._lines(machine).items()):
        if key[:2] != (engine, weights):
            continue
        known = engines._curves(engine, line)
        own = experts(known.shape, machine, engine, weights)
        found, measured = without(machine, own, lambda other, key=key: other == key), np.array(known.seconds(1, 1))
        assert found.shape != known.shape
        like.append(np.log(np.array(curve_of(own, found, 1)) / measured))
        nearest.append(np.log(np.array(curve_of(own, found._replace(alike=()), 1)) / measured))
        tokens = 2.0 ** np.arange(measured.size)
        chosen, count = known.shape[2:]
        values = {"one": 1.0, "routed": tokens * chosen, "hit": count * (1 - (1 - chosen / count) ** tokens)}
        terms = products(Roofline.of(own), known.shape, 1, own.weights, {"routed": 1.0})
        roofline.append(np.log(sum(timing(term, values).seconds() for term in terms) / measured))
    assert len(like) > 9
    assert np.mean(np.abs(like)) < np.mean(np.abs(nearest))
    assert np.median(np.abs(like)) < 0.75 * np.median(np.abs(roofline))
    assert abs(np.median(np.array(like)[:, 12:])) < 0.1
