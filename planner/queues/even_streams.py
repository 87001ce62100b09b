"""Streams of prompts for samples: lengths and gaps even over their distributions, the same for every question.

Levels lie one in each of as many parts as there are streams at every place, and even over all places: a Latin
hypercube.

Ref: P. Glasserman, Monte Carlo Methods in Financial Engineering, 2004, section 4.4.
"""

from functools import lru_cache

import numpy as np

from planner.serving.latency import Array
from planner.serving.prompts import Prompts
from planner.serving.streams import gamma_quantiles

_RAREST = 5e-5
"""Of the longest prompts: a sample holds too few of what is rarer."""
_LEVELS = 8192
_KEPT = 24
"""Streams: a search asks for a dozen sizes, again and again."""


def whole_tokens(prompts: Prompts) -> Prompts:
    """Return whole numbers of tokens, of which one is computed at least, and weights that sum to 1."""
    tokens = np.maximum(np.rint(prompts.tokens), 1.0)
    return Prompts(tokens, np.minimum(np.rint(prompts.reused), tokens - 1), prompts.weights / prompts.weights.sum())


def without_rarest(prompts: Prompts, longest: Array) -> Prompts:
    """Return ``whole_tokens``, the longest prompts of a sample as one kind, by rising ``longest``.

    Whether one of them is among those that are counted would decide about the 99th percentile.
    """
    order = np.argsort(-longest, kind="stable")
    weights = prompts.weights[order] / prompts.weights.sum()
    rare = max(int(np.searchsorted(np.cumsum(weights), _RAREST, side="right")) + 1, 1)
    shares = weights[:rare] / weights[:rare].sum()

    def merged(values: Array) -> Array:
        return np.append(values[order][:rare] @ shares, values[order][rare:])[::-1].copy()

    kept = np.append(weights[:rare].sum(), weights[rare:])[::-1].copy()
    return whole_tokens(Prompts(merged(prompts.tokens), merged(prompts.reused), kept))


@lru_cache(maxsize=_KEPT)
def even_levels(seed: int, streams: int, places: int) -> Array:
    """Levels within 0..1, [streams, places]: one in each of ``streams`` parts at every place, even over all."""
    rng = np.random.default_rng(seed)
    parts = rng.permuted(np.tile(np.arange(float(streams))[:, None], (1, places)), axis=0)
    within = (rng.permutation(places) + rng.random(places)) / places
    return np.asarray((parts + within) / streams, dtype=np.float64)


@lru_cache(maxsize=_KEPT)
def even_gaps(seed: int, squared_cv: float, streams: int, places: int) -> Array:
    """Gamma gaps of mean 1, [streams, places]."""
    levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
    quantiles = gamma_quantiles(squared_cv, levels)
    gaps = np.interp(even_levels(seed, streams, places), levels, quantiles / quantiles.mean())
    return np.asarray(gaps / gaps.mean(), dtype=np.float64)
