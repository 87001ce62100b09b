"""Seconds along a measured curve: the power law between neighbouring points, which stand at loads 1, 2, 4, 8, ...

Below the first point a kernel takes what it takes there, beyond the last one the slope of the last two goes on, and
without load nothing is launched.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ground.arrays import Floats


def curve_seconds(points: Sequence[float | Floats], load: float | Floats) -> float | Floats:
    """Return the seconds at a load; points (numbers or arrays over instances) and load broadcast."""
    if isinstance(load, np.ndarray) or any(isinstance(point, np.ndarray) for point in points):
        return along(np.log2(np.stack(np.broadcast_arrays(*points))), np.asarray(load, dtype=np.float64))
    return at(points, load)


def at(points: Sequence[Any], load: float) -> float:
    """Return the seconds at one load.

    >>> at((10.0, 10.0, 20.0), 0.5), at((10.0, 10.0, 20.0), 8.0), at((10.0, 20.0), 0.0)
    (10.0, 40.0, 0.0)
    """
    if load <= 1.0:
        return float(points[0]) if load > 0.0 else 0.0
    place = math.log2(load)
    left = min(int(place), len(points) - 2)
    low = points[left]
    return float(low * (points[left + 1] / low) ** (place - left))


def along(logarithms: Floats, load: Floats) -> Floats:
    """Return the seconds at loads [..., instances], from base-2 logarithms of the points, [points] or more."""
    place = np.log2(np.maximum(load, 1.0))
    left = np.minimum(place.astype(np.intp), len(logarithms) - 2)
    if logarithms.ndim == 1 or logarithms.shape[-1] == 1:
        rows = logarithms.reshape(-1)
        low, high = rows[left], rows[left + 1]
    else:
        instances = np.arange(logarithms.shape[-1])
        low, high = logarithms[left, instances], logarithms[left + 1, instances]
    return np.asarray(np.exp2(low + (place - left) * (high - low)) * (load > 0.0))


@dataclass(slots=True)
class Curve:
    """A curve term made ready: the form of its load and its points, as they are and as logarithms."""

    load: Mapping[str, float | Floats]
    points: tuple[float | Floats, ...]
    logarithms: Floats

    @classmethod
    def of(cls, load: Mapping[str, float | Floats], points: tuple[float | Floats, ...]) -> "Curve":
        """Return the curve with the logarithms of its points."""
        return cls(load, points, np.log2(np.stack(np.broadcast_arrays(*points))))

    def seconds(self, load: float | Floats) -> float | Floats:
        """Return the seconds at a value of the load's form."""
        if isinstance(load, np.ndarray) or self.logarithms.ndim > 1:
            return along(self.logarithms, np.asarray(load, dtype=np.float64))
        return at(self.points, load)
