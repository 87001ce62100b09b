"""Which prefill instance takes a request."""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Protocol

from planner.manifest.schema import Routing


class Queueing(Protocol):
    """An instance in front of which prompts wait; ``waiting_tokens`` wait or run."""

    waiting_tokens: int

    def enqueue(self, request: int) -> None:
        """Let a request wait."""


Choose = Callable[[], int]


def chooser(routing: Routing, instances: Sequence[Queueing]) -> Choose:
    """Return the policy as a function that gives the index of the next request's instance.

    ``least_load``: fewest prompt tokens that wait or run; ``round_robin``: in turn. ``collaborative``
    instances share one queue, so the choice only spreads the counting.
    """
    if routing.prefill == "least_load":
        return lambda: min(range(len(instances)), key=lambda index: instances[index].waiting_tokens)
    turns = cycle(range(len(instances)))
    return lambda: next(turns)
