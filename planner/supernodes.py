"""How large a supernode should be: what its switches cost, and how full jobs leave it (CloudMatrix384 section 6.1).

A job is made of blocks: instances whose devices must share a supernode. Supernodes are filled in the order in which
blocks come; one that does not fit begins the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ground.arrays import Floats, Ints
from ground.errors import BadInput

_ROUNDS = 200
_SETTLED = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Switches between nodes: in each of ``planes`` every node has so many uplinks, a switch so many ports for them.

    As of CloudMatrix384 sections 3.3 and 6.1.1: seven sub-planes; 16 uplinks of a node's switch chip; 48 ports on each
    of the two chips of a switch.
    """

    planes: int = 7
    uplinks: int = 16
    ports: int = 96

    def switches(self, nodes: int) -> int:
        """Return the switches of so many nodes."""
        return self.planes * -(-nodes * self.uplinks // self.ports)

    def use(self, nodes: int) -> float:
        """Return the share of their ports that is used (CloudMatrix384 Table 11).

        >>> Fabric().switches(44), round(Fabric().use(44), 2)
        (56, 0.92)
        """
        return nodes * self.uplinks * self.planes / (self.switches(nodes) * self.ports)

    def of_size(self, chips: int, chips_per_node: int, blocks: "Blocks") -> dict[str, Any]:
        """Return what a supernode of so many chips takes, and how full jobs of some blocks leave it."""
        nodes, taken = chips // chips_per_node, allocated(chips, blocks)
        switches = self.switches(nodes)
        return {
            "chips": chips,
            "nodes": nodes,
            "switches": switches,
            "switch_ports_used": self.use(nodes),
            "chips_per_switch": chips / switches,
            "chips_allocated": taken,
            "allocated_chips_per_switch": chips / switches * taken,
        }


@dataclass(frozen=True, slots=True)
class Blocks:
    """Sizes of blocks in chips, ascending, and the share of blocks that has each, [sizes]."""

    sizes: Ints
    shares: Floats

    @classmethod
    def of(cls, counts: Sequence[tuple[int, float]]) -> "Blocks":
        """Return blocks of (chips, weight), in any order."""
        sizes, places = np.unique([size for size, _ in counts], return_inverse=True)
        weights = np.bincount(places, [weight for _, weight in counts])
        if sizes.min(initial=1) < 1 or not weights.sum() > 0:
            raise BadInput("blocks need a chip each and a weight above 0")
        return cls(sizes.astype(np.int64), weights / weights.sum())

    @classmethod
    def doubling(cls, mean: float, largest: int) -> "Blocks":
        """Return blocks of 1, 2, 4, ... chips up to the largest, each a constant part as frequent as the one before.

        The part is the one that gives the mean: instances mostly have powers of two, and small ones are more.
        """
        sizes = 2 ** np.arange(int(np.log2(largest)) + 1)
        if not sizes[0] <= mean <= sizes[-1]:
            raise BadInput(f"blocks of {mean:g} chips on average need sizes on both sides, from 1 to {largest}")
        low, high = -20.0, 20.0  # logarithm of the part
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            weights = np.exp(middle * np.arange(sizes.size) - max(middle, 0.0) * sizes.size)
            low, high = (middle, high) if float(weights @ sizes) < mean * weights.sum() else (low, middle)
        return cls(sizes, weights / weights.sum())

    @property
    def mean(self) -> float:
        """Chips of a block on average."""
        return float(self.sizes @ self.shares)


def allocated(chips: int, blocks: Blocks) -> float:
    """Return the share of a supernode's chips that blocks take, once the next one does not fit.

    Exact: u(f) is the chance that f chips are taken at some time, a renewal sequence that begins with the block that
    did not fit before; the fill ends at f where the next block is larger than what is left. By renewal theory about
    1 - E[x^2]/(2 E[x] chips).

    Raises BadInput where a block is larger than the supernode.
    """
    sizes, shares = blocks.sizes, blocks.shares
    if sizes[-1] > chips:
        raise BadInput(f"blocks of {sizes[-1]} chips fit no supernode of {chips}; leave smaller supernodes out")
    first = shares
    for _ in range(_ROUNDS):
        reached = np.zeros(chips + 1)
        reached[sizes] = first
        for taken in range(1, chips + 1):
            fits = sizes <= chips - taken
            reached[taken + sizes[fits]] += reached[taken] * shares[fits]
        over = shares * np.cumsum(reached[::-1])[sizes - 1]  # of each size, where fewer chips than it are left
        change, first = float(np.abs(over / over.sum() - first).max()), over / over.sum()
        if change < _SETTLED:
            break
    larger = 1 - np.concatenate([[0.0], np.cumsum(np.bincount(sizes, shares, chips + 1)[1:])])  # than the index
    return float(reached @ (np.arange(chips + 1) * larger[::-1])) / chips
