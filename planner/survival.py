"""Losing a node or an instance: how many instances of a pool go with it."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Loss = Literal["node", "instance"]


def lost_instances(loss: Loss | None, devices_per_instance: int, devices_per_node: int) -> int:
    """Return the most instances of one pool that a loss takes.

    Instances below a node share nodes and never straddle two, larger ones start at a node (``plans.assemble``): a
    node takes with it all that stand on it, or the one that it is part of.
    """
    if loss is None:
        return 0
    if loss == "instance" or devices_per_instance >= devices_per_node:
        return 1
    return devices_per_node // devices_per_instance


def lost_of_sizes(
    loss: Loss | None, devices_per_instance: NDArray[np.int64], devices_per_node: int
) -> NDArray[np.int64]:
    """Return ``lost_instances`` of many kinds of instances, [kinds]; each number of devices is looked at once."""
    sizes, which = np.unique(devices_per_instance, return_inverse=True)
    each = [lost_instances(loss, int(size), devices_per_node) for size in sizes]
    return np.array(each, dtype=np.int64)[which]
