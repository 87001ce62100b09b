"""What full passes hold: a fixed sample of prompts that all wait, packed as the runtime packs.

A prompt goes to the DP group with most room. One that fits a budget is never cut: where it fits nowhere the pass ends
with it at the head of the line. A longer one takes what room there is and goes on in the next pass, on the same group,
beside others' prompts. So how many prompts a full pass holds varies with their lengths, and more than rounding is lost
by taking the mean number for all.

Ref: the rule is the runtime's (``runtime.simulate.prefill``); no closed form is known for unlike prompts.
"""

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from planner.prompts import Prompts
from planner.queueing import Array

_SAMPLE, _MOST_SAMPLE = 1500, 6000
_PASSES = 40
_SEED = 0


@dataclass(frozen=True, slots=True)
class Packed:
    """Full passes in order; what each group carries in each, [passes, groups], as the variables of a step's load."""

    computed: Array
    context: Array
    pairs: Array
    finishing: Array
    parts: Array
    """[passes]: prompts and parts of prompts that it took."""


def packed(prompts: Prompts, groups: int, budget_tokens: float) -> Packed:
    """Return full passes of ``groups`` DP groups with a budget each, without the first and the last one."""
    parts = float(np.ceil(prompts.tokens / budget_tokens) @ prompts.weights / prompts.weights.sum())
    sample = int(min(max(_SAMPLE, _PASSES * _usual(prompts, budget_tokens) * groups), _MOST_SAMPLE / parts) + 100)
    waiting = deque(_drawn(prompts, sample, budget_tokens))
    under_way: list[tuple[float, float, float, int]] = []
    rows: list[list[float]] = []
    passes: list[tuple[int, int]] = []
    number = 0
    while waiting or under_way:
        first = len(rows)
        carried, under_way = under_way, []
        room = [budget_tokens] * groups
        for length, reused, done, group in carried:
            _place(rows, under_way, room, (number, group, length, reused, done))
        heads = [(-left, group) for group, left in enumerate(room)]
        heapq.heapify(heads)
        while waiting:
            length, reused, start = waiting[0]
            left, group = heads[0]
            if -left < (length - start if length - start <= budget_tokens else 1.0):
                break
            waiting.popleft()
            _place(rows, under_way, room, (number, group, length, reused, start))
            heapq.heapreplace(heads, (-room[group], group))
        passes.append((number, len(rows) - first))
        number += 1
    return _summed(rows, groups, np.array([parts for _, parts in passes], dtype=np.float64))


def groups_sampled(prompts: Prompts, groups: int, budget_tokens: float) -> int:
    """DP groups that a sample fills often enough: with more of them passes only hold more in proportion."""
    return max(min(groups, int(_MOST_SAMPLE / _PASSES / _usual(prompts, budget_tokens))), 1)


def _usual(prompts: Prompts, budget_tokens: float) -> float:
    return max(budget_tokens / prompts.mean_tokens, 1.0)


def _drawn(prompts: Prompts, sample: int, budget_tokens: float) -> list[tuple[float, float, float]]:
    """Return (tokens, reused, start) in random order: of every kind as many as its weight says, so means stay.

    Whole budgets of reused tokens cost no pass: a prompt starts behind them.
    """
    places = (np.arange(sample) + 0.5) / sample
    below = np.cumsum(prompts.weights)
    kinds = np.minimum(np.searchsorted(below / below[-1], places), below.size - 1)
    kinds = np.random.default_rng(_SEED).permutation(kinds)
    starts = np.floor(prompts.reused / budget_tokens) * budget_tokens
    columns = (prompts.tokens[kinds], prompts.reused[kinds], starts[kinds])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _place(
    rows: list[list[float]],
    under_way: list[tuple[float, float, float, int]],
    room: list[float],
    part: tuple[int, int, float, float, float],
) -> None:
    """Put the next tokens of a prompt into the room of its group."""
    number, group, length, reused, done = part
    end = min(done + room[group], length)
    room[group] -= end - done
    cached = min(max(done, reused), end)
    computed = end - cached
    pairs = computed * cached + computed * (computed + 1) / 2
    rows.append([number, group, computed, cached if computed else 0.0, pairs, float(end >= length)])
    if end < length:
        under_way.append((length, reused, end, group))


def _summed(rows: list[list[float]], groups: int, parts: Array) -> Packed:
    """Add up what stands on a group in a pass; the first pass begins with nothing under way, the last is not full."""
    number, group, *columns = np.array(rows).T
    places = (number * groups + group).astype(np.intp)
    loads = [
        np.bincount(places, column, parts.size * groups).astype(np.float64).reshape(parts.size, groups)
        for column in columns
    ]
    kept = slice(1, -1) if parts.size > 2 else slice(None)
    computed, context, pairs, finishing = (load[kept] for load in loads)
    return Packed(computed, context, pairs, finishing, parts[kept])
