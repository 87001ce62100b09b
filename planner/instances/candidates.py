"""The best instance of each size of a role, over all its rows, microbatches and drafts."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from planner.instances.decode_candidates import Count, DecodeCandidate, Floor, decode_candidates
from planner.instances.prefill_candidates import PrefillCandidate, prefill_candidates
from planner.instances.space import Group, Row, groups, role_rows
from planner.question import Question

Candidate = TypeVar("Candidate", PrefillCandidate, DecodeCandidate)


def best_per_size(found: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidate with the highest rate of each instance size, smallest size first."""
    best: dict[int, Candidate] = {}
    for candidate in found:
        known = best.get(candidate.devices)
        if known is None or candidate.requests_per_second > known.requests_per_second * (1 + 1e-9):
            best[candidate.devices] = candidate
    return [best[devices] for devices in sorted(best)]


def prefill_found(question: Question, count: Count) -> list[PrefillCandidate]:
    """Return the best prefill candidate of each instance size.

    A prompt waits for the rest of a running pass and then for its own, so passes of half the TTFT
    limit are tried first and longer ones only for sizes where none is that short.
    """
    rows = role_rows(question, "prefill")
    found: list[PrefillCandidate] = []
    for longest in (question.ttft_seconds / 2, question.ttft_seconds):
        known = {candidate.devices for candidate in found}
        rows = [row for row in rows if row.strategy.devices not in known]
        for microbatches in sorted(usable_microbatches(question), reverse=True):
            for group in groups(question, "prefill", _overlapping(rows, microbatches), 0):
                found += prefill_candidates(question, group, microbatches, count, longest, floor_of(found))
    return best_per_size(found)


def decode_all(question: Question, count: Count) -> list[DecodeCandidate]:
    """Return the best decode candidate of each instance size within the TPOT limit."""
    return decode_found(question, count, question.tpot_seconds, role_rows(question, "decode"))


def decode_found(question: Question, count: Count, tpot_seconds: float, rows: Sequence[Row]) -> list[DecodeCandidate]:
    """Return the best candidate of each instance size among given rows."""
    found: list[DecodeCandidate] = []
    for drafts in sorted(question.drafts, reverse=True):
        for microbatches in sorted(usable_microbatches(question), reverse=True):
            for group in groups(question, "decode", _overlapping(rows, microbatches), drafts):
                found += decode_candidates(question, group, microbatches, count, tpot_seconds, floor_of(found))
    return best_per_size(found)


def _overlapping(rows: Sequence[Row], microbatches: int) -> list[Row]:
    """Return the rows in which the engine runs so many microbatches."""
    return [row for row in rows if row.microbatches >= microbatches]


def floor_of(found: Sequence[PrefillCandidate] | Sequence[DecodeCandidate]) -> Floor:
    """Requests per second that the best candidate found so far of each size carries."""
    floor: Floor = {}
    for candidate in found:
        floor[candidate.devices] = max(floor.get(candidate.devices, 0.0), candidate.requests_per_second)
    return floor


def usable_microbatches(question: Question, group: Group | None = None) -> Sequence[int]:
    """Two microbatches overlap attention with experts: a dense model has nothing to gain, some engines cannot."""
    if question.model.moe is None:
        return (1,)
    most = group.rows[0].microbatches if group is not None and group.rows else 2
    return tuple(parts for parts in question.microbatches if parts <= most)


def row_microbatches(question: Question, row: Row) -> Sequence[int]:
    """Return the microbatches of one row, likewise."""
    if question.model.moe is None:
        return (1,)
    return tuple(parts for parts in question.microbatches if parts <= row.microbatches)
