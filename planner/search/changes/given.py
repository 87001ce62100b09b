"""Given strategies and batches of a question without a plan: what does not fit, and values that have a plan."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from planner.instances.candidates import Count
from planner.instances.space import groups, role_rows
from planner.offers.aggregated_offers import holding
from planner.offers.decode_offers import decode_offers
from planner.offers.prefill_offers import prefill_offers
from planner.plans.plan import Plan
from planner.plans.pools import PlannedPool
from planner.question import Pin, Question, Role
from planner.search.answer import Change
from planner.search.search import search

_LONG_SECONDS = 1e9
"""A latency limit that never binds."""
_IN_PASSES = ("batch", "tokens")


def unheld(question: Question) -> tuple[str, str] | None:
    """Return (binding limit, sentence) where memory does not hold the given batch or tokens."""
    for role, pin in question.pins:
        for field in _IN_PASSES:
            if getattr(pin, field) is None or _held(question, role) or not _held(_without(question, field), role):
                continue
            return (
                "memory",
                f"--{field} {role}={getattr(pin, field)}: no {role} instance that may be holds as many",
            )
    return None


def _held(question: Question, role: Role) -> bool:
    """Whether an instance of a role fits in memory, whatever its latency."""
    loose, rows = replace(question, ttft_seconds=_LONG_SECONDS, tpot_seconds=_LONG_SECONDS), role_rows(question, role)
    if role == "mixed":
        return any(holding(loose, group).size for group in groups(loose, role, rows, min(question.drafts)))
    offers = prefill_offers(loose, rows, Count()) if role == "prefill" else decode_offers(loose, rows, Count(), 0.0)
    return len(offers) > 0


def _without(question: Question, field: str) -> Question:
    """Return the question with one given field left to the search."""
    return replace(question, pins=tuple((role, replace(pin, **{field: None})) for role, pin in question.pins))


def eased(question: Question) -> Iterator[Change]:
    """Yield, for each given field, the value of the best plan without it, the others kept; each is solved."""
    for field in fields(Pin):
        if all(getattr(pin, field.name) is None for _, pin in question.pins):
            continue
        best = search(_without(question, field.name), explain=False, beside=False).best
        if best is not None:
            flag, text = _as_in(best, question, field.name)
            yield Change(direction=flag, told=f"--{flag} {text}")


def _as_in(plan: Plan, question: Question, field: str) -> tuple[str, str]:
    """Return the flag of a field, and its value in a plan."""
    given = {role for role, pin in question.pins if getattr(pin, field) is not None}
    pins = tuple((pool.role, Pin(**{field: _value(pool, field)})) for _, pool in plan.pools() if pool.role in given)
    ((flag, text),) = replace(question, pins=pins).given.items() or (("shape", plan.pools()[0][0]),)
    return flag.replace("_", "-"), text


def _value(pool: PlannedPool, field: str) -> Any:
    candidate, row = pool.candidate, pool.candidate.row
    if field == "instances":
        return pool.instances
    if field in _IN_PASSES:
        name = {"prefill": "tokens_per_device", "mixed": "batched_tokens"}[pool.role] if field == "tokens" else field
        return getattr(candidate, name)
    return {"strategy": row.strategy, "redundant": row.redundant}.get(field, row.dedicated or "local")
