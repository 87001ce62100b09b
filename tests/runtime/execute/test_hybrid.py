"""MixServe Algorithms 1 and 2 on their own: what they add up, and that Algorithm 1 as printed cannot."""

from typing import Any

import numpy as np
import pytest

from ground.arrays import Floats
from runtime.execute.collectives import all_gather, comm, cut, reduce_scatter
from runtime.execute.transport import Endpoint, Loop

NODES, DEVICES, TOKENS, HIDDEN = 3, 2, 4, 8


def partial_sums() -> Floats:
    """X [rank, destination node, tokens, hidden]: each rank's partial sums of the tokens of every node."""
    return np.random.default_rng(1).standard_normal((NODES * DEVICES, NODES, TOKENS, HIDDEN))


def wanted(x: Floats) -> Floats:
    """What node d must end with: the sum over all ranks of all nodes, [node, tokens, hidden]."""
    total: Floats = x.sum(axis=0)
    return total


def run(body: Any) -> list[Floats]:
    """Run a body per rank with the group of all ranks and that of its node."""

    def program(endpoint: Endpoint) -> Any:
        node = endpoint.rank // DEVICES
        inner = range(node * DEVICES, node * DEVICES + DEVICES)
        return body(comm(endpoint, range(NODES * DEVICES), "world"), comm(endpoint, inner, "node"))

    results = Loop().run(dict.fromkeys(range(NODES * DEVICES), program))
    return [results[rank] for rank in range(NODES * DEVICES)]


def test_algorithm_1_read_as_reduce_scatter_exchange_all_gather_gives_the_sum() -> None:
    """Reduce inside the source node, send slice r_tp to the same TP rank, add, gather: the sum, on every rank."""
    x = partial_sums()

    async def body(world: Any, inner: Any) -> Floats:
        node, lane = divmod(world.index, DEVICES)
        mine = np.zeros((TOKENS, HIDDEN // DEVICES))
        for step in range(1, NODES):
            to = (node + step) % NODES
            reduced = await reduce_scatter(inner, cut(x[world.index, to], DEVICES, axis=1))
            world.send(to * DEVICES + lane, reduced)
        mine += await reduce_scatter(inner, cut(x[world.index, node], DEVICES, axis=1))
        for step in range(1, NODES):
            mine = mine + await world.receive((node - step) % NODES * DEVICES + lane)
        return np.concatenate(await all_gather(inner, mine), axis=1)

    for rank, got in enumerate(run(body)):
        assert np.allclose(got, wanted(x)[rank // DEVICES], atol=1e-12)


def as_printed(x: Floats) -> list[Floats]:
    """Algorithm 1 to the letter: send the unreduced slice X[r_tp], reduce-scatter after arrival."""

    async def body(world: Any, inner: Any) -> Floats:
        node, lane = divmod(world.index, DEVICES)
        for step in range(1, NODES):
            to = (node + step) % NODES
            world.send(to * DEVICES + lane, cut(x[world.index, to], DEVICES, axis=1)[lane])
        mine = await reduce_scatter(inner, cut(x[world.index, node], DEVICES, axis=1))
        for step in range(1, NODES):
            arrived = await world.receive((node - step) % NODES * DEVICES + lane)
            # Every device contributes another part of the hidden axis, and the sum has m times too few columns.
            mixed = await reduce_scatter(inner, cut(arrived, DEVICES, axis=1))
            mine = mine + np.tile(mixed, (1, DEVICES))
        return np.concatenate(await all_gather(inner, mine), axis=1)

    return run(body)


def test_algorithm_1_as_printed_cannot_give_the_sum() -> None:
    """It is not the sum, and no later step could make it so: most partial sums never leave their node.

    Rank 1 sends node 1 its second half only. Changing its first half must change node 1's sum, and changes nothing.
    """
    x = partial_sums()
    got = as_printed(x)
    assert all(np.abs(one - wanted(x)[rank // DEVICES]).max() > 0.1 for rank, one in enumerate(got))
    changed = x.copy()
    changed[1, 1, :, : HIDDEN // DEVICES] += 1.0
    assert np.abs(wanted(changed)[1] - wanted(x)[1]).max() == pytest.approx(1.0)
    for rank in range(DEVICES, 2 * DEVICES):
        assert np.array_equal(as_printed(changed)[rank], got[rank])


def test_sending_whole_rows_is_right_at_more_traffic() -> None:
    """The other correct reading: send all of h, add on arrival, at m times the bytes between nodes."""
    x = partial_sums()

    async def body(world: Any, inner: Any) -> Floats:
        node, lane = divmod(world.index, DEVICES)
        for step in range(1, NODES):
            world.send((node + step) % NODES * DEVICES + lane, x[world.index, (node + step) % NODES])
        total = x[world.index, node]
        for step in range(1, NODES):
            total = total + await world.receive((node - step) % NODES * DEVICES + lane)
        own = await reduce_scatter(inner, cut(total, DEVICES, axis=1))
        return np.concatenate(await all_gather(inner, own), axis=1)

    for rank, got in enumerate(run(body)):
        assert np.allclose(got, wanted(x)[rank // DEVICES], atol=1e-12)
