"""Many layouts at once have the factors that they have one by one."""

import pytest

from ground.errors import BadInput
from planner.balance.busiest import static_factors
from planner.balance.imbalance import static_factor
from planner.balance.skew import MIXED, SINGLE_DOMAIN, LoadDistribution


@pytest.mark.parametrize("distribution", [MIXED, SINGLE_DOMAIN])
@pytest.mark.parametrize(("experts", "largest"), [(256, 320), (64, 80), (128, 96)])
def test_every_layout_as_alone(distribution: LoadDistribution, experts: int, largest: int) -> None:
    """One, two and many slots a rank, with few and with many replicas."""
    step = max(largest // 24, 1)
    layouts = [(ranks, -experts % ranks + extra * ranks) for ranks in range(step, largest, step) for extra in (0, 1)]
    layouts = [(ranks, extra) for ranks, extra in layouts if extra <= min(experts, experts * (ranks - 1))]

    found = static_factors(experts, layouts, distribution, balanced=True)

    alone = [static_factor(experts, *layout, distribution, True) for layout in layouts]
    assert len(layouts) > 20
    assert found == pytest.approx(alone, rel=1e-12)


def test_unbalanced_layouts_too() -> None:
    """Without knowledge of loads nothing is placed, and the factor is the same."""
    layouts = [(ranks, 0) for ranks in (1, 2, 4, 8, 16, 32, 64, 128, 256)]

    found = static_factors(256, layouts, MIXED, balanced=False)

    assert found == pytest.approx([static_factor(256, *layout, MIXED, False) for layout in layouts])


def test_slots_that_do_not_divide_are_refused() -> None:
    """As for one layout, with the flag's name."""
    with pytest.raises(BadInput, match="--redundant-experts 3"):
        static_factors(256, [(8, 0)] * 8 + [(8, 3)], MIXED, balanced=True)
