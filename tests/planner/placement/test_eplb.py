"""DeepSeek's EPLB as a baseline: its published example, and its duplicates removed."""

import numpy as np
import pytest

from planner.manifest.loads import check_expert_map, imbalance, rank_loads
from planner.placement.eplb import eplb, eplb_as_published
from planner.placement.problem import Problem
from tests.expert_loads import power_law

# github.com/deepseek-ai/EPLB, README, "Interface and Example": two layers of 12 experts on two nodes of four devices.
WEIGHT = np.array(
    [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]],
    dtype=float,
)
PUBLISHED = [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]]


def test_the_example_of_the_readme():
    """The hierarchical map, slot by slot."""
    problem = Problem(loads=WEIGHT, ranks=8, redundant=4, nodes=2, groups=4)
    assert eplb_as_published(problem).tolist() == PUBLISHED


@pytest.mark.parametrize(("nodes", "groups", "redundant"), [(1, 1, 32), (4, 8, 32), (4, 8, 64), (1, 1, 64)])
def test_duplicates_go_and_little_is_lost(nodes, groups, redundant):
    """EPLB doubles experts on a rank; without them the map is loadable, in the groups' nodes, and about as good."""
    loads = power_law(6, 256, 1.0)
    problem = Problem(loads=loads, ranks=32, redundant=redundant, nodes=nodes, groups=groups, keep_groups=groups > 1)
    published, clean = eplb_as_published(problem), eplb(problem)
    held = np.sort(published.reshape(6, 32, -1), axis=2)
    assert (held[:, :, 1:] == held[:, :, :-1]).any()
    check_expert_map(clean, 256, 32)
    before, after = (imbalance(rank_loads(loads, slots, 32)).mean() for slots in (published, clean))
    assert after <= before * 1.06
    homes = (clean // (256 // groups)).reshape(6, nodes, -1)
    assert all(len(np.unique(node)) == groups // nodes for layer in homes for node in layer)
