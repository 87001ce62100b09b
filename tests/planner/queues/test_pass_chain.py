"""The chain of what waits when passes start: leaving out what is negligible, against the whole of it."""

from dataclasses import fields, replace

import numpy as np
import pytest

from planner.balance.imbalance import parse_balance
from planner.costs.latency import balanced_cost
from planner.queues.arrival_counts import Arrivals
from planner.queues.bulk_queue import sojourn
from planner.queues.machine import Machine
from planner.queues.pass_chain import _Walk, settled_chain
from planner.queues.pass_lattice import Lattice, holds_of
from planner.queues.passes import varied_service
from planner.queues.prefill_service import by_share
from planner.queues.prompts import Prompts, length_kinds
from planner.workload import Lengths
from tests.instances import instance


def _walk(most, fixed, utilisation, squared_cv):
    """The walk of passes of ``fixed`` and one second a prompt, and its lattice."""
    service = by_share(lambda prompts: fixed + prompts, most, 0.0, 0.0)
    rate = utilisation * service.saturation_per_second
    arrivals = Arrivals.of(rate, squared_cv)
    chain = settled_chain(service, arrivals, rate, squared_cv)
    brought = chain.passes @ chain.reached
    return _Walk(chain.lattice, holds_of(chain.lattice, None, 1.0), brought[:-1], brought[-1:]), chain


def _longer(lattice, cells):
    """The same lattice, with more cells and no least."""
    known = {each.name: getattr(lattice, each.name) for each in fields(lattice)}
    return Lattice(**{**known, "cells": cells, "least": 1})


CASES = [
    # prompts of the largest pass, seconds of a pass without any, utilisation, squared CV of arrivals
    (16, 2.0, 0.97, 1 / 14),
    (16, 2.0, 0.93, 1 / 7),
    (48, 9.0, 0.95, 1 / 9),
    (2, 1.0, 0.9, 1.0),
    (8, 0.5, 0.98, 3.0),
]


@pytest.mark.parametrize(("most", "fixed", "utilisation", "squared_cv"), CASES)
def test_what_is_left_out_is_negligible(most, fixed, utilisation, squared_cv):
    """Solved between its least and a geometric tail, the chain is that of five times as long a lattice."""
    walk, chain = _walk(most, fixed, utilisation, squared_cv)
    lattice = _longer(chain.lattice, 5 * chain.lattice.cells)
    whole = _Walk(lattice, walk.holds, walk.brought, walk.whole).settled(alike=False)
    quick = walk.settled(alike=True)
    assert walk._tail() is not None
    assert quick[:-1] == pytest.approx(whole[: quick.size - 1], abs=3e-9)
    assert quick[-1] == pytest.approx(whole[quick.size - 1 :].sum(), abs=5e-8)


@pytest.mark.parametrize(("most", "fixed", "utilisation", "squared_cv"), CASES)
def test_one_pass_on_nothing_has_changed(most, fixed, utilisation, squared_cv):
    """The distribution follows on itself, pass by pass as told: brute force over places and counts."""
    walk, chain = _walk(most, fixed, utilisation, squared_cv)
    fine, sizes, cells = chain.lattice.fine, chain.lattice.sizes, chain.lattice.cells
    settled = walk.settled(alike=False)
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
    whole = walk.settled(alike=False)
    known = {each.name: getattr(chain.lattice, each.name) for each in fields(chain.lattice)}
    wrong = Lattice(**{**known, "least": 14})
    assert _Walk(wrong, walk.holds, walk.brought, walk.whole).settled(alike=True) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("load", [1e-4, 1e-3, 0.01, 0.1])
def test_passes_that_are_never_full_follow_no_full_ones(load):
    """Shares of what all but never is are shares, and who hardly ever comes takes as long as alone."""
    tokens, weights = length_kinds(Lengths(mean=1024, squared_cv=1.0))
    deployment = instance("qwen3-30b-a3b", "h800", "prefill", "bf16", attention_dp=8, moe_ep=8)
    machine = Machine(balanced_cost(deployment, parse_balance("perfect")), 8, 8192.0, 1)
    service = replace(varied_service(machine, Prompts(tokens, np.zeros_like(tokens), weights)), sample=None)
    found = [sojourn(service, part * load * service.saturation_per_second, 0.5) for part in (0.5, 1.0)]

    assert service.full is not None
    assert all(np.isfinite(each.seconds).all() and each.masses.sum() == pytest.approx(1.0) for each in found)
    assert 0 < found[0].mean_seconds <= found[1].mean_seconds * (1 + 1e-6)
