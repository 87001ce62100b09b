"""What is placed and where: loads, ranks, slots, nodes and router groups of one model, and quick lower bounds.

The bounds on the busiest rank (mean, water level, filler) cost microseconds; ``dual`` has the stronger one. All hold
for maps with equally many slots on every rank, tokens of an expert split evenly over its replicas and, the filler
bound, no expert twice on a rank. Rows are layers, or nodes of layers; loads may have any unit.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Bools, Floats
from ground.errors import BadInput
from planner.balance.counts import check_redundancy

_MARGIN = 1e-9  # keeps rounding from calling a reachable target impossible
_HALVINGS = 16
LEAST_LOAD, MOST_LOAD = 1e-30, 1e30
"""Of a layer and of an expert, in any unit: sums, squares and shares of what lies between are exact to rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Expert loads and the ranks that share them; every layer is placed on its own.

    ``loads`` [layers, experts] or [layers, experts, slices], tokens or shares, finite, from 0, something in every
    layer. Ranks are numbered node by node, ``ranks / nodes`` on each. ``groups`` are the router's groups, equal runs of
    consecutive experts (DeepSeek-V3: 8); with ``keep_groups`` every group stays on one node, and every node holds
    equally many.

    Raises BadInput: anything else.
    """

    loads: Floats
    ranks: int
    redundant: int = 0
    nodes: int = 1
    groups: int = 1
    keep_groups: bool = False
    slots_per_rank: int = field(init=False)

    def __post_init__(self) -> None:
        check_loads(self.loads)
        object.__setattr__(self, "slots_per_rank", check_redundancy(self.experts, self.ranks, self.redundant))
        if self.nodes < 1 or self.ranks % self.nodes:
            raise BadInput(f"--nodes {self.nodes} must divide the {self.ranks} devices: nodes are equally large.")
        if self.groups < 1 or self.experts % self.groups:
            raise BadInput(f"--groups {self.groups} must divide the {self.experts} experts: groups are equally large.")
        if self.keep_groups:
            self._check_groups()

    def _check_groups(self) -> None:
        if self.groups % self.nodes:
            raise BadInput(
                f"--keep-groups: {self.groups} groups cannot be spread evenly over {self.nodes} nodes; "
                "use --nodes that divides --groups, or leave --keep-groups out."
            )
        ranks, experts = self.ranks // self.nodes, self.experts // self.nodes
        if self.slots_per_rank * ranks < experts or self.slots_per_rank > experts:
            raise BadInput(
                f"--keep-groups: {experts} experts of a node do not fit its {ranks} devices with {self.slots_per_rank} "
                "slots each; change --redundant-experts."
            )

    @property
    def layers(self) -> int:
        """Layers with experts."""
        return len(self.loads)

    @property
    def experts(self) -> int:
        """Routed experts per layer."""
        return int(self.loads.shape[1])

    @property
    def slots(self) -> int:
        """Expert slots per layer, over all ranks."""
        return self.experts + self.redundant

    @property
    def sliced(self) -> bool:
        """Whether loads are given per time slice."""
        return self.loads.ndim == 3

    @property
    def mean_loads(self) -> Floats:
        """Loads without time slices, their sum, [layers, experts]."""
        return self.loads.sum(axis=2) if self.sliced else self.loads


def check_loads(loads: NDArray[Any]) -> None:
    """Raise BadInput naming the layer and the expert unless the loads can be placed."""
    if loads.ndim not in (2, 3) or 0 in loads.shape:
        raise BadInput(
            f"Expert loads must be layers x experts, or layers x experts x time slices, not of shape {loads.shape}."
        )
    bad = np.argwhere(~((loads >= 0) & (loads <= MOST_LOAD)))
    if bad.size:
        layer, expert, *slice_ = (int(index) for index in bad[0])
        where = f" in time slice {slice_[0]}" if slice_ else ""
        value = float(loads[tuple(bad[0])])
        raise BadInput(
            f"The load of expert {expert} in layer {layer}{where} is {value}; it must be from 0 to {MOST_LOAD:g}."
        )
    empty = np.flatnonzero(loads.reshape(len(loads), -1).sum(axis=1) < LEAST_LOAD)
    if empty.size:
        raise BadInput(f"Layer {empty[0]} has no load at all; leave it out, or record more traffic.")


def simple_bounds(loads: Floats, ranks: int, slots: int) -> Floats:
    """Return the greatest bound on the busiest of ``ranks`` ranks with ``slots`` slots in all, [rows].

    Of the mean rank, the water level (some rank holds the heaviest replica, as light as counts can make it), and the
    filler: that replica with the lightest ones that can fill the other slots of its rank.

    Args: ``loads`` [rows, experts].
    """
    return _filler_bound(loads, ranks, slots, np.maximum(loads.sum(axis=1) / ranks, water_level(loads, slots, ranks)))


def water_level(loads: Floats, slots: int, ranks: int) -> Floats:
    """Least max w_i / r_i over all counts with sum r_i <= slots and 1 <= r_i <= ranks, [rows].

    The level is one of the values w_i / r; it is bracketed by bisection and then taken up to the least such value.
    """
    low, high = loads.max(axis=1) / ranks, loads.max(axis=1)  # the counts of ``high`` fit: one of each
    for _ in range(52):
        middle = (low + high) / 2
        fits = _needed(loads, middle).sum(axis=1) <= slots
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    counts = np.minimum(_needed(loads, high), ranks)
    return np.asarray((loads / counts).max(axis=1))


def _needed(loads: Floats, level: Floats) -> Floats:
    """Fewest replicas that are no heavier than ``level``, [rows, experts]."""
    safe = np.where(level > 0, level, 1.0)[:, None]
    return np.maximum(np.ceil(loads / safe - _MARGIN), 1.0)


def _filler_bound(loads: Floats, ranks: int, slots: int, proven: Floats) -> Floats:
    """Greatest target that the filler argument rules out, at least ``proven``; [rows].

    With the busiest rank at T, a replica shares its rank with slots_per_rank - 1 others, whose load is at least F, so
    r_i >= w_i / (T - F); the slots left over, s, cap every count at need_i + s and so bound F from below; repeated
    until it settles, T is impossible when the needs exceed the slots. Bisected on T.

    Ref: derived here, see docs/placement.md.
    """
    if slots == ranks:
        return proven
    # A greedy packing stays below the mean plus the heaviest replica, so nothing higher can be ruled out.
    low, high = proven.copy(), 2 * proven + _MARGIN
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        out = _ruled_out(loads, ranks, slots, middle)
        low, high = np.where(out, middle, low), np.where(out, high, middle)
    return low


def _ruled_out(loads: Floats, ranks: int, slots: int, target: Floats) -> Bools:
    """Whether the filler argument rules out a busiest rank of ``target``, [rows]."""
    others = slots // ranks - 1
    filler, impossible = np.zeros(len(loads)), np.zeros(len(loads), dtype=bool)
    rows = np.arange(len(loads))
    while len(rows):
        room = target[rows] - filler[rows]
        need = _needed(loads[rows], np.maximum(room, np.finfo(float).tiny))
        spare = slots - need.sum(axis=1)
        beyond = (room <= 0) | (spare < 0) | (need.max(axis=1) > ranks)
        impossible[rows[beyond]] = True
        rows, need, spare = rows[~beyond], need[~beyond], spare[~beyond]
        lightest = loads[rows] / np.minimum(need + spare[:, None], ranks)
        grown = np.partition(lightest, others - 1, axis=1)[:, :others].sum(axis=1)
        rises = grown > filler[rows] * (1 + _MARGIN)
        filler[rows] = np.maximum(filler[rows], grown)
        rows = rows[rises]
    return impossible
