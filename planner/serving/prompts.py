"""Prompts as a few weighted kinds of length and reuse, for costs that depend on more than the moments of lengths."""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats
from planner.serving.streams import SHARE_OF_HITS, gamma_quantiles
from planner.workload import EDGES, Lengths, Workload

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
