"""Prefill instances pass by pass: against a plain Python reference, M/D/1 and conservation."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from planner.serving.decode import prefill_pool
from planner.serving.prefill import Look, PrefillPool, PrefillRun, play_prefill
from planner.serving.streams import Stream, stationary
from planner.workload import Lengths, Workload
from tests.planner.serving.costs import linear_cost, stream_of

FIXED, PER_TOKEN = 0.01, 1e-5


def _pool(ranks: int, budget: int, instances: int = 1) -> PrefillPool:
    return prefill_pool(
        linear_cost(FIXED, PER_TOKEN, ranks=ranks),
        ranks=ranks,
        budget_tokens=budget,
        longest_prompt=5000.0,
        microbatches=1,
        instances=instances,
    )


class _Pass:
    """One pass in the making, in plain Python."""

    def __init__(self, stream: Stream, ranks: int, budget: int) -> None:
        self.stream, self.room, self.computed = stream, [budget] * ranks, [0] * ranks
        self.ended: list[int] = []
        self.under: dict[int, tuple[int, int]] = {}  # rank -> prompt, tokens done

    def take(self, rank: int, prompt: int, done: int) -> None:
        length, reused = int(self.stream.prompt_tokens[prompt]), int(self.stream.reused_tokens[prompt])
        end = min(done + self.room[rank], length)
        self.room[rank] -= end - done
        self.computed[rank] += end - min(max(done, reused), end)
        if end == length:
            self.ended.append(prompt)
        else:
            self.under[rank] = (prompt, end)


def _reference(stream: Stream, ranks: int, budget: int) -> list[float]:
    """The rule of ``planner.serving.prefill`` in plain Python, for one instance with a linear step cost."""
    waiting, first = list(range(len(stream))), [0.0] * len(stream)
    under: dict[int, tuple[int, int]] = {}
    free, turn = 0.0, 0
    while waiting or under:
        begin = free if under else max(free, stream.arrival_seconds[waiting[0]])
        step = _Pass(stream, ranks, budget)
        for rank, (prompt, done) in sorted(under.items()):
            step.take(rank, prompt, done)
        while waiting and stream.arrival_seconds[waiting[0]] <= begin:
            prompt, room = waiting[0], step.room
            rank = max(range(ranks), key=[(room[r], -((r - turn) % ranks)) for r in range(ranks)].__getitem__)
            start = int(stream.reused_tokens[prompt]) // budget * budget
            left = int(stream.prompt_tokens[prompt]) - start
            if room[rank] < (left if left <= budget else 1):
                break
            waiting.pop(0)
            turn += 1
            step.take(rank, prompt, start)
        under = step.under
        free = begin + (FIXED + PER_TOKEN * max(step.computed) if any(step.computed) else 0.0)
        for prompt in step.ended:
            first[prompt] = free
    return first


@given(
    gaps=st.lists(st.floats(0.0, 0.05), min_size=1, max_size=40),
    ranks=st.integers(1, 4),
    budget=st.integers(50, 400),
    data=st.data(),
)
def test_first_tokens_are_those_of_a_plain_reference(gaps, ranks, budget, data):
    """Chunks, reuse, ranks and bursts: every first token comes out when the written rule says."""
    sizes = st.lists(st.integers(1, 1000), min_size=len(gaps), max_size=len(gaps))
    stream = stream_of(np.cumsum(gaps), data.draw(sizes), reused=data.draw(sizes))
    played = play_prefill(_pool(ranks, budget), stream)
    np.testing.assert_allclose(played.first_token_seconds, _reference(stream, ranks, budget), rtol=1e-6)


def test_single_prompts_wait_as_in_m_d_1() -> None:
    """With a budget of one prompt a pass is a server with constant times: Pollaczek and Khinchine tell the mean."""
    workload = Workload(input_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=1))
    stream = stationary(workload, 200_000, seed=1)
    service = FIXED + PER_TOKEN * 1000
    load = 0.7
    played = play_prefill(_pool(1, 1000), stream.at_rate(load / service))
    waits = played.first_token_seconds - stream.arrival_seconds * service / load
    assert waits.mean() == pytest.approx(service + load * service / (2 * (1 - load)), rel=0.02)


def test_dealing_in_turn_splits_a_pool_into_instances() -> None:
    """Each of three instances does with every third prompt what it does alone."""
    workload = Workload(input_tokens=Lengths(mean=300, squared_cv=1.0), output_tokens=Lengths(mean=1))
    stream = stationary(workload, 900).at_rate(150.0)
    together = play_prefill(_pool(2, 512, 3), stream)
    for number in range(3):
        chosen = np.arange(number, 900, 3)
        alone = play_prefill(_pool(2, 512), stream.select(chosen))
        np.testing.assert_allclose(together.first_token_seconds[chosen], alone.first_token_seconds)


def test_least_load_is_no_later_than_dealing_in_turn_on_average() -> None:
    """A router that sees the tokens that wait beats one that does not."""
    workload = Workload(input_tokens=Lengths(mean=300, squared_cv=2.0), output_tokens=Lengths(mean=1))
    stream = stationary(workload, 5000).at_rate(220.0)
    pool = _pool(1, 512, 4)
    seeing = replace(pool, policy="least_load")
    in_turn, least = (play_prefill(each, stream).first_token_seconds.mean() for each in (pool, seeing))
    assert least < in_turn


def test_a_stream_in_parts_is_played_as_a_whole() -> None:
    """What has not left is carried over: first tokens do not depend on where a stream is cut."""
    workload = Workload(input_tokens=Lengths(mean=300, squared_cv=2.0), output_tokens=Lengths(mean=1))
    stream = stationary(workload, 3000).at_rate(400.0)
    pool = _pool(2, 512, 3)
    run, found = PrefillRun(pool), np.zeros(len(stream))
    for first, last in pairwise([0, 1, 700, 1800, 3000]):
        until = stream.arrival_seconds[last - 1] if last < 3000 else np.inf
        ended = run.play(stream.select(slice(first, last)), until)
        found[ended.number] = ended.first_token_seconds
    np.testing.assert_array_equal(found, play_prefill(pool, stream).first_token_seconds)
    under_way = PrefillRun(_pool(1, 512))
    under_way.play(stream_of([0.0], [300]), 0.005)
    assert under_way.busy_seconds(0.005) == pytest.approx(0.005)


def test_a_look_counts_who_is_late_in_each_part() -> None:
    """As one counts them by the whole play: who waits at a look has the first token then at the earliest."""
    stream = stationary(
        Workload(input_tokens=Lengths(mean=1000, squared_cv=1.0), output_tokens=Lengths(mean=1)), 6000
    ).at_rate(60.0)
    whole, looks, limit = play_prefill(_pool(2, 2000), stream).first_token_seconds, [], 0.1

    def enough(late: np.ndarray, there: np.ndarray) -> bool:
        looks.append((late.tolist(), there.tolist()))
        return len(looks) == 3

    counting = slice(600, 5400)
    ended = play_prefill(_pool(2, 2000), stream, Look(limit, counting, 10, enough))
    assert ended.ended
    for (late, there), end in zip(looks, (1500, 3000, 4500), strict=True):
        first = np.minimum(
            whole[600:end], np.where(whole[:end] > stream.arrival_seconds[end], np.inf, whole[:end])[600:]
        )
        parts = np.array_split(first - stream.arrival_seconds[600:end] > limit, 10)
        assert there == [part.size for part in parts]
        assert sum(late) <= sum(int(part.sum()) for part in parts)
        assert sum(late[:9]) == sum(int(part.sum()) for part in parts[:9])
