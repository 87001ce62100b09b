"""The nearest change in each direction that makes an infeasible question feasible; each is verified by solving it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import call

from ground.units import format_count, format_duration, format_rate, rate_down, rounded_up
from hardware.formats import ELEMENT_BYTES, KvDtype, multiplied, storable
from planner.plans.quantised import alternatives
from planner.question import Question
from planner.search.answer import Change
from planner.search.changes.missing import asked_limit, fastest, in_reach, most_devices, smallest_plan, with_limit
from planner.search.changes.resources import Each
from planner.search.changes.variations import alike, most_carried
from planner.workload import Lengths, Workload

Try = Callable[[Question], bool]

MOST_FACTOR = 32.0  # limits are relaxed and lengths shortened by at most this factor
_WITHIN = 1.04
MOST_TRIED = 16_384  # most devices that are tried: a larger search takes long, and such a question is probably a slip
FAR = 4.0  # a rate that needs more than so many times the largest size, in proportion, is not searched for
_NEAR_SIZE = 0.01  # relative accuracy of the least size among hundreds of nodes
Direction = Callable[[], Change]


def nearest_changes(
    question: Question, known: Sequence[Change] = (), feasible: Try | None = None, each: Each = map
) -> Iterator[Change]:
    """Yield for rate, chips, TTFT, TPOT, lengths and quantisation the nearest change that is feasible.

    Each direction changes nothing else. Values are within 4 % of the least change, rounded towards feasible to the
    printed digits, and solved as printed. Directions are independent: ``each`` maps over them, perhaps in several
    processes. Changes that a refusal has found already are ``known`` and repeated.
    """
    yield from known
    there = {change.direction for change in known}
    there |= {"rate", "TTFT", "TPOT"} if "job" in there else set()  # of which a job has none but its time
    searched = [search for name, search in directions(question, feasible or alike()).items() if name not in there]
    yield from each(call, searched)


def directions(question: Question, feasible: Try) -> dict[str, Direction]:
    """Return the searches for a change by their direction."""
    found: dict[str, Direction] = {}
    if question.rate_per_second is not None:
        found["rate"] = partial(rate_change, question, None, feasible)
    return found | {
        "chips": partial(size_change, question, None, feasible),
        "TTFT": partial(limit_change, question, True, feasible),
        "TPOT": partial(limit_change, question, False, feasible),
        "prompts": partial(_length, question, feasible, "prompts", "--isl"),
        "outputs": partial(_length, question, feasible, "outputs", "--osl"),
        **_quantised(question, feasible),
    }


def _none(direction: str, flag: str | None, why: str) -> Change:
    return Change(direction=direction, flag=flag, told=why)


def rate_change(question: Question, most_per_second: float | None, feasible: Try) -> Change:
    """Return the change to the largest rate that is carried; ``most_per_second`` where known."""
    most = most_per_second
    if most is None:
        most = most_carried(replace(question, objective="throughput", rate_per_second=None))
    for part in (1.0, 0.99, 0.97) if most > 0 else ():  # sizing agrees with planning to a tolerance
        rate = rate_down(most * part)
        changed, value = replace(question, rate_per_second=rate), format_rate(rate)
        if (own := question.offline) is not None:
            beside = rate_down(rate * own.per_request)
            changed = replace(changed, offline=replace(own, per_request=beside / rate))
            value += f" --offline {format_rate(beside)},{own.input_tokens:.0f}+{own.output_tokens:.0f}"
        if feasible(changed):
            told, flag = f"{format_rate(rate)} are carried", question.rate_flag
            value = value if flag == "--rate" else f"with a peak of {value}"
            return Change(direction="rate", flag=flag, value=value, told=told, question=changed)
    return _none("rate", question.rate_flag, "no rate at all is carried within the limits")


def size_change(question: Question, most_per_second: float | None, feasible: Try) -> Change:
    """Return the fewest devices with a plan, in whole nodes, or in chips of one node.

    Where each role has its own machines, both grow alike until there is a plan; then each shrinks to its present size
    where that is enough. Sizes are doubled, then bisected; only a solved size is returned.
    """
    machines, most = (question.prefill, question.decode), most_devices(question)
    largest = min(most, max(MOST_TRIED, 2.0 * question.devices)) / question.devices
    rate = question.rate_per_second
    if rate is not None and most_per_second and rate / most_per_second > FAR * largest:
        times = format_count(rate / most_per_second)
        return _none("chips", "--devices", f"the asked rate is {times} times what they carry")
    tried: dict[tuple[int, int], bool] = {}

    def at(factor: float) -> Question:
        return question.on_roles(lambda part: replace(part, devices=max(part.grown(factor), part.devices)))

    reached = cache(lambda factor: in_reach(at(factor)))

    def holds(factor: float) -> bool:
        changed = at(factor)
        sizes = changed.prefill.devices, changed.decode.devices
        if sizes not in tried:
            tried[sizes] = changed.devices <= most and reached(factor) and feasible(changed)
        return tried[sizes]

    whole = at(1.0).devices > question.devices  # devices of a node in part: the rest of it is tried first
    low, high = 1.0, 1.0 if whole and holds(1.0) else min(2.0, largest)
    while high > 1 and not holds(high):
        if high >= largest or not (reached(high) or reached(largest)):
            high = largest
            break
        low, high = high, min(2 * high, largest)
    if (high <= 1 and not whole) or not holds(high):
        everything = f"all {most:g} devices that there are" if largest * question.devices >= most else "more devices"
        return _none("chips", "--devices", f"{everything} do not carry it")
    step = min(part.unit(part.devices) / part.devices for part in machines) / 2
    while high - low > max(step, high * _NEAR_SIZE):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return _sized(question, at(high), feasible)


def _sized(question: Question, larger: Question, feasible: Try) -> Change:
    """Return the change to a feasible size."""
    if not question.one_pool:
        for back in (replace(larger, decode=question.decode), replace(larger, prefill=question.prefill)):
            if feasible(back):
                larger = back
                break
    sizes = larger.prefill.devices, larger.decode.devices
    return Change(
        direction="chips",
        flag="--devices",
        value=str(sizes[0]) if question.one_pool else f"prefill={sizes[0]},decode={sizes[1]}",
        told=f"{larger.devices} devices instead of {question.devices}",
        question=larger,
    )


def limit_change(question: Question, ttft: bool, feasible: Try) -> Change:
    """Return the tightest limit on TTFT, or on TPOT, with a plan."""
    name, (flag, asked) = "TTFT" if ttft else "TPOT", asked_limit(question, ttft)
    base = _eased_from(question, ttft)

    def relaxed(factor: float) -> Question:
        return with_limit(question, ttft, rounded_up(base * factor))

    factor = _least(lambda factor: feasible(relaxed(factor)), MOST_FACTOR)
    if factor is None:
        return _none(name, flag, f"not even {flag} {format_duration(MOST_FACTOR * base)} suffices")
    value = format_duration(rounded_up(base * factor))
    told = f"{value} instead of {format_duration(asked)}"
    return Change(direction=name, flag=flag, value=value.replace(" ", ""), told=told, question=relaxed(factor))


def _eased_from(question: Question, ttft: bool) -> float:
    """Return the limit that is eased: the asked one, or the least latency of any engine where that is longer."""
    every, (_, asked) = [fastest(each, ttft=ttft) for each in alternatives(question)], asked_limit(question, ttft)
    least = min((seconds for seconds in every if seconds), default=0.0)
    return asked if asked * MOST_FACTOR > 2 * least else least


def eased(question: Question, ttft: bool) -> Question:
    """Return a question with its limit on TTFT, or on TPOT, eased as far as is tried."""
    return with_limit(question, ttft, _eased_from(question, ttft) * MOST_FACTOR)


def limits_change(question: Question, ttft: bool, feasible: Try) -> Change | None:
    """Return the limit on TTFT, or on TPOT, that helps if the other is eased too; None where both do not help."""
    other = asked_limit(question, not ttft)[1]
    first = limit_change(eased(question, not ttft), ttft, feasible)
    if first.question is None:
        return None
    second = limit_change(with_limit(first.question, not ttft, other), not ttft, feasible)
    if second.question is None:
        return None
    told = f"{second.flag} {second.value}, for {format_duration(other)} cannot be kept either"
    return replace(first, direction="both limits", value=f"{first.value} with {told}", question=second.question)


def held_changes(question: Question, feasible: Try) -> list[Change]:
    """Return smaller formats with a plan, and the devices that hold the model with the limits that they miss eased."""
    found = [change for each in _quantised(question, feasible).values() if (change := each()).question is not None]
    least = min(map(smallest_plan, alternatives(question)))
    if not math.isfinite(least):
        return found
    enough = question.on_roles(lambda part: replace(part, devices=part.grown(max(least / part.devices, 1.0))))
    idle = replace(enough, rate_per_second=None, objective="throughput")
    alone = (limit_change(idle, ttft, feasible) for ttft in (False, True))
    limit = next((each for each in alone if each.question), None) or limits_change(idle, True, feasible)
    if limit is None or limit.question is None:
        return found
    kept = replace(question, ttft_seconds=limit.question.ttft_seconds, tpot_seconds=limit.question.tpot_seconds)
    size = size_change(kept, None, feasible)
    if size.question is not None:
        told = f"{size.told} with {limit.flag} {limit.told}"
        found.append(replace(size, value=f"{size.value} with {limit.flag} {limit.value}", told=told))
    return found


def scaled_prompts(workload: Workload, factor: float) -> tuple[tuple[float, float, float], ...] | None:
    """Return the kinds of prompts with all lengths times ``factor``, at least one token each."""
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
            trace=workload.trace
            and workload.trace.scaled(
                prompt.mean / workload.input_tokens.mean, answer.mean / workload.output_tokens.mean
            ),
        )
        return replace(question, workload=changed)

    most = min(MOST_FACTOR, known.mean)
    factor = _least(lambda factor: feasible(shorter(factor)), most) if most > 1 else None
    if factor is None:
        return _none(name, flag, f"not even {name} {most:.3g} times as short suffice")
    changed = shorter(factor)
    after = (changed.workload.input_tokens if flag == "--isl" else changed.workload.output_tokens).mean
    told = f"{format_count(after)} tokens instead of {format_count(known.mean)}"
    return Change(direction=name, flag=flag, value=f"{after:.0f}", told=told, question=changed)


def _quantised(question: Question, feasible: Try) -> dict[str, Direction]:
    """Return the change to a smaller format of weights and KV cache that the machines have; INT4 for storage only.

    Formats that the question may already choose are not returned.
    """
    machines, single = (question.prefill, question.decode), replace(question, formats=())
    usable = set.intersection(*({*multiplied(part.hardware), "int4"} & {*storable(part.hardware)} for part in machines))
    held = max(ELEMENT_BYTES[part.weights] for part in machines)
    asked = {dtype for each in question.formats for dtype in (each.prefill, each.decode)}
    smaller = sorted(dtype for dtype in usable - asked if ELEMENT_BYTES[dtype] < held)
    tried = [("weights", "--weights", dtype, single.on_roles(partial(replace, weights=dtype))) for dtype in smaller]
    cache: KvDtype = "fp8" if all("fp8" in multiplied(part.hardware) for part in machines) else "int8"
    caches = {question.kv_dtype, *(each.kv for each in question.formats)}
    if all(ELEMENT_BYTES[kv] > ELEMENT_BYTES[cache] for kv in caches):
        tried.append(("KV cache", "--kv-dtype", cache, replace(single, kv_dtype=cache)))
    if not tried:
        told = "weights and KV cache are as small as these machines take them"
        return {"quantisation": partial(_none, "quantisation", None, told)}
    return {f"{each[0]} {each[2]}": partial(_smaller, feasible, *each) for each in tried}


def _smaller(feasible: Try, direction: str, flag: str, dtype: str, changed: Question) -> Change:
    if feasible(changed):
        return Change(direction=direction, flag=flag, value=dtype, told=f"{direction} in {dtype}", question=changed)
    return _none(direction, flag, f"{direction} in {dtype} {'do' if direction == 'weights' else 'does'} not suffice")


def _least(holds: Callable[[float], bool], most: float, within: float = _WITHIN) -> float | None:
    """Return the least factor above 1 that holds, within a ratio; None where the largest does not.

    Squares the factor from 10 % on, then bisects on the logarithm; the returned factor was tried and holds. The largest
    is tried first, which saves the others where none holds.
    """
    if not holds(most):
        return None
    low, high = 1.0, min(1.1, most)
    while high < most and not holds(high):
        low, high = high, min(high * high, most)
    while high / low > within:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
