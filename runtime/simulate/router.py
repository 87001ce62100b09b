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

    def found_here(self, request: Request) -> int:
        """Return the tokens of a prompt's head that stand in the instance's memory."""

    def enqueue(self, request: Request) -> None:
        """Let a request wait."""


Choose = Callable[[Request], Head | None]


def chooser(routing: Routing, heads: Sequence[Head]) -> Choose:
    """Return the policy as a function that gives the next request's instance, None where all are down.

    ``least_load``: fewest prompt tokens that wait or run; ``round_robin``: in turn; ``prefix_aware``: fewest, and less
    those of the prompt that stand there (xLLM section 3.4). ``collaborative`` instances share one queue, so the choice
    only spreads the counting.
    """
    if routing.prefill in ("least_load", "prefix_aware"):
        aware = routing.prefill == "prefix_aware"

        def load(head: Head, request: Request) -> int:
            return head.waiting_tokens - (head.found_here(request) if aware else 0)

        def least(request: Request) -> Head | None:
            able = [head for head in heads if head.accepts and head.up]
            return min(able, key=lambda head: load(head, request), default=None)

        return least
    turns = cycle(heads)

    def in_turn(request: Request) -> Head | None:
        for _ in range(len(heads)):
            head = next(turns)
            if head.accepts and head.up:
                return head
        return None

    return in_turn
