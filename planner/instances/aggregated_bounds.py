"""Upper bounds on the rate of aggregated instances, as arrays: throughput at saturation and a request alone.

Consider one DP rank. A request takes part in I steps and has P prompt tokens. With n running requests on average a step
computes n P / I prompt tokens on average, or requests would pile up or run out. However they are spread over steps, the
mean step is no shorter than the lower convex hull of the step time over the prompt tokens (Jensen). So

    rate <= ranks n / (I T(n)),   n <= what memory holds

and n / T(n) rises with n. If a share p of the requests keeps a limit, the others see steps of the full budget at worst:
T(n) <= p limit + (1 - p) T_full(n). No step is shorter than T(0) without prompts, which must keep the limit. Waiting
for slots and for other ranks only lowers the rate. The hull of a smaller budget is no lower, so the bound of the
largest budget holds for all.

A chunk is computed by one rank, and all ranks wait for it. Let prompts arrive at rate r and steps last at least b
seconds. The probability that no prompt which arrived in the k-th step before has a k-th chunk of at least x tokens is
at most exp(-r b P(x, k)), where P(x, k) is the share of prompts with such a chunk. Over all k the largest chunk of a
step is below x with probability at most exp(-r b N(x)), where N(x) is the mean number of such chunks per prompt. Let
f(x) be the seconds of a step in which only the busiest rank computes x tokens; f rises. Then

    E T >= b + sum over rising x of (f(x) - f(x before)) (1 - exp(-r b N(x)))

Gaps of arrivals dealt in turn are HNBUE, so Poisson arrivals bound them (R. E. Barlow and F. Proschan, Statistical
Theory of Reliability, 1975, section 6.4). Bursty arrivals have d times the variance; the probability that nothing
arrives is then that of a negative binomial number. Derived here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, percentiles
from planner.instances.candidates import Count
from planner.instances.least import BATCHES, Least
from planner.manifest.stacks import taken
from planner.manifest.stepcost import evaluate, stage_layers
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.serving.streams import stationary
from planner.workload import Workload

_ROUNDS = 6
"""Rounds of false position for the running requests at which steps reach the limit; the upper end is the bound."""
_CHUNKS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Chunks at which steps are costed: exponents that interpolate geometrically from the mean chunk to the free budget."""
_SURE = 1.5
"""Multiple of the share of late requests that is set aside for long prompts, as some meet fewer running requests."""
_RANGE, _TURNS = 256.0, 2
_FEWEST, _SHORTEST = 1e-3, 1e-3
"""Least mean running requests of a rank; least steps of an answer."""
_QUANTILES = np.arange(2.5, 100.0, 5.0)
_LEVELS = (3, 9, 14, 17, 19)
"""Indices of the quantiles that separate classes of chunks."""
_TRIED = 5
"""Rounds of trial rates in ``single_bound``; in the last, rates differ by the eighth root of ``_RANGE``."""
_SAMPLE = 4000
"""Requests of the stream over which means are taken."""
_RUNNING = (0.0, 1.0, 8.0, 64.0, 512.0)
"""Running requests of a rank at which the steps of instances are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Means over a stream of requests, which end at the model's context."""

    new_tokens: float
    """Computed prompt tokens per request."""
    context: float
    """Reused tokens per computed token; the kernel of each step reads them."""
    pairs: float
    """Query-key pairs per computed token."""
    decoded_tokens: float
    """Answer tokens after the first."""
    kv_tokens: float
    """Cached tokens of a running request."""
    longest: float
    """Computed tokens of the longest prompt that must be in time, with ``_SURE`` times as many late ones set aside."""
    timely: float
    """Computed tokens of the longest prompt that must be in time, one rank down: the sample is stratified."""
    lengths: tuple[float, ...]
    """Evenly spaced quantiles of the computed tokens."""
    thinned: float
    """Rate of the Poisson process with the same probability of no arrival, over the rate."""


@lru_cache(maxsize=8)
def means_of(workload: Workload, percentile: float, most_tokens: float) -> Means:
    """Return the means of a workload's stream, and the longest prompts that must be in time."""
    stream = stationary(workload, _SAMPLE, most_tokens=most_tokens)
    new = (stream.prompt_tokens - stream.reused_tokens).astype(np.float64)
    pairs = new * stream.reused_tokens + new * (new + 1) / 2
    later = np.maximum(stream.answer_tokens - 1.0, 0.0)
    held = (stream.prompt_tokens + (later + 1) / 2) @ later / later.sum() if later.any() else 0.0
    return Means(
        new_tokens=float(new.mean()),
        context=float(stream.reused_tokens.mean() / new.mean()),
        pairs=float(pairs.mean() / new.mean()),
        decoded_tokens=float(later.mean()),
        kv_tokens=float(held),
        longest=float(percentiles(new, max(100 - _SURE * (100 - percentile), 0.0))),
        timely=float(np.sort(new)[max(math.floor((new.size - 1) * percentile / 100) - 1, 0)]),
        lengths=tuple(percentiles(new, _QUANTILES).tolist()),
        thinned=math.log(workload.arrival_squared_cv) / (workload.arrival_squared_cv - 1)
        if workload.arrival_squared_cv > 1
        else 1.0,
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    """Seconds of steps, each [rows]: lower bound of the mean, and a step with the full budget."""

    mean: Floats
    full: Floats

    def seen(self, share: float) -> Floats:
        """Least mean step of the ``share`` of requests with the shortest steps, if the others see full steps."""
        return (self.mean - (1 - share) * self.full) / share

    def of(self, rows: NDArray[np.int64]) -> "_Steps":
        """Return the steps of some rows."""
        return _Steps(self.mean[rows], self.full[rows])


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Many instances with a token budget per DP rank, and their traffic."""

    cost: StepCost
    """Step costs of all rows, stacked."""
    means: Means
    ranks: Floats
    """[rows]."""
    budget_tokens: Number
    microbatches: Sequence[int]
    accepted: Number
    """Tokens per running request and step."""
    count: Count

    def of(self, rows: NDArray[np.int64]) -> "Bounds":
        """Return the instances of some rows, in that order; a row may occur several times."""
        budget, accepted = (
            each[rows] if isinstance(each, np.ndarray) else each for each in (self.budget_tokens, self.accepted)
        )
        return replace(
            self, cost=taken(self.cost, rows), ranks=self.ranks[rows], budget_tokens=budget, accepted=accepted
        )

    def with_budgets(self, budgets: Sequence[int]) -> "Bounds":
        """Return each instance with each budget, [budgets · rows]."""
        rows = np.tile(np.arange(self.ranks.size), len(budgets))
        return replace(self.of(rows), budget_tokens=np.repeat(np.array(budgets, dtype=np.float64), self.ranks.size))

    @property
    def iterations(self) -> Number:
        """Steps of a request after its first token."""
        return np.maximum(self.means.decoded_tokens / self.accepted, _SHORTEST)

    def rate(self, running: Floats, step: Floats) -> Floats:
        """Requests per second of an instance, given running requests per rank and step seconds, [rows]."""
        return np.asarray(self.ranks * running / (self.iterations * step))

    def most_running(self, room: Floats) -> Floats:
        """Most running requests of a rank, [rows]: by memory, or by the prompts that full steps compute."""
        fed = self.budget_tokens / (self.means.new_tokens / self.iterations + self.cost.queries_per_sequence)
        return np.asarray(np.maximum(np.minimum(room, fed * (1 - 1e-9)), 0.0))

    def quick_bound(self, room: Floats) -> Floats:
        """Return a bound on the rate from steps without prompts and without latency limits, [rows]."""
        running = self.most_running(room)
        return self.rate(running, self.bare(running))

    def bound(self, limit: Number, share: float, room: Floats, needed: Number = 0.0) -> Floats:
        """Return the bound on the rate of each row, [rows]; 0 where no rate keeps the limit.

        Args:
            limit: longest mean step, in seconds, that a ``share`` of the requests may see.
            share: share of the requests that keep the limit, above 0.
            room: requests that the memory of a rank holds.
            needed: rate that matters; a bound below it need not be tight.
        """
        high = self.most_running(room)
        most = self._steps(high)
        found = np.where(room > 0, self.rate(high, most.mean), 0.0)
        rows = np.flatnonzero((found > 0) & (found >= needed))
        if rows.size:
            limits = np.broadcast_to(limit, high.shape)[rows]
            own = self if rows.size == high.size else self.of(rows)
            found[rows] = own._keeping(limits, share, high[rows], most.of(rows))
        return found

    def _keeping(self, limit: Floats, share: float, high: Floats, most: "_Steps") -> Floats:
        """Return the bound of each row, [rows], given its steps ``most`` at the most running requests ``high``."""
        low = np.minimum(np.full(high.shape, _FEWEST), 0.5 * high)
        bottom, top, mean = self._steps(low).seen(share), most.seen(share), most.mean
        able, whole = (bottom <= limit) & (self.bare(low) <= limit), top <= limit
        for _ in range(_ROUNDS if (able & ~whole).any() else 0):
            part = (limit - bottom) / np.maximum(top - bottom, 1e-12)
            part = np.clip(part + 0.01, 0.05, 0.98)  # the upper end is the bound, so it has to come down
            middle = low + (high - low) * part
            found = self._steps(middle)
            step = found.seen(share)
            fine, late = (step <= limit) & ~whole, (step > limit) & ~whole
            low, bottom = np.where(fine, middle, low), np.where(fine, step, bottom)
            high, top, mean = np.where(late, middle, high), np.where(late, step, top), np.where(late, found.mean, mean)
        return np.where(able, self.rate(high, mean), 0.0)

    def single_bound(
        self, limit: Number, share: float, most: Floats, least: Floats, room: Floats, ttft_seconds: float
    ) -> Floats:
        """Return a bound between ``least`` and ``most`` at which steps wait for single chunks, [rows]; 0 for none.

        Args: ``limit``, ``share`` and ``room`` as of ``bound``.
        """
        found = np.where((most > 0) & (most >= least), most, 0.0)
        left = np.flatnonzero(found > 0)
        low = np.maximum(least, most / _RANGE)

        def leave(rows: NDArray[np.int64], rate: Floats) -> NDArray[np.bool_]:
            limits = np.broadcast_to(limit, most.shape)[rows]
            return self.of(rows)._leaves(rate, limits, share, room[rows], ttft_seconds)

        late = ~leave(left, low[left])
        found[left[late]] = np.where(low[left[late]] > least[left[late]], low[left[late]], 0.0)
        left = left[~late]
        left = left[~leave(left, most[left])] if left.size else left
        low, high = low[left], most[left]
        for _ in range(_TRIED if left.size else 0):
            middle = np.sqrt(low * high)
            kept = leave(left, middle)
            low, high = np.where(kept, middle, low), np.where(kept, high, middle)
        found[left] = high
        return found

    def _leaves(
        self, rate: Floats, limit: Floats, share: float, room: Floats, ttft_seconds: float
    ) -> NDArray[np.bool_]:
        """Whether a rate keeps the limits where steps wait for single chunks, [rows].

        Running requests and step seconds depend on each other; they are iterated from below.
        """
        most = np.maximum(self.most_running(room), _FEWEST)
        running = np.full(rate.shape, _FEWEST)
        for _ in range(_TURNS):
            step, full, part = self._with_singles(rate, running)
            needed = rate * self.iterations * step / self.ranks
            running = np.clip(needed, _FEWEST, most)
        seen = (step - (1 - share) * full) / share
        timely = part <= ttft_seconds
        return np.asarray((seen <= limit) & timely & (needed <= np.maximum(most, _FEWEST) * (1 + 1e-9)))

    def _with_singles(self, rate: Floats, running: Floats) -> tuple[Floats, Floats, Floats]:
        """Least seconds of the mean step, of a full step and of the longest prompt, given running requests, [rows]."""
        chunk = np.asarray(np.maximum(self.budget_tokens - running * self.cost.queries_per_sequence, 1.0))
        lengths, levels = np.array(self.means.lengths)[:, None, None], np.array(self.means.lengths)[list(_LEVELS)]
        longest = self.means.longest
        tokens = np.minimum(np.concatenate([levels, [np.inf, longest]])[:, None], chunk)  # [levels, rows]
        pairs = tokens * np.minimum(self.means.pairs, tokens / 2)
        pairs[-1] = tokens[-1] * longest / 2
        none = np.zeros((1, chunk.size))
        tokens = np.concatenate([none, tokens])
        load = self._load(running, tokens, tokens / self.ranks)
        load = load._replace(prefill_context_tokens=0.0, prefill_pairs=np.concatenate([none, pairs]))
        seconds = self._seconds(load, (levels.size + 3, chunk.size))
        least, *larger, full = np.maximum.accumulate(seconds[:-1], axis=0)
        parts = np.maximum(np.floor(lengths / chunk), 1.0) * (lengths >= tokens[1:-2])
        come = 1 - np.exp(-self.means.thinned * rate * least * parts.mean(axis=0))
        step = least + (np.diff([least, *larger], axis=0) * come).sum(axis=0)
        return step, full, np.maximum(longest / chunk, 1.0) * seconds[-1]

    def longest_alone(self) -> Floats:
        """Least seconds of the longest prompt that must be in time, in steps with nothing else, [rows].

        Step time is about convex in query-key pairs, so equally full steps are the least.
        """
        tokens = self.means.timely
        chunk = np.broadcast_to(np.minimum(tokens, self.budget_tokens), self.ranks.shape)
        load = self._load(np.zeros_like(chunk), chunk, chunk / self.ranks)
        load = load._replace(prefill_context_tokens=0.0, prefill_pairs=chunk * tokens / 2)
        return np.asarray(self._seconds(load, chunk.shape) * tokens / chunk)

    def alone_seconds(self, tokens: float) -> Floats:
        """Seconds of a prompt with so many computed tokens, in steps with nothing else, [rows]."""
        chunk = np.broadcast_to(np.minimum(tokens, self.budget_tokens), self.ranks.shape)
        pairs = chunk * np.minimum(self.means.pairs, tokens / 2)
        load = self._load(np.zeros_like(chunk), chunk, chunk / self.ranks)._replace(prefill_pairs=pairs)
        return np.asarray(self._seconds(load, chunk.shape) * tokens / chunk)

    def sorts(self, budgets: Sequence[int]) -> Floats:
        """Seconds of several sorts of steps, without prompts and full to each budget, [3, sorts, 1 + budgets, rows].

        Sorts differ in running requests, in chunks (of mean prompts or of the longest), and in whether the other ranks
        have as many prompt tokens or none.
        The first axis has the whole step, its layers, and its last pipeline stage.
        """
        rows = self.ranks.size
        running, longest, even, chunk = (
            np.broadcast_to(axis.reshape(-1, 1), (axis.size, rows))
            for axis in np.meshgrid(_RUNNING, (0.0, 1.0), (0.0, 1.0), (0.0, *budgets), indexing="ij")
        )
        load = self._load(running, chunk, chunk * np.maximum(even, 1 / self.ranks))
        context = longest * np.maximum(self.means.longest - chunk, 0.0) * (chunk > 0)
        pairs = np.where(longest > 0, chunk * (context + chunk / 2), load.prefill_pairs)
        load = load._replace(prefill_context_tokens=load.prefill_context_tokens + context, prefill_pairs=pairs)
        step, head = self._parts(load, chunk.shape)
        last = (step - head) * stage_layers(self.cost)[1] + head
        return np.stack([step, step - head, last]).reshape(3, -1, 1 + len(budgets), rows)

    def bare(self, running: Floats) -> Floats:
        """Seconds of steps without prompts, given running requests per rank, [..., rows]."""
        none = np.zeros_like(running)
        return self._seconds(self._load(running, none, none), running.shape)

    def least_step(self, running: Floats) -> Floats:
        """Least seconds of the mean step, given running requests per rank, [..., rows]."""
        return self._steps(running).mean

    def _steps(self, running: Floats) -> _Steps:
        room = np.asarray(np.maximum(self.budget_tokens - running * self.cost.queries_per_sequence, 1.0))
        chunk = running * self.means.new_tokens / self.iterations
        even = np.minimum(chunk, room)
        chunks = np.stack([np.zeros_like(room), *(even ** (1 - power) * room**power for power in _CHUNKS)])
        bare, *found = self._seconds(self._load(running, chunks, chunks), chunks.shape)
        chords = [
            bare + even / np.maximum(part, 1e-12) * (seconds - bare)
            for part, seconds in zip(chunks[1:], found, strict=True)
        ]
        mean = np.where(chunk <= room, np.maximum(bare, np.minimum.reduce(chords)), np.inf)
        return _Steps(mean, found[-1])

    def _load(self, running: Floats, chunks: Floats, mean_chunks: Floats) -> StepLoad:
        """Load of steps with whole prompts, which cost least."""
        means = self.means
        return StepLoad(
            decode_sequences=running,
            decode_kv_tokens=running * means.kv_tokens,
            prefill_tokens=chunks,
            prefill_context_tokens=chunks * means.context,
            prefill_pairs=chunks * means.pairs,
            finishing_prompts=chunks / means.new_tokens,
            mean_tokens=running * self.cost.queries_per_sequence + mean_chunks,
        )

    def _seconds(self, load: StepLoad, shape: tuple[int, ...]) -> Floats:
        """Seconds with the quicker number of microbatches, [..., rows]."""
        return self._parts(load, shape)[0]

    def _parts(self, load: StepLoad, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Return the seconds, and the part that the last pipeline stage takes beyond its layers."""
        found = [evaluate(self.cost, load, n) for n in self.microbatches]
        self.count.evaluated += len(found) * int(np.prod(shape))
        seconds, heads = (
            np.stack([np.broadcast_to(np.asarray(part, dtype=np.float64), shape) for part in parts])
            for parts in ([each.seconds for each in found], [each.head_seconds for each in found])
        )
        quicker = np.argmin(seconds, axis=0)[None]
        return np.take_along_axis(seconds, quicker, axis=0)[0], np.take_along_axis(heads, quicker, axis=0)[0]


def aggregated_least(bounds: Bounds, most_running: float) -> Least:
    """Return lower bounds on a request's time in instances, [rows], with up to so many running requests per rank.

    Little's law ties requests in decode to the rate, as in ``instances.least``. Before decode a prompt is computed, at
    best in full steps that hold nothing else.
    """
    ranks = bounds.ranks
    batches = np.array(BATCHES[: 1 + int(np.searchsorted(BATCHES, most_running))], dtype=np.float64)
    crowded = bounds.least_step(np.repeat(batches[:, None], ranks.size, axis=1))  # [points, rows]
    seconds = bounds.iterations * np.concatenate([bounds.bare(1 / ranks)[None], crowded])
    requests = np.concatenate([np.ones((1, ranks.size)), batches[:, None] * ranks])
    alone = bounds.alone_seconds(bounds.means.new_tokens)
    return Least.of(requests.T, np.maximum.accumulate(seconds).T, alone)
