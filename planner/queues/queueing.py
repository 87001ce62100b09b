"""Waiting times in closed form, and what every queue here answers with.

Nothing in this room knows models or hardware: it takes rates, service times and squared coefficients of variation.
``queues.prefill_queue`` and ``queues.decode_queue`` are what plans are made with; the closed forms are their oracles.
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from planner.serving.latency import Latency

Array = NDArray[np.float64]


def between(low: Latency, high: Latency, part: float) -> Latency:
    """Distribution so far from one rate to a higher one: 1/seconds goes straight, as it nearly does in the load."""

    def mixed(one: float, other: float) -> float:
        return one if one <= 0 or other <= 0 else 1 / ((1 - part) / one + part / max(one, other))

    seconds = tuple(mixed(*pair) for pair in zip(low.seconds, high.seconds, strict=True))
    return Latency(mean=mixed(low.mean, high.mean), levels=low.levels, seconds=seconds)


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


def gamma_quantiles(squared_cv: float, levels: Array) -> Array:
    """Quantiles of the gamma distribution with mean 1 and the squared CV, at levels within 0 and 1; same shape.

    Inverts the distribution function, summed over a grid of ln x; within 1 % from the 1 % quantile on for c <= 1.
    For where the short end matters, at which ``gamma_nodes`` is too coarse. A spread below the grid's step (CV 0.3 %)
    counts as none.
    """
    if squared_cv < 1e-5:
        return np.ones_like(levels)
    shape = 1 / squared_cv
    logs = np.linspace(-14.0 * max(1.0, squared_cv), math.log(1 + 8 * math.sqrt(squared_cv) + 40 * squared_cv), 4000)
    densities = np.exp(shape * (logs - np.exp(logs) + 1))  # of ln x, 1 at its peak
    below = np.cumsum(densities)
    return np.asarray(np.exp(np.interp(levels, below / below[-1], logs)), dtype=np.float64)


def pollaczek_khinchine_wait(rate_per_second: float, service_seconds: float, service_squared_cv: float) -> float:
    """Mean wait of M/G/1 in seconds: rho (1 + c^2) S / (2 (1 - rho)); infinite from rho = 1 on.

    With c = 0 it is M/D/1, the prefill queue of DistServe (OSDI 2024, section 3.1, Eq. (1) without its service time).

    Ref: F. Pollaczek 1930, A. Khinchine 1932; L. Kleinrock, Queueing Systems I, section 5.6.
    """
    return kingman_wait(rate_per_second, service_seconds, 1.0, service_squared_cv)


def kingman_wait(
    rate_per_second: float, service_seconds: float, arrival_squared_cv: float, service_squared_cv: float
) -> float:
    """Mean wait of G/G/1 in seconds: rho/(1 - rho) (ca^2 + cs^2)/2 S; exact for Poisson arrivals, else heavy traffic.

    Ref: J. F. C. Kingman, The single server queue in heavy traffic, Proc. Camb. Phil. Soc. 57:902, 1961.
    """
    utilisation = rate_per_second * service_seconds
    if utilisation >= 1:
        return math.inf
    return utilisation / (1 - utilisation) * (arrival_squared_cv + service_squared_cv) / 2 * service_seconds


def erlang_c(servers: int, offered: float) -> float:
    """Probability that a request waits in M/M/c, for ``offered`` = rate times service < ``servers``; else 1.

    Through Erlang B, B_0 = 1, B_k = a B_(k-1) / (k + a B_(k-1)): C = B / (1 - (a/c)(1 - B)).

    Ref: A. K. Erlang 1917; Kleinrock, Queueing Systems I, section 3.5.
    """
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def allen_cunneen_wait(
    servers: int,
    rate_per_second: float,
    service_seconds: float,
    arrival_squared_cv: float,
    service_squared_cv: float,
) -> float:
    """Mean wait of G/G/c behind one queue in seconds: Erlang C wait times (ca^2 + cs^2)/2; infinite when unstable.

    Ref: A. O. Allen, Probability, Statistics and Queueing Theory, 2nd ed., section 5.3.6.
    """
    offered = rate_per_second * service_seconds
    if offered >= servers:
        return math.inf
    memoryless = erlang_c(servers, offered) * service_seconds / (servers - offered)
    return memoryless * (arrival_squared_cv + service_squared_cv) / 2
