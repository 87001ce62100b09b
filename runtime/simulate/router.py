"""Which prefill or mixed instance takes a request."""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Protocol

from planner.manifest.schema import Routing
from runtime.simulate.request import Request


class Head(Protocol):
    """An instance in front of which prompts wait; ``waiting_tokens`` wait or run."""

    waiting_tokens: int
    accepts: bool
    up: bool

    def enqueue(self, request: Request) -> None:
        """Let a request wait."""


Choose = Callable[[Request], Head | None]


def chooser(routing: Routing, heads: Sequence[Head]) -> Choose:
    """Return the policy as a function that gives the next request's instance, None where all are down.

    ``least_load``: fewest prompt tokens that wait or run; ``round_robin``: in turn. ``collaborative``
    instances share one queue, so the choice only spreads the counting.
    """
    if routing.prefill == "least_load":

        def least(request: Request) -> Head | None:
            able = [head for head in heads if head.accepts and head.up]
            return min(able, key=lambda head: head.waiting_tokens) if able else None

        return least
    turns = cycle(heads)

    def in_turn(request: Request) -> Head | None:
        for _ in range(len(heads)):
            head = next(turns)
            if head.accepts and head.up:
                return head
        return None

    return in_turn
