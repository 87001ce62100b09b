"""Why columns do not carry an asked rate: the constraint, named by its flag, and the nearest changes, solved."""

from collections.abc import Sequence
from dataclasses import replace

from ground.units import counted, format_rate, rounded_down
from planner.objective import Aim
from planner.programme.columns import Side
from planner.programme.programme import Programme
from planner.question import Question
from planner.search.answer import Answer, Change
from planner.search.changes.nearest import Try, eased, limit_change, limits_change, rate_change, size_change
from planner.search.changes.variations import alike, most_carried
from planner.search.gather import Option


def shortage(option: Option, most_per_second: float) -> tuple[str, str]:
    """Return (binding limit, sentence) where the devices carry some rate, but less than asked.

    The limit is ``survive`` where they carry the rate without a loss; else the pools that carry less, or the devices
    that both roles share.
    """
    question, there = option.question, _there(option.question, most_per_second)
    if question.survive is not None and _programme(question, [side.without_spares() for side in option.sides]).settle():
        return "survive", f"--survive: after losing the worst {question.survive} {there}"
    if question.one_pool:  # both roles share devices
        return "devices", there
    alone = {side.role: _alone(question, side) for side in option.sides}
    short = [side for side in option.sides if alone[side.role] < (question.rate_per_second or 0.0) * (1 - 1e-9)]
    if not short:  # what one role leaves undone makes the other late
        return "devices", there
    told = " and ".join(
        f"{side.machines.devices} devices of {side.machines.hardware.name} carry the {side.role} of "
        f"{format_rate(rounded_down(alone[side.role]))}"
        for side in short
    )
    asked = format_rate(question.rate_per_second or 0.0)
    return f"devices of {' and '.join(side.role for side in short)}", f"{told}, not of the asked {asked}"


def helped(answer: Answer, question: Question, most_per_second: float) -> Answer:
    """Return a refusal with the nearest changes after its reason, each solved as printed."""
    changes = tuple(_changes(question, answer.binding_limit, most_per_second))
    told = answer.explanation
    for change in changes:
        if change.direction == "rate" and change.question is not None:  # the devices carry what is offered instead
            carried = change.question.rate_per_second or 0.0
            told = told.replace(_there(question, most_per_second), _there(question, carried))
    return replace(answer, explanation=with_changes(told, changes), changes=changes)


def short(question: Question, limit: str) -> tuple[str, float]:
    """Return a sentence on the rate of the devices for a question with a confidence or headroom, and that rate."""
    most = most_carried(replace(question, objective="throughput", rate_per_second=None))
    if most > 0 and question.rate_per_second is not None:
        return _there(question, most), most
    return f"no rate at all is carried within the limits ({limit})", most


def too_few(question: Question, most_per_second: float, carries: Try) -> str:
    """Return the refusal that the devices carry no more than a rate, with the nearest feasible rate and devices.

    ``carries`` was true for both.
    """
    changes = rate_change(question, most_per_second, carries), size_change(question, most_per_second, carries)
    return with_changes(_there(question, most_per_second), changes)


def with_changes(told: str, changes: Sequence[Change]) -> str:
    """Return a reason followed by the changes that help, or by why none does."""
    helps = [f"{change.flag} {change.value}".strip() for change in changes if change.question is not None]
    nearest = [f"nearest change{'s' if len(helps) > 1 else ''}: {', or '.join(helps)}"] if helps else []
    return "; ".join([told, *nearest, *(change.told for change in changes if change.question is None)])


def _changes(question: Question, limit: str, most_per_second: float) -> list[Change]:
    """Return the nearest changes that bear on the binding limit."""
    feasible = alike()
    if limit in ("ttft", "tpot"):
        found = limit_change(question, limit == "ttft", feasible)
        both = None if found.question is not None else limits_change(question, limit == "ttft", feasible)
        return [both or (found if found.question is not None else _with_rate(question, found))]
    rated = [rate_change(question, most_per_second, feasible)] if most_per_second and question.rate_per_second else []
    unharmed = replace(question, survive=None)
    loss = [_without_loss(unharmed)] if limit == "survive" and feasible(unharmed) else []
    return [*rated, size_change(question, most_per_second, feasible), *loss]


def _with_rate(question: Question, change: Change) -> Change:
    """Return a change of limits that does not suffice, with the rate where the devices carry less with any limits."""
    if question.rate_per_second is None:
        return change
    most = most_carried(replace(eased(eased(question, True), False), objective="throughput", rate_per_second=None))
    if not 0 < most < question.rate_per_second:
        return change
    return replace(change, told=f"{change.told}: with both limits so eased {_there(question, most)}")


def _without_loss(question: Question) -> Change:
    return Change(direction="survive", flag="no --survive", value="", told="no loss to survive", question=question)


def _programme(question: Question, sides: Sequence[Side], aim: Aim | None = None) -> Programme:
    """Return the programme of some sides that carries the asked rate on the fewest chips."""
    devices = {machines.budget: machines.devices for machines in (question.prefill, question.decode)}
    return Programme(((tuple(sides),),), aim or Aim(devices=devices, objective="chips", rate=1.0))


def _there(question: Question, most_per_second: float) -> str:
    most, asked = format_rate(rounded_down(most_per_second)), format_rate(question.rate_per_second or 0.0)
    devices = question.devices
    return f"{counted(devices, 'device')} {'carries' if devices == 1 else 'carry'} {most}, not the asked {asked}"


def _alone(question: Question, side: Side) -> float:
    """Return the rate of a role with all devices of its pool."""
    alone = _programme(
        question, [side], Aim(devices={side.machines.budget: side.machines.devices}, objective="throughput")
    )
    picks = alone.settle()
    return alone.carried(picks) * side.unit if picks else 0.0
