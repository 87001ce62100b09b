"""Shapes of a deployment: whether aggregated instances can be asked for, and which of them may beat what is known."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.instances.reachable import REFERENCE
from planner.offers.choice import Aim, carried_by
from planner.offers.columns import Side, device_cost
from planner.question import Machines, Question
from planner.survival import lost_of_sizes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SLACK = 1e-6
"""Part by which a bound may lie below what is known and not be told apart from it."""
TINY = 1e-9
"""Requests per second: some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the best choice of another shape does: its rate, its devices and their price per hour."""

    rate_per_second: float
    devices: int
    cost_per_hour: float


def known_of(sides: tuple[Side, ...], choice: tuple[int, ...]) -> Known:
    """Return what a choice of columns does."""
    chosen = list(zip(sides, choice, strict=True))
    return Known(
        rate_per_second=carried_by(sides, choice),
        devices=sum(int(side.devices[column]) for side, column in chosen),
        cost_per_hour=sum(float(side.cost_per_hour[column]) for side, column in chosen),
    )


def key_of(aim: Aim, known: Known) -> tuple[float, float]:
    """Return what choices are compared by, the smaller the better: the objective first, then what it leaves open."""
    if aim.objective == "throughput":
        return -known.rate_per_second, float(known.devices)
    return known.cost_per_hour if aim.objective == "cost" else float(known.devices), -known.rate_per_second


def better(aim: Aim, one: Known, other: Known) -> bool:
    """Whether one choice is better than another; rates that differ in the last digits alone are alike."""
    ours, theirs = key_of(aim, one), key_of(aim, other)
    if abs(ours[0] - theirs[0]) > SLACK * abs(theirs[0]):
        return ours[0] < theirs[0]
    return ours[1] < theirs[1] - SLACK * abs(theirs[1])


def not_aggregated(question: Question) -> str | None:
    """Return why no aggregated instance is searched, None where they are."""
    if question.shape == "disaggregated":
        return "--shape disaggregated: prefill and decode instances alone were asked for"
    one_pool = question.prefill.budget == question.decode.budget
    if not one_pool and question.shape != "aggregated":
        return "each role is asked for on devices of its own; --shape aggregated searches either pool alone"
    if one_pool and question.prefill.weights != question.decode.weights:
        return "aggregated instances load one checkpoint, and each role has a format of its own"
    if question.queueing == "mixserve":
        return "--queueing mixserve knows prefill and decode instances alone"
    return None


def on_each_pool(question: Question) -> list[Question]:
    """Return the question of every pool that aggregated instances may stand on: both roles on its machines alone."""
    if question.prefill.budget == question.decode.budget:
        return [question]
    return [on_machines(question, machines) for machines in (question.decode, question.prefill)]


def on_machines(question: Question, machines: Machines) -> Question:
    """Return the question with both roles on the machines of one pool."""
    if question.prefill.budget == question.decode.budget:
        return question
    return replace(question, prefill=machines, decode=machines)


def why_not_apart(question: Question) -> str | None:
    """Return why attention and experts are not set apart beyond the grid; None where they are."""
    if question.model.moe is None:
        return "a dense model has no experts to set apart"
    return None if question.engine == REFERENCE else f"{question.engine}: domains"


def limited(question: Question, aim: Aim, known: Known | None) -> Aim:
    """Return the aim with no more devices than beat what is known; of throughput all.

    Of as many devices, or as dear ones, what is known stays: their queues need not be solved.
    """
    if known is None or aim.objective == "throughput":
        return aim
    machines = question.decode
    fewer = (
        known.devices if aim.objective == "chips" else math.ceil(known.cost_per_hour / device_cost(machines) - SLACK)
    )
    most = fewer - 1
    return replace(aim, devices={**aim.devices, machines.budget: min(most, aim.devices[machines.budget])})


def needed_beside(question: Question, aim: Aim, known: Known | None, prefill: Side) -> Callable[[Ints], Floats]:
    """Return the rate that one decode instance of so many devices, [instances], has to carry to beat what is known.

    Prefill takes its devices first: the fewest that carry as much at their bounds. Infinite where none is left. Where
    nothing is known, it is what carries the asked rate.
    """
    machines = question.decode
    least = aim.rate if aim.rate is not None else known.rate_per_second if known is not None else 0.0
    least = max(least * (1 - SLACK), TINY)
    able = prefill.rate * prefill.unit >= least
    most = aim.devices[machines.budget] if able.any() else 0
    if able.any() and prefill.machines.budget == machines.budget:
        most -= int(prefill.room[able].min())
    if able.any() and aim.objective != "throughput" and known is not None:
        most = min(most, _fewer(question, aim, known, prefill, able))

    def needed(sizes: Ints) -> Floats:
        held = most // sizes - lost_of_sizes(question.survive, sizes, machines.devices_per_node)
        return np.where(held > 0, least / np.maximum(held, 1), np.inf)

    return needed


def _fewer(question: Question, aim: Aim, known: Known, prefill: Side, able: NDArray[np.bool_]) -> int:
    """Return the most devices of decode that make a plan smaller, or cheaper, than what is known."""
    if aim.objective != "cost":
        return known.devices - 1 - int(prefill.devices[able].min())
    left = known.cost_per_hour - float(prefill.cost_per_hour[able].min())
    return math.ceil(left / device_cost(question.decode) - SLACK) - 1


def needed_rates(question: Question, aim: Aim, known: Known | None) -> Callable[[Ints], Floats]:
    """Return the rate that one instance of so many devices, [instances], has to carry to beat what is known.

    Infinite where the devices hold none beside what a loss takes. Where nothing is known any rate above 0 does.
    """
    machines = question.decode
    devices = limited(question, aim, known).devices[machines.budget]
    least = aim.rate if aim.rate is not None else known.rate_per_second if known is not None else 0.0

    def needed(sizes: Ints) -> Floats:
        held = devices // sizes - lost_of_sizes(question.survive, sizes, machines.devices_per_node)
        with np.errstate(divide="ignore"):
            return np.where(held > 0, np.maximum(least * (1 - SLACK), TINY) / np.maximum(held, 1), np.inf)

    return needed
