"""A pool of prefill instances under a stream, pass by pass.

The rule: an instance begins a pass when the last one has ended and somebody waits. A pass takes who waits, first come
first served, each prompt on the DP rank with most room left of its token budget, until one does not fit. A prompt
within the budget is never split; a longer one takes its rank's whole budget pass after pass, and its last part shares
a pass with others. Reused tokens take room; whole budgets of them take no pass. A pass lasts as long as its slowest
rank, and all first tokens of a pass come out at its end.

Ref: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16:80, 1954; the recursion is D. V.
Lindley's, Proc. Camb. Phil. Soc. 48:277, 1952.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.serving.streams import Floats, Ints, Stream
from planner.serving.tables import TableArrays

Policy = Literal["round_robin", "least_load"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillPool:
    """Instances that are alike, and who takes a prompt: in turn, or the one that holds fewest prompt tokens."""

    times: TableArrays
    ranks: int
    budget_tokens: int
    """Of one DP rank and pass."""
    instances: int = 1
    policy: Policy = "round_robin"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefilled:
    """What became of every prompt, [requests]."""

    first_token_seconds: Floats
    origin: Ints
    """The DP rank that holds its KV, counted over all instances."""
    busy_seconds: float
    """Of all instances."""


def play_prefill(pool: PrefillPool, stream: Stream) -> Prefilled:
    """Return when every prompt of a stream has its first token; the stream's arrivals must not fall."""
    from planner.serving import prefill_loop as loop

    requests, shape = len(stream), (pool.instances, pool.ranks)
    prompts = loop.Prompts(
        arrival=np.ascontiguousarray(stream.arrival_seconds, dtype=np.float64),
        length=stream.prompt_tokens,
        reused=stream.reused_tokens,
        behind=np.full(requests, -1),
        first=np.zeros(requests),
        origin=np.zeros(requests, dtype=np.int64),
    )
    held = loop.Instances(
        head=np.full(pool.instances, -1),
        tail=np.full(pool.instances, -1),
        under=np.full(shape, -1),
        done=np.zeros(shape, dtype=np.int64),
        ended=np.full(pool.instances, -1),
        free=np.zeros(pool.instances),
        held=np.zeros(pool.instances, dtype=np.int64),
        turn=np.zeros(pool.instances, dtype=np.int64),
        busy=np.zeros(pool.instances),
    )
    policy = loop.IN_TURN if pool.policy == "round_robin" else loop.LEAST_LOAD
    loop.play(prompts, held, policy, pool.budget_tokens, pool.times)
    return Prefilled(first_token_seconds=prompts.first, origin=prompts.origin, busy_seconds=float(held.busy.sum()))
