"""Baselines: DeepSeek's EPLB, which engines ship and every other method must beat, and xDeepServe's replication.

Hierarchical where the router's groups divide over the nodes: groups to nodes by longest processing time first (LPT)
with equally many on each, replicas within a node by greedy water-filling, replicas to ranks by LPT. Global otherwise:
the same with one group and one node. It may put two replicas of an expert on one rank; ``without_duplicates`` gives
such a slot to another expert, for no engine gains by them and vLLM-Ascend cannot load them.

Ref: github.com/deepseek-ai/EPLB, README and eplb.py; vLLM, SGLang (``deepseek``) and TensorRT-LLM run the same core.
"""

import numpy as np

from ground.arrays import Floats, Ints
from planner.balance.counts import longest_first, replicated
from planner.placement.problem import Problem


def eplb(problem: Problem) -> Ints:
    """Map every layer as EPLB does, duplicates removed; [layers, slots]."""
    return np.stack(
        [
            _without_duplicates(row, layer, problem)
            for row, layer in zip(eplb_as_published(problem), problem.mean_loads, strict=True)
        ]
    )


def eplb_as_published(problem: Problem) -> Ints:
    """Map every layer as EPLB does; a rank may hold an expert twice. [layers, slots]."""
    hierarchical = problem.groups % problem.nodes == 0
    nodes, groups = (problem.nodes, problem.groups) if hierarchical else (1, 1)
    return np.stack([_layer(load, problem.ranks, problem.slots, nodes, groups) for load in problem.mean_loads])


def _layer(loads: Floats, ranks: int, slots: int, nodes: int, groups: int) -> Ints:
    """One layer, [slots]."""
    size = len(loads) // groups
    group_loads = loads.reshape(groups, size).sum(axis=1)
    node_groups = balanced_packs(group_loads, nodes)  # [nodes, groups per node]
    held = []
    for own in node_groups:
        experts = (own[:, None] * size + np.arange(size)).ravel()
        further = slots // nodes - len(experts)
        # Every expert once, then one more of the one with the largest load per replica, [slots of a node]
        copies = np.append(np.arange(len(experts)), replicated(loads[experts], further, slots))
        counts = np.bincount(copies, minlength=len(experts))
        packs = balanced_packs((loads[experts] / counts)[copies], ranks // nodes)
        held.append(experts[copies[packs]].ravel())
    return np.concatenate(held)


def balanced_packs(weights: Floats, packs: int) -> Ints:
    """Put items into packs of equal number, heaviest first, each into the lightest pack with room; [packs, items]."""
    return longest_first(weights, np.ones(len(weights), dtype=np.int64), packs)


def _without_duplicates(slots: Ints, loads: Floats, problem: Problem) -> Ints:
    """Empty every second slot of an expert on a rank and give it to the expert that then leaves the least maximum.

    Ties go to the expert whose other replicas are relieved most. With kept groups only experts of the node are taken.
    """
    held = slots.reshape(problem.ranks, -1).copy()
    counts = np.bincount(slots, minlength=len(loads))
    empty = _doubled(held)
    for rank, slot in empty:
        counts[held[rank, slot]] -= 1
        held[rank, slot] = -1
    for rank, slot in empty:
        on = np.zeros((len(loads), problem.ranks), dtype=bool)
        filled, _ = np.nonzero(held >= 0)
        on[held[held >= 0], filled] = True
        each = loads / counts
        relief = each - loads / (counts + 1)
        # Experts that ``rank`` lacks; with kept groups those of its node
        per_node = problem.ranks // problem.nodes
        node = rank // per_node
        pool = held[node * per_node : (node + 1) * per_node] if problem.keep_groups else np.arange(problem.experts)
        absent = np.setdiff1d(pool, held[rank])
        candidates = absent[absent >= 0]
        totals = (each[:, None] * on).sum(axis=0) - relief[candidates, None] * on[candidates]  # [candidates, ranks]
        totals[:, rank] += (loads / (counts + 1))[candidates]
        chosen = candidates[np.lexsort((-relief[candidates], totals.max(axis=1)))[0]]
        held[rank, slot] = chosen
        counts[chosen] += 1
    return held.ravel()


def _doubled(held: Ints) -> list[tuple[int, int]]:
    """(rank, slot) of every slot whose expert stands earlier on the same rank."""
    return [
        (rank, slot)
        for rank, row in enumerate(held.tolist())
        for slot, expert in enumerate(row)
        if expert in row[:slot]
    ]


def hottest_first(loads: Floats, slots: int, most_per_expert: int) -> Ints:
    """Replica counts of one layer by xDeepServe's greedy, [experts] with the sum ``slots``; loads [experts, slices].

    The load of a layer is the sum over slices of its hottest expert's load; each spare slot goes to the expert, among
    those that are hottest in some slice, whose further replica lowers it most.

    Ref: xDeepServe (arXiv 2508.02520) section 4.5.
    """
    experts, slices = loads.shape
    counts = np.ones(experts, dtype=np.int64)
    each = np.arange(slices)
    for _ in range(slots - experts):
        share = loads / counts[:, None]
        open_ = counts < most_per_expert
        hottest = share.argmax(axis=0)  # [slices]
        candidates = np.unique(hottest[open_[hottest]])
        if not len(candidates):
            candidates = np.flatnonzero(open_)
        rest = share.copy()
        rest[hottest, each] = -np.inf
        second = rest.max(axis=0)
        others = np.where(hottest[None] == candidates[:, None], second, share[hottest, each])  # [candidates, slices]
        after = np.maximum(others, loads[candidates] / (counts[candidates] + 1)[:, None]).sum(axis=1)
        counts[candidates[int(after.argmin())]] += 1
    return counts
