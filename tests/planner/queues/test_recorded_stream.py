"""Recorded streams: tokens that are computed, and which instance takes which request."""

import numpy as np

from planner.queues.recorded_stream import dealt, prompt_tokens
from planner.workload import Trace


class Head:
    """Holds what it was given for a second."""

    def __init__(self) -> None:
        self.until, self.taken = 0.0, [0.0]

    def advance(self, until: float) -> None:
        """Play until then."""
        self.until = until

    def held(self, now: float) -> int:
        """Requests of the last second."""
        return sum(now - 1.0 < each for each in self.taken[1:])


def test_a_prompt_computes_a_token_at_least():
    """Reuse takes all but one; an empty prompt counts as one token."""
    trace = Trace(
        arrival_seconds=[0.0, 1.0, 2.0], input_tokens=[10, 4, 0], output_tokens=[5, 5, 5], reused_tokens=[3, 9, 0]
    )
    tokens, reused = prompt_tokens(trace)
    assert tokens.tolist() == [10, 4, 1]
    assert reused.tolist() == [3, 3, 0]


def test_requests_go_in_turn_or_to_the_least_loaded():
    """In turn whatever is held; else to the first that holds least, known at the very time; all are played out."""
    arrivals = [0.1, 0.2, 1.15, 1.16]
    for policy, places in (("round_robin", [0, 1, 2, 0]), ("least_load", [0, 1, 0, 2])):
        heads = [Head(), Head(), Head()]
        found = []
        for _, now, head in dealt(heads, policy, arrivals, Head.held):
            assert head.until == now
            head.taken.append(now)
            found.append(heads.index(head))
        assert found == places
        assert all(each.until == np.inf for each in heads)
