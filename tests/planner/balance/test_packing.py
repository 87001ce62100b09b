"""Longest processing time first, without an expert twice on a rank."""

import numpy as np

from planner.balance.counts import longest_first
from planner.manifest.loads import check_expert_map


def test_longest_first_makes_room_when_only_one_rank_is_open():
    """A replica whose last open rank has the expert already moves another expert out of its way."""
    loads = np.array([100.0, 3.0, 2.0, 1.0, 0.5])
    held = longest_first(loads, np.array([1, 1, 1, 1, 2]), 2)
    check_expert_map(held.reshape(1, -1), 5, 2)
