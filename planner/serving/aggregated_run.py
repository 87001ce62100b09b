"""Aggregated instances played part by part or step by step; only requests that have not left are kept."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, Ints
from planner.serving.aggregated import AggregatedPool, instances_of, links_of, requests_of, rule_of
from planner.serving.streams import Stream

if TYPE_CHECKING:
    from planner.loops.batch_loop import Instances, Records, Rule

_ALL = 1 << 60
_FEWEST = 64  # records that a driven instance has room for at first
_LINKS = ("behind", "chain", "later", "sooner", "newer", "older")


class Left(NamedTuple):
    """Requests that have all their tokens, in the order in which they arrived."""

    number: Ints
    begun_seconds: Floats  # begin of the first step that carried the prompt
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
        """Add requests, play up to the time ``until``, and return the requests that left by then.

        Args: ``stream`` of requests that arrive up to ``until``, none before those added earlier; ``numbers`` that
            identify them; their ``iterations`` after the first token. The arrays are [requests].
        """
        self._longest = max(self._longest, int(stream.answer_tokens.max(initial=0)))
        fresh, kept = requests_of(self.pool, stream, iterations), self._requests
        requests = fresh if kept is None else _with_room(kept, behind=fresh.size)
        requests[requests.size - fresh.size :] = fresh
        self._numbers, first = np.append(self._numbers, numbers), self._numbers.size
        self._come += len(stream)
        rule = rule_of(self.pool, self._longest)
        self._play(requests, self._instances, self._policy, rule, self.pool.times, (first, requests.size), until)
        gone = np.flatnonzero((requests["left"] >= 0) & (self._numbers >= 0))
        found = requests[gone]
        left = Left(self._numbers[gone], found["begun"], found["first"], found["left"], found["preempted"])
        self._keep(requests, np.flatnonzero(requests["left"] < 0))
        return left

    def _keep(self, requests: "Records", stay: Ints) -> None:
        """Keep the requests that have not left, under new indices.

        Empty records stand before them, so that the next request is dealt to the instance whose turn it is.
        """
        padding = (self._come - stay.size) % self.pool.instances
        index = np.full(requests.size + 1, -1)
        index[stay] = padding + np.arange(stay.size)  # the last element stands for nobody
        pool = self._instances
        for links in (*links_of(pool.lines, pool.steps, pool.ranks), pool.buckets):
            links[...] = index[links]
        kept = _with_room(requests[stay], before=padding)
        for name in _LINKS:
            kept[name][padding:] = index[kept[name][padding:]]
        self._numbers = np.append(np.full(padding, -1), self._numbers[stay])
        self._requests = kept

    def busy_seconds(self, until: float = np.inf) -> float:
        """Busy time up to a time, summed over instances; the time must not precede the last one played."""
        heads, ends = self._instances.heads, self._instances.steps["end"].reshape(self.pool.instances, -1).max(axis=1)
        return float(heads["busy"].sum() - np.maximum(ends - until, 0.0).sum())

    @property
    def steps(self) -> int:
        """Steps so far, summed over instances."""
        return int(self._instances.heads["steps"].sum())

    def held_tokens(self) -> tuple[Floats, Ints]:
        """KV tokens taken or reserved, and requests that hold KV, each [instances, ranks]."""
        return _held_tokens(rule_of(self.pool, 0), self._instances)


def _held_tokens(rule: "Rule", instances: "Instances") -> tuple[Floats, Ints]:
    from planner.loops.batch_loop import RESERVE

    ranks = instances.ranks[instances.heads["acting"][:: rule.stages]]
    if rule.admission == RESERVE:
        return ranks["held"], ranks["taken"]
    return (rule.capacity - ranks["free"]) * float(rule.block), ranks["admitted"]


def _with_room(kept: NDArray[Any], before: int = 0, behind: int = 0) -> "Records":
    """Return records of requests with so many empty ones before and behind them."""
    from planner.loops.batch_loop import REQUEST, records

    found = records(before + kept.size + behind, REQUEST)
    found[before : before + kept.size] = kept
    return found


class Step(NamedTuple):
    """The step that was launched last, or several equal iterations without prompts counted as one."""

    start_seconds: float
    end_seconds: float
    running: int  # requests that decode in each iteration
    prompt_tokens: float
    iterations: int


class DrivenInstance:
    """One aggregated or decode instance, driven by its caller's clock; a request is identified by its record.

    An aggregated instance takes prompts (``add``, ``proceed``), a decode instance requests whose KV is there (``add``
    with a rank, ``enter``, ``iterate``, ``finish``).
    """

    def __init__(self, pool: AggregatedPool) -> None:
        """Begin idle."""
        from planner.loops import batch_loop, driven_loop

        self.pool, self._loop, self._batch = replace(pool, instances=1), driven_loop, batch_loop
        self.times, self._rule = pool.times, rule_of(pool, 0)
        self._instances = instances_of(self.pool, self._rule, 0, 0)
        self._ranks: NDArray[Any] = self._instances.ranks.view(np.ndarray)
        self._requests = batch_loop.records(0, batch_loop.REQUEST)
        self._rows: NDArray[Any] = self._requests.view(np.ndarray)
        self._free: list[int] = []
        self._fresh: Ints = np.zeros(1, dtype=np.int64)
        self._grow()
        self.due_seconds, self.iterations = np.inf, 1
        """When the next step ends or must be formed; iterations that the last step counts for."""

    @property
    def _state(self) -> "tuple[Records, Instances]":
        return self._requests, self._instances

    def _grow(self) -> None:
        """Make room for more requests."""
        old = self._requests.size
        count = max(2 * old, _FEWEST)
        self._requests = _with_room(self._requests, behind=count - old)
        rows = self._rows = self._requests.view(np.ndarray)
        self._seconds = rows["begun"], rows["first"], rows["left"]
        self._free = list(range(count - 1, old - 1, -1))
        fresh, news = np.zeros(count + 1, dtype=np.int64), np.zeros(2 * count + 1, dtype=np.int64)
        fresh[: self._fresh.size] = self._fresh
        self._fresh, self._instances = fresh, self._instances._replace(news=news)

    def add(
        self, now: float, tokens: tuple[int, int, int], iterations: int, reserved_tokens: int = 0, rank: int = 0
    ) -> int:
        """Let a request arrive; return its record.

        Args:
            now: seconds.
            tokens: prompt tokens, prompt tokens whose KV is cached, answer tokens.
            iterations: iterations after the first token.
            reserved_tokens: KV tokens reserved for the request where answers are reserved.
            rank: DP rank that holds its KV, for ``enter``.
        """
        if not self._free:
            self._grow()
        found, (prompt, reused, answer) = self._free.pop(), tokens
        growth = (answer - 1) / iterations if iterations else 1.0
        waits, nobody = self._batch.WAITS, self._batch.NOBODY
        times = (-1.0, -1.0, -1.0)
        links = (nobody, nobody, nobody, nobody, nobody, nobody)
        state = (0, rank, 0, waits, prompt, reused, iterations, 0, 0)
        self._rows[found] = (now, prompt, reused, answer, growth, reserved_tokens, *times, *state, *links)
        if answer > self.pool.rule.estimate.clip_tokens:
            self._rule = self._rule._replace(clipped=True)
        self._fresh[0] += 1
        self._fresh[self._fresh[0]] = found
        return found

    def proceed(self, now: float, schedule: bool, single: bool = False) -> list[int]:
        """Advance to ``now``; with ``schedule`` form the step that begins then.

        Args: ``single``: a step is one iteration, equal iterations are not taken together.

        Returns:
            Records of the requests that got their first token since the last call, then of those that got their last.
        """
        until, ahead = np.nextafter(now, np.inf) if schedule else now, now if single else np.inf
        self.due_seconds, self.iterations = self._loop.proceed(
            0, now, until, ahead, self._fresh, self._state, self._rule, self.times
        )
        return self._told()

    def _told(self) -> list[int]:
        news = self._instances.news
        found: list[int] = news[1 : news[0] + 1].tolist()
        news[0] = 0
        return found

    def enter(self, now: float) -> None:
        """Let added requests run from the next iteration on."""
        self._loop.enter(0, now, self._fresh, self._state, self._rule)

    def iterate(self, now: float, single: bool) -> tuple[float, float]:
        """Begin one iteration, or all equal ones in a row; return when the last of them begins and ends."""
        last: tuple[float, float] = self._loop.iterate(
            0, now, 1 if single else _ALL, self._state, self._rule, self.times
        )
        return last

    def finish(self) -> list[int]:
        """End the iterations under way; return the records of the requests that leave."""
        self._loop.finish(0, self._state, self._rule)
        return self._told()

    def give_up(self, now: float) -> None:
        """Keep the iterations that have ended and abandon the one that runs."""
        self._loop.give_up(0, now, self._state, self._rule)

    def seconds_of(self, record: int) -> tuple[float, float, float]:
        """Return when a request's prompt was first in a step, and when its first and last token came; -1: not yet."""
        begun, first, left = self._seconds
        return begun.item(record), first.item(record), left.item(record)

    def release(self, record: int) -> int:
        """Free the record of a request that has left; return how often it was preempted."""
        self._free.append(record)
        return int(self._rows["preempted"][record])

    def answered(self, record: int) -> int:
        """Return the answer tokens that a request has so far."""
        return int(self._loop.answered(record, self._state))

    def take_out(self, record: int) -> bool:
        """Take a request out if it is decoding; return whether it was."""
        if self._rows["state"][record] != self._batch.SEEN:
            return False
        self._loop.take_out(0, record, self._state, self._rule)
        self.release(record)
        return True

    def end_early(self, now: float) -> tuple[float, float]:
        """Cut a row of equal iterations after the one that runs now; return its begin and end."""
        last: tuple[float, float] = self._loop.end_early(0, now, self._state, self._rule, self.times)
        return last

    def halt(self, now: float, resumes: float) -> None:
        """Abandon the step that runs; it begins anew at ``resumes``."""
        self._loop.halt(0, now, resumes, self._state, self._rule, self.times)

    def even_out(self, beyond: float, may: Callable[[int, int], bool] | None = None) -> None:
        """Move requests between ranks until the fullest holds at most ``beyond`` more KV than the mean, if possible.

        Args: ``may`` returns whether a record may move to a rank; None: wherever there is room.
        """
        while True:
            record, rank = self._loop.uneven(0, beyond, self._state, self._rule)
            if record < 0:
                return
            room = may or (lambda record, rank: self._loop.has_room(0, record, rank, self._state, self._rule))
            if not room(record, rank):
                return
            self._loop.move(0, record, rank, self._state, self._rule)

    @property
    def step(self) -> Step:
        """The step that was launched last; with pipeline stages that which ends next."""
        acting = self._instances.heads["acting"][0]
        found = self._instances.steps[acting, self._instances.heads["current"][acting]]
        start, end, tokens = float(found["start"]), float(found["end"]), float(found["tokens"])
        return Step(start, end, int(found["running"]), tokens, int(found["count"]))

    def busy_seconds(self, until: float) -> float:
        """Busy time up to a time, which must not precede the last call."""
        ends = float(self._instances.steps["end"].max())
        return float(self._instances.heads["busy"].sum()) - max(ends - until, 0.0)

    @property
    def steps(self) -> int:
        """Steps that were scheduled so far."""
        return int(self._instances.heads["steps"].sum())

    @property
    def ranks(self) -> NDArray[Any]:
        """State of each rank, fields of ``batch_loop.RANK``, [ranks]; iterations under way count as ended."""
        found: NDArray[Any] = self._ranks[self._instances.heads["acting"][0]]
        if self._rule.stages == 1:
            return found
        found = found.copy()
        found["running"], found["cached"] = self._ranks["running"].sum(axis=0), self._ranks["cached"].sum(axis=0)
        return found

    def kv_tokens(self) -> Floats:
        """Cached tokens of the running requests after the last completed iteration, [ranks]."""
        under_way = self.step.iterations if self._instances.heads["launched"][0] else 0
        found: Floats = self.ranks["cached"] - under_way * self.ranks["grows"]
        return found

    def held_tokens(self) -> tuple[Floats, Ints]:
        """KV tokens taken or reserved, and requests that hold KV, each [ranks]."""
        tokens, requests = _held_tokens(self._rule, self._instances)
        return tokens[0], requests[0]
