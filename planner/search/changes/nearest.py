"""The nearest change in each direction that gives a question without a plan one; each is verified by solving it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from ground.units import format_count, format_duration, format_rate, rounded_down, rounded_up
from hardware.formats import ELEMENT_BYTES, KvDtype, multiplied, storable
from hardware.spec import Dtype
from planner.question import Machines, Question
from planner.search.changes.missing import asked_limit, with_limit
from planner.search.changes.resources import Each
from planner.search.changes.variations import has_plan, most_carried
from planner.workload import Lengths, Workload

Try = Callable[[Question], bool]

MOST_FACTOR = 32.0
"""Limits are relaxed, lengths shortened and chips added by at most this factor."""
_WITHIN = 1.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One direction: the flag, what it would have to be, and in words; None where no change of it alone helps."""

    direction: str
    flag: str | None
    value: str | None
    told: str
    question: Question | None
    """The changed question, which has a plan."""


Direction = Callable[[], Change]


def nearest_changes(question: Question, feasible: Try = has_plan, each: Each = map) -> Iterator[Change]:
    """Yield for chips, rate, TTFT, TPOT, lengths and quantisation the nearest change that is feasible.

    Each direction changes nothing else. Values are within 4 % of the least change, rounded towards feasible to what is
    printed, and solved as printed. The directions need nothing of each other: ``each`` maps over them in its own way.
    """
    yield from each(_found_in, directions(question, feasible))


def directions(question: Question, feasible: Try = has_plan) -> list[Direction]:
    """Return the searches for a change, one in each direction."""
    found: list[Direction] = [] if question.rate_per_second is None else [partial(_rate, question, feasible)]
    return [
        *found,
        partial(_chips, question, feasible),
        partial(_limit, question, feasible, "TTFT", True),
        partial(_limit, question, feasible, "TPOT", False),
        partial(_length, question, feasible, "prompts", "--isl"),
        partial(_length, question, feasible, "outputs", "--osl"),
        *_quantised(question, feasible),
    ]


def _found_in(direction: Direction) -> Change:
    return direction()


def _none(direction: str, flag: str | None, why: str) -> Change:
    return Change(direction=direction, flag=flag, value=None, told=why, question=None)


def _found(direction: str, flag: str, value: str, told: str, question: Question) -> Change:
    return Change(direction=direction, flag=flag, value=value, told=told, question=question)


def _rate(question: Question, feasible: Try) -> Change:
    most = most_carried(replace(question, objective="throughput", rate_per_second=None))
    if not most > 0:
        return _none("rate", "--rate", "no rate at all is carried within the limits")
    for part in (1.0, 0.99, 0.97):  # sizing and planning agree within what the queues are solved to
        rate = rounded_down(most * part)
        changed = replace(question, rate_per_second=rate)
        if feasible(changed):
            return _found("rate", "--rate", format_rate(rate), f"{format_rate(rate)} are carried", changed)
    return _none("rate", "--rate", "no rate at all is carried within the limits")


def _chips(question: Question, feasible: Try) -> Change:
    """Whole nodes, or chips of one, of both roles alike where each has its own."""
    machines = (question.prefill, question.decode)
    own = not question.one_pool

    def with_nodes(factor: float) -> Question:
        prefill, decode = (replace(part, devices=part.grown(factor)) for part in machines)
        return replace(question, prefill=prefill, decode=decode)

    # The largest is not tried first: to search so many devices takes longer than to come near from below.
    factor = _least(lambda factor: feasible(with_nodes(factor)), MOST_FACTOR / 2, _unit_share(machines), probe=False)
    if factor is None:
        return _none("chips", "--devices", f"{MOST_FACTOR / 2:g} times the devices do not help")
    changed = with_nodes(factor)
    sizes = [changed.prefill.devices, changed.decode.devices]
    value = f"prefill={sizes[0]},decode={sizes[1]}" if own else str(sizes[0])
    told = f"{sum(sizes) if own else sizes[0]} devices instead of {question.devices}"
    for part, size in zip(machines, sizes, strict=True):
        most = part.hardware.nodes.value * part.hardware.devices_per_node.value
        if not part.hardware.sold_by_node and size > most:
            told += f", more than the {most:.0f} that {part.hardware.name} has"
            break
    return _found("chips", "--devices", value, told, changed)


def _unit_share(machines: tuple[Machines, Machines]) -> float:
    """Smallest factor that is worth telling apart: one node, or one chip of a node where there is less than one."""
    steps = (part.unit(part.devices) / max(part.devices, part.devices_per_node) for part in machines)
    return max(1 + min(steps) * 0.99, 1.01)


def _limit(question: Question, feasible: Try, name: str, ttft: bool) -> Change:
    flag, asked = asked_limit(question, ttft)

    def relaxed(factor: float) -> float:
        return rounded_up(asked * factor)

    factor = _least(lambda factor: feasible(with_limit(question, ttft, relaxed(factor))), MOST_FACTOR)
    if factor is None:
        return _none(name, flag, f"{MOST_FACTOR:g} times the limit does not help")
    value = format_duration(relaxed(factor))
    told = f"{value} instead of {format_duration(asked)}"
    return _found(name, flag, value.replace(" ", ""), told, with_limit(question, ttft, relaxed(factor)))


def scaled_prompts(workload: Workload, factor: float) -> tuple[tuple[float, float, float], ...] | None:
    """Return the kinds of prompts with all lengths times ``factor``, of at least a token."""
    if workload.prompts is None:
        return None
    return tuple((max(tokens * factor, 1.0), reused * factor, weight) for tokens, reused, weight in workload.prompts)


def _length(question: Question, feasible: Try, name: str, flag: str) -> Change:
    workload = question.workload
    known = workload.input_tokens if flag == "--isl" else workload.output_tokens

    def shorter(factor: float) -> Question:
        tokens = Lengths(mean=max(math.floor(known.mean / factor), 1), squared_cv=known.squared_cv)
        prompt, answer = (tokens, workload.output_tokens) if flag == "--isl" else (workload.input_tokens, tokens)
        covariance = workload.length_covariance * tokens.mean / known.mean
        changed = replace(
            workload,
            input_tokens=prompt,
            output_tokens=answer,
            length_covariance=covariance,
            prompts=scaled_prompts(workload, prompt.mean / workload.input_tokens.mean),
        )
        return replace(question, workload=changed)

    most = min(MOST_FACTOR, known.mean)
    factor = _least(lambda factor: feasible(shorter(factor)), most) if most > 1 else None
    if factor is None:
        return _none(name, flag, f"a length {most:.3g} times as short does not help")
    changed = shorter(factor)
    after = (changed.workload.input_tokens if flag == "--isl" else changed.workload.output_tokens).mean
    told = f"{format_count(after)} tokens instead of {format_count(known.mean)}"
    return _found(name, flag, f"{after:.0f}", told, changed)


def _quantised(question: Question, feasible: Try) -> list[Direction]:
    """Return smaller weights and a smaller KV cache, where the machines have them; INT4 only to hold weights in.

    Of formats that the question may choose from already, none is told.
    """
    machines, single = (question.prefill, question.decode), replace(question, formats=())
    usable = set.intersection(*({*multiplied(part.hardware), "int4"} & {*storable(part.hardware)} for part in machines))
    held = max(ELEMENT_BYTES[part.weights] for part in machines)
    asked = {dtype for each in question.formats for dtype in (each.prefill, each.decode)}
    smaller = sorted(dtype for dtype in usable - asked if ELEMENT_BYTES[dtype] < held)
    tried = [("weights", "--weights", dtype, _with_weights(single, dtype)) for dtype in smaller]
    cache: KvDtype = "fp8" if all("fp8" in multiplied(part.hardware) for part in machines) else "int8"
    caches = {question.kv_dtype, *(each.kv for each in question.formats)}
    if all(ELEMENT_BYTES[kv] > ELEMENT_BYTES[cache] for kv in caches):
        tried.append(("KV cache", "--kv-dtype", cache, replace(single, kv_dtype=cache)))
    if not tried:
        told = "weights and KV cache are as small as these machines take them"
        return [partial(_none, "quantisation", None, told)]
    return [partial(_smaller, feasible, *each) for each in tried]


def _smaller(feasible: Try, direction: str, flag: str, dtype: str, changed: Question) -> Change:
    if feasible(changed):
        return _found(direction, flag, dtype, f"{direction} in {dtype}", changed)
    plural = direction == "weights"
    told = f"{direction} in {dtype} do not help" if plural else f"a {direction} in {dtype} does not help"
    return _none(direction, flag, told)


def _with_weights(question: Question, dtype: Dtype) -> Question:
    prefill, decode = (replace(part, weights=dtype) for part in (question.prefill, question.decode))
    return replace(question, prefill=prefill, decode=decode)


def _least(holds: Callable[[float], bool], most: float, within: float = _WITHIN, *, probe: bool = True) -> float | None:
    """Return the least factor above 1 that holds, within a ratio; None where the largest does not.

    Squares the factor from 10 % on, then bisects on the logarithm; what is returned was tried and holds. With
    ``probe`` the largest is tried first, which saves the others where none holds.
    """
    if probe and not holds(most):
        return None
    low, high = 1.0, min(1.1, most)
    while high < most and not holds(high):
        low, high = high, min(high * high, most)
    if not probe and high == most and not holds(most):
        return None
    while high / low > within:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
