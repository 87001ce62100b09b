"""Until aggregated instances are played: what their queues compute with."""

from statistics import NormalDist

import numpy as np

from planner.serving.closed_forms.waits import kingman_wait, pollaczek_khinchine_wait
from planner.serving.latency import Array
from planner.serving.streams import gamma_quantiles

__all__ = ["Array", "gamma_nodes", "gamma_quantiles", "kingman_wait", "pollaczek_khinchine_wait"]


def gamma_nodes(squared_cv: Array, count: int) -> tuple[Array, Array]:
    """Quantile nodes of gamma distributions with mean 1: values [..., count] and weights [count].

    x = (1 - c/9 + z sqrt(c)/3)^3 for normal scores z, then scaled to mean 1 and stretched to the squared CV c. Within
    2 % of the exact 99th percentile up to c = 2; beyond, the stretch keeps two moments and the tail is too light. Past
    c = 36 the shape is that of 36: the cube has no positive node left soon after.

    Ref: E. B. Wilson and M. M. Hilferty, The Distribution of Chi-Square, PNAS 17:684, 1931.
    """
    if count == 1:
        return np.ones((*np.shape(squared_cv), 1)), np.ones(1)
    normal = NormalDist()
    edges = np.linspace(-3.2, 3.2, count + 1)
    below = np.array([normal.cdf(z) for z in edges])
    weights = np.diff(below) / (below[-1] - below[0])
    scores = (edges[1:] + edges[:-1]) / 2
    c = np.asarray(squared_cv, dtype=np.float64)[..., None]
    shape = np.minimum(c, 36.0)
    values = np.maximum(1 - shape / 9 + scores * np.sqrt(shape) / 3, 0.0) ** 3
    values = values / (values @ weights)[..., None]
    spread = np.sqrt(((values - 1) ** 2 @ weights)[..., None])
    stretched = 1 + (values - 1) * np.sqrt(c) / np.maximum(spread, 1e-12)
    values = np.maximum(stretched, 1e-6)
    return values / (values @ weights)[..., None], weights
