"""What bounds the rate of aggregated instances before any queue, on arrays of many.

Of one DP rank: a request takes part in I steps and brings P prompt tokens. With n running on average a step computes
n P / I prompt tokens on average, or requests would pile up or run out; however they are spread over steps, the mean
step is no shorter than the lower convex hull of the step time over the prompt tokens (Jensen). So

    rate <= ranks n / (I T(n)),   T(n) <= TPOT limit x tokens per step,   n <= what memory holds

and n / T(n) rises with n: the largest n within both is the bound. Waiting only takes from it. Steps of a smaller budget
have a hull no lower, so that the bound of the largest budget is one of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from planner.instances.decode_candidates import Count
from planner.manifest.stacks import taken
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.mixed.server import MOST_UTILISATION
from planner.queues.prompts import prompts_of
from planner.workload import Workload, running_kv_tokens

Floats = NDArray[np.float64]

ROUNDS = 5
"""Of false position for the requests that run where the mean step is at the limit; what is left open is added."""
MARGIN = 1.02
"""By how much the hull may lie below the chords between the shares of prompts that are costed, and a queue's tabulated
steps below those here."""
FEWEST = 1e-3
"""Requests that run on a rank on average at least."""
ROWS_AT_ONCE = 1024
"""Of which steps with four shares of prompts are costed: more leave the cache."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds of steps with so many running on each rank: without prompts, with the mean share of them, and full.

    Arrays are [rows]; ``chunk`` and ``room`` are prompt tokens of a rank, on average and at most.
    """

    bare: Floats
    even: Floats
    larger: Floats
    """With the geometric mean of the mean share and of all that there is room for."""
    full: Floats
    chunk: Floats
    room: Floats

    @property
    def prompt_share(self) -> Floats:
        """Share of steps with prompts where these are full."""
        return np.asarray(np.minimum(self.chunk / self.room, 1.0))

    @property
    def mean(self) -> Floats:
        """Least mean step; infinite where more run than full steps feed."""
        share = self.prompt_share
        larger = self.bare + np.sqrt(share) * (self.larger - self.bare)
        full = self.bare + share * (self.full - self.bare)
        least = np.minimum.reduce([self.even, larger, full])
        return np.where(self.chunk <= self.room, np.maximum(self.bare, least) / MARGIN, np.inf)


@dataclass(frozen=True, slots=True)
class _Work:
    """Tokens of a mean prompt that are to be computed; context, and pairs that attend, of each of them."""

    tokens: float
    context: float
    pairs: float


@cache
def _work_of(workload: Workload) -> _Work:
    prompts = prompts_of(workload)
    new = np.maximum(prompts.tokens - prompts.reused, 1.0)
    tokens = float(new @ prompts.weights)
    pairs = float((new * prompts.reused + new * (new + 1) / 2) @ prompts.weights)
    return _Work(tokens, float(prompts.reused @ prompts.weights) / tokens, pairs / tokens)


@dataclass(frozen=True)
class Screen:
    """The steps of many instances with one token budget per DP rank, and the traffic that they are to carry."""

    cost: StepCost
    """Stacked, of all rows."""
    workload: Workload
    ranks: Floats
    """[rows]."""
    budget_tokens: Number
    microbatches: Sequence[int]
    accepted: Number
    """Tokens per running request and step."""
    count: Count

    def of(self, rows: NDArray[np.int64]) -> "Screen":
        """Return the steps of some of the instances, in their order; all of them where as many are asked for."""
        if rows.size == self.ranks.size:
            return self
        budget, accepted = (
            each[rows] if isinstance(each, np.ndarray) else each for each in (self.budget_tokens, self.accepted)
        )
        cost, ranks = taken(self.cost, rows), self.ranks[rows]
        return replace(self, cost=cost, ranks=ranks, budget_tokens=budget, accepted=accepted)

    @property
    def iterations(self) -> Number:
        """Steps of a request after its first token."""
        return self.workload.decoded_tokens / self.accepted

    @property
    def fed(self) -> Number:
        """Requests that run on a rank where every step is full: more leave than prompts come in."""
        taken = self._work.tokens / self.iterations + self.cost.queries_per_sequence
        return self.budget_tokens / taken * (1 - 1e-9)

    def steps(self, running: Floats) -> Steps:
        """Return the steps with so many running on each rank, [rows]."""
        each = self._work.tokens
        room = self.room(running)
        chunk = running * each / self.iterations
        even = np.minimum(chunk, room)
        chunks = np.stack([np.zeros_like(room), even, np.sqrt(even * room), room])  # [4, rows]
        bare, mean, larger, full = self._seconds(self._load(running, chunks, chunks), chunks.shape)
        return Steps(bare, mean, larger, full, chunk, room)

    def room(self, running: Floats) -> Floats:
        """Prompt tokens that a rank has room for beside so many that run, [rows]."""
        return np.asarray(np.maximum(self.budget_tokens - running * self.cost.queries_per_sequence, 1.0))

    def lone(self, running: Floats, tokens: Floats, context: Floats, pairs: Floats) -> Floats:
        """Seconds of steps in which one rank computes so many tokens of a prompt and no other any, [..., rows].

        ``context`` is what is cached before them, and ``pairs`` all that attend.
        """
        load = self._load(running, tokens, tokens / self.ranks)
        return self._seconds(replace(load, prefill_context_tokens=context, prefill_pairs=pairs), tokens.shape)

    @property
    def pairs_per_token(self) -> float:
        """Query-key pairs of a prompt token that is computed, over all tokens of all prompts."""
        return self._work.pairs

    def bare(self, running: Floats) -> Floats:
        """Seconds of steps without prompts, [rows]."""
        none = np.zeros_like(running)
        return self._seconds(self._load(running, none, none), running.shape)

    def alone(self) -> Floats:
        """Seconds of a prompt of mean length in as large steps as there are, with nothing else to do; [rows]."""
        each = self._work.tokens
        chunk = np.broadcast_to(np.minimum(each, self.budget_tokens), self.ranks.shape)
        load = self._load(np.zeros_like(chunk), chunk, chunk / self.ranks)
        return np.asarray(self._seconds(load, chunk.shape) * each / chunk)

    @cached_property
    def _work(self) -> "_Work":
        return _work_of(self.workload)

    def _load(self, running: Floats, chunks: Floats, mean_chunks: Floats) -> StepLoad:
        """Load of steps in which prompts are whole, which is the least that they take."""
        work = self._work
        return StepLoad(
            decode_sequences=running,
            decode_kv_tokens=running * running_kv_tokens(self.workload).mean_tokens,
            prefill_tokens=chunks,
            prefill_context_tokens=chunks * work.context,
            prefill_pairs=chunks * work.pairs,
            finishing_prompts=chunks / work.tokens,
            mean_tokens=running * self.cost.queries_per_sequence + mean_chunks,
        )

    def _seconds(self, load: StepLoad, shape: tuple[int, ...]) -> Floats:
        """Seconds with the microbatches that are quicker, [..., rows]."""
        found = [np.broadcast_to(np.asarray(evaluate(self.cost, load, n).seconds), shape) for n in self.microbatches]
        self.count.evaluated += len(found) * int(np.prod(shape))
        return np.asarray(np.minimum.reduce(found), dtype=np.float64)

    def rate(self, running: Floats, step: Floats) -> Floats:
        """Most requests per second of an instance with so many running on each rank, [rows]."""
        return np.asarray(MARGIN * self.ranks * running / (self.iterations * step))

    def may_carry(self, rate: Floats, limit: Number, room: Floats) -> NDArray[np.bool_]:
        """Whether the bound reaches a rate, [rows]: steps at one number of running requests decide it.

        Either as many fit as carry the rate with steps of the limit, and then these must be no longer; or fewer fit,
        and then what a full rank carries is most. Steps without prompts are looked at first, for none is shorter.
        """
        needed = rate * self.iterations * limit / self.ranks
        running = np.clip(needed, FEWEST, np.maximum(np.minimum(room, self.fed), FEWEST))

        def reached(step: Floats) -> NDArray[np.bool_]:
            full = self.rate(running, step) >= rate * (1 - 1e-9)
            return np.asarray((room > 0) & (step <= limit) & (full | (needed <= FEWEST)))

        left = np.arange(running.size)
        if running.size > ROWS_AT_ONCE:
            left = np.flatnonzero(reached(self.bare(running) / MARGIN))
        step = np.full(running.shape, np.inf)
        for rows in np.array_split(left, -(-left.size // ROWS_AT_ONCE)) if left.size else ():
            step[rows] = self.of(rows).steps(running[rows]).mean
        return reached(step)

    def bound(self, limit: Number, room: Floats) -> tuple[Floats, Floats]:
        """Return the bound of each row and the requests that run on each rank there, [rows]; 0 where none keeps it."""
        low, high = np.full(room.shape, FEWEST), np.maximum(np.minimum(room, self.fed), FEWEST)
        bottom, top = self.steps(low).mean, self.steps(high).mean
        able, whole = (bottom <= limit) & (room > 0), top <= limit
        most = MOST_UTILISATION * self.rate(high, top)  # of a full rank, the queue's own limit
        for _ in range(ROUNDS if (able & ~whole).any() else 0):
            part = (limit - bottom) / np.maximum(top - bottom, 1e-12)
            part = np.clip(part + 0.005, 0.05, 0.98)  # the upper end has to come down, for it is the answer
            middle = low + (high - low) * part
            step = self.steps(middle).mean
            fine = (step <= limit) & ~whole
            long = (step > limit) & ~whole
            low, bottom = np.where(fine, middle, low), np.where(fine, step, bottom)
            high, top = np.where(long, middle, high), np.where(long, step, top)
        # Between the ends steps are as long as the limit; no more run there than at the upper one.
        running, seconds = high, np.where(whole, top, limit)
        return np.where(able, np.minimum(self.rate(running, seconds), most), 0.0), running
