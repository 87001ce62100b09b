"""How long a prefill pass takes, read off a table: for recursions that ask for thousands of passes, one by one.

A step cost at numbers takes tens of microseconds, at arrays less than one a load. So it is evaluated once on a grid of
loads, and passes are read off between its knots. At a fixed number of tokens the cost is piecewise linear in pairs
and in context (kernels are the longer of compute and memory traffic), so few knots do.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.queues.queueing import Array
from podplan.arrays import distinct

_TOKEN_KNOTS, _LENGTH_KNOTS, _CONTEXT_KNOTS, _SHARE_KNOTS = 24, 10, 9, 6
_MANY_ROWS = 9.0


class PassTable:
    """Seconds of passes by tokens, pairs per token, context and mean tokens of a group; output rows count linearly.

    Within 6 % of the step cost, 1 % in the mean, over random passes (``tests/planner/queues/test_pass_table.py``).
    """

    def __init__(self, cost: StepCost, *, ranks: int, budget_tokens: float, longest: float, microbatches: int) -> None:
        """Tabulate passes of up to ``budget_tokens`` computed tokens a group, of prompts up to ``longest`` tokens."""
        tokens = distinct(np.round(np.geomspace(1.0, max(budget_tokens, 2.0), _TOKEN_KNOTS)))
        lengths = np.geomspace(1.0, max(longest, 2.0), _LENGTH_KNOTS)  # pairs of a token
        context = np.append(0.0, np.geomspace(64.0, 64.0 + longest + budget_tokens, _CONTEXT_KNOTS - 1))
        shares = np.linspace(1 / ranks, 1.0, _SHARE_KNOTS) if ranks > 1 else np.ones(1)
        axes = (shares, tokens, lengths, context)
        grid = np.meshgrid(*axes, indexing="ij")
        seconds = self._evaluate(cost, grid, 1.0, microbatches)
        rows = self._evaluate(cost, grid, 1.0 + _MANY_ROWS, microbatches)
        self._row_seconds = float(np.median(rows - seconds)) / _MANY_ROWS
        self._shares, *self._axes = (axis.tolist() for axis in axes)
        self._planes: list[list[list[list[float]]]] = seconds.tolist()

    @staticmethod
    def _evaluate(cost: StepCost, grid: Sequence[Array], finishing: float, microbatches: int) -> Array:
        shares, tokens, lengths, context = grid
        load = StepLoad(
            prefill_tokens=tokens,
            prefill_context_tokens=context,
            prefill_pairs=tokens * lengths,
            finishing_prompts=np.full_like(tokens, finishing),
            mean_tokens=tokens * shares,
        )
        found: Number = evaluate(cost, load, 1).seconds
        if microbatches > 1 and cost.moe_layers:
            found = np.where(tokens >= 2, np.minimum(found, evaluate(cost, load, 2).seconds), found)
        return np.ascontiguousarray(np.broadcast_to(np.asarray(found, dtype=np.float64), tokens.shape))

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
