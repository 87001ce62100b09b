"""Dispatch and combine: metadata, buffers, quantisation and its bound."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runtime.execute.kernels import quantise
from runtime.execute.layout import ExpertTable
from runtime.execute.sweep import covering


def table(slots: list[int], per_rank: int, shared: tuple[int, ...] = ()) -> ExpertTable:
    """Return the table of slots that fill one rank after the other."""
    return ExpertTable(np.array(slots), np.arange(len(slots)) // per_rank, np.array(shared, dtype=np.int64))


def test_tokens_rotate_over_replicas_by_their_place() -> None:
    """Expert 0 has three replicas: places 0, 1, 2 use one each; expert 1 has one, which all use."""
    copies = table([0, 1, 0, 2, 0, 3], 2).copies(np.array([[0, 1]] * 4), np.ones((4, 2)), np.arange(4))
    assert copies.slot.reshape(4, 2)[:, 0].tolist() == [0, 2, 4, 0]
    assert copies.slot.reshape(4, 2)[:, 1].tolist() == [1, 1, 1, 1]
    assert copies.ep.reshape(4, 2)[:, 0].tolist() == [0, 1, 2, 0]


@given(st.integers(0, 2**16))
def test_quantisation_is_off_by_half_a_step_at_most(seed: int) -> None:
    """And quantising what was quantised changes nothing, so early quantisation is free where experts compute INT8."""
    x = np.random.default_rng(seed).standard_normal((5, 9)) * 10.0
    q, scale = quantise(x)
    assert (np.abs(q * scale - x) <= scale / 2 * (1 + 1e-12)).all()
    again, _ = quantise(q * scale)
    assert np.array_equal(again, q)


@given(st.integers(1, 6), st.integers(0, 12), st.integers(0, 20))
def test_forced_routes_reach_every_rank(ranks: int, redundant: int, start: int) -> None:
    """Whatever the replicas, within four times as many tokens as there are ranks."""
    experts = 12
    slots = [slot % experts for slot in range(experts + redundant // ranks * ranks)]
    slots += [(slot * 5) % experts for slot in range(-len(slots) % ranks)]
    placed = table(slots, len(slots) // ranks)
    turn = np.arange(4 * ranks + 12) + start
    chosen, needed = covering(placed, turn, 2)
    copies = placed.copies(chosen[:needed], np.ones((needed, 2)), turn[:needed])
    assert set(copies.ep.tolist()) == set(range(ranks))
    assert all(len(set(row)) == 2 for row in chosen.tolist())
