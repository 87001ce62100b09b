"""Expert loads under a map: what each rank carries, and whether a map can be one.

An expert map ``slots`` is an integer array [layers, ranks * slots_per_rank] of logical expert ids: rank g owns the
columns g * slots_per_rank up to (g + 1) * slots_per_rank. The planner, the runtime and the exporters share it.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, Ints
from ground.errors import BadInput
from planner.manifest.layout import ExpertMap


def rank_loads(loads: NDArray[Any], slots: Ints, ranks: int) -> Floats:
    """Load of every rank when the tokens of an expert are split evenly over its replicas.

    rank load = sum over the slots of a rank of w_expert / replicas_expert.

    Args: ``loads``: [layers, experts], tokens or shares; ``slots``: [layers, ranks * slots_per_rank], a map that
    ``check_expert_map`` accepts; others lose load; ``ranks``: expert-parallel degree.
    Returns [layers, ranks] in the unit of ``loads``; rows have the sums of the rows of ``loads``.

    Ref: even split as in DeepSeek EPLB, github.com/deepseek-ai/EPLB; engines that prefer the nearest replica reach it
    on average only.
    """
    layers, experts = loads.shape
    row_start = np.arange(layers)[:, None] * experts
    flat = slots + row_start  # [layers, slots], unique id of (layer, expert)
    replicas = np.bincount(flat.ravel(), minlength=layers * experts)
    per_slot = loads.ravel()[flat] / replicas[flat]  # [layers, slots]
    return per_slot.reshape(layers, ranks, -1).sum(axis=2)


def imbalance(rank_loads: NDArray[Any]) -> Floats:
    """Busiest rank over the mean rank, max / mean, [layers] from [layers, ranks]; 1 for a layer without load."""
    mean = rank_loads.mean(axis=-1)
    peak = rank_loads.max(axis=-1)
    return np.where(mean > 0, peak / np.where(mean > 0, mean, 1.0), 1.0)


def check_expert_map(slots: Ints, experts: int, ranks: int, path: str = "expert_map") -> None:
    """Refuse a map that no engine could load.

    Every layer has equally many slots on every rank, every id is in range, every expert is somewhere, and no rank holds
    an expert twice (vllm-ascend keeps only one of two, so the other slot would be dead).

    Args: ``slots``: [layers, ranks * slots_per_rank] logical expert ids; ``experts``: routed experts per layer;
    ``ranks``: expert-parallel degree; ``path``: where the map stands in its file; messages append ``[layer][slot]``.
    Raises BadInput: the first violation with its path.
    """
    if slots.ndim != 2 or slots.shape[1] == 0 or slots.shape[1] % ranks:
        raise BadInput(
            f"{path}: must be layers x slots with a multiple of {ranks} slots (one row of equal length per "
            f"layer), not of shape {slots.shape}."
        )
    bad = np.argwhere((slots < 0) | (slots >= experts))
    if bad.size:
        layer, slot = bad[0]
        raise BadInput(f"{path}[{layer}][{slot}]: expert {slots[layer, slot]} must be between 0 and {experts - 1}.")
    layers = slots.shape[0]
    replicas = np.zeros((layers, experts), dtype=np.int64)
    np.add.at(replicas, (np.arange(layers)[:, None], slots), 1)
    missing = np.argwhere(replicas == 0)
    if missing.size:
        layer, expert = missing[0]
        raise BadInput(f"{path}[{layer}]: expert {expert} has no slot; every expert needs at least one.")
    by_rank = np.sort(slots.reshape(layers, ranks, -1), axis=2)
    twice = np.argwhere(by_rank[:, :, 1:] == by_rank[:, :, :-1])
    if twice.size:
        layer, rank, position = twice[0]
        raise BadInput(
            f"{path}[{layer}]: rank {rank} holds expert {by_rank[layer, rank, position]} twice; replicas of "
            f"an expert must be on different ranks."
        )


def placement_balance(mapping: ExpertMap, loads: Floats | None = None, gone: Collection[int] = ()) -> float:
    """Return the busiest live rank's load over their mean, averaged over layers.

    Args: ``loads`` [layers, experts], in the order of the map's layers, None for equal ones; an expert's tokens are
    split evenly over its live replicas. ``gone`` are positions in ``expert_ranks``.
    """
    ranks = len(mapping.expert_ranks)
    live = np.array([index not in gone for index in range(ranks)])
    ratios: list[float] = []
    layer = 0
    for entry in mapping.placements:
        slots = np.array(entry.slots).reshape(ranks, -1)[live]
        experts = int(max(entry.slots)) + 1
        replicas = np.bincount(slots.ravel(), minlength=experts)
        for _ in entry.layers:
            load = np.ones(experts) if loads is None else loads[layer % len(loads)]
            shares = load / np.maximum(replicas, 1)
            carried = shares[slots].sum(axis=1)
            ratios.append(float(carried.max() / carried.mean()) if carried.mean() > 0 else 1.0)
            layer += 1
    return float(np.mean(ratios))
