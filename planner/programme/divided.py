"""Devices of one pool divided among what stands on it: what all of it takes least together with so many devices.

What two things take together with d devices is the least sum over all ways to divide d, a convolution of what each of
them takes by its devices; more things are added one by one.

Ref: R. Bellman, Dynamic Programming, Princeton University Press, 1957, chapter I (allocation of a resource).
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from ground.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """What something takes at best by the devices that it gets, [points]: rising devices, falling amounts."""

    devices: Ints
    amount: Floats
    choice: Ints
    """[points, things]: what each thing does there, by the caller's numbers."""

    @classmethod
    def of(cls, devices: Ints, amount: Floats, choice: Ints) -> Self:
        """Return the curve of alternatives in any order, [alternatives] and [alternatives, things]."""
        order = np.lexsort((amount, devices))
        before = np.minimum.accumulate(np.append(np.inf, amount[order]))[:-1]
        kept = order[amount[order] < before]
        return cls(devices[kept], amount[kept], choice[kept])

    @property
    def least(self) -> float:
        """What it takes with all the devices that it may get; infinite where they are too few."""
        return float(self.amount[-1]) if self.amount.size else float("inf")

    def beside(self, other: "Curve", most_devices: int) -> "Curve":
        """Return what both take together with up to so many devices."""
        devices = self.devices[:, None] + other.devices
        first, second = np.nonzero(devices <= most_devices)
        return Curve.of(
            devices[first, second],
            self.amount[first] + other.amount[second],
            np.concatenate([self.choice[first], other.choice[second]], axis=1),
        )

    def in_steps(self, step: int) -> "Curve":
        """Return the same where devices are only given in multiples of ``step``."""
        return self if step == 1 else Curve.of(-(-self.devices // step) * step, self.amount, self.choice)


NOTHING = Curve(np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros((1, 0), dtype=np.int64))
"""Nothing stands there, and takes nothing."""
