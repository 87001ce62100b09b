"""Why columns do not carry an asked rate: the constraint, named by its flag, and the nearest changes, solved."""

from collections.abc import Sequence
from dataclasses import replace

from ground.units import carried_rate, counted, format_rate
from planner.objective import Aim
from planner.programme.columns import Side
from planner.programme.programme import Programme
from planner.question import Question
from planner.search.answer import Answer, Change
from planner.search.changes.missing import unsurvivable
from planner.search.changes.nearest import (
    Try,
    eased,
    held_changes,
    limit_change,
    limits_change,
    rate_change,
    size_change,
)
from planner.search.changes.variations import most_carried
from planner.search.gather import Option


def shortage(option: Option, most_per_second: float) -> tuple[str, str]:
    """Return (binding limit, sentence) where the devices carry some rate, but less than asked.

    The limit is ``survive`` where they carry the rate without a loss; else the pools that carry less, or the devices
    that both roles share.
    """
    question, there = option.question, not_carried(option.question, most_per_second)
    if question.survive is not None and _programme(question, option.without_spares().sides).settle():
        return "survive", f"--survive: after losing the worst {question.survive} {there}"
    if question.one_pool:  # both roles share devices
        return "devices", there
    alone = {side.role: _alone(question, side) for side in option.sides}
    short = [side for side in option.sides if alone[side.role] < (question.rate_per_second or 0.0) * (1 - 1e-9)]
    if not short:  # what one role leaves undone makes the other late
        return "devices", there
    told = " and ".join(
        f"{counted(side.machines.devices, 'device')} of {side.machines.hardware.name} "
        f"{_carry(side.machines.devices)} the {side.role} of {carried_rate(alone[side.role])}"
        for side in short
    )
    asked = format_rate(question.rate_per_second or 0.0)
    return f"devices of {' and '.join(side.role for side in short)}", f"{told}, not of the asked {asked}"


def nearest_rate(question: Question, limit: str, most_per_second: float, feasible: Try) -> Change | None:
    """Return the change to the largest rate that is carried; None where a rate is not what is short."""
    if not most_per_second or question.rate_per_second is None or limit in ("ttft", "tpot"):
        return None
    return rate_change(question, most_per_second, feasible)


def told_rate(rated: Change | None, most_per_second: float) -> float:
    """Return the rate that devices are told to carry: the one that is offered instead, where there is one."""
    solved = rated.question.rate_per_second if rated is not None and rated.question is not None else None
    return most_per_second if solved is None else solved


def helped(answer: Answer, question: Question, most_per_second: float, rated: Change | None, feasible: Try) -> Answer:
    """Return a refusal with the nearest changes after its reason, each solved as printed; ``rated`` is the rate's."""
    changes = tuple(_changes(question, answer.binding_limit, most_per_second, rated, feasible))
    return replace(answer, explanation=with_changes(answer.explanation, changes), changes=changes)


def too_few(question: Question, most_per_second: float, carries: Try, *, unharmed: bool = False) -> str:
    """Return the refusal that the devices carry no more than a rate, with the nearest feasible rate and devices.

    Args: ``unharmed``: whether the rate is that without the loss to survive.
    """
    known, told = None if unharmed else most_per_second, not_carried(question, most_per_second)
    changes = rate_change(question, known, carries), size_change(question, most_per_second, carries)
    return with_changes(f"without a loss {told}" if unharmed else told, changes)


def with_changes(told: str, changes: Sequence[Change]) -> str:
    """Return a reason followed by the changes that help, or by why none does."""
    helps = [f"{change.flag} {change.value}".strip() for change in changes if change.question is not None]
    nearest = [f"nearest change{'s' if len(helps) > 1 else ''}: {', or '.join(helps)}"] if helps else []
    return "; ".join([told, *nearest, *(change.told for change in changes if change.question is None)])


def _changes(
    question: Question, limit: str, most_per_second: float, rated: Change | None, feasible: Try
) -> list[Change]:
    """Return the nearest changes that bear on the binding limit."""
    if limit in ("ttft", "tpot"):
        found = limit_change(question, limit == "ttft", feasible)
        both = None if found.question is not None else limits_change(question, limit == "ttft", feasible)
        if question.survive is not None and found.question is None and both is None:
            found = _without_survivors(question, found, feasible)
        if both or found.question is not None:
            return [both or found]
        more = size_change(question, None, feasible)
        return [_with_rate(question, found), *([more] if more.question is not None else [])]
    unharmed = replace(question, survive=None)
    loss = Change(direction="survive", flag="no --survive", value="", told="no loss to survive", question=unharmed)
    size = size_change(question, most_per_second, feasible)
    if limit == "memory" and size.question is None:
        return held_changes(question, feasible) or [size]
    return [*([rated] if rated else []), size, *([loss] if limit == "survive" and feasible(unharmed) else [])]


def _without_survivors(question: Question, change: Change, feasible: Try) -> Change:
    """Return a change of limits that does not suffice, with the loss where nothing survives it at any limits."""
    loose = replace(eased(eased(question, True), False), rate_per_second=None, objective="throughput")
    if feasible(loose) or not feasible(replace(loose, survive=None)):
        return change
    lost = unsurvivable(question)[1].removeprefix("--survive: ")
    return replace(change, told=f"{change.told}: with both limits so eased {lost} (--survive)")


def _with_rate(question: Question, change: Change) -> Change:
    """Return a change of limits that does not suffice, with the rate where the devices carry less with any limits."""
    if question.rate_per_second is None:
        return change
    most = most_carried(replace(eased(eased(question, True), False), objective="throughput", rate_per_second=None))
    if not 0 < most < question.rate_per_second:
        return change
    return replace(change, told=f"{change.told}: with both limits so eased {not_carried(question, most)}")


def _programme(question: Question, sides: Sequence[Side], aim: Aim | None = None) -> Programme:
    """Return the programme of some sides that carries the asked rate on the fewest chips."""
    devices = {machines.budget: machines.devices for machines in (question.prefill, question.decode)}
    return Programme(((tuple(sides),),), aim or Aim(devices=devices, objective="chips", rate=1.0))


def not_carried(question: Question, most_per_second: float) -> str:
    """Return a sentence with the rate that the devices carry instead of the asked one."""
    most, asked = carried_rate(most_per_second), format_rate(question.rate_per_second or 0.0)
    devices = question.devices
    return f"{counted(devices, 'device')} {_carry(devices)} {most}, not the asked {asked}"


def _carry(devices: int) -> str:
    return "carries" if devices == 1 else "carry"


def _alone(question: Question, side: Side) -> float:
    """Return the rate of a role with all devices of its pool."""
    own = {side.machines.budget: side.machines.devices}
    alone = _programme(question, [side], Aim(devices=own, objective="throughput"))
    picks = alone.settle()
    return alone.carried(picks) * side.unit if picks else 0.0
