"""Requests that a model has no positions for."""

import numpy as np
import pytest

from ground.errors import BadInput
from ground.trace_lengths import fitting, fitting_parts
from ground.traces import Trace


def conversation() -> Trace:
    """Return two sessions of three turns each, growing, and a request of its own."""
    return Trace(
        name="turns.jsonl",
        format="mooncake",
        arrival_seconds=np.arange(7.0),
        input_tokens=np.array([900, 100, 200, 400, 800, 300, 10]),
        output_tokens=np.full(7, 200),
        session=np.array([0, 1, 0, 1, 0, 1, -1]),
        delay_seconds=np.array([np.nan, np.nan, 2.0, 2.0, 2.0, 2.0, np.nan]),
    )


def test_requests_beyond_the_positions_are_left_out_and_counted() -> None:
    """Prompt and answer together; arrivals count from the first that is kept."""
    trace = fitting(conversation(), 1000, "small")
    assert trace.input_tokens.tolist() == [100, 200, 400, 800, 300, 10]
    assert (trace.left_out, trace.arrival_seconds[0]) == (1, 0.0)
    assert "1 of 7 requests of turns.jsonl are longer than the 1000 positions of small" in trace.notes[-1]
    assert fitting(conversation(), 1100, "large").left_out == 0


def test_a_turn_whose_earlier_ones_are_left_out_follows_none() -> None:
    """Else it would wait for an answer that never comes."""
    trace = fitting(conversation(), 1000, "small")
    first = dict(zip(trace.session[::-1].tolist(), trace.delay_seconds[::-1].tolist(), strict=True))
    assert all(np.isnan(delay) for delay in first.values())
    assert np.isfinite(trace.delay_seconds).sum() == 3


def test_parts_keep_their_own_stamps() -> None:
    """A part without a request that fits is no part."""
    long = conversation()
    parts = list(fitting_parts([long, long], 500))
    assert [part.arrival_seconds.tolist() for part in parts] == [[1.0, 2.0, 5.0, 6.0]] * 2
    assert not list(fitting_parts([long], 100))


def test_a_trace_of_which_none_fits_is_refused() -> None:
    """With the length of the shortest."""
    with pytest.raises(BadInput, match=r"all 7 requests .*the shortest has 210 tokens"):
        fitting(conversation(), 100, "tiny")
