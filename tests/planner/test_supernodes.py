"""Sizes of supernodes beside CloudMatrix384's Table 11 and Figure 24, and beside filling them by lot."""

import numpy as np
import pytest

import podplan
from planner.supernodes import Blocks, Fabric, allocated


@pytest.mark.parametrize(
    ("nodes", "switches", "used"), [(48, 56, 1.0), (44, 56, 0.92), (36, 42, 1.0), (32, 42, 0.89), (24, 28, 1.0)]
)
def test_switches_are_those_of_table_11(nodes: int, switches: int, used: float) -> None:
    """Every row of the table."""
    assert (Fabric().switches(nodes), round(Fabric().use(nodes), 2)) == (switches, used)


def test_the_published_allocation_lies_between_two_sizes_of_the_largest_block() -> None:
    """Above 94 % of 384 chips and below 91 % of 224 for blocks of 10.08: the largest, not stated, is 64 to 128."""
    few, many = (Blocks.doubling(10.08, largest) for largest in (64, 128))
    assert allocated(384, few) > 0.94 > allocated(384, many)
    assert allocated(224, few) > 0.91 > allocated(224, many)
    assert all(each.mean == pytest.approx(10.08, rel=1e-6) for each in (few, many))
    assert allocated(224, Blocks.doubling(11.28, 128)) < allocated(224, many)


@pytest.mark.parametrize("chips", [24, 100])
def test_the_share_is_that_of_filling_by_lot(chips: int) -> None:
    """Supernodes filled with random blocks, one after the other."""
    blocks = Blocks.of([(5, 2.0), (1, 4.0), (16, 1.0)])
    drawn = np.random.default_rng(0).choice(blocks.sizes, 200_000, p=blocks.shares)
    fills, filled = [], 0
    for size in drawn.tolist():
        if filled + size > chips:
            fills.append(filled)
            filled = 0
        filled += size
    assert allocated(chips, blocks) == pytest.approx(np.mean(fills) / chips, abs=0.002)


def test_the_usual_sizes() -> None:
    """Where none is asked for."""
    assert [row["chips"] for row in podplan.supernode().rows()] == [192, 224, 256, 288, 352, 384]
