"""What full passes hold: a fixed sample of prompts that all wait, packed as the runtime packs.

A prompt goes to the DP group with most room. One that fits a budget is never cut: where it fits nowhere the pass ends
with it at the head of the line. A longer one takes what room there is and goes on in the next pass, on the same group,
beside others' prompts.

Ref: the rule is the runtime's (``runtime.simulate.prefill``); no closed form is known for unlike prompts.
"""

import heapq
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.queues.prompts import Prompts
from planner.queues.queueing import Array

_SAMPLE, _MOST_SAMPLE = 1500, 6000
_PASSES = 40
_SEED = 0
_KEPT = 64
"""Samples: rows of a search with as large budgets share them."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Full passes in order, arrays [passes]."""

    tokens: Array
    """Taken of all budgets, reused ones included."""
    parts: Array
    """Prompts and parts of prompts taken."""
    ended: Array
    """Prompts that end."""


def packed(prompts: Prompts, groups: int, budget_tokens: float) -> Packed:
    """Return full passes of ``groups`` DP groups with a budget each, without the first and the last one."""
    kinds = (prompts.tokens, prompts.reused, prompts.weights)
    return _packed(np.stack(kinds).astype(np.float64).tobytes(), groups, budget_tokens)


@lru_cache(maxsize=_KEPT)
def _packed(kinds: bytes, groups: int, budget_tokens: float) -> Packed:
    prompts = Prompts(*np.frombuffer(kinds).reshape(3, -1))
    parts = float(np.ceil(prompts.tokens / budget_tokens) @ prompts.weights / prompts.weights.sum())
    sample = int(min(max(_SAMPLE, _PASSES * _usual(prompts, budget_tokens) * groups), _MOST_SAMPLE / parts) + 100)
    waiting = deque(_drawn(prompts, sample, budget_tokens))
    under_way: list[tuple[float, int]] = []  # tokens to go, group
    passes: list[tuple[float, int, int]] = []
    while waiting or under_way:
        room, parts, carried, under_way = [budget_tokens] * groups, len(under_way), under_way, []
        for length, group in carried:
            _place(room, under_way, length, group)
        heads = [(-left, group) for group, left in enumerate(room)]
        heapq.heapify(heads)
        while waiting:
            left, group = -heads[0][0], heads[0][1]
            if left < (waiting[0] if waiting[0] <= budget_tokens else 1.0):
                break
            _place(room, under_way, waiting.popleft(), group)
            heapq.heapreplace(heads, (-room[group], group))
            parts += 1
        passes.append((groups * budget_tokens - sum(room), parts, parts - len(under_way)))
    # The first pass begins with nothing under way, the last is not full.
    kept = passes[1:-1] if len(passes) > 2 else passes
    tokens, parts_of, ended = np.array(kept, dtype=np.float64).T
    return Packed(tokens, parts_of, ended)


def _place(room: list[float], under_way: list[tuple[float, int]], length: float, group: int) -> None:
    """Put what it can of a prompt into the room of its group."""
    taken = min(length, room[group])
    room[group] -= taken
    if taken < length:
        under_way.append((length - taken, group))


def groups_sampled(prompts: Prompts, groups: int, budget_tokens: float) -> int:
    """DP groups that a sample fills often enough: with more of them passes only hold more in proportion."""
    return max(min(groups, int(_MOST_SAMPLE / _PASSES / _usual(prompts, budget_tokens))), 1)


def _usual(prompts: Prompts, budget_tokens: float) -> float:
    return max(budget_tokens / prompts.mean_tokens, 1.0)


def _drawn(prompts: Prompts, sample: int, budget_tokens: float) -> list[float]:
    """Return tokens to take, in random order: of every kind as many as its weight says, so means stay.

    Whole budgets of reused tokens cost no pass: a prompt starts behind them.
    """
    places = (np.arange(sample) + 0.5) / sample
    below = np.cumsum(prompts.weights)
    kinds = np.minimum(np.searchsorted(below / below[-1], places), below.size - 1)
    lengths = prompts.tokens - np.floor(prompts.reused / budget_tokens) * budget_tokens
    drawn: list[float] = np.random.default_rng(_SEED).permutation(lengths[kinds]).tolist()
    return drawn
