"""Sessions as a stream, and what their prompts find of the turns before."""

import numpy as np
import pytest

from ground.prefix_cache import PrefixCache
from ground.traces import Trace, reused_tokens, with_blocks
from planner.serving.sessions import session_trace
from planner.workload import Lengths, Sessions, Workload

BASE = Workload(input_tokens=Lengths(mean=1024), output_tokens=Lengths(mean=512))


def shape(**changes: object) -> Sessions:
    """Return four turns with a pause of 30 s."""
    fields = {"turns": 4, "new_tokens": BASE.input_tokens, "think_seconds": 30.0} | changes
    return Sessions(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("keeps", "reused"), [(True, [0, 1536, 3072, 4608]), (False, [0, 1024, 2560, 4096])])
def test_a_turn_finds_the_turns_before(keeps: bool, reused: list[int]) -> None:
    """Prompts grow by what was said; without answers the last one is computed, those before were prompts."""
    trace = session_trace(BASE, shape(keeps_answers=keeps), 10.0, 400)
    found = reused_tokens(trace)
    for turn, tokens in enumerate(reused):
        of_turn = trace.input_tokens == 1024 + 1536 * turn
        assert of_turn.sum() == 100
        assert set(found[of_turn].tolist()) == {tokens}


def test_branches_share_their_turn_and_the_next_waits_for_all() -> None:
    """Three at once: they find the first one's turn, and the next prompts hold what all have said."""
    trace = session_trace(BASE, shape(turns=2, branches=3), 10.0, 600)
    rows = np.flatnonzero(trace.session == 0)
    assert trace.input_tokens[rows].tolist() == [1024] * 3 + [3 * 1536 + 1024] * 3
    assert (trace.delay_seconds[rows] < 0).tolist() == [False, True, True, False, True, True]
    assert reused_tokens(trace)[rows].tolist() == [0, 0, 0, 1536, 1536, 1536]


def test_rates_and_pauses() -> None:
    """Requests come at the rate that was asked for, and pauses have their mean."""
    trace = session_trace(BASE, shape(), 20.0, 20_000)
    begins = trace.arrival_seconds[np.isnan(trace.delay_seconds)]
    assert 4 * begins.size / begins[-1] == pytest.approx(20.0, rel=0.05)
    assert trace.delay_seconds[trace.delay_seconds > 0].mean() == pytest.approx(30.0, rel=0.05)


def test_a_small_pool_forgets_while_users_think() -> None:
    """The least recently used go first: of a pool with room for a hundredth of the sessions nothing is found again."""
    trace = session_trace(BASE, shape(), 20.0, 8_000)
    whole, few = reused_tokens(trace).sum(), reused_tokens(trace, PrefixCache(128, 500)).sum()
    assert few < 0.1 * whole


def test_sessions_of_a_trace_that_tells_no_blocks() -> None:
    """A prompt shorter than what was said begins anew; requests outside sessions find nothing."""
    columns = np.array([[0, 256, 128], [0, 512, 128], [-1, 640, 128], [0, 256, 128], [0, 640, 128]])
    trace = Trace(
        name="t", format="dynamo", arrival_seconds=np.arange(5.0), input_tokens=columns[:, 1],
        output_tokens=columns[:, 2], session=columns[:, 0], delay_seconds=np.array([np.nan, 1.0, np.nan, 1.0, 1.0]),
    )  # fmt: skip
    assert reused_tokens(with_blocks(trace, 128)).tolist() == [0, 384, 0, 0, 384]
