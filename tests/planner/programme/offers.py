"""Offers of single kinds of instances, for columns that tests make."""

from collections.abc import Callable
from typing import Any

import numpy as np

from planner.offers.offer import Offers

Offer = tuple[int, float, Callable[[], Any]]
"""Devices, the most that one instance carries, and what makes its queue."""


def offers_of(*each: Offer) -> Offers:
    """Return kinds of instances as arrays; nothing is guessed of them."""
    sizes, bounds, builds = zip(*each, strict=True)
    layers = np.ones((len(each), 2), dtype=np.int64)
    return Offers(np.array(sizes), np.array(bounds), np.full(len(each), np.inf), layers, lambda n: builds[n]())
