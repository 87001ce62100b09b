"""A pool of aggregated instances that is played part by part: what has not left is all that it keeps between them."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from planner.serving.aggregated import AggregatedPool, instances_of, requests_of, rule_of
from planner.serving.streams import Floats, Ints, Stream

if TYPE_CHECKING:
    from planner.loops.batch_loop import Records

_LINKS = ("behind", "chain", "later", "sooner", "newer", "older")


class Left(NamedTuple):
    """Requests that have all their tokens, in the order in which they arrived."""

    number: Ints
    begun_seconds: Floats
    """When a step first carried their prompts."""
    first_token_seconds: Floats
    left_seconds: Floats
    preemptions: Ints


class AggregatedRun:
    """Aggregated instances under a stream that comes in parts."""

    def __init__(self, pool: AggregatedPool) -> None:
        """Begin with idle instances."""
        from planner.loops import aggregated_loop as loop

        self.pool, self._play = pool, loop.play
        self._policy = loop.IN_TURN if pool.policy == "round_robin" else loop.LEAST_LOAD
        self._longest = self._come = 0
        self._instances = instances_of(pool, rule_of(pool, 0), 0, 0)
        self._requests: Records | None = None
        self._numbers: Ints = np.zeros(0, dtype=np.int64)

    def play(self, stream: Stream, until: float, numbers: Ints, iterations: Ints | None = None) -> Left:
        """Take requests that arrive no sooner than those before and until then, play; return who left by then.

        Args: ``numbers`` that the requests are known by; ``iterations`` that each takes after its first token.
        """
        self._longest = max(self._longest, int(stream.answer_tokens.max(initial=0)))
        fresh, kept = requests_of(self.pool, stream, iterations), self._requests
        requests = fresh if kept is None else np.concatenate([kept, fresh]).view(np.recarray)
        self._numbers, first = np.append(self._numbers, numbers), self._numbers.size
        self._come += len(stream)
        rule = rule_of(self.pool, self._longest)
        self._play(requests, self._instances, self._policy, rule, self.pool.times, (first, requests.size), until)
        gone = np.flatnonzero((requests.left >= 0) & (self._numbers >= 0))
        found: Records = requests[gone].view(np.recarray)
        left = Left(self._numbers[gone], found.begun, found.first, found.left, found.preempted)
        self._keep(requests, np.flatnonzero(requests.left < 0))
        return left

    def _keep(self, requests: "Records", stay: Ints) -> None:
        """Keep the requests that have not left, under new indices.

        Records of nobody stand before them, so that the next one is dealt to the instance whose turn it is.
        """
        padding = (self._come - stay.size) % self.pool.instances
        index = np.full(requests.size + 1, -1)
        index[stay] = padding + np.arange(stay.size)  # the last element stands for nobody
        pool = self._instances
        for links in (pool.lines.head, pool.lines.tail, pool.steps.head, pool.steps.tail, pool.buckets):
            links[...] = index[links]
        for links in (pool.ranks.oldest, pool.ranks.newest):
            links[...] = index[links]
        nobody: Records = np.zeros(padding, requests.dtype).view(np.recarray)
        kept: Records = np.concatenate([nobody, requests[stay]]).view(np.recarray)
        for name in _LINKS:
            kept[name][padding:] = index[kept[name][padding:]]
        self._numbers = np.append(np.full(padding, -1), self._numbers[stay])
        self._requests = kept

    def busy_seconds(self, until: float = np.inf) -> float:
        """Seconds of all steps up to a time that is not before the last one played, of all instances."""
        heads, ends = self._instances.heads, self._instances.steps.end.max(axis=1)
        return float(heads.busy.sum() - np.maximum(ends - until, 0.0).sum())

    @property
    def steps(self) -> int:
        """Steps so far, of all instances."""
        return int(self._instances.heads.steps.sum())

    def held_tokens(self) -> tuple[Floats, Ints]:
        """KV tokens that are taken or reserved, and requests that hold some, [instances, ranks] each."""
        ranks, rule = self._instances.ranks, rule_of(self.pool, 0)
        if self.pool.rule.admission == "reserve":
            return ranks.held, ranks.taken
        return (rule.capacity - ranks.free) * float(rule.block), ranks.running + ranks.under
