"""How long passes of equal prompts take, by how many they hold: all that bulk service sees of a prefill instance."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ground.arrays import Floats, distinct
from ground.errors import BadInput

PassSeconds = Callable[[Floats], Floats]

_NODES = 256


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Pass times of one instance, tabulated once for all rates."""

    prompts: Floats
    """[nodes], rising, from one to the most that a pass holds."""
    seconds: Floats
    """[nodes], not falling."""

    @classmethod
    def tabulated(cls, pass_seconds: PassSeconds, most_prompts: int) -> "Passes":
        """Tabulate durations up to a cap, in which they do not fall; BadInput for a cap below 1."""
        if most_prompts < 1:
            raise BadInput(f"A prefill pass of at most {most_prompts} prompts must hold at least 1.")
        prompts = distinct(np.round(np.linspace(1, most_prompts, min(most_prompts, _NODES))))
        seconds = np.asarray(pass_seconds(prompts), dtype=np.float64) * np.ones_like(prompts)
        return cls(prompts=prompts, seconds=np.maximum.accumulate(seconds))

    @property
    def most(self) -> float:
        """Prompts of a full pass."""
        return float(self.prompts[-1])

    @property
    def full_seconds(self) -> float:
        """Duration of a full pass."""
        return float(self.seconds[-1])

    @cached_property
    def share_seconds(self) -> float:
        """What a prompt adds, on average from one to the most."""
        return float(self.seconds[-1] - self.seconds[0]) / max(self.most - 1, 1)

    @property
    def saturation_per_second(self) -> float:
        """Prompts per second of passes that are always full."""
        return self.most / self.full_seconds

    def at(self, prompts: Floats) -> Floats:
        """Return the durations of passes with so many prompts."""
        return np.asarray(np.interp(prompts, self.prompts, self.seconds), dtype=np.float64)
