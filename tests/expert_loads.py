"""Expert loads for tests, and the best placement by enumeration."""

import itertools

import numpy as np
from numpy.typing import NDArray

from planner.manifest.loads import imbalance, rank_loads


def power_law(layers: int, experts: int, alpha: float, seed: int = 0) -> NDArray[np.float64]:
    """Token counts that fall with the rank's power ``alpha``, shuffled, with a little noise; 10 million per layer."""
    rng = np.random.default_rng(seed)
    loads = np.arange(1, experts + 1) ** -float(alpha) * np.exp(0.1 * rng.standard_normal((layers, experts)))
    loads = rng.permuted(loads, axis=1)
    return np.asarray(np.round(loads / loads.sum(axis=1, keepdims=True) * 1e7), dtype=np.float64)


def every_map(experts, ranks, redundant):
    """Every duplicate-free map that has all experts, up to the order of ranks, [maps, slots]."""
    per_rank = (experts + redundant) // ranks
    sets = list(itertools.combinations(range(experts), per_rank))
    maps = [sum(chosen, ()) for chosen in itertools.combinations_with_replacement(sets, ranks)]
    return np.array([row for row in maps if len(set(row)) == experts])


def brute_force(loads, ranks, redundant):
    """Least imbalance of each layer over all counts and all duplicate-free maps, [layers]."""
    maps = every_map(loads.shape[1], ranks, redundant)
    rows = [imbalance(rank_loads(np.tile(layer, (len(maps), 1)), maps, ranks)).min() for layer in loads]
    return np.array(rows)
