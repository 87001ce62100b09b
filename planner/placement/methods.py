"""Every method of placing experts behind one signature, the default that picks by regime, and slices held out.

A method takes a ``Problem`` and returns a map [layers, slots] of logical experts, rank by rank, that
``planner.manifest.loads.check_expert_map`` accepts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ground.arrays import Bools, Floats, Ints
from ground.errors import BadInput, suggest
from planner.balance.counts import longest_first_rows, water_filling
from planner.manifest.loads import check_expert_map, imbalance, rank_loads
from planner.placement.eplb import eplb, hottest_first
from planner.placement.grouped import group_bound, keep_groups
from planner.placement.problem import Problem, simple_bounds
from planner.placement.rows import search_jointly, settle
from planner.placement.sliced import fewer_slices, search_slices, slice_imbalance

MOST_PLACES = 400  # experts x counts x ranks: what HiGHS solves in seconds
Method = Callable[[Problem], Ints]
Split = Literal["alternate", "later"]

MOST_STEPS = 1000
SLICE_STEPS = 1500


def exact(problem: Problem) -> Ints:
    """Map every layer optimally as an integer programme, [layers, slots]: the oracle for the searches.

    For each expert i one count r is chosen, z[i, r] in {0, 1}; on[i, r, g] in {0, 1} says that a replica of i stands on
    rank g while i has r of them. Minimise T with

        sum_r z[i, r] = 1                     every expert has one count
        sum_g on[i, r, g] = r z[i, r]         and as many replicas, no two on a rank
        sum_{i, r} on[i, r, g] = slots        every rank is full
        sum_{i, r} w_i / r on[i, r, g] <= T   the busiest rank

    Raises BadInput for layers of more than some 60 slots: HiGHS needs minutes there, and is worse than a local search.
    """
    counts = min(problem.ranks, problem.redundant + 1)
    if problem.experts * counts * problem.ranks > MOST_PLACES or problem.keep_groups:
        raise BadInput("--method: exact is for a few experts on a few devices, groups not kept; use joint")
    return np.stack([_solve_layer(load, problem.ranks, problem.slots) for load in problem.mean_loads])


def _solve_layer(loads: Floats, ranks: int, slots: int) -> Ints:
    """The least busiest rank of one layer [experts]."""
    import pulp  # only this method needs it

    model = pulp.LpProblem("placement", pulp.LpMinimize)
    add_variable = getattr(model, "add_variable", pulp.LpVariable)  # PuLP before 3.3 has no add_variable
    experts, each = range(len(loads)), range(ranks)
    counts = range(1, min(ranks, slots - len(loads) + 1) + 1)
    scaled = loads / loads.sum() * ranks
    busiest = add_variable("busiest", lowBound=1.0)
    chosen = {(i, r): add_variable(f"count_{i}_{r}", cat=pulp.LpBinary) for i in experts for r in counts}
    on = {(i, r, g): add_variable(f"on_{i}_{r}_{g}", cat=pulp.LpBinary) for i in experts for r in counts for g in each}
    model += busiest
    for i in experts:
        model += pulp.lpSum(chosen[i, r] for r in counts) == 1, f"one_count_{i}"
        for r in counts:
            model += pulp.lpSum(on[i, r, g] for g in each) - r * chosen[i, r] == 0, f"replicas_{i}_{r}"
        for g in each:
            model += pulp.lpSum(on[i, r, g] for r in counts) <= 1, f"once_{i}_{g}"
    for g in each:
        model += pulp.lpSum(on[i, r, g] for i in experts for r in counts) == slots // ranks, f"full_{g}"
        load = pulp.lpSum(float(scaled[i]) / r * on[i, r, g] for i in experts for r in counts)
        model += load - busiest <= 0, f"busiest_{g}"
    model.solve(pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0, random_seed=0))
    placed = [i for g in each for i in experts if any(on[i, r, g].value() > 0.5 for r in counts)]
    return np.array(placed, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An expert map with what it achieves and what no map could better; [layers] each, busiest rank over the mean."""

    slots: Ints  # [layers, ranks * slots_per_rank] logical expert ids, rank by rank
    imbalance: Floats
    lower_bound: Floats
    method: str

    @property
    def proven(self) -> Bools:
        """Whether the map of each layer is proven optimal, [layers]."""
        return np.asarray(self.imbalance <= self.lower_bound * (1 + 1e-9))

    @property
    def gap(self) -> float:
        """(value - bound) / value of the means over layers."""
        return float(1 - self.lower_bound.mean() / self.imbalance.mean())


def water_filling_lpt(problem: Problem) -> Ints:
    """Counts by water-filling, positions by longest first: what most engines do, without duplicates on a rank."""
    loads = problem.mean_loads
    counts = water_filling(loads, problem.slots, problem.ranks)
    return longest_first_rows(loads, counts, problem.ranks).reshape(problem.layers, -1)


def local_search(problem: Problem) -> Ints:
    """``water_filling_lpt`` and then swaps until none helps the busiest rank; counts stay."""
    held = water_filling_lpt(problem).reshape(problem.layers, problem.ranks, -1)
    if problem.slots_per_rank > 1:
        held = settle(problem.mean_loads, held, _floor(problem))
    return held.reshape(problem.layers, -1)


def joint(problem: Problem) -> Ints:
    """``local_search`` and then counts and positions together."""
    slots = local_search(problem)
    if problem.slots_per_rank == 1:
        return slots
    held = slots.reshape(problem.layers, problem.ranks, -1)
    steps = min(100 + 10 * problem.slots, MOST_STEPS)
    return search_jointly(problem.mean_loads, held, _floor(problem), steps).reshape(problem.layers, -1)


def slices(problem: Problem) -> Ints:
    """From a map for the mean loads, lower the sum over slices of the busiest rank; groups stay where they are kept."""
    start = keep_groups(problem) if problem.keep_groups else local_search(problem)
    loads = problem.loads if problem.sliced else problem.loads[:, :, None]
    held = search_slices(
        fewer_slices(loads),
        start.reshape(problem.layers, problem.ranks, -1),
        steps=SLICE_STEPS,
        node_ranks=problem.ranks // problem.nodes if problem.keep_groups else None,
    )
    return held.reshape(problem.layers, -1)


def xdeepserve(problem: Problem) -> Ints:
    """xDeepServe's greedy: replicas to the experts that are hottest in some slice, then heaviest first to ranks."""
    loads = problem.loads if problem.sliced else problem.loads[:, :, None]
    counts = np.stack([hottest_first(layer, problem.slots, problem.ranks) for layer in loads])
    return longest_first_rows(problem.mean_loads, counts, problem.ranks).reshape(problem.layers, -1)


def trivial(problem: Problem) -> Ints:
    """Slot s holds expert s modulo the experts: the layout that engines start from."""
    return np.tile(np.arange(problem.slots) % problem.experts, (problem.layers, 1))


METHODS: dict[str, Method] = {
    "trivial": trivial,
    "eplb": eplb,
    "xdeepserve": xdeepserve,
    "water-filling": water_filling_lpt,
    "local-search": local_search,
    "joint": joint,
    "groups": keep_groups,
    "slices": slices,
    "exact": exact,
}


def default_method(problem: Problem) -> str:
    """The method for a regime: time slices, groups kept, one slot per rank (water-filling is optimal), or the rest."""
    if problem.sliced:
        return "slices"
    if problem.keep_groups:
        return "groups"
    return "water-filling" if problem.slots_per_rank == 1 else "joint"


def place(problem: Problem, method: str = "auto") -> Placement:
    """Place the experts of every layer.

    Deterministic. By default also EPLB's map is made, and a layer takes it where it is better: no layer is ever worse.

    Args: ``problem``: loads, ranks and constraints; ``method``: a name of ``METHODS`` or auto.
    Raises BadInput: an unknown method.
    """
    if method != "auto" and method not in METHODS:
        raise BadInput(f"--method: {method[:40]!r} is not auto, {', '.join(METHODS)}{suggest(method, METHODS)}")
    name = default_method(problem) if method == "auto" else method
    slots = METHODS[name](problem)
    reached = measure(problem, slots)
    if method == "auto" and default_method(problem) != "water-filling":
        theirs = eplb(problem)
        other = measure(problem, theirs)
        slots = np.where((other < reached)[:, None], theirs, slots)
        reached = np.minimum(other, reached)
    held = slots.reshape(problem.layers, problem.ranks, -1)
    slots = np.sort(held, axis=2).reshape(problem.layers, -1)
    check_expert_map(slots, problem.experts, problem.ranks)
    bound = lower_bound(problem)
    return Placement(slots=slots, imbalance=reached, lower_bound=np.minimum(bound, reached), method=name)


def measure(problem: Problem, slots: Ints) -> Floats:
    """Busiest rank over the mean rank, [layers]; with time slices of their sums, see ``slice_imbalance``."""
    if problem.sliced:
        return slice_imbalance(problem.loads, slots, problem.ranks)
    return imbalance(rank_loads(problem.loads, slots, problem.ranks))


def lower_bound(problem: Problem) -> Floats:
    """Least imbalance of any map under the problem's constraints, [layers].

    With time slices every slice has its own bound, as if it had its own map.
    """
    if problem.sliced:
        each = [simple_bounds(loads, problem.ranks, problem.slots) for loads in np.moveaxis(problem.loads, 2, 0)]
        return np.asarray(sum(each) / (problem.loads.sum(axis=(1, 2)) / problem.ranks))
    mean = problem.mean_loads.sum(axis=1) / problem.ranks
    return np.asarray((group_bound(problem) if problem.keep_groups else _floor(problem)) / mean)


def _floor(problem: Problem) -> Floats:
    return simple_bounds(problem.mean_loads, problem.ranks, problem.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Slice imbalance [layers] of maps made from one half of the slices, on that half and on the other."""

    split: Split
    seen: Floats
    unseen: Floats
    eplb_unseen: Floats

    @property
    def gain(self) -> float:
        """Share by which the mean over layers lies below EPLB's on unseen slices."""
        return float(1 - self.unseen.mean() / self.eplb_unseen.mean())


def hold_out(problem: Problem, split: Split, method: str = "auto") -> HeldOut:
    """Place from one half of the slices and measure on the other.

    ``alternate`` holds out every second slice, so that the halves have the same traffic; ``later`` the second half, so
    that a shift of the traffic shows.

    Raises BadInput: fewer than two slices, or a half without load in some layer.
    """
    if not problem.sliced or problem.loads.shape[2] < 2:
        raise BadInput("--holdout: needs loads of at least two time slices")
    half = problem.loads.shape[2] // 2
    parts = (slice(0, None, 2), slice(1, None, 2)) if split == "alternate" else (slice(half), slice(half, None))
    seen, unseen = (replace(problem, loads=problem.loads[:, :, part]) for part in parts)
    slots = METHODS[default_method(seen) if method == "auto" else method](seen)
    return HeldOut(
        split=split, seen=measure(seen, slots), unseen=measure(unseen, slots), eplb_unseen=measure(unseen, eplb(seen))
    )
