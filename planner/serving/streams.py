"""Streams of requests: stationary ones, drawn by stratified sampling from a workload's laws, and traces.

A stationary stream has common random numbers: every candidate and every rate is played with the same lengths and the
same gaps, only scaled, so that two candidates do not differ by what was drawn. Levels are stratified (one in each of as
many equal parts as there are requests), which takes most of the noise out of the offered load.

Costs that depend on more than the moments of lengths take prompts as a few weighted kinds of length and reuse.

Ref: P. Glasserman, Monte Carlo Methods in Financial Engineering, 2004, sections 4.2 and 4.3.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, Ints
from planner.workload import EDGES, Lengths, TraceRows, Traffic, Workload

SHARE_OF_HITS = 0.95
"""Reused share of a prompt that hits the cache where only the mean is known (Mooncake's conversation trace: many
prompts near none, a tenth above 0.95)."""
_KEPT_STREAMS = 32
_SHARES_OF = 2_000  # answers, one in each of as many equal parts, of which a share is told
_EDGE = 0.1
"""Part of a stationary stream at each end that does not count: a stream begins empty and ends with nobody behind."""
PARTS = 24  # parts of a stream; after each a play may check whether enough is known


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """Requests in order of arrival, one entry each; at least one token of each prompt is computed."""

    arrival_seconds: Floats
    prompt_tokens: Ints
    reused_tokens: Ints  # prompt tokens whose KV is cached
    answer_tokens: Ints
    whole: bool = False  # whether all requests count, as in a trace; else the first and the last tenth do not

    def __len__(self) -> int:
        return int(self.arrival_seconds.size)

    def at_rate(self, requests_per_second: float) -> "Stream":
        """Return the stream with its gaps scaled to a rate; a stationary stream is drawn with mean gap 1 s."""
        return replace(self, arrival_seconds=self.arrival_seconds / requests_per_second)

    @property
    def counting(self) -> slice:
        """The requests whose latencies count."""
        edge = 0 if self.whole else int(len(self) * _EDGE)
        return slice(edge, len(self) - edge)

    def counted(self) -> "Stream":
        """Return the requests whose latencies count."""
        return self.select(self.counting)

    def select(self, chosen: NDArray[np.int64] | slice) -> "Stream":
        """Return the chosen requests."""
        return replace(
            self,
            arrival_seconds=self.arrival_seconds[chosen],
            prompt_tokens=self.prompt_tokens[chosen],
            reused_tokens=self.reused_tokens[chosen],
            answer_tokens=self.answer_tokens[chosen],
        )

    @classmethod
    def from_trace(cls, trace: TraceRows) -> Self:
        """Return the requests of a trace, at their own times."""
        prompts = np.maximum(np.asarray(trace.input_tokens, dtype=np.int64), 1)
        reused = np.zeros_like(prompts) if trace.reused_tokens is None else np.asarray(trace.reused_tokens, np.int64)
        return cls(
            arrival_seconds=np.asarray(trace.arrival_seconds, dtype=np.float64),
            prompt_tokens=prompts,
            reused_tokens=np.clip(reused, 0, prompts - 1),
            answer_tokens=np.maximum(np.asarray(trace.output_tokens, dtype=np.int64), 1),
            whole=True,
        )


@lru_cache(maxsize=_KEPT_STREAMS)
def stationary(
    workload: Workload, requests: int, *, seed: int = 0, every: int = 1, most_tokens: float = math.inf
) -> Stream:
    """Return a stationary stream of mean rate 1 per second.

    Args:
        workload: laws of lengths, reuse and gaps. Gaps are gamma distributed with its squared CV: 1 is Poisson.
        requests: number of requests.
        seed: seed of the random numbers, which are the same for every workload.
        every: number of instances that are dealt requests in turn; the stream is that of one of them. The sum of as
            many gamma gaps is gamma distributed with the squared CV divided by their number.
        most_tokens: context length of the model, at which prompt and answer together are cut.
    """
    prompts, reused = _prompts(workload, requests, seed)
    answers = _answers(workload, requests, seed)
    if math.isfinite(most_tokens):
        prompts = np.minimum(prompts, max(int(most_tokens) - 1, 1))
        answers = np.clip(answers, 1, np.maximum(int(most_tokens) - prompts, 1))
    gaps = gamma_quantiles(workload.arrival_squared_cv / every, _levels(seed, 0, requests))
    return Stream(
        arrival_seconds=np.cumsum(gaps * (requests / gaps.sum())),
        prompt_tokens=prompts,
        reused_tokens=np.clip(reused, 0, prompts - 1),
        answer_tokens=answers,
    )


def parts_of(requests: int, least: int = 1) -> Iterator[tuple[int, int]]:
    """Yield the parts of a stream as (first, past the last); after each a play may check whether enough is known.

    Args: ``least`` requests of a part: a check takes as long as playing them.
    """
    parts = min(max(requests // least, 1), PARTS)
    edges = [requests * part // parts for part in range(parts + 1)]
    return pairwise(edges)


@lru_cache(maxsize=_KEPT_STREAMS)
def traced(trace: TraceRows, instances: int) -> Stream:
    """Return the requests of a trace at a mean rate of 1 per second for each of ``instances``."""
    whole = Stream.from_trace(trace)
    return whole.at_rate(instances / Traffic.from_trace(trace).rate_per_second)


def longest_prompt(workload: Workload) -> float:
    """Return the length in tokens that one prompt in a million exceeds, or that of the longest kind."""
    if workload.prompts is not None:
        return max(tokens for tokens, _, _ in workload.prompts)
    return float(lengths_at(workload.input_tokens, np.array([1 - 1e-6]))[0])


def _levels(seed: int, purpose: int, count: int) -> Floats:
    """Return levels within 0 and 1 in random order, one in each of ``count`` equal parts."""
    rng = np.random.default_rng([seed, purpose])
    return np.asarray((rng.permutation(count) + rng.random(count)) / count, dtype=np.float64)


@lru_cache(maxsize=_KEPT_STREAMS)
def _prompts(workload: Workload, count: int, seed: int) -> tuple[Ints, Ints]:
    levels = _levels(seed, 1, count)
    if workload.prompts is not None:
        tokens, reused, weights = (np.array(column) for column in zip(*workload.prompts, strict=True))
        kind = _kinds(weights, levels)
        return _whole(tokens[kind]), np.rint(reused[kind]).astype(np.int64)
    tokens = _whole(lengths_at(workload.input_tokens, levels))
    if not workload.prefix_reuse:
        return tokens, np.zeros_like(tokens)
    share = max(SHARE_OF_HITS, workload.prefix_reuse)
    hits = _levels(seed, 2, count) < workload.prefix_reuse / share
    return tokens, np.where(hits, tokens * share, 0).astype(np.int64)


@lru_cache(maxsize=_KEPT_STREAMS)
def _answers(workload: Workload, count: int, seed: int) -> Ints:
    levels = _levels(seed, 3, count)
    if workload.answers is not None:
        tokens, weights = (np.array(column) for column in zip(*workload.answers, strict=True))
        return _whole(tokens[_kinds(weights, levels)])
    return _whole(lengths_at(workload.output_tokens, levels))


@lru_cache(maxsize=_KEPT_STREAMS)
def decoded_share(workload: Workload) -> float:
    """Return the share of requests whose answers go on after the token that prefill gives."""
    if workload.trace is not None:
        return float((Stream.from_trace(workload.trace).answer_tokens > 1).mean())
    if workload.answers is None and not workload.output_tokens.squared_cv:
        return float(workload.decodes)
    return float((_answers(workload, _SHARES_OF, 0) > 1).mean())


def _kinds(weights: Floats, levels: Floats) -> Ints:
    edges = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(edges, levels, side="right"), weights.size - 1)


def _whole(tokens: Floats) -> Ints:
    return np.maximum(np.rint(tokens), 1).astype(np.int64)


def lengths_at(lengths: Lengths, levels: Floats) -> Floats:
    """Return the quantiles of a length distribution at levels within 0 and 1, in tokens.

    Log-normal: exp(mu + sigma z) with sigma^2 = ln(1 + c^2) and mean exp(mu + sigma^2 / 2).
    """
    if not lengths.squared_cv:
        return np.full(levels.shape, lengths.mean)
    if lengths.shape == "gamma":
        return lengths.mean * gamma_quantiles(lengths.squared_cv, levels)
    variance = math.log1p(lengths.squared_cv)
    scores = np.fromiter(map(NormalDist().inv_cdf, levels.tolist()), dtype=np.float64, count=levels.size)
    return np.asarray(lengths.mean * np.exp(math.sqrt(variance) * scores - variance / 2))


def gamma_quantiles(squared_cv: float, levels: Floats) -> Floats:
    """Return the quantiles of the gamma distribution with mean 1 and a squared CV at levels within 0 and 1.

    Exact for 1 (exponential). Else the distribution function is summed over a grid of ln x: within 1 % from the 1 %
    quantile on for squared CV up to 1. A CV below 0.3 % counts as none.
    """
    if squared_cv < 1e-5:
        return np.ones_like(levels)
    if squared_cv == 1:
        return np.asarray(-np.log1p(-levels))
    shape = 1 / squared_cv
    logs = np.linspace(-14.0 * max(1.0, squared_cv), math.log(1 + 8 * math.sqrt(squared_cv) + 40 * squared_cv), 4000)
    densities = np.exp(shape * (logs - np.exp(logs) + 1))  # of ln x, 1 at its peak
    below = np.cumsum(densities)
    return np.asarray(np.exp(np.interp(levels, below / below[-1], logs)), dtype=np.float64)


_WITHIN = 8  # levels of a gamma distribution between two edges


class Prompts(NamedTuple):
    """Kinds of prompts: tokens, reused tokens and weights, each [kinds]; ``weights`` sum to 1."""

    tokens: Floats
    reused: Floats
    weights: Floats

    @property
    def mean_tokens(self) -> float:
        """Mean length."""
        return float(self.tokens @ self.weights)


def prompts_of(workload: Workload) -> Prompts:
    """Return the kinds of prompts of a workload, from its trace or from its length distribution and mean reuse."""
    if workload.prompts is not None:
        tokens, reused, weights = (np.array(column) for column in zip(*workload.prompts, strict=True))
        return Prompts(tokens, reused, weights / weights.sum())
    return _with_reuse(*length_kinds(workload.input_tokens), workload.prefix_reuse)


def _with_reuse(tokens: Floats, weights: Floats, reuse: float) -> Prompts:
    """Return kinds of which a share hits the cache, independent of length, such that the mean reuse is met."""
    if not reuse:
        return Prompts(tokens, np.zeros_like(tokens), weights)
    share = max(SHARE_OF_HITS, reuse)
    hits = reuse / share
    return Prompts(
        np.concatenate([tokens, tokens]),
        np.concatenate([np.zeros_like(tokens), share * tokens]),
        np.concatenate([(1 - hits) * weights, hits * weights]),
    )


def length_kinds(lengths: Lengths) -> tuple[Floats, Floats]:
    """Return mean lengths and weights of the parts between the quantiles ``EDGES``; one kind where lengths are fixed.

    Log-normal: E[X; z < Z < z'] = Phi(z' - sigma) - Phi(z - sigma) for mean 1 (Aitchison and Brown, The Lognormal
    Distribution, 1957, section 2.4). Lengths beyond the last edge are one kind, which loses little of the variance.
    """
    if not lengths.squared_cv:
        return np.array([lengths.mean]), np.ones(1)
    weights = np.diff(EDGES)
    if lengths.shape == "gamma":
        parts = (np.arange(_WITHIN) + 0.5) / _WITHIN
        levels = EDGES[:-1, None] + weights[:, None] * parts
        values = gamma_quantiles(lengths.squared_cv, levels).mean(axis=1)
    else:
        normal, sigma = NormalDist(), float(np.sqrt(np.log1p(lengths.squared_cv)))
        below = [normal.cdf(normal.inv_cdf(float(edge)) - sigma) for edge in EDGES[1:-1]]
        values = np.diff([0.0, *below, 1.0]) / weights
    return np.maximum(lengths.mean * values / float(values @ weights), 1.0), weights


def with_answers(workload: Workload, most_tokens: float) -> Workload:
    """Return a workload with the moments of those prompts after which a model's context has room for an answer."""
    prompt = workload.input_tokens
    return workload if workload.prompts or not prompt.squared_cv else _with_answers(workload, most_tokens)


@lru_cache(maxsize=8)
def _with_answers(workload: Workload, most_tokens: float) -> Workload:
    prompt = workload.input_tokens
    tokens, weights = length_kinds(prompt)
    left = np.where(tokens < most_tokens, weights, 0.0)
    if left[-1] or not left.any():
        return workload
    mean, square = (float(tokens**power @ left / left.sum()) for power in (1, 2))
    square *= prompt.second_moment / float(tokens**2 @ weights)  # kinds lose a little of the variance
    squared_cv = max(square / mean**2 - 1, 0.0)
    covariance = workload.length_covariance * float(np.sqrt(squared_cv / prompt.squared_cv)) * mean / prompt.mean
    return replace(
        workload, input_tokens=replace(prompt, mean=mean, squared_cv=squared_cv), length_covariance=covariance
    )


def histogram_kinds(tokens: Floats, weights: Floats, reuse: float) -> tuple[tuple[float, float, float], ...]:
    """Return (tokens, reused, weight) of prompts from a histogram and the mean share that is reused.

    Args:
        tokens: [rows], rising.
        weights: [rows], summing to 1.
        reuse: mean share of prompt tokens whose KV is already there.
    """
    kinds = _with_reuse(*_compact(tokens, weights), reuse)
    return tuple(zip(kinds.tokens.tolist(), kinds.reused.tolist(), kinds.weights.tolist(), strict=True))


def answer_kinds(tokens: Floats, weights: Floats) -> tuple[tuple[float, float], ...]:
    """Return (tokens, weight) of answers from a histogram; arguments as of ``histogram_kinds``."""
    compact = _compact(tokens, weights)
    return tuple(zip(*(column.tolist() for column in compact), strict=True))


def _compact(tokens: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Merge a histogram with more rows than ``EDGES`` into one mean length per quantile range; the mean is kept."""
    if tokens.size < EDGES.size:
        return tokens, weights
    below, held = (np.append(0.0, np.cumsum(column)) for column in (weights, tokens * weights))
    parts = np.diff(EDGES)
    return np.maximum.accumulate(np.diff(np.interp(EDGES, below / below[-1], held)) / parts), parts
