"""Why columns do not carry an asked rate: the constraint in the words of its flag, and the nearest changes, solved."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ground.units import counted, format_rate, rounded_down
from planner.objective import Aim
from planner.question import Machines, Question
from planner.search.changes.missing import most_devices
from planner.search.changes.variations import has_plan, most_carried
from planner.search.columns import Side
from planner.search.gather import Option
from planner.search.programme import Programme

STEP = 1.08
"""From one size that is tried to the next."""
TRIES = 4
MOST_TRIED = 16_384
"""Devices beyond which no larger machine is tried: such a search takes long, and such a question is a slip."""


def shortage(option: Option, most_per_second: float) -> tuple[str, str]:
    """Return (binding limit, sentence) where the devices carry something, and not the asked rate.

    ``survive`` where they carry it as long as nothing is lost; else the pools that carry less, or the devices that
    both roles share. The devices named were solved for the rate; none are named where none were found.
    """
    question, there = option.question, _there(option.question, most_per_second)
    asked, most = (format_rate(rate) for rate in (question.rate_per_second or 0.0, rounded_down(most_per_second)))
    if question.survive is not None and _programme(question, [side.without_spares() for side in option.sides]).settle():
        told = f"--survive: after losing the worst {question.survive} {there}"
        larger = _larger(question, dict.fromkeys(("prefill", "decode"), most_per_second))
        return "survive", f"{told}; nearest changes: --rate {most}, or no --survive{larger}"
    if question.one_pool:
        return "devices", too_few(question, most_per_second)
    alone = {side.role: _alone(question, side) for side in option.sides}
    short = [side for side in option.sides if alone[side.role] < (question.rate_per_second or 0.0) * (1 - 1e-9)]
    told = " and ".join(
        f"{side.machines.devices} devices of {side.machines.hardware.name} carry the {side.role} of "
        f"{format_rate(rounded_down(alone[side.role]))}"
        for side in short
    )
    larger = _larger(question, {side.role: alone[side.role] for side in short})
    return (
        f"devices of {' and '.join(side.role for side in short)}",
        f"{told}, not of the asked {asked}; nearest changes: --rate {most}{larger}",
    )


def _programme(question: Question, sides: Sequence[Side], aim: Aim | None = None) -> Programme:
    """Return the programme of some sides, to carry the asked rate on the fewest chips."""
    devices = {machines.budget: machines.devices for machines in (question.prefill, question.decode)}
    return Programme(((tuple(sides),),), aim or Aim(devices=devices, objective="chips", rate=1.0))


def short(question: Question, limit: str) -> str:
    """Say what the devices of a question with a confidence or headroom carry, and the nearest changes, solved."""
    most = most_carried(replace(question, objective="throughput", rate_per_second=None))
    if most > 0 and question.rate_per_second is not None:
        return too_few(question, most)
    return f"no rate at all is carried within the limits ({limit})"


def too_few(question: Question, most_per_second: float, carries: Callable[[Question], bool] = has_plan) -> str:
    """Return that the devices carry no more than a rate, and the nearest rate and devices that hold.

    The devices named ``carries`` was true of, at the question's rate.
    """
    most = format_rate(rounded_down(most_per_second))
    larger = _larger(question, dict.fromkeys(("prefill", "decode"), most_per_second), carries)
    nearest = "nearest changes" if larger.startswith(",") else "nearest change"
    return f"{_there(question, most_per_second)}; {nearest}: --rate {most}{larger}"


def _there(question: Question, most_per_second: float) -> str:
    most, asked = format_rate(rounded_down(most_per_second)), format_rate(question.rate_per_second or 0.0)
    devices = question.devices
    return f"{counted(devices, 'device')} {'carries' if devices == 1 else 'carry'} {most}, not the asked {asked}"


def _alone(question: Question, side: Side) -> float:
    """Return what a role carries with all devices of its pool."""
    alone = _programme(
        question, [side], Aim(devices={side.machines.budget: side.machines.devices}, objective="throughput")
    )
    picks = alone.settle()
    return alone.carried(picks) * side.unit if picks else 0.0


def _larger(
    question: Question, most_per_second: dict[str, float], carries: Callable[[Question], bool] = has_plan
) -> str:
    """Return the devices of the short roles that carry the rate, as they would be asked for; nothing where unknown.

    ``most_per_second`` is what each short role carries now, the same for both of a shared pool.
    """
    factors = {role: (question.rate_per_second or 0.0) / max(most, 1e-9) for role, most in most_per_second.items()}
    tried = (
        _sizes(machines, factors[role]) if role in factors else [machines.devices] * (TRIES + 1)
        for role, machines in (("prefill", question.prefill), ("decode", question.decode))
    )
    for sizes in dict.fromkeys(zip(*tried, strict=True)):
        prefill, decode = (
            replace(machines, devices=size)
            for machines, size in zip((question.prefill, question.decode), sizes, strict=True)
        )
        changed = replace(question, prefill=prefill, decode=decode)
        if changed.devices > most_devices(question):
            return f"; about {changed.devices} devices are more than there can be"
        if changed.devices > max(MOST_TRIED, 2 * question.devices):
            return f"; the asked rate is {max(factors.values()):.3g} times what they carry"
        if carries(changed):
            shared = prefill.budget == decode.budget
            least = _least_within_node(question, changed, carries) if shared else 0
            size = f"{least}" if shared else f"prefill={prefill.devices},decode={decode.devices}"
            return f", or --devices {size}"
    return ""


def _least_within_node(question: Question, larger: Question, carries: Callable[[Question], bool]) -> int:
    """Return the fewest devices up to those of a larger question that carry its rate; of whole nodes these are.

    A few devices beside the one that just holds a model carry many times what it does, so that they are no guess.
    """
    machines = larger.prefill
    unit, most = machines.unit(machines.devices - 1), machines.devices
    if most > machines.devices_per_node:
        return most
    low, high = question.prefill.devices // unit, -(-most // unit)
    while high - low > 1:
        middle = (low + high) // 2
        less = replace(machines, devices=middle * unit)
        low, high = (low, middle) if carries(replace(larger, prefill=less, decode=less)) else (middle, high)
    return min(high * unit, most)


def _sizes(machines: Machines, factor: float) -> list[int]:
    """Devices to try, from what a rate in proportion to devices needs.

    The few GPUs that hold a model once carry less than their share of a server, so a server is tried before more.
    """
    guessed = [_grown(machines, factor * STEP**number) for number in range(TRIES)]
    node = machines.devices_per_node
    return [min(guessed[0], node) if machines.devices < node else guessed[0], *guessed]


def _grown(machines: Machines, factor: float) -> int:
    """Devices times a factor, at least one unit more."""
    unit = machines.unit(machines.devices)
    return max(machines.grown(factor), (machines.devices // unit + 1) * unit)
