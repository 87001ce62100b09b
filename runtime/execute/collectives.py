"""Collectives over a group of ranks, each from its messages; sums run in rank order, so every rank gets the same bits.

``direct`` collectives send every pair's part at once over full-duplex links (MixServe section III-B2, "broadcast");
``ring`` ones pass parts to the neighbour, n - 1 rounds; ``pairwise`` all-to-all meets one partner per round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ground.arrays import Floats, Ints
from runtime.execute.transport import Endpoint


@dataclass(slots=True)
class Comm:
    """A group of ranks as one of them sees it; ``channel`` keeps its messages apart from other groups'.

    ``label`` says what the group is doing, for errors and the timeline; the program sets it.
    """

    endpoint: Endpoint
    ranks: Sequence[int]
    index: int
    channel: Any
    label: str = ""

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.ranks)

    def send(self, to: int, payload: Any) -> None:
        """Send to the ``to``-th rank of the group."""
        self.endpoint.send(self.ranks[to], self.channel, payload, self.label)

    async def receive(self, source: int) -> Any:
        """Return the next message of the ``source``-th rank of the group."""
        return await self.endpoint.receive(self.ranks[source], self.channel, self.label)

    def done(self, name: str, start: float, payload: Any) -> None:
        """Keep on the timeline that a collective of this group ran from ``start`` to now."""
        endpoint = self.endpoint
        if endpoint.loop.clock is not None:
            endpoint.loop.clock.record(endpoint.rank, name, self.label, self.size, payload, start, endpoint.now)

    async def counts(self, row: Ints) -> Ints:
        """Exchange one number with every rank of the group: give ``row`` [n], get what each has for this one, [n].

        All rows meet in one table, for n² messages of one number would cost more than the payload; by messages where
        these take time.
        """
        if self.endpoint.loop.clock is None:
            return await self.endpoint.counts(self.ranks, self.index, self.channel, row, self.label)
        counting = replace(self, channel=(self.channel, "count"))
        return np.array(await _exchanged(counting, list(row.astype(np.int32))), dtype=np.int64)


def comm(endpoint: Endpoint, ranks: Sequence[int], channel: Any) -> Comm:
    """Return the group of ``ranks`` as the endpoint's rank, which is one of them, sees it."""
    return Comm(endpoint, ranks, list(ranks).index(endpoint.rank), channel)


def parts_of(size: int, n: int) -> list[tuple[int, int]]:
    """Return (start, stop) of n parts of ``size`` that differ by one at most."""
    return [(size * i // n, size * (i + 1) // n) for i in range(n)]


def cut(x: Floats, n: int, axis: int = 0) -> list[Floats]:
    """Return n parts of an array along an axis."""
    return [x[a:b] if axis == 0 else x[:, a:b] for a, b in parts_of(x.shape[axis], n)]


def added(parts: Sequence[Floats]) -> Floats:
    """Sum of parts from first to last."""
    total: Floats = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


async def _exchanged(group: Comm, parts: Sequence[Any], *, together: bool = True) -> list[Any]:
    """Return part ``index`` of every rank, each rank starting with its neighbour; all parts leave at once, or each
    after the answer to the one before.
    """
    n, index = group.size, group.index
    got = [parts[index]] * n
    for steps in [range(1, n)] if together else [range(step, step + 1) for step in range(1, n)]:
        for step in steps:
            group.send((index + step) % n, parts[(index + step) % n])
        for step in steps:
            got[(index - step) % n] = await group.receive((index - step) % n)
    return got


async def direct_all_to_all(group: Comm, parts: Sequence[Any]) -> list[Any]:
    """Return part ``index`` of every rank."""
    start, got = group.endpoint.now, await _exchanged(group, parts)
    group.done("all-to-all", start, parts)
    return got


async def reduce_scatter(group: Comm, parts: Sequence[Floats]) -> Floats:
    """Return the sum over ranks of their ``parts[index]``."""
    start, got = group.endpoint.now, await _exchanged(group, parts)
    group.done("reduce-scatter", start, parts)
    return added(got)


async def all_gather(group: Comm, mine: Any) -> list[Any]:
    """Return what every rank has, in rank order."""
    start, got = group.endpoint.now, await _exchanged(group, [mine] * group.size)
    group.done("all-gather", start, mine)
    return got


async def all_reduce(group: Comm, x: Floats) -> Floats:
    """Return the sum over ranks of x [T, ·] as reduce-scatter and all-gather of its flattened parts (Eq. (2))."""
    if group.size == 1:
        return x
    start, flat = group.endpoint.now, np.ascontiguousarray(x).reshape(-1)
    mine = await reduce_scatter(group, cut(flat, group.size))
    whole = np.concatenate(await all_gather(group, mine)).reshape(x.shape)
    group.done("all-reduce", start, x)
    return whole


async def all_reduce_max(group: Comm, x: Floats) -> Floats:
    """Return the largest over ranks, for scales of rows that are cut; x is small."""
    return np.max(await all_gather(group, x), axis=0)


async def ring_reduce_scatter(group: Comm, parts: Sequence[Floats]) -> Floats:
    """Return the sum of ``parts[index]``: each part travels once round the ring and grows; n - 1 rounds."""
    n, index = group.size, group.index
    carried = parts[(index - 1) % n]
    for step in range(1, n):
        group.send((index + 1) % n, carried)
        carried = await group.receive((index - 1) % n) + parts[(index - 1 - step) % n]
    return carried


async def ring_all_gather(group: Comm, mine: Any) -> list[Any]:
    """Return what every rank has: each passes on what it got last; n - 1 rounds."""
    n, index = group.size, group.index
    got = [mine] * n
    for step in range(1, n):
        group.send((index + 1) % n, got[(index - step + 1) % n])
        got[(index - step) % n] = await group.receive((index - 1) % n)
    return got


async def ring_all_reduce(group: Comm, x: Floats) -> Floats:
    """Ring reduce-scatter, then ring all-gather."""
    flat = np.ascontiguousarray(x).reshape(-1)
    mine = await ring_reduce_scatter(group, cut(flat, group.size))
    return np.concatenate(await ring_all_gather(group, mine)).reshape(x.shape)


async def pairwise_all_to_all(group: Comm, parts: Sequence[Any]) -> list[Any]:
    """Return part ``index`` of every rank; in round i a rank sends i ahead and receives from i behind (Eq. (3))."""
    return await _exchanged(group, parts, together=False)


async def sparse_all_to_all(group: Comm, parts: Mapping[int, Any]) -> dict[int, Any]:
    """Return what others have for this rank, by sender; pairs without a message exchange a count of 0 only."""
    row = np.zeros(group.size, dtype=np.int64)
    row[list(parts)] = 1
    sizes = await group.counts(row)
    index, n = group.index, group.size
    for to in sorted(parts, key=lambda to: (to - index) % n):
        if to != index:
            group.send(to, parts[to])
    got = {source: await group.receive(source) for source in np.flatnonzero(sizes).tolist() if source != index}
    if index in parts:
        got[index] = parts[index]
    return got
