"""What is placed and where: loads, ranks, slots, nodes and router groups of one model."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats
from ground.errors import BadInput
from planner.balance.counts import check_redundancy

LEAST_LOAD, MOST_LOAD = 1e-30, 1e30
"""Of a layer and of an expert, in any unit: sums, squares and shares of what lies between are exact to rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Expert loads and the ranks that share them; every layer is placed on its own.

    ``loads`` [layers, experts] or [layers, experts, slices], tokens or shares, finite, from 0, something in every
    layer. Ranks are numbered node by node, ``ranks / nodes`` on each. ``groups`` are the router's groups, equal runs of
    consecutive experts (DeepSeek-V3: 8); with ``keep_groups`` every group stays on one node, and every node holds
    equally many.

    Raises:
        BadInput: anything else.
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
