"""The room that a deployment leaves to its limits, the confidence with which it keeps them, and what a loss leaves."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

from planner.checks.deployed import Deployed, Lost, Standing, from_plan, standing
from planner.plans.day import Window
from planner.plans.plan import Plan
from planner.plans.servers import PREDICTED
from planner.question import Loss
from planner.search.sure import rate_with
from planner.serving.capacity import Limits, largest_rate
from planner.serving.played import MANY

Name = Literal["ttft", "tpot", "rate"]

_ROUNDS = 7
_MOST_SCORE = 3.0
SURE = 0.9  # confidence of the second rate that a plan reports, beside the planned one


class Margin(NamedTuple):
    """A limit and the value reached; ``value`` is None beyond saturation."""

    name: Name
    limit: float
    value: float | None

    @property
    def share(self) -> float | None:
        """Room left as a share of the limit, negative where it is missed; None beyond saturation."""
        if self.value is None:
            return None
        return self.value / self.limit - 1 if self.name == "rate" else 1 - self.value / self.limit

    @property
    def holds(self) -> bool:
        """Whether the limit is kept."""
        return self.share is not None and self.share >= -1e-9


class AfterLoss(NamedTuple):
    """The margins after the worst possible loss."""

    loss: Loss
    lost: Lost
    margins: tuple[Margin, ...]

    @property
    def holds(self) -> bool:
        """Whether every limit is kept."""
        return all(margin.holds for margin in self.margins)


def margins_of(limits: Limits, found: Standing) -> tuple[Margin, ...]:
    """Return the latency margins of a standing; a limit that is not asked for has none."""
    asked: tuple[tuple[Name, float | None], ...] = (("ttft", limits.ttft_seconds), ("tpot", limits.tpot_seconds))
    reached = {"ttft": found.ttft, "tpot": found.tpot}
    return tuple(
        Margin(name=name, limit=limit, value=latency.at(limits.percentile) if latency else None)
        for name, limit in asked
        for latency in (reached[name],)
        if limit is not None
    )


class Sureness(NamedTuple):
    """Confidence with which a plan keeps its limits at its rate, and the rate with confidence ``SURE``."""

    held: float | None
    rate_per_second: float
    level: float = SURE


def sureness(plan: Plan) -> Sureness:
    """Return the confidence of a plan, from the intervals of its predicted service times.

    Of a plan that is to survive a loss it is that of the instances that remain.
    """
    question = plan.question
    rate = plan.requests_per_second * (1 + question.headroom)
    held = held_confidence(from_plan(plan), Limits.of(question), rate, question.survive, question.confidence)
    return Sureness(held=held, rate_per_second=rate_with(plan, SURE))


def held_confidence(
    deployed: Deployed, limits: Limits, rate_per_second: float, loss: Loss | None = None, asked: float | None = None
) -> float | None:
    """Return the confidence up to which each latency limit holds, to about 1 %; 0 or 1 beyond 3 deviations.

    With a ``loss`` the limits have to hold after the worst one. The confidence that is ``asked`` for is tried itself.
    With more than that, instances count as the search sizes them, which then takes no more of them.

    Each limit counts on its own. With this confidence p, both hold with a probability between 2 p - 1 and p. None where
    the computation would take too long.
    """
    if deployed.asked_at_most is not None and deployed.asked_at_most < 2 * (_ROUNDS + 2):
        return None
    low, high = -_MOST_SCORE, _MOST_SCORE
    first = middle = min(max(NormalDist().inv_cdf(asked or PREDICTED), low), high)

    def holds(score: float) -> bool:
        level, sized = NormalDist().cdf(score), score > first
        if loss is not None:
            return worst_loss(deployed, limits, rate_per_second, loss, level, sized=sized).holds
        found = standing(deployed, rate_per_second, level, sized=sized)
        return all(margin.holds for margin in margins_of(limits, found))

    if holds(high):
        return 1.0
    if not holds(low):
        return 0.0
    for _ in range(_ROUNDS):
        low, high = (middle, high) if holds(middle) else (low, middle)
        middle = (low + high) / 2
    return NormalDist().cdf(middle)


def worst_loss(
    deployed: Deployed,
    limits: Limits,
    rate_per_second: float,
    loss: Loss,
    confidence: float = PREDICTED,
    *,
    sized: bool = False,
) -> AfterLoss:
    """Return the margins after the loss that leaves the least room; ``sized`` as in ``standing``."""
    found = []
    for lost in deployed.losses[loss]:
        margins = margins_of(limits, standing(deployed, rate_per_second, confidence, lost, sized=sized))
        found.append(AfterLoss(loss=loss, lost=lost, margins=margins))
    return min(found, key=lambda after: min((room_of(margin) for margin in after.margins), default=0.0))


def room_of(margin: Margin) -> float:
    """Return the share of a margin; minus infinity beyond saturation."""
    return -math.inf if margin.share is None else margin.share


def margins_at(
    deployed: Deployed, limits: Limits, rate_per_second: float, confidence: float | None = None, headroom: float = 0.0
) -> tuple[Margin, ...]:
    """Return the latency margins at a rate with headroom: as told, or with either as many requests as sizing plays."""
    asked, level = rate_per_second * (1 + headroom), confidence or PREDICTED
    requests = MANY if confidence or headroom else deployed.told(asked)
    return margins_of(limits, standing(deployed, asked, level, requests=requests))


def most_within(
    deployed: Deployed, limits: Limits, upper: float, loss: Loss | None, confidence: float | None, headroom: float
) -> float:
    """Return the largest rate, up to an upper one, that keeps the limits, after the worst ``loss`` too; 0 for none."""

    def used(rate: float) -> float:
        """Return the used share of the limit with least room."""
        margins, asked = margins_at(deployed, limits, rate, confidence, headroom), rate * (1 + headroom)
        after = () if loss is None else worst_loss(deployed, limits, asked, loss, confidence or PREDICTED).margins
        return max((1 - room_of(margin) for margin in (*margins, *after)), default=math.inf)

    return largest_rate(used, 1.0, upper) or 0.0


def over_windows(
    deployed: Deployed, limits: Limits, day: Sequence[Window], confidence: float | None, headroom: float
) -> list[tuple[Window, tuple[Margin, ...]]]:
    """Return the margins of a deployment by window of a day, as ``margins_at``; none where nothing arrives."""
    known: dict[float, tuple[Margin, ...]] = {0.0: ()}
    for rate in {window.rate_per_second for window in day} - known.keys():
        known[rate] = margins_at(deployed, limits, rate, confidence, headroom)
    return [(window, known[window.rate_per_second]) for window in day]
