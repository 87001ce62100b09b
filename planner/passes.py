"""Passes of prompts of varying length: how long they last, how many prompts they hold, and who needs several.

A pass gives each DP group of an instance a token budget. A prompt longer than the budget goes on in the next pass; so
what takes a place in a pass is a *unit*: a whole prompt or a part of one. On one DP group the parts of a prompt follow
one another with nothing between, and the prompt is one unit that lasts as long as all its passes. On several groups
the others' prompts come and go beside it: its parts are units of their own, and its first token comes that many passes
later. A pass lasts as long as its busiest group, the slowest of as many units as there are groups at work.

Ref: derived here; held against the runtime, which forms passes prompt by prompt (benchmarks/queueing.py).
"""

import math
from dataclasses import replace

import numpy as np

from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.packing import groups_sampled, packed
from planner.pass_loads import Work, busiest_loads, means_between
from planner.prefill_service import Own, Service
from planner.prompts import Prompts
from planner.queueing import Array
from podplan.arrays import distinct
from podplan.records import dataclass

LEVELS = np.concatenate(
    [np.linspace(0.0, 0.8, 6), [0.88, 0.94, 0.97, 0.985, 0.993, 0.997, 0.999, 0.9997, 0.99995, 1.0]]
)
"""Between which durations of passes of one size are taken as one, their mean: finer where long ones are."""
_EACH, _NODES = 16, 32
"""Counts of units up to which every one is tabulated, and how many beyond."""
_LOADS = 32
MOST_PARTS = 64
_FEW_GROUPS = 3
_MOST_OWN = 6
"""Groups of prompts by their number of parts."""


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
    per_prompt = float(units.weights.sum())
    most = _most_units(machine, prompts, per_prompt)
    counts = _counts(math.ceil(most))
    kinds = np.maximum.accumulate(_durations(machine, units, counts), axis=0)
    weights = np.diff(LEVELS)
    return Service(
        prompts=counts,
        seconds=kinds @ weights,
        kinds=kinds,
        weights=weights,
        extra_seconds=extra_seconds,
        units_per_prompt=per_prompt,
        own=_own(units, parts, prompts) if machine.ranks > 1 and parts.max() > 1 else (Own(),),
        most=most,
        apart=_apart(machine, prompts, parts),
        groups=machine.ranks,
    )


def _apart(machine: Machine, prompts: Prompts, parts: Array) -> Service | None:
    """Return one group alone where prompts are longer than a budget and take much of the instance for several passes.

    The line of all groups counts their parts as if they came one by one; a line of each leaves out that groups wait for
    one another. Each leaves out a cause of waiting.
    """
    if not 1 < machine.ranks <= _FEW_GROUPS or parts.max() <= 1:
        return None
    return varied_service(replace(machine, ranks=1), prompts)


def _most_units(machine: Machine, prompts: Prompts, per_prompt: float) -> float:
    """Units that a full pass holds on average.

    On one group passes that end no prompt count as one with those that follow, as all passes of a long prompt do.
    """
    groups = groups_sampled(prompts, machine.ranks, machine.budget_tokens)
    found = packed(prompts, groups, machine.budget_tokens)
    if machine.ranks == 1:
        return max(float(found.ended.sum() / np.count_nonzero(found.ended)), 1.0)
    # Long prompts are cut into more parts than they need: as many units as the prompts that end make.
    return max(per_prompt * float(found.ended.mean()) * machine.ranks / groups, 1.0)


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


def _own(units: _Units, parts: Array, prompts: Prompts) -> tuple[Own, ...]:
    """Tell prompts apart by their number of parts: each part holds its pass up, whatever else is in it."""
    kinds = np.concatenate([np.flatnonzero(parts > number) for number in range(int(parts.max()))])
    numbers = np.concatenate([np.full(int((parts > number).sum()), number) for number in range(int(parts.max()))])
    found = []
    for group in np.array_split(np.unique(parts), min(np.unique(parts).size, _MOST_OWN)):
        among = np.isin(parts, group)
        shares = np.where(among, prompts.weights, 0.0) / prompts.weights.sum()
        mine = shares[kinds] * among[kinds]
        each = np.bincount(numbers, mine * units.seconds) / np.maximum(np.bincount(numbers, mine), 1e-300)
        later = tuple(float(seconds) for seconds in each[1 : round(float(parts @ shares) / float(shares.sum()))])
        if later:
            found.append(Own(share=float(shares.sum()), least_seconds=float(each[0]), later_seconds=later))
            continue
        order = np.argsort(units.seconds[: parts.size], kind="stable")
        masses = (shares[order] / shares.sum())[None, :]
        alone = means_between(LEVELS, np.cumsum(masses, axis=1), masses, units.seconds[order][None, :])[0]
        found.append(Own(share=float(shares.sum()), alone=alone))
    return tuple(found)


def _counts(most: int) -> Array:
    few = min(most, _EACH)
    return distinct(np.round(np.concatenate([np.arange(1.0, few + 1), np.geomspace(few, most, _NODES)])))


def _durations(machine: Machine, units: _Units, counts: Array) -> Array:
    """Seconds of passes with ``counts`` units, means between ``LEVELS``, [counts, kinds]."""
    few = counts <= machine.ranks
    rows = [_single(machine, units, counts[few])]
    if not few.all():
        rows.append(_several(machine, units, counts[~few]))
    return np.concatenate(rows)


def _single(machine: Machine, units: _Units, counts: Array) -> Array:
    """Passes with at most one unit on each group: the busiest of n units is the longest, u^n its distribution."""
    order = np.argsort(units.seconds, kind="stable")
    share = units.weights[order] / units.weights.sum()
    ends = np.cumsum(share)[None, :] ** counts[:, None]
    if machine.ranks == 1:
        seconds = np.broadcast_to(units.seconds[order], ends.shape)
    else:
        computed, context, pairs, finishing = (
            column[order][None, :] for column in (units.computed, units.context, units.pairs, units.finishing)
        )
        others = (counts[:, None] - 1) * units.mean(units.computed)
        tokens = (computed + others) / machine.ranks
        load = tuple(np.broadcast_to(part, tokens.shape) for part in (computed, context, pairs, finishing))
        seconds = _seconds(machine, (load[0], load[1], load[2], load[3]), tokens)
    return means_between(LEVELS, ends, np.diff(ends, axis=1, prepend=0.0), seconds)


def _several(machine: Machine, units: _Units, counts: Array) -> Array:
    """Passes with several units on a group: seconds of as many mean ones as the busiest group's work makes."""
    grid, masses = busiest_loads(_work(machine, units), counts, machine.ranks)
    loads = np.append(0.0, np.geomspace(0.05, grid[-1], _LOADS))
    tokens = (loads + counts[:, None] * (1 - 1 / machine.ranks)) / machine.ranks  # [counts, loads], of mean ones
    found = _mean_ones(machine, units, np.broadcast_to(loads, tokens.shape), tokens)
    seconds = np.stack([np.interp(grid, loads, row) for row in found])
    return means_between(LEVELS, np.cumsum(masses, axis=1), masses, seconds)


def _mean_ones(machine: Machine, units: _Units, busiest: Array, each: Array) -> Array:
    """Seconds of passes with ``busiest`` mean units on the busiest group and ``each`` on all of them, on average."""
    computed, context, pairs, finishing = (
        busiest * units.mean(column) for column in (units.computed, units.context, units.pairs, units.finishing)
    )
    return _seconds(machine, (computed, context, pairs, finishing), each * units.mean(units.computed))


def _work(machine: Machine, units: _Units) -> Work:
    """Return what a unit adds to a full pass, over what a mean one does.

    A whole prompt that is longer than a budget (on one group) adds the fixed parts of its passes, too.
    """
    weights = units.weights / units.weights.sum()
    usual = max(machine.budget_tokens / units.mean(units.taken), 1.0)
    ones = np.ones_like(units.computed)
    full, more = (_mean_ones(machine, units, count * ones, count * ones / 1.0) for count in (usual, usual + 1))
    slope = float((more - full)[0])
    load = tuple(
        usual * units.mean(column) + column for column in (units.computed, units.context, units.pairs, units.finishing)
    )
    tokens = usual * units.mean(units.computed) + units.computed / machine.ranks
    added = _seconds(machine, (load[0], load[1], load[2], load[3]), tokens) - full
    long = units.taken > machine.budget_tokens * (1 + 1e-9)
    added = np.maximum(np.where(long, units.seconds - (full - usual * slope), added), 0.0)
    mean = float(added @ weights)
    return Work(added / mean if mean > 0 else ones, weights)
