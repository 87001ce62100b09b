"""How long prefill passes take, many at once: a table of the step cost, read between its knots.

A step cost takes 0.2 to 0.5 ms for some hundred loads, a table a quarter of that, which counts where passes follow from
one another and some hundred batches of them are asked for in turn. At a fixed number of tokens the cost is piecewise
linear in pairs and in context, so few knots do; within 0.3 % of the step cost on average over the passes of a queue.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np

from ground.arrays import distinct
from planner.queues.machine import Loads, Machine, pass_durations
from planner.serving.latency import Array

_TOKENS, _LENGTHS, _CONTEXTS, _SHARES = 24, 6, 5, 4
"""Knots along each axis."""
_MANY_ROWS = 9.0


class PassSurface:
    """Seconds of passes by tokens, pairs per token, context and mean tokens of a group; output rows count linearly."""

    def __init__(
        self, machine: Machine, longest: float, durations: Callable[..., Array] | None = None, *beside: Array
    ) -> None:
        """Tabulate passes of prompts up to ``longest`` tokens.

        Args:
            machine: what forms passes.
            longest: tokens of a prompt.
            durations: of loads and mean tokens, where passes carry more than prompts.
            beside: knots of what else ``durations`` and ``seconds`` are asked with, none or more.
        """
        lasts = durations or partial(pass_durations, machine)
        budget = max(machine.budget_tokens, 2.0)
        shares = np.linspace(1 / machine.ranks, 1.0, _SHARES) if machine.ranks > 1 else np.array([1.0, 2.0])
        self._axes = (
            distinct(np.round(np.geomspace(1.0, budget, _TOKENS))),
            np.append(0.5, np.geomspace(max(longest, 4.0) / 4.0 ** (_LENGTHS - 2), max(longest, 4.0), _LENGTHS - 1)),
            np.append(0.0, np.geomspace(max(longest, 2.0) / 32, max(longest, 2.0), _CONTEXTS - 1)),
            shares,
            *beside,
        )
        tokens, lengths, context, share, *more = (axis.ravel() for axis in np.meshgrid(*self._axes, indexing="ij"))
        load = (tokens, context, tokens * lengths, np.ones_like(tokens))
        self._seconds = lasts(load, tokens * share, *more)
        usual = np.full(2, 0.7 * budget)
        rows = (usual, np.zeros(2), usual * longest / 8, np.array([1.0, 1.0 + _MANY_ROWS]))
        self._row_seconds = (
            float(np.diff(lasts(rows, 0.8 * usual, *(np.full(2, knots.mean()) for knots in beside)))[0]) / _MANY_ROWS
        )
        sizes = [axis.size for axis in self._axes]
        self._strides = [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
        self._widths = [1 / np.diff(axis) for axis in self._axes]
        corners = itertools.product((0, 1), repeat=len(sizes))
        self._corners = np.array([[sum(b * s for b, s in zip(each, self._strides, strict=True))] for each in corners])

    def seconds(self, load: Loads, mean_tokens: Array, *beside: Array) -> Array:
        """Durations of passes by (tokens, context, pairs, finishing prompts) of a group, tokens above 0; any one shape.

        The experts serve all groups and follow their ``mean_tokens``. Outside the table the last cell goes on.
        """
        tokens, context, pairs, finishing = load
        values = (tokens, pairs / tokens, context, mean_tokens / tokens, *beside)
        first, parts = np.zeros(tokens.shape, dtype=np.intp), []
        for axis, value, stride, width in zip(self._axes, values, self._strides, self._widths, strict=True):
            cell = axis[1:-1].searchsorted(value, side="right")
            parts.append((value - axis[cell]) * width[cell])
            first += cell * stride
        found = self._seconds.take(first + self._corners)
        for part in parts:
            half = found.shape[0] // 2
            found = found[:half] + (found[half:] - found[:half]) * part
        return np.asarray(found[0] + self._row_seconds * (finishing - 1.0), dtype=np.float64)
