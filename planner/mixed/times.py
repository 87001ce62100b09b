"""Distributions of times at an aggregated instance, from point masses."""

import numpy as np

from planner.mixed.chain import PromptState
from planner.queues.queueing import Array
from planner.serving.latency import Latency, independent_sum

_CELLS = 1024
_NEVER = 1e-6


def ttft_of(states: list[PromptState], weights: Array, waiting: float, mean_wait: float) -> Latency:
    """TTFT over the chains, and before it the wait for room of a share ``waiting`` of the requests."""
    points = [state.sojourn() for state in states]
    masses = np.concatenate([weight * own for weight, (_, own) in zip(weights, points, strict=True)])
    return after_wait(_binned(np.concatenate([seconds for seconds, _ in points]), masses), waiting, mean_wait)


def after_wait(ttft: Latency, waiting: float, mean_wait: float) -> Latency:
    """TTFT with the wait for room of a share ``waiting`` of the requests before it."""
    return independent_sum(ttft, _exponential(waiting, mean_wait / waiting)) if waiting > _NEVER else ttft


def _exponential(chance: float, mean: float) -> Latency:
    """A wait that is none but with ``chance``, and then exponential."""
    levels = (np.arange(256) + 0.5) / 256
    waits = np.where(levels > 1 - chance, -np.log(np.maximum(1 - levels, 1e-9) / chance) * mean, 0.0)
    return Latency.from_masses(waits, np.full(256, 1 / 256), chance * mean)


def _binned(seconds: Array, masses: Array) -> Latency:
    """Bin point masses, finely up to where only 1e-4 of them is left, and keep their exact mean."""
    mean, most = float(seconds @ masses / masses.sum()), float(seconds.max()) * (1 + 1e-9)
    coarse = np.bincount((seconds * (_CELLS / most)).astype(np.intp), masses, minlength=_CELLS)
    knee = (int(np.searchsorted(np.cumsum(coarse), (1 - 1e-4) * coarse.sum())) + 1) * most / _CELLS
    edges = np.append(np.linspace(0.0, knee, _CELLS + 1), np.linspace(knee, most, 65)[1:] if knee < most else [])
    cells = np.minimum(np.searchsorted(edges, seconds, side="right") - 1, edges.size - 2)
    binned = np.bincount(cells, masses, minlength=edges.size - 1).astype(np.float64)
    return Latency.from_masses(edges[1:], binned, mean)


def sorted_latency(seconds: Array, masses: Array, mean: float) -> Latency:
    """Return the distribution of point masses in any order, whose mean is known."""
    order = np.argsort(seconds, kind="stable")
    return Latency.from_masses(seconds[order], masses[order], mean)
