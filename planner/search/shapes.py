"""Shapes of a deployment: which are allowed, and the rate that an instance must carry to beat the incumbent."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ground.arrays import Floats, Ints
from planner.instances.alignment import lost_instances
from planner.instances.reachable import REFERENCE
from planner.objective import SLACK, Aim, Incumbent
from planner.programme.columns import Side
from planner.programme.programme import Programme
from planner.question import Machines, Question

Needed = Callable[[Ints], Floats]
"""The rate that one instance of so many devices, [instances], must carry to matter; infinite where none does."""

TINY = 1e-9
"""A positive rate, in requests per second, that stands for any."""


def not_aggregated(question: Question) -> str | None:
    """Return why aggregated instances are not searched; None where they are."""
    if question.shape == "disaggregated":
        return "--shape disaggregated: prefill and decode instances alone were asked for"
    one_pool = question.one_pool
    if not one_pool and question.shape != "aggregated":
        return "each role is asked for on devices of its own; --shape aggregated searches either pool alone"
    if one_pool and question.prefill.weights != question.decode.weights:
        return "aggregated instances load one checkpoint, and each role has a format of its own"
    if question.workload.beams > 1:
        return "--beams: requests with beams are answered by decode instances of their own"
    if question.queueing == "mixserve":
        return "--queueing mixserve knows prefill and decode instances alone"
    return None


def on_machines(question: Question, machines: Machines) -> Question:
    """Return the question with both roles on the machines of one pool."""
    if question.one_pool:
        return question
    return replace(question, prefill=machines, decode=machines)


def on_each_pool(question: Question) -> list[Question]:
    """Return a question for every pool that allows aggregated instances, with both roles on that pool."""
    if question.one_pool:
        return [question]
    return [on_machines(question, machines) for machines in (question.decode, question.prefill)]


def why_not_apart(question: Question) -> str | None:
    """Return why AFD is not searched beyond the grid; None where it is."""
    if question.pin("decode").strategy is not None:
        return "--strategy: the one of decode is given"
    if question.model.moe is None:
        return "a dense model has no experts to set apart"
    return None if question.engine == REFERENCE else f"{question.engine}: domains"


def limited(question: Question, aim: Aim, known: Incumbent | None) -> Aim:
    """Return the aim limited to the devices that beat the incumbent; with all devices where the rate is maximised.

    At equal devices or cost the incumbent stays, so such queues need not be solved.
    """
    if known is None or aim.goal.maximised or aim.goal.timed:
        return aim
    machines = question.decode
    most = math.ceil(known.spent[0] / machines.per_device(aim.goal)[0] - SLACK) - 1
    return replace(aim, devices={**aim.devices, machines.budget: min(most, aim.devices[machines.budget])})


def needed_rates(question: Question, aim: Aim, known: Incumbent | None, times: float = 1.0) -> Needed:
    """Return the rate that aggregated instances of a pool must carry to beat the incumbent; any rate without one.

    It is told on a clock that runs ``times`` as quick.
    """
    devices = limited(question, aim, known).devices[question.decode.budget]
    return _of_each(question, devices, times * _least(question, aim, known))


def needed_beside(question: Question, aim: Aim, known: Incumbent, sides: tuple[Side, Side]) -> Needed:
    """Return the rate that decode instances beyond the grid must carry to beat the incumbent.

    Prefill takes its devices first, the fewest whose bounds carry the rate. For an asked rate, decode must take fewer
    devices than the columns of the grid that carry it. The rate is told on the clock of decode.
    """
    prefill, decode = sides
    machines, least = question.decode, _least(question, aim, known)
    able = prefill.rate * prefill.unit >= least
    most = aim.devices[machines.budget] if able.any() else 0
    if able.any() and prefill.machines.budget == machines.budget:
        most -= int(prefill.room[able].min())
    if able.any() and aim.rate is not None:
        alone = Programme((((decode,),),), replace(aim, objective="chips")).settle(aim.rate)
        most = most if alone is None else min(most, int(decode.room[alone[0].columns[0]]) - 1)
    return _of_each(question, most, question.stretch_of("decode") * least)


def _least(question: Question, aim: Aim, known: Incumbent | None) -> float:
    """Return the least rate of a whole pool that may beat the incumbent."""
    rate = aim.rate if aim.rate is not None else known.rate if known is not None else 0.0
    return max(rate * (question.rate_per_second or 1.0) * (1 - SLACK), TINY)


def _of_each(question: Question, devices: int, least: float) -> Needed:
    """Return the rate per instance, where the devices are filled with instances less those of a loss."""

    def needed(sizes: Ints) -> Floats:
        held = devices // sizes
        held -= lost_instances(question.survive, question.decode, sizes, held)
        with np.errstate(divide="ignore"):
            return np.where(held > 0, least / np.maximum(held, 1), np.inf)

    return needed
