"""How many redundant experts, and whether to balance at all: imbalance, memory and time of every choice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.balance.imbalance import Balance, LoadDistribution
from planner.costs.predict import Configuration, predict
from planner.placement.methods import lower_bound, place
from planner.placement.problem import Problem

_WORTH = 0.02  # least share of an iteration that is worth the copies; less is below the accuracy of predictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Time and memory of a configuration with a number of redundant experts, by the cost model."""

    seconds: float  # TPOT of decode, TTFT of prefill
    weights_bytes: float  # per device
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One number of redundant experts."""

    redundant: int
    slots_per_rank: int
    imbalance: float  # mean over layers, on the loads themselves: no drift, no sampling noise
    worst: float
    lower_bound: float
    effect: Effect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A balanced map against the engines' initial layout, both with the fewest replicas."""

    unbalanced: Effect
    balanced: Effect
    redundant: int

    @property
    def saves(self) -> float:
        """Share of the unbalanced time."""
        return 1 - self.balanced.seconds / self.unbalanced.seconds

    @property
    def worth_it(self) -> bool:
        """Whether the balanced map fits and saves more than the accuracy of predictions."""
        return self.balanced.fits and self.saves >= _WORTH


def redundancies(experts: int, ranks: int) -> list[int]:
    """The fewest redundant experts that divide evenly, and up to four more slots on every rank."""
    least, most = -experts % ranks, experts * (ranks - 1)
    return [least + extra * ranks for extra in range(5) if least + extra * ranks <= most]


def curve(
    problem: Problem, choices: Sequence[int], asked: Configuration | None, distribution: LoadDistribution
) -> list[Choice]:
    """Return the imbalance of every number of redundant experts and, where a configuration is asked, its effect.

    Maps are made by water-filling, longest first and swaps, with groups kept where the problem keeps them; the time is
    that of ``plan predict`` with the loads' own distribution, so drift and sampling noise are in it.
    """
    rows = []
    for redundant in choices:
        each = replace(problem, redundant=redundant)
        placed = place(each, "groups" if problem.keep_groups else "local-search")
        effect = (
            None if asked is None else effect_of(asked, redundant, Balance(kind="measured", distribution=distribution))
        )
        rows.append(
            Choice(
                redundant=redundant,
                slots_per_rank=each.slots_per_rank,
                imbalance=float(placed.imbalance.mean()),
                worst=float(placed.imbalance.max()),
                lower_bound=float(np.minimum(lower_bound(each), placed.imbalance).mean()),
                effect=effect,
            )
        )
    return rows


def effect_of(asked: Configuration, redundant: int, balance: Balance) -> Effect:
    """Return time and memory of a configuration with so many redundant experts, by the cost model."""
    found = predict(replace(asked, redundant=redundant, shared="local", balance=balance))
    seconds = found.ttft_seconds if asked.phase == "prefill" else found.tpot_seconds
    assert seconds is not None, "decode has a TPOT and prefill a TTFT"
    return Effect(seconds=float(seconds), weights_bytes=float(found.memory.weights), fits=bool(found.memory.fits))


def best_choice(choices: Sequence[Choice]) -> Choice:
    """The fastest that fits; the fewest redundant experts among those within a thousandth of it."""
    known = [choice for choice in choices if choice.effect is not None and choice.effect.fits] or list(choices)
    times = [choice.effect.seconds if choice.effect else choice.imbalance for choice in known]
    limit = min(times) * 1.001
    return next(choice for choice, seconds in zip(known, times, strict=True) if seconds <= limit)


def verdict(asked: Configuration, problem: Problem, redundant: int, distribution: LoadDistribution) -> Verdict:
    """Return whether balancing with ``redundant`` copies beats leaving the experts where engines put them."""
    least = -problem.experts % problem.ranks
    return Verdict(
        unbalanced=effect_of(asked, least, Balance(kind="none", distribution=distribution)),
        balanced=effect_of(asked, redundant, Balance(kind="measured", distribution=distribution)),
        redundant=redundant,
    )
