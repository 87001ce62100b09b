"""The chain of what waits when passes start: leaving out what is negligible, against the whole of it."""

from dataclasses import replace

import numpy as np
import pytest

from planner.closed_forms.arrival_counts import Arrivals
from planner.closed_forms.bulk_chain import _Walk, settled_chain
from planner.closed_forms.pass_seconds import Passes


def _walk(most, fixed, utilisation, squared_cv):
    """The walk of passes of ``fixed`` and one second a prompt, and its lattice."""
    service = Passes.tabulated(lambda prompts: fixed + prompts, most)
    rate = utilisation * service.saturation_per_second
    arrivals = Arrivals.of(rate, squared_cv)
    chain = settled_chain(service, arrivals, rate, squared_cv)
    brought = chain.passes @ chain.reached
    return _Walk(chain.lattice, brought[:-1], brought[-1]), chain


def _whole(walk):
    """Solved over the whole lattice."""
    return walk._between(walk.lattice.fine, None)


CASES = [
    # prompts of the largest pass, seconds of a pass without any, utilisation, squared CV of arrivals
    (16, 2.0, 0.97, 1 / 14),
    (16, 2.0, 0.93, 1 / 7),
    (48, 9.0, 0.95, 1 / 9),
    (2, 1.0, 0.9, 1.0),
]


@pytest.mark.parametrize(("most", "fixed", "utilisation", "squared_cv"), CASES)
def test_what_is_left_out_is_negligible(most, fixed, utilisation, squared_cv):
    """Solved between its least and a geometric tail, the chain is that of five times as long a lattice."""
    walk, chain = _walk(most, fixed, utilisation, squared_cv)
    whole = _whole(replace(walk, lattice=replace(chain.lattice, cells=5 * chain.lattice.cells, least=1)))
    quick = walk.settled()
    assert walk._tail() is not None
    assert quick[:-1] == pytest.approx(whole[: quick.size - 1], abs=3e-9)
    assert quick[-1] == pytest.approx(whole[quick.size - 1 :].sum(), abs=5e-8)


@pytest.mark.parametrize(("most", "fixed", "utilisation", "squared_cv"), CASES)
def test_one_pass_on_nothing_has_changed(most, fixed, utilisation, squared_cv):
    """The distribution follows on itself, pass by pass as told: brute force over places and counts."""
    walk, chain = _walk(most, fixed, utilisation, squared_cv)
    fine, sizes, cells = chain.lattice.fine, chain.lattice.sizes, chain.lattice.cells
    settled = _whole(walk)
    come = walk.brought - np.append(walk.brought[:, 1:], np.zeros((sizes, 1)), axis=1)
    after = np.zeros(cells)
    for waiting in range(fine, cells):
        taken = min(waiting // fine, sizes)
        for number, chance in enumerate(come[taken - 1]):
            after[min(max(waiting - fine * taken + number, fine), cells - 1)] += settled[waiting] * chance
    assert after == pytest.approx(settled, abs=1e-9)


def test_a_least_that_is_not_negligible_is_noticed():
    """Told that no pass takes fewer than what most take, the chain is solved from one prompt on all the same."""
    walk, chain = _walk(16, 2.0, 0.93, 1 / 14)
    whole = _whole(walk)
    wrong = replace(walk, lattice=replace(chain.lattice, least=14))
    assert wrong.settled() == pytest.approx(whole, abs=1e-12)
