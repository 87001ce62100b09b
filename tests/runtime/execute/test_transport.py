"""Ranks as coroutines: order, forks, errors that name rank and operation."""

import numpy as np
import pytest

from runtime.execute.transport import Endpoint, Loop, RankFailed, Stuck


def test_messages_of_a_pair_arrive_in_order() -> None:
    """On each channel by itself."""

    async def sender(rank: Endpoint) -> None:
        for number in range(3):
            rank.send(1, "a", number)
        rank.send(1, "b", "other")

    async def receiver(rank: Endpoint) -> list[object]:
        return [await rank.receive(0, "b"), *[await rank.receive(0, "a") for _ in range(3)]]

    assert Loop().run({0: sender, 1: receiver})[1] == ["other", 0, 1, 2]


def test_programs_of_a_rank_run_beside_each_other() -> None:
    """One waits for what the other sends, and results keep their order."""

    async def program(rank: Endpoint) -> list[object]:
        async def first() -> object:
            return await rank.receive(rank.rank, "loop")

        async def second() -> str:
            rank.send(rank.rank, "loop", "seen")
            return "sent"

        return await rank.together(first(), second())

    assert Loop().run({0: program})[0] == ["seen", "sent"]


def test_who_waits_for_nobody_is_named() -> None:
    """Rank, peer and operation, instead of a hang."""

    async def waits(rank: Endpoint) -> None:
        await rank.receive(1, "kv", "KV of request 7")

    async def ends(_: Endpoint) -> None:
        return None

    with pytest.raises(Stuck, match="rank 0 waits for rank 1 in KV of request 7"):
        Loop().run({0: waits, 1: ends})


def test_a_rank_that_raises_is_named() -> None:
    """With the cause."""

    async def fails(_: Endpoint) -> None:
        raise ValueError("bad shape")

    with pytest.raises(RankFailed, match="rank 3: ValueError: bad shape"):
        Loop().run({3: fails})


def test_counts_meet_in_one_table() -> None:
    """Each rank gets its column; several rounds in a row do not mix, and a missing rank is told."""

    def program(number: int):  # type: ignore[no-untyped-def]
        async def run(rank: Endpoint) -> list[list[int]]:
            rows = []
            for step in range(2):
                row = np.arange(3) + 10 * number + 100 * step
                rows.append((await rank.counts([0, 1, 2], number, "c", row, "dispatch")).tolist())
            return rows

        return run

    results = Loop().run({number: program(number) for number in range(3)})
    assert results[1] == [[1, 11, 21], [101, 111, 121]]
    with pytest.raises(Stuck, match="rank 0 waits for the others of its group in dispatch"):
        Loop().run({0: program(0), 1: program(1)})


def test_the_same_program_runs_the_same_way_every_time() -> None:
    """The order of events is a function of the programs alone."""

    def ranks(log: list[int]):  # type: ignore[no-untyped-def]
        def program(number: int):  # type: ignore[no-untyped-def]
            async def run(rank: Endpoint) -> None:
                for _ in range(5):
                    rank.send((number + 1) % 4, 0, number)
                    log.append(await rank.receive((number - 1) % 4, 0))

            return run

        return {number: program(number) for number in range(4)}

    first: list[int] = []
    second: list[int] = []
    Loop().run(ranks(first))
    Loop().run(ranks(second))
    assert first == second and len(first) == 20


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
