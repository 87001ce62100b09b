"""Imbalance of a placement on unseen time slices, beside EPLB."""

from dataclasses import dataclass, replace
from typing import Literal

from ground.arrays import Floats
from ground.errors import BadInput
from planner.placement.eplb import eplb
from planner.placement.methods import METHODS, default_method, measure
from planner.placement.problem import Problem

Split = Literal["alternate", "later"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Slice imbalance [layers] of maps made from one half of the slices, on that half and on the other."""

    split: Split
    seen: Floats
    unseen: Floats
    eplb_unseen: Floats

    @property
    def gain(self) -> float:
        """Share by which the mean over layers lies below EPLB's on unseen slices."""
        return float(1 - self.unseen.mean() / self.eplb_unseen.mean())


def hold_out(problem: Problem, split: Split, method: str = "auto") -> HeldOut:
    """Place from one half of the slices and measure on the other.

    ``alternate`` holds out every second slice, so that the halves have the same traffic; ``later`` the second half, so
    that a shift of the traffic shows.

    Raises:
        BadInput: fewer than two slices, or a half without load in some layer.
    """
    if not problem.sliced or problem.loads.shape[2] < 2:
        raise BadInput("--holdout: needs loads of at least two time slices")
    half = problem.loads.shape[2] // 2
    parts = (slice(0, None, 2), slice(1, None, 2)) if split == "alternate" else (slice(half), slice(half, None))
    seen, unseen = (replace(problem, loads=problem.loads[:, :, part]) for part in parts)
    slots = METHODS[default_method(seen) if method == "auto" else method](seen)
    return HeldOut(
        split=split,
        seen=measure(seen, slots),
        unseen=measure(unseen, slots),
        eplb_unseen=measure(unseen, eplb(seen)),
    )
