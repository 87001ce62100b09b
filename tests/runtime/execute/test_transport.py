"""Ranks as coroutines: order, forks, errors that name rank and operation."""

import numpy as np
import pytest

from runtime.execute.transport import Endpoint, Loop, RankFailed, Stuck


def test_who_waits_for_nobody_is_named() -> None:
    """Rank, peer and operation, instead of a hang."""

    async def waits(rank: Endpoint) -> None:
        await rank.receive(1, "kv", "KV of request 7")

    async def ends(_: Endpoint) -> None:
        return None

    with pytest.raises(Stuck, match="rank 0 waits for rank 1 in KV of request 7"):
        Loop().run({0: waits, 1: ends})

    async def counts(rank: Endpoint) -> None:
        await rank.counts([0, 1], rank.rank, "c", np.arange(2), "dispatch")

    with pytest.raises(Stuck, match="rank 0 waits for the others of its group in dispatch"):
        Loop().run({0: counts})


def test_a_rank_that_raises_is_named() -> None:
    """With the cause."""

    async def fails(_: Endpoint) -> None:
        raise ValueError("bad shape")

    with pytest.raises(RankFailed, match="rank 3: ValueError: bad shape"):
        Loop().run({3: fails})


def test_a_failed_run_leaves_nothing_behind() -> None:
    """The same loop runs again, with no message of before."""

    async def lost(rank: Endpoint) -> None:
        rank.send(0, 0, "old")
        await rank.receive(1, 0, "nothing")

    async def again(rank: Endpoint) -> object:
        rank.send(0, 0, "new")
        return await rank.receive(0, 0)

    loop = Loop()
    with pytest.raises(Stuck):
        loop.run({0: lost})
    assert loop.run({0: again})[0] == "new"
