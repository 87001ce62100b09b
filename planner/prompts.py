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
    tokens, weights = length_kinds(workload.input_tokens)
    if not workload.prefix_reuse:
        return Prompts(tokens, np.zeros_like(tokens), weights)
    share = max(SHARE_OF_HITS, workload.prefix_reuse)
    hits = workload.prefix_reuse / share
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
