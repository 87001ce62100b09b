"""Prompts as a few kinds with weights: lengths and reuse together, for what depends on more than their moments."""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from planner.queueing import gamma_quantiles
from planner.workload import EDGES, Lengths, Workload

Array = NDArray[np.float64]

SHARE_OF_HITS = 0.95
"""Reused share of a prompt that hits the cache where only the mean is known, as the runtime draws it (Mooncake's
conversation trace: many prompts near none, a tenth above 0.95)."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Kinds of prompts, arrays [kinds]; ``weights`` sum to 1."""

    tokens: Array
    reused: Array
    weights: Array

    @property
    def mean_tokens(self) -> float:
        """Mean length."""
        return float(self.tokens @ self.weights)


def prompts_of(workload: Workload) -> Prompts:
    """Return the kinds of prompts of a workload: those of its trace, or of its length distribution and mean reuse."""
    if workload.prompts is not None:
        tokens, reused, weights = (np.array(column) for column in zip(*workload.prompts, strict=True))
        return Prompts(tokens, reused, weights / weights.sum())
    return _with_reuse(*length_kinds(workload.input_tokens), workload.prefix_reuse)


def _with_reuse(tokens: Array, weights: Array, reuse: float) -> Prompts:
    """Return prompts of which some hit the cache, whatever their length, until the mean reuse is met."""
    if not reuse:
        return Prompts(tokens, np.zeros_like(tokens), weights)
    share = max(SHARE_OF_HITS, reuse)
    hits = reuse / share
    return Prompts(
        np.concatenate([tokens, tokens]),
        np.concatenate([np.zeros_like(tokens), share * tokens]),
        np.concatenate([(1 - hits) * weights, hits * weights]),
    )


def length_kinds(lengths: Lengths) -> tuple[Array, Array]:
    """Return lengths and weights between ``EDGES``, of the right mean; one kind where lengths are fixed."""
    if not lengths.squared_cv:
        return np.array([lengths.mean]), np.ones(1)
    middles, weights = (EDGES[1:] + EDGES[:-1]) / 2, np.diff(EDGES)
    if lengths.shape == "gamma":
        values = gamma_quantiles(lengths.squared_cv, middles)
    else:
        sigma = float(np.sqrt(np.log1p(lengths.squared_cv)))
        scores = np.array([NormalDist().inv_cdf(float(level)) for level in middles])
        values = np.exp(sigma * scores - sigma**2 / 2)
    tokens = np.maximum(lengths.mean * values / float(values @ weights), 1.0)
    return tokens, weights


def histogram_kinds(tokens: Array, weights: Array, reuse: float) -> tuple[tuple[float, float, float], ...]:
    """Return (tokens, reused, weight) of prompts from a histogram and the mean share that is reused.

    A histogram of more rows than there are levels is cut at ``EDGES``; each part is taken as one prompt of its mean
    length, so that the mean over all is exact.

    Args:
        tokens: [rows], rising.
        weights: [rows], summing to 1.
        reuse: mean share of prompt tokens whose KV is already there.
    """
    if tokens.size >= EDGES.size:
        below, held = (np.append(0.0, np.cumsum(column)) for column in (weights, tokens * weights))
        weights = np.diff(EDGES)
        tokens = np.diff(np.interp(EDGES, below / below[-1], held)) / weights
    kinds = _with_reuse(tokens, weights, reuse)
    return tuple(zip(kinds.tokens.tolist(), kinds.reused.tolist(), kinds.weights.tolist(), strict=True))
