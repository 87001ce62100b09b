"""How long a prefill pass takes, read off a table: for recursions that ask for thousands of passes, one by one.

A step cost at numbers takes tens of microseconds, at arrays less than one a load. So it is evaluated once on a grid of
loads, and passes are read off between its knots. At a fixed number of tokens the cost is piecewise linear in pairs
and in context (kernels are the longer of compute and memory traffic), so few knots do.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ground.arrays import distinct
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost
from planner.queues.machine import Loads, Machine, pass_load
from planner.serving.latency import Array

KNOTS = (6, 24, 10, 9)
"""Of shares, tokens, pairs of a token and context."""
_MANY_ROWS = 9.0


class PassTable:
    """Seconds of passes by tokens, pairs per token, context and mean tokens of a group; output rows count linearly.

    Within 6 % of the step cost, 1 % in the mean, over random passes (``tests/planner/queues/test_pass_table.py``).
    """

    def __init__(
        self,
        machine: Machine,
        longest: float,
        durations: Callable[[Loads, Array], Array] | None = None,
        knots: tuple[int, int, int, int] = KNOTS,
    ) -> None:
        """Tabulate passes of up to the machine's budget a group, of prompts up to ``longest`` tokens.

        Args:
            machine: its step cost tells durations where no ``durations`` are given.
            longest: prompt.
            durations: of loads and mean tokens, where passes carry more than prompts.
            knots: how many along each axis.
        """
        shares_count, tokens_count, lengths_count, context_count = knots
        budget = max(machine.budget_tokens, 2.0)
        tokens = distinct(np.round(np.geomspace(1.0, budget, tokens_count)))
        lengths = np.geomspace(1.0, max(longest, 2.0), lengths_count)  # pairs of a token
        context = np.append(0.0, np.geomspace(64.0, 64.0 + longest + machine.budget_tokens, context_count - 1))
        shares = np.linspace(1 / machine.ranks, 1.0, shares_count) if machine.ranks > 1 else np.ones(1)
        axes = (shares, tokens, lengths, context)
        share, computed, length, cached = np.meshgrid(*axes, indexing="ij")
        lasts = durations or partial(_evaluate, machine.cost, machine.microbatches)
        one, rows = (
            lasts((computed, cached, computed * length, np.full_like(computed, finishing)), computed * share)
            for finishing in (1.0, 1.0 + _MANY_ROWS)
        )
        self._row_seconds = float(np.median(rows - one)) / _MANY_ROWS
        self._shares, *self._axes = (axis.tolist() for axis in axes)
        self._planes: list[list[list[list[float]]]] = one.tolist()

    def seconds(self, load: Sequence[float], mean_tokens: float) -> float:
        """Duration of a pass by (tokens, context, pairs, finishing prompts) of its busiest group, tokens above 0.

        The experts serve all groups and follow their ``mean_tokens``. Outside the table the last cell goes on.
        """
        tokens, context, pairs, finishing = load
        values = (tokens, pairs / tokens, context)
        cells = [_cell(axis, value) for axis, value in zip(self._axes, values, strict=True)]
        if len(self._shares) == 1:
            found = _within(self._planes[0], cells)
        else:
            share, part = _cell(self._shares, mean_tokens / tokens)
            found = _within(self._planes[share], cells) * (1 - part) + _within(self._planes[share + 1], cells) * part
        return found + self._row_seconds * (finishing - 1.0)


def _evaluate(cost: StepCost, microbatches: int, loads: Loads, mean_tokens: Array) -> Array:
    tokens, load = loads[0], pass_load(loads, mean_tokens)
    found: Number = evaluate(cost, load, 1).seconds
    if microbatches > 1 and cost.moe_layers:
        found = np.where(tokens >= 2, np.minimum(found, evaluate(cost, load, 2).seconds), found)
    return np.ascontiguousarray(np.broadcast_to(np.asarray(found, dtype=np.float64), tokens.shape))


def _cell(axis: list[float], value: float) -> tuple[int, float]:
    """Return the cell of a value and how far along it is."""
    cell = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
    low = axis[cell]
    return cell, (value - low) / (axis[cell + 1] - low)


def _within(plane: list[list[list[float]]], cells: list[tuple[int, float]]) -> float:
    """Return the value between the eight knots of a cell."""
    (i, x), (j, y), (k, z) = cells
    total = 0.0
    for row, weight in ((plane[i], 1 - x), (plane[i + 1], x)):
        low, high = row[j], row[j + 1]
        total += weight * ((low[k] * (1 - z) + low[k + 1] * z) * (1 - y) + (high[k] * (1 - z) + high[k + 1] * z) * y)
    return total
