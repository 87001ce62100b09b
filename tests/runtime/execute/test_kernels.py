"""Routing of the model families, and INT8 with a scale per token."""

import numpy as np
import pytest

from models.spec import MoE
from runtime.execute.kernels import quantise, route

GROUPED = MoE(experts=8, experts_per_token=2, intermediate_size=4, groups=4, groups_per_token=1)
PLAIN = MoE(experts=4, experts_per_token=2, intermediate_size=4)


def test_softmax_families_normalise_over_the_chosen() -> None:
    """Mixtral: softmax over the two best logits."""
    routes = route(np.log(np.array([[1.0, 4.0, 2.0, 1.0]])), np.zeros(4), PLAIN, "mixtral")
    assert routes.experts.tolist() == [[1, 2]]
    assert routes.weights[0] == pytest.approx([2 / 3, 1 / 3])
    assert routes.margin[0] == pytest.approx(1 / 8)


def test_deepseek_v3_takes_experts_of_the_best_group_only() -> None:
    """A group is worth its two best; the bias chooses and does not weigh; weights are scaled by 2.5."""
    logits = np.array([[5.0, -5.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]])
    routes = route(logits, np.zeros(8), GROUPED, "deepseek_v3")
    assert sorted(routes.experts[0].tolist()) == [2, 3]
    assert routes.weights.sum() == pytest.approx(2.5)
    bias = np.array([0.0, 0, 0, 0, 0, 0, 1.0, 1.0])
    assert sorted(route(logits, bias, GROUPED, "deepseek_v3").experts[0].tolist()) == [6, 7]


def test_deepseek_v2_values_a_group_by_its_best_expert() -> None:
    """And leaves the weights as the softmax gives them."""
    routes = route(np.array([[3.0, -5.0, 2.0, 2.0, 0, 0, 0, 0]]), np.zeros(8), GROUPED, "deepseek_v2")
    assert sorted(routes.experts[0].tolist()) == [0, 1]
    assert routes.weights.sum() < 1


def test_no_tokens_route_nowhere() -> None:
    """An empty batch keeps its shapes."""
    assert route(np.zeros((0, 8)), np.zeros(8), GROUPED, "deepseek_v3").experts.shape == (0, 2)


def test_a_row_takes_the_whole_range_of_int8():
    """Its largest value is 127 steps and none is off by more than half a step; a part has the scale of its row."""
    x = np.random.default_rng(1).standard_normal((5, 64)) * np.array([[1e-6], [1.0], [3.0], [1e4], [0.0]])
    q, scale = quantise(x)
    assert np.abs(q).max(axis=1).tolist() == [127, 127, 127, 127, 0]
    assert (np.abs(x - q * scale) <= scale * (0.5 + 1e-9)).all()
    part, same = quantise(x[:, :8], np.abs(x).max(axis=1, keepdims=True))
    assert (part == q[:, :8]).all() and (same == scale).all()
