"""Division of a pool's devices among the sides on it, such that the sum of their amounts (times) is least.

The least sum of two sides with d devices is the minimum over all divisions of d, a min-plus convolution of their curves
over devices; further sides are added one by one.

Ref: R. Bellman, Dynamic Programming, Princeton University Press, 1957, chapter I (allocation of a resource).
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from ground.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The least amount by devices, [points]: devices rise, amounts fall."""

    devices: Ints
    amount: Floats
    choice: Ints
    """[points, things]: what each thing does there, by the caller's numbers."""

    @classmethod
    def of(cls, devices: Ints, amount: Floats, choice: Ints) -> Self:
        """Return the curve of alternatives in any order: [alternatives], choices [alternatives, sides]."""
        order = np.lexsort((amount, devices))
        before = np.minimum.accumulate(np.append(np.inf, amount[order]))[:-1]
        kept = order[amount[order] < before]
        return cls(devices[kept], amount[kept], choice[kept])

    @property
    def least(self) -> float:
        """Amount with all devices; infinite where they are too few."""
        return float(self.amount[-1]) if self.amount.size else float("inf")

    def beside(self, other: "Curve", most_devices: int) -> "Curve":
        """Return the curve of both together, up to so many devices."""
        devices = self.devices[:, None] + other.devices
        first, second = np.nonzero(devices <= most_devices)
        return Curve.of(
            devices[first, second],
            self.amount[first] + other.amount[second],
            np.concatenate([self.choice[first], other.choice[second]], axis=1),
        )

    def in_steps(self, step: int) -> "Curve":
        """Return the curve restricted to multiples of ``step`` devices."""
        return self if step == 1 else Curve.of(-(-self.devices // step) * step, self.amount, self.choice)


NOTHING = Curve(np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros((1, 0), dtype=np.int64))
"""The curve of no side: amount 0 with 0 devices."""
