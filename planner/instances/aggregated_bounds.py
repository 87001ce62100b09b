"""Upper bounds on the rate of aggregated instances, as arrays: throughput at saturation and a request alone.

Consider one DP rank. A request takes part in I steps and has P prompt tokens. Any long run of steps is a mixture: with
n running requests and c prompt tokens a step lasts T(n, c). Over the mixture c averages C = N P / I, where N is the
average of n, or requests would pile up or run out. Give each prompt token a price of g seconds. Then

    E T >= E min_c (T(n, c) - g c) + g C >= A(N) + g N P / I = f(N)

where A is the lower convex hull of min_c (T(n, c) - g c) over the running requests that memory holds (Jensen). This is
the dual of the linear programme that mixes steps, so every price gives a bound; several are tried. As f is convex,

    rate <= ranks N / (I f(N)) <= the largest of ranks n / (I f(n)) over the knots of A.

The engine's order says which steps there are. Where decode and prompts share the budget, c is at most what n leave of
it, so N (P / I + tokens of a running request) is at most the budget. Where prompts come first, a step has either; the
steps of decode are counted, and the price is the least seconds per token of a step of prompts alone.

If a share p of the requests keeps a limit, the others see the longest step at worst: E T <= p limit + (1 - p) T_full,
provided that steps with more running requests are on average no shorter. No step is shorter than T(0) without prompts,
which must keep the limit. Ranks share steps; the slowest one lasts at least as long as equal ones would. Waiting for
slots only lowers the rate. A smaller budget allows no other steps, so the bound of the largest budget holds for all.

A chunk is computed by one rank, and all ranks wait for it. Let prompts arrive at rate r and steps last at least b
seconds. The probability that no prompt which arrived in the k-th step before has a k-th chunk of at least x tokens is
at most exp(-r b P(x, k)), where P(x, k) is the share of prompts with such a chunk. Over all k the largest chunk of a
step is below x with probability at most exp(-r b N(x)), where N(x) is the mean number of such chunks per prompt. Sort
x by tokens, then full chunks by the tokens of earlier chunks, which they read. Let f(x) be the seconds of a step in
which only the busiest rank computes such a chunk; f rises. Then

    E T >= b + sum over rising x of (f(x) - f(x before)) (1 - exp(-r b N(x)))

Steps with chunks are longer, and more prompts come during them: by Hoelder's inequality the probability is at most
E exp(-r T N(x)), where T is as long as the line above says. That holds while no prompt waits for slots, which would let
prompts in together; so where a rank's running requests come near its slots, T is b.

Gaps of arrivals dealt in turn are HNBUE, so Poisson arrivals bound them (R. E. Barlow and F. Proschan, Statistical
Theory of Reliability, 1975, section 6.4). Bursty arrivals have d times the variance; the probability that nothing
arrives is then that of a negative binomial number. Derived here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, percentiles
from planner.instances.candidates import MEMORY_DEVIATIONS, Count
from planner.instances.least import BATCHES, Least
from planner.manifest.stacks import taken
from planner.manifest.stepcost import evaluate_each, stage_layers
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.serving.streams import stationary
from planner.workload import Workload

_KNOTS = np.array([0.0, 1 / 16, 1 / 4, 1 / 2, 3 / 4, 1.0])  # running requests at which steps are costed, of the most
_BELOW, _ABOVE = (0.0, 0.25, 0.5, 1.0), (0.25, 0.5, 0.75, 1.0)
"""Chunks at which steps are costed: parts of the mean chunk; exponents from there geometrically to the free budget."""
_SURE = 1.5
"""Multiple of the share of late requests that is set aside for long prompts, as some meet fewer running requests."""
_RANGE, _TURNS, _ROUNDS = 256.0, 2, 3
_FEWEST, _SHORTEST = 1e-3, 1e-3  # least mean running requests of a rank; least steps of an answer
_EMPTIEST = 1e-3  # least mean prompt tokens of a step, of those that it has room for
_QUANTILES = np.arange(2.5, 100.0, 5.0)
_LEVELS = (3, 9, 14, 17, 19)  # indices of the quantiles that separate classes of chunks
_CONTEXTS = (0.125, 0.25, 0.5, 0.75, 1.0)
"""Contexts of full chunks, of the largest quantile; no counted chunk has the last."""
_TRIED = 5  # rounds of trial rates in ``single_bound``; in the last, rates differ by the eighth root of ``_RANGE``
_SAMPLE = 4000  # requests of the stream over which means are taken


class Means(NamedTuple):
    """Means over a stream of requests, which end at the model's context."""

    new_tokens: float  # computed prompt tokens per request
    context: float  # reused tokens per computed token; the kernel of each step reads them
    pairs: float  # query-key pairs per computed token
    decoded_tokens: float  # answer tokens after the first
    kv_tokens: float  # cached tokens of a running request
    longest: float
    """Computed tokens of the longest prompt that must be in time, with ``_SURE`` times as many late ones set aside."""
    timely: float  # computed tokens of the longest prompt that must be in time, one rank down: the sample is stratified
    lengths: tuple[float, ...]  # evenly spaced quantiles of the computed tokens
    thinned: float  # rate of the Poisson process with the same probability of no arrival, over the rate


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


class _Chunks(NamedTuple):
    """Steps with so many prompt tokens, each [chunks, ..., rows]; the mean chunk stands at ``_MEAN``."""

    tokens: Floats
    seconds: Floats

    def hull(self) -> tuple[Floats, Floats, Floats]:
        """Lower convex hull over the tokens at the mean chunk, and its slopes to the left and right, [..., rows]."""
        tokens, seconds = self
        mean, least = tokens[_MEAN], seconds[_MEAN].copy()
        left = np.max([self._slope(low, _MEAN, -np.inf) for low in range(_MEAN)], axis=0)
        right = np.min([self._slope(_MEAN, high, np.inf) for high in range(_MEAN + 1, len(tokens))], axis=0)
        left, right = np.where(np.isfinite(left), left, 0.0), np.where(np.isfinite(right), right, left)
        for low in range(_MEAN):
            for high in range(_MEAN + 1, len(tokens)):
                slope = self._slope(low, high, np.inf)
                chord = seconds[low] + slope * (mean - tokens[low])
                lower = chord < least
                least = np.where(lower, chord, least)
                left, right = np.where(lower, slope, left), np.where(lower, slope, right)
        return least, np.maximum(left, 0.0), np.maximum(right, 0.0)

    def _slope(self, low: int, high: int, none: float) -> Floats:
        span = self.tokens[high] - self.tokens[low]
        wide = span > _ALIKE * self.tokens[high]
        return np.where(wide, (self.seconds[high] - self.seconds[low]) / np.where(wide, span, 1.0), none)


_MEAN = len(_BELOW) - 1
_ALIKE = 1e-9  # chunks that differ by no more than this share of the larger one are one knot


def _convex(running: Floats, values: Floats) -> Floats:
    """Return the lower convex hull of values over the running requests, at the same knots, each [knots, rows]."""
    found, knots = values.copy(), len(running)
    for middle in range(1, knots - 1):
        for low in range(middle):
            for high in range(middle + 1, knots):
                span = np.maximum(running[high] - running[low], 1e-12)
                part = (running[middle] - running[low]) / span
                found[middle] = np.minimum(found[middle], values[low] + part * (values[high] - values[low]))
    return found


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Many instances with a token budget per DP rank, and their traffic."""

    cost: StepCost  # step costs of all rows, stacked
    means: Means
    ranks: Floats  # [rows]
    budget_tokens: Number
    microbatches: Sequence[int]
    accepted: Number  # tokens per running request and step
    together: bool  # whether decode and prompts share the budget; else prompts come first
    count: Count
    most_utilisation: float = 1.0  # rate over saturation at which an instance may be planned

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
        """Most running requests of a rank, [rows]: by memory, or by the prompts that full steps compute beside them."""
        if not self.together:
            return np.maximum(room, 0.0)
        fed = self.budget_tokens / (self.means.new_tokens / self.iterations + self.cost.queries_per_sequence)
        return np.asarray(np.maximum(np.minimum(room, fed * (1 - 1e-9)), 0.0))

    def quick_bound(self, room: Floats) -> Floats:
        """Return a bound on the rate from steps without prompts and without latency limits, [rows]."""
        running = self.most_running(room)
        return self.most_utilisation * self.rate(running, self.bare(running))

    def bound(self, limit: Number, share: float, room: Floats) -> Floats:
        """Return the bound on the rate of each row, [rows]; 0 where no rate keeps the limit.

        Args:
            limit: longest mean step, in seconds, that a ``share`` of the requests may see.
            share: share of the requests that keep the limit, above 0.
            room: requests that the memory of a rank holds.
        """
        most = self.most_running(room)
        running = np.minimum(np.maximum(_KNOTS[:, None] * most, _FEWEST), most)  # [knots, rows]
        chunks = self._chunks(running)
        full = chunks.seconds.max(axis=(0, 1))
        slowest = np.broadcast_to(share * np.asarray(limit) + (1 - share) * full, room.shape)
        beside = running * self.means.new_tokens / self.iterations
        found = np.full(room.shape, np.inf)
        for price in self._prices(chunks):
            least = _convex(running, self._unpriced(chunks, price)) + price * beside
            found = np.minimum(found, _most(running, least, slowest, self.most_utilisation))
        able = (room > 0) & (self.bare(running[0]) <= limit)
        return np.where(able, self.rate(found, np.ones_like(found)), 0.0)

    def _prices(self, chunks: _Chunks) -> Floats:
        """Return seconds per prompt token, [prices, rows]: slopes of the step time at mean chunks."""
        if not self.together:
            return np.asarray(np.min(chunks.seconds[1:, 0] / chunks.tokens[1:, 0], axis=0)[None])
        _, left, right = chunks.hull()
        return np.concatenate([left, right])

    def _unpriced(self, chunks: _Chunks, price: Floats) -> Floats:
        """Return the least of the step time without its prompts' price, [knots, rows]."""
        if not self.together:
            return np.asarray(chunks.seconds[0])
        return np.asarray(np.min(chunks.seconds - price * chunks.tokens, axis=0))

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
            step, full, part = self._with_singles(rate, running, most)
            needed = rate * self.iterations * step / self.ranks
            running = np.clip(needed, _FEWEST, most)
        seen = (step - (1 - share) * full) / share
        timely = part <= ttft_seconds
        return np.asarray((seen <= limit) & timely & (needed <= np.maximum(most, _FEWEST) * (1 + 1e-9)))

    def _with_singles(self, rate: Floats, running: Floats, most: Floats) -> tuple[Floats, Floats, Floats]:
        """Least seconds of the mean step, of a full step and of the longest prompt, given running requests, [rows]."""
        chunk, longest = self._free(running), self.means.longest
        lengths = np.array(self.means.lengths)[:, None, None]
        sizes = np.minimum(lengths[list(_LEVELS), 0], chunk)  # of chunks without context, [levels, rows]
        contexts = np.repeat(np.array(_CONTEXTS)[:, None] * lengths[-1, 0], chunk.size, axis=1)  # of full chunks
        whole = np.floor(lengths / chunk)
        parts = (np.maximum(whole, 1.0) * (lengths >= sizes), np.maximum(whole - np.ceil(contexts / chunk), 0.0))
        whole_chunks, last = np.broadcast_to(chunk, contexts.shape), np.minimum(longest, chunk)[None]
        tokens = np.concatenate([np.zeros((1, chunk.size)), sizes, whole_chunks, last])
        context = np.concatenate([np.zeros((1 + len(sizes), chunk.size)), contexts, (longest - last) / 2])
        load = self._load(running, tokens, tokens / self.ranks)
        load = load._replace(prefill_context_tokens=0.0, prefill_pairs=tokens * (context + tokens / 2))
        seconds = self._seconds(load, tokens.shape)
        least, *larger = np.maximum.accumulate(seconds[:-1], axis=0)
        steps, come = np.stack([least, *larger]), rate * np.concatenate(parts, axis=1).mean(axis=0)
        step, longer = (_mean_step(self.means.thinned * come, steps, rounds) for rounds in (1, _ROUNDS))
        held = rate * self.iterations * longer / self.ranks
        step = np.where(held + MEMORY_DEVIATIONS * np.sqrt(held) <= most, longer, step)
        return step, larger[-1], np.maximum(longest / chunk, 1.0) * seconds[-1]

    def longest_in_batches(self) -> Floats:
        """Least seconds of the longest prompt that must be in time, alone in the batches of a pipeline, [rows].

        A batch has its share of the budget. The first chunk passes all stages one after the other, later ones follow at
        the pace of the slowest stage; the last chunk alone has a token for the head. Equally full steps are the least.
        """
        tokens, stages = self.means.timely, self.cost.pipeline_stages
        chunk = np.broadcast_to(np.minimum(tokens, self.budget_tokens / stages), self.ranks.shape)
        load = self._load(np.zeros_like(chunk), stages * chunk, stages * chunk / self.ranks)
        last = np.stack([chunk, np.full_like(chunk, tokens)])  # of the first chunk, and twice the mean
        pairs, context = stages * chunk * last / 2, stages * (last - chunk) / 2
        load = load._replace(prefill_context_tokens=context, prefill_pairs=pairs, finishing_prompts=0.0)
        most, fewest = stage_layers(self.cost)
        found = np.full(chunk.shape, np.inf)
        for each in evaluate_each(self.cost, load, self.microbatches):
            seconds = np.broadcast_to(np.asarray(each.seconds), pairs.shape)
            layers = seconds - each.head_seconds
            pace = np.maximum(layers * most, layers * fewest + each.head_seconds)
            found = np.minimum(found, seconds[0] + (tokens / chunk - 1) * pace[1])
        return found

    def alone(self, tokens: float) -> Floats:
        """Least seconds of a prompt with so many computed tokens, in full steps with nothing else, [rows].

        Step time is about convex in query-key pairs, so equally full steps are the least.
        """
        chunk = np.broadcast_to(np.minimum(tokens, self.budget_tokens), self.ranks.shape)
        load = self._load(np.zeros_like(chunk), chunk, chunk / self.ranks)
        load = load._replace(prefill_context_tokens=0.0, prefill_pairs=chunk * tokens / 2)
        return np.asarray(self._seconds(load, chunk.shape) * tokens / chunk)

    def bare(self, running: Floats) -> Floats:
        """Seconds of steps without prompts, given running requests per rank, [..., rows]."""
        none = np.zeros_like(running)
        return self._seconds(self._load(running, none, none), running.shape)

    def least_step(self, running: Floats) -> Floats:
        """Least seconds of the mean step, given running requests per rank, [..., rows]; infinite beyond the budget."""
        chunks, beside = self._chunks(running), running * self.means.new_tokens / self.iterations
        if not self.together:
            return np.asarray(chunks.seconds[0] + beside * np.min(chunks.seconds[1:] / chunks.tokens[1:], axis=0))
        return np.where(beside <= self._free(running), np.maximum(chunks.seconds[0], chunks.hull()[0]), np.inf)

    def _free(self, running: Floats) -> Floats:
        """Prompt tokens that a step holds beside so many running requests, [..., rows]."""
        taken = running * self.cost.queries_per_sequence if self.together else np.zeros_like(running)
        return np.asarray(np.maximum(self.budget_tokens - taken, 1.0))

    def _chunks(self, running: Floats) -> _Chunks:
        """Return steps by their prompt tokens; those with prompts have nothing else where prompts come first."""
        free = self._free(running)
        even = np.clip(running * self.means.new_tokens / self.iterations, _EMPTIEST * free, free)
        tokens = np.stack([*(part * even for part in _BELOW), *(even ** (1 - power) * free**power for power in _ABOVE)])
        beside = np.broadcast_to(running, tokens.shape) * (1.0 if self.together else tokens == 0)
        return _Chunks(tokens, self._seconds(self._load(beside, tokens, tokens), tokens.shape))

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
        found = evaluate_each(self.cost, load, self.microbatches)
        self.count.evaluated += len(found) * int(np.prod(shape))
        seconds = [np.broadcast_to(np.asarray(each.seconds, dtype=np.float64), shape) for each in found]
        return np.asarray(np.min(seconds, axis=0))


def _mean_step(per_second: Floats, steps: Floats, rounds: int) -> Floats:
    """Return the least mean of step seconds, [rows]: in each round steps are as long as the round before shows.

    Args: ``per_second``: chunks of at least each class; ``steps``: seconds without a chunk, then with each, rising.
    """
    come = np.zeros_like(per_second)
    for _ in range(rounds):
        last = -np.diff(come, axis=0, prepend=1.0, append=0.0)  # probability of each length, [1 + classes, rows]
        come = 1 - (last * np.exp(-per_second[:, None] * steps)).sum(axis=1)
    return np.asarray(steps[0] + (np.diff(steps, axis=0) * come).sum(axis=0))


def _most(running: Floats, least: Floats, slowest: Floats, most_utilisation: float) -> Floats:
    """Return the most running requests per second of mean step, [rows], where that keeps to the ``slowest``.

    It is at most ``most_utilisation`` of the most with steps of any length. Args: ``least`` seconds of the mean step at
    knots of ``running`` requests, each [knots, rows], linear between them.
    """
    sane = np.maximum(least, 1e-12)  # a price that is too high leaves nothing of some step, and says nothing
    each = running / sane
    found = np.max(np.where(least <= slowest, each, 0.0), axis=0)
    for low in range(len(running) - 1):
        (first, last), (below, above) = running[low : low + 2], least[low : low + 2]
        crosses = (below <= slowest) & (above > slowest)
        part = (slowest - below) / np.where(crosses, above - below, 1.0)
        found = np.where(crosses, np.maximum(found, (first + part * (last - first)) / slowest), found)
    found = np.minimum(found, most_utilisation * each.max(axis=0))
    return np.where((least <= 0).any(axis=0), np.inf, found)


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
    alone = bounds.alone(bounds.means.new_tokens)
    return Least.of(requests.T, np.maximum.accumulate(seconds).T, alone)
