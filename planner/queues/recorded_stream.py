"""A recorded stream of requests as recursions take it: its tokens, and which instance each request goes to."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.serving.closed_forms.bulk_service import Policy
from planner.workload import Trace

Ints = NDArray[np.int64]


class Advancing(Protocol):
    """An instance that plays what it was given."""

    def advance(self, until: float, /) -> None:
        """Play all that begins before then, in seconds."""
        ...


Head = TypeVar("Head", bound=Advancing)


def prompt_tokens(trace: Trace) -> tuple[Ints, Ints]:
    """Return (tokens, those of them that are there before) of each prompt, [requests]: at least one is computed."""
    tokens = np.maximum(np.asarray(trace.input_tokens, dtype=np.int64), 1)
    reused = np.zeros_like(tokens) if trace.reused_tokens is None else np.asarray(trace.reused_tokens, dtype=np.int64)
    return tokens, np.clip(reused, 0, tokens - 1)


def dealt(
    heads: Sequence[Head], policy: Policy, arrivals: Sequence[float], held_tokens: Callable[[Head, float], int]
) -> Iterator[tuple[int, float, Head]]:
    """Yield (request, its arrival, the instance that it goes to, played until then); in the end all are played out.

    Args:
        heads: instances.
        policy: in turn, or to the one with fewest prompt tokens that wait or run.
        arrivals: seconds, not falling.
        held_tokens: of an instance at a time, as the policy counts them.
    """
    for request, now in enumerate(arrivals):
        if policy == "round_robin":
            head = heads[request % len(heads)]
        else:
            for each in heads:
                each.advance(now)
            head = min(heads, key=lambda each: held_tokens(each, now))
        head.advance(now)
        yield request, now, head
    for each in heads:
        each.advance(math.inf)
