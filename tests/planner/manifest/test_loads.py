"""Expert loads under a map."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ground.errors import BadInput
from planner.manifest.layout import ExpertLayers, ExpertMap
from planner.manifest.loads import check_expert_map, imbalance, placement_balance, rank_loads


def test_rank_loads_splits_an_expert_evenly_over_its_replicas():
    """Expert 0 with 8 tokens and two replicas brings 4 to each of its ranks."""
    loads = np.array([[8.0, 1.0, 2.0], [3.0, 3.0, 3.0]])
    slots = np.array([[0, 1, 0, 2], [1, 0, 2, 1]])
    assert rank_loads(loads, slots, 2).tolist() == [[5.0, 6.0], [4.5, 4.5]]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), ranks=st.sampled_from([1, 2, 4]), per_rank=st.integers(1, 5))
def test_rank_loads_conserves_load(seed, ranks, per_rank):
    """No token is lost or invented, whatever the map, as long as every expert has a slot."""
    rng = np.random.default_rng(seed)
    slots = np.tile(np.arange(ranks * per_rank) % max(1, ranks * per_rank - 1), (3, 1))
    loads = rng.random((3, slots.max() + 1))
    assert np.allclose(rank_loads(loads, slots, ranks).sum(axis=1), loads.sum(axis=1))


def test_imbalance_is_busiest_over_mean_and_one_without_load():
    """A layer that no token reached counts as balanced."""
    assert imbalance(np.array([[0.25, 0.75], [0.0, 0.0]])).tolist() == [1.5, 1.0]


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([[0, 1, 2]], r"decode.map: .*multiple of 2"),
        ([0, 1], r"decode.map: .*layers x slots"),
        ([[0, 1, 2, 0], [0, 1, 2, 7]], r"decode.map\[1\]\[3\]: expert 7 .*between 0 and 2"),
        ([[0, 1, -1, 2]], r"decode.map\[0\]\[2\]: expert -1 "),
        ([[0, 1, 0, 1]], r"decode.map\[0\]: expert 2 has no slot"),
        ([[0, 1, 2, 2]], r"decode.map\[0\]: rank 1 holds expert 2 twice"),
    ],
)
def test_check_expert_map_names_the_place_of_a_violation(slots, message):
    """Every way in which a map can be wrong has its own sentence with the path."""
    with pytest.raises(BadInput, match=message):
        check_expert_map(np.array(slots), experts=3, ranks=2, path="decode.map")


def test_a_map_is_as_even_as_its_layers_in_the_mean():
    """Expert 0 on both ranks: 4 + 1 to 4 + 2 of loads 8, 1, 2; a layer with the slots of another has its own loads."""
    both = ExpertMap(expert_ranks=[0, 1], placements=[ExpertLayers(layers=[1, 2], slots=[0, 1, 0, 2])])
    loads = np.array([[8.0, 1.0, 2.0], [0.0, 0.0, 6.0]])
    assert placement_balance(both) == 1.0
    assert placement_balance(both, loads) == pytest.approx((6 / 5.5 + 6 / 3) / 2)
    assert placement_balance(both, loads[:1]) == pytest.approx(6 / 5.5)
    assert placement_balance(both, np.zeros((2, 3))) == 1.0
    three = ExpertMap(expert_ranks=[0, 1, 2], placements=[ExpertLayers(layers=[1], slots=[0, 1, 0, 2, 1, 2])])
    assert placement_balance(three, loads[:1]) == pytest.approx(5 / (11 / 3))
    assert placement_balance(three, loads[:1], gone={0}) == pytest.approx((8 + 1) / 5.5)
