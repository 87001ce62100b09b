"""Passes of prompts of varying length: how long they last, how many prompts they hold, and who needs several.

A pass gives each DP group of an instance a token budget. A prompt longer than the budget goes on in the next pass; so
what takes a place in a pass is a *unit*: a whole prompt or a part of one. On one DP group the parts of a prompt follow
one another with nothing between, and the prompt is one unit that lasts as long as all its passes. On several groups
the others' prompts come and go beside it: its parts are units of their own, and its first token comes that many passes
later. A pass lasts as long as its busiest group, the slowest of as many units as there are groups at work.

Ref: derived here; held against the runtime, which forms passes prompt by prompt (benchmarks/queueing.py).
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from ground.arrays import distinct
from planner.queues.dealing import Dealt, Parcels, dealt, filled
from planner.queues.machine import Machine, pass_durations
from planner.queues.packing import groups_sampled, packed
from planner.queues.pass_loads import Work, busiest_loads, means_between
from planner.queues.prefill_service import FullPasses, Own, Service
from planner.queues.prompts import Prompts
from planner.queues.queueing import Array
from planner.queues.sampled_queue import SampledQueue

LEVELS = np.concatenate(
    [np.linspace(0.0, 0.8, 6), [0.88, 0.94, 0.97, 0.985, 0.993, 0.997, 0.999, 0.9997, 0.99995, 1.0]]
)
"""Between which durations of passes of one size are taken as one, their mean: finer where long ones are."""
_WEIGHTS = np.diff(LEVELS)
"""How likely a duration between two of them is."""
_EACH, _NODES = 16, 32
"""Counts of units up to which every one is tabulated, and how many beyond."""
_EACH_DEALT, _NODES_DEALT = 6, 14
_MOST_DEALT = 256
"""Units of a pass up to which a sample of passes is dealt one by one."""
_FEW_CUT = 0.01
"""Parts of cut prompts beyond the first, per prompt, up to which that sample takes them for prompts of their own."""
_MOST_SAMPLED = 512
"""Units of a pass up to which that sample is formed."""
_HELD = 6
"""Parts of that sample by how much a full pass holds, for the durations of each."""
_LOADS = 32
MOST_PARTS = 64
_MOST_OWN = 6
"""Groups of prompts by their number of parts."""


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
    sample = _sample(machine, prompts, (units, parts), extra_seconds)
    if machine.ranks == 1:
        units = _joined(units, parts, prompts)
    elif _few_cut(machine, units):
        # Rows whose budgets differ by rounding share a sample.
        near = replace(machine, budget_tokens=_rounded_up(machine.budget_tokens))
        units, parts = _units(near, prompts)
        own = _own(units, parts, prompts)
        return replace(_dealt_service(near, units, extra_seconds), own=own, sample=sample)
    per_prompt = float(units.weights.sum())
    most = _most_units(machine, prompts, per_prompt)
    counts = _counts(math.ceil(most), _EACH, _NODES)
    kinds = np.maximum.accumulate(_durations(machine, units, counts), axis=0)
    return Service(
        prompts=counts,
        seconds=kinds @ _WEIGHTS,
        kinds=kinds,
        weights=_WEIGHTS,
        extra_seconds=extra_seconds,
        units_per_prompt=per_prompt,
        own=_own(units, parts, prompts) if machine.ranks > 1 else (Own(),),
        most=most,
        sample=sample,
    )


def full_passes_per_second(machine: Machine, prompts: Prompts) -> float:
    """Prompts per second of passes that are always full, as of ``varied_service``, without what else is in it."""
    units, parts = _units(machine, prompts)
    if machine.ranks == 1:
        units = _joined(units, parts, prompts)
    elif _few_cut(machine, units):
        near = replace(machine, budget_tokens=_rounded_up(machine.budget_tokens))
        units = _units(near, prompts)[0]
        _, later = filled(_parcels(units), near.ranks, near.budget_tokens)
        prompts_of_pass = float(later.mean_tokens.mean()) * near.ranks / units.mean(units.computed)
        return prompts_of_pass / float(units.weights.sum()) / float(_seconds(near, later) @ later.masses)
    per_prompt = float(units.weights.sum())
    most = _most_units(machine, prompts, per_prompt)
    counts = _counts(math.ceil(most), _EACH, _NODES)[-2:]
    seconds = np.maximum.accumulate(_durations(machine, units, counts), axis=0) @ _WEIGHTS
    return most / per_prompt / float(np.interp(most, counts, seconds))


def _parcels(units: _Units) -> Parcels:
    order = np.argsort(units.taken, kind="stable")
    loads = np.stack([units.computed, units.context, units.pairs, units.finishing], axis=1)
    return Parcels(loads[order], units.taken[order], units.weights[order] / units.weights.sum())


def _sample(machine: Machine, prompts: Prompts, cut: tuple[_Units, Array], extra_seconds: float) -> SampledQueue | None:
    """Return the queue by a sample where several groups share passes: what one holds tells of the next."""
    units, parts = cut
    each = machine.ranks * machine.budget_tokens / units.mean(units.taken)
    if machine.ranks == 1 or each > _MOST_SAMPLED:
        return None
    return SampledQueue(machine, prompts, _joined(units, parts, prompts).seconds, extra_seconds)


def _dealt_service(machine: Machine, units: _Units, extra_seconds: float) -> Service:
    """Return the service of several groups that share passes of whole prompts: a sample, dealt as the runtime deals."""
    parcels = _parcels(units)
    full = _full_passes(machine, units, *filled(parcels, machine.ranks, machine.budget_tokens))
    counts = _counts(full.largest, _EACH_DEALT, _NODES_DEALT)
    several = dealt(parcels, machine.ranks, machine.budget_tokens, counts)
    kinds = _levels(several.masses, _seconds(machine, several))
    kinds[0] = _single(machine, units, counts[:1])[0]
    kinds = np.maximum.accumulate(kinds, axis=0)
    return Service(
        prompts=counts,
        seconds=kinds @ _WEIGHTS,
        kinds=kinds,
        weights=_WEIGHTS,
        extra_seconds=extra_seconds,
        units_per_prompt=float(units.weights.sum()),
        most=float(np.arange(1.0, full.largest + 1) @ full.chances[1]),
        full=full,
    )


def _full_passes(machine: Machine, units: _Units, first: Dealt, later: Dealt) -> FullPasses:
    """Return full passes from samples of those behind one that took all and of those behind a full one.

    What passes hold varies more than their tokens do: the mean is that of the tokens over those of a unit, which is
    exact in the long run (renewal reward).
    """
    factor = float(later.mean_tokens.mean() * machine.ranks / units.mean(units.computed) / later.counts.mean())
    held = [sample.counts * factor for sample in (first, later)]
    largest = math.ceil(max(float(counts.max()) for counts in held))
    order = np.array_split(np.argsort(held[1], kind="stable"), _HELD)
    seconds = _seconds(machine, later)
    groups = [_levels(later.masses[lanes] / later.masses[lanes].sum(), seconds[lanes])[0] for lanes in order]
    middles = [float(held[1][lanes].mean()) for lanes in order]
    numbers = np.arange(1.0, largest + 1)
    return FullPasses(
        chances=np.stack([_between_whole(counts, largest) for counts in held]),
        held_kinds=np.stack([np.interp(numbers, middles, column) for column in np.array(groups).T], axis=1),
        kinds=_levels(later.masses, seconds)[0],
    )


def _between_whole(held: Array, largest: int) -> Array:
    """How likely each of 1.. is, [largest], each number counted at the whole ones beside it: the mean stays."""
    below = np.clip(np.floor(held), 1, max(largest - 1, 1))
    part = np.clip(held - below, 0.0, 1.0)
    found = np.bincount(below.astype(np.int64), 1 - part, largest + 1)
    found += np.bincount(np.minimum(below.astype(np.int64) + 1, largest), part, largest + 1)
    return np.asarray(found[1:] / held.size, dtype=np.float64)


def _seconds(machine: Machine, passes: Dealt) -> Array:
    """Seconds of passes, [..., lanes]: of the group with most tokens or the one with most pairs."""
    loads = passes.loads.reshape(-1, 4).T
    each = np.repeat(passes.mean_tokens.ravel(), 2)
    seconds = pass_durations(machine, (loads[0], loads[1], loads[2], loads[3]), each).reshape(-1, 2)
    return np.maximum(seconds[:, 0], seconds[:, 1]).reshape(passes.masses.shape)


def _levels(masses: Array, seconds: Array) -> Array:
    """Means of seconds between ``LEVELS``, [..., kinds]; both [..., lanes]."""
    rows, order = np.atleast_2d(seconds), np.argsort(np.atleast_2d(seconds), axis=1)
    masses = np.take_along_axis(np.atleast_2d(masses), order, axis=1)
    return means_between(LEVELS, np.cumsum(masses, axis=1), masses, np.take_along_axis(rows, order, axis=1))


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
    alone = pass_durations(machine, (computed, context, pairs, finishing), computed / machine.ranks)
    return _Units(computed, context, pairs, finishing, taken, weights, alone), parts


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


def _rounded_up(tokens: float) -> float:
    """Return the next number with eight binary digits behind the first, at most 0.4 % more."""
    step = 2.0 ** (math.floor(math.log2(tokens)) - 8)
    return math.ceil(tokens / step) * step


def _few_cut(machine: Machine, units: _Units) -> bool:
    """Whether all but few prompts fit a budget, so that parts may count as units, and passes hold no hundreds."""
    each = machine.ranks * machine.budget_tokens / units.mean(units.taken)
    return each <= _MOST_DEALT and float(units.weights.sum()) <= 1 + _FEW_CUT


def _own(units: _Units, parts: Array, prompts: Prompts) -> tuple[Own, ...]:
    """Tell prompts apart by their number of parts: each part holds its pass up, whatever else is in it."""
    if parts.max() == 1:
        return (Own(),)
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


def _counts(most: int, each: int, nodes: int) -> Array:
    few = min(most, each)
    return distinct(np.round(np.concatenate([np.arange(1.0, few + 1), np.geomspace(few, most, nodes)])))


def _durations(machine: Machine, units: _Units, counts: Array) -> Array:
    """Seconds of passes with ``counts`` units, means between ``LEVELS``, [counts, kinds]."""
    few = counts <= machine.ranks
    rows = [_single(machine, units, counts[few])] if few.any() else []
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
        seconds = pass_durations(machine, (load[0], load[1], load[2], load[3]), tokens)
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
    return pass_durations(machine, (computed, context, pairs, finishing), each * units.mean(units.computed))


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
    added = pass_durations(machine, (load[0], load[1], load[2], load[3]), tokens) - full
    long = units.taken > machine.budget_tokens * (1 + 1e-9)
    added = np.maximum(np.where(long, units.seconds - (full - usual * slope), added), 0.0)
    mean = float(added @ weights)
    return Work(added / mean if mean > 0 else ones, weights)
