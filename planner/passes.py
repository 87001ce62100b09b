"""Passes of prompts of varying length: how long they last, how many prompts they hold, and who needs several.

A pass gives each DP group of an instance a token budget. A prompt longer than the budget goes on in the next pass; so
what takes a place in a pass is a *unit*: a whole prompt or a part of one. On one DP group the parts of a prompt follow
one another with nothing between, and the prompt is one unit that lasts as long as all its passes. On several groups
the others' prompts come and go beside it: its parts are units of their own, and its first token comes that many passes
later. A pass lasts as long as its busiest group, the slowest of as many units as there are groups at work.

Ref: derived here; held against the runtime, which forms passes prompt by prompt (benchmarks/queueing.py).
"""

import heapq
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.prefill_service import Service, nodes
from planner.prompts import Prompts
from planner.queueing import Array

LEVELS = np.array([0.0, 0.25, 0.5, 0.7, 0.85, 0.94, 0.98, 0.994, 0.999, 1.0])
"""Between which durations of passes of one size are taken as one, the mean of ``_WITHIN`` levels."""
_WITHIN = 3
MOST_PARTS = 64
_PACKED = 3000
_SEED = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """What forms and runs passes: step cost, DP groups, tokens that a group takes, most microbatches."""

    cost: StepCost
    ranks: int
    budget_tokens: float
    microbatches: int


@dataclass(frozen=True, slots=True)
class _Units:
    """What takes places, arrays [units]; ``weights`` count them per prompt, ``taken`` is what they take of a budget."""

    computed: Array
    context: Array
    pairs: Array
    finishing: Array
    taken: Array
    weights: Array
    seconds: Array
    """Alone in the instance."""

    def mean(self, values: Array) -> float:
        return float(values @ self.weights / self.weights.sum())


def varied_service(machine: Machine, prompts: Prompts, extra_seconds: float = 0.0) -> Service:
    """Return the service of an instance for prompts of several kinds."""
    units, parts = _units(machine, prompts)
    if machine.ranks == 1:
        units = _joined(units, parts, prompts)
    counts = nodes(_most_units(machine, units))
    kinds = np.maximum.accumulate(_durations(machine, units, counts), axis=0)
    weights = np.diff(LEVELS)
    per_prompt = float(units.weights.sum())
    further, shares = _further(parts, prompts) if machine.ranks > 1 else (np.zeros(1), np.ones(1))
    return Service(
        prompts=counts,
        seconds=kinds @ weights,
        kinds=kinds,
        weights=weights,
        extra_seconds=extra_seconds,
        units_per_prompt=per_prompt,
        further=further,
        further_weights=shares,
    )


def _units(machine: Machine, prompts: Prompts) -> tuple[_Units, Array]:
    """Return the parts of every kind of prompt, and how many each has, [kinds].

    Whole parts that were reused take no pass; reused tokens of the others count in the budget (the runtime's rule).
    """
    budget = machine.budget_tokens
    start = np.floor(prompts.reused / budget) * budget
    parts = np.minimum(np.maximum(np.ceil((prompts.tokens - start) / budget - 1e-9), 1), MOST_PARTS)
    stride = np.maximum((prompts.tokens - start) / parts, 0.0)
    stride = np.where(parts < MOST_PARTS, np.minimum(budget, prompts.tokens - start), stride)
    columns = []
    for number in range(int(parts.max())):
        here = parts > number
        done = start + number * stride
        end = np.minimum(done + stride, prompts.tokens)
        cached = np.minimum(np.maximum(done, prompts.reused), end - 1)
        computed = np.maximum(end - cached, 1.0)
        columns.append(
            np.stack(
                [
                    computed,
                    cached,
                    computed * cached + computed * (computed + 1) / 2,
                    np.asarray(number == parts - 1, dtype=np.float64),
                    end - done,
                    prompts.weights,
                ]
            )[:, here]
        )
    computed, context, pairs, finishing, taken, weights = np.concatenate(columns, axis=1)
    alone = _seconds(machine, (computed, context, pairs, finishing), computed / machine.ranks)
    return _Units(computed, context, pairs, finishing, taken, weights, alone), parts


def _seconds(machine: Machine, load: tuple[Array, Array, Array, Array], mean_tokens: Array) -> Array:
    """Seconds of passes whose busiest group carries (computed, context, pairs, finishing prompts)."""
    computed, context, pairs, finishing = load
    step = StepLoad(
        prefill_tokens=computed,
        prefill_context_tokens=context,
        prefill_pairs=pairs,
        finishing_prompts=finishing,
        mean_tokens=mean_tokens,
    )
    found: Number = evaluate(machine.cost, step, 1).seconds
    if machine.microbatches > 1:
        found = np.minimum(found, evaluate(machine.cost, step, 2).seconds)
    return np.broadcast_to(np.asarray(found, dtype=np.float64), computed.shape)


def _joined(units: _Units, parts: Array, prompts: Prompts) -> _Units:
    """Return prompts as units of one DP group: the seconds of all parts together, the sums of the rest."""
    kinds = np.concatenate([np.flatnonzero(parts > number) for number in range(int(parts.max()))])

    def total(values: Array) -> Array:
        return np.bincount(kinds, values, minlength=prompts.tokens.size).astype(np.float64)

    return _Units(
        total(units.computed),
        total(units.context),
        total(units.pairs),
        total(units.finishing),
        total(units.taken),
        prompts.weights,
        total(units.seconds),
    )


def _further(parts: Array, prompts: Prompts) -> tuple[Array, Array]:
    """Passes after the first and the share of prompts that take so many."""
    counts, where = np.unique(parts - 1, return_inverse=True)
    return counts, np.bincount(where, prompts.weights).astype(np.float64)


def _most_units(machine: Machine, units: _Units) -> int:
    """Units that a pass holds when many wait: as the runtime packs them, the head of the line first.

    Each goes to the group with most room; one that fits nowhere ends the pass. A unit longer than a budget (a whole
    prompt on one group) is a pass of its own. A fixed random sample of the kinds.
    """
    if np.ptp(units.taken) < 1e-9:
        taken = float(units.taken[0])
        return max(int(machine.budget_tokens / taken * (1 + 1e-9)), 1) * machine.ranks
    chosen = np.random.default_rng(_SEED).choice(units.taken.size, _PACKED, p=units.weights / units.weights.sum())
    passes, room = 1, [-machine.budget_tokens] * machine.ranks
    for taken in np.minimum(units.taken[chosen], machine.budget_tokens).tolist():
        if -room[0] < taken:
            passes, room = passes + 1, [-machine.budget_tokens] * machine.ranks
        heapq.heapreplace(room, room[0] + taken)
    return max(round(_PACKED / passes), 1)


def _durations(machine: Machine, units: _Units, counts: Array) -> Array:
    """Seconds of passes with ``counts`` units between ``LEVELS``, [counts, kinds]."""
    parts = (np.arange(_WITHIN) + 0.5) / _WITHIN
    middles = (LEVELS[:-1, None] + np.diff(LEVELS)[:, None] * parts).ravel()
    each = np.ceil(counts / machine.ranks)  # units of the busiest group
    busy = np.where(each > 1, counts - machine.ranks * (each - 1), counts)
    levels = middles[None, :] ** (1 / busy[:, None])  # of the slowest of so many groups
    found = _single(machine, units, counts, levels)
    if machine.ranks < counts[-1]:
        found = np.where(each[:, None] > 1, _several(machine, units, counts, each, levels), found)
    return np.asarray(found.reshape(counts.size, -1, _WITHIN).mean(axis=2))


def _single(machine: Machine, units: _Units, counts: Array, levels: Array) -> Array:
    """Passes with at most one unit on each group: the busiest is a quantile of the units."""
    order = np.argsort(units.seconds, kind="stable")
    share = units.weights[order] / units.weights.sum()
    middles = np.cumsum(share) - share / 2
    if machine.ranks == 1:
        return np.interp(levels, middles, units.seconds[order])
    load = [np.interp(levels, middles, column[order]) for column in (units.computed, units.context, units.pairs)]
    finishing = np.interp(levels, middles, units.finishing[order])
    others = (counts[:, None] - 1) * units.mean(units.computed)
    return _seconds(machine, (load[0], load[1], load[2], finishing), (load[0] + others) / machine.ranks)


def _several(machine: Machine, units: _Units, counts: Array, each: Array, levels: Array) -> Array:
    """Passes with several units on a group: seconds of as many mean ones, log-normal with the variance of their sum."""
    short = units.taken <= machine.budget_tokens * (1 + 1e-9)
    kept = _Units(*(getattr(units, name)[short] for name in _Units.__dataclass_fields__))
    computed, context, pairs, finishing = (
        each * kept.mean(column) for column in (kept.computed, kept.context, kept.pairs, kept.finishing)
    )
    others = (counts - each) * kept.mean(kept.computed)  # on the other groups
    means = _seconds(machine, (computed, context, pairs, finishing), (computed + others) / machine.ranks)
    alone = kept.mean(kept.seconds)
    spread = np.maximum(kept.mean(kept.seconds**2) - alone**2, 0.0)  # equal ones differ by rounding
    variance = np.log1p(each * spread / means**2)[:, None]
    scores = np.array([NormalDist().inv_cdf(float(level)) for level in levels.ravel()]).reshape(levels.shape)
    return np.asarray(means[:, None] * np.exp(np.sqrt(variance) * scores - variance / 2))
