"""Which instance sizes deserve a queue: those that a plan could use, by their saturation rates.

All sizes are costed on arrays; queues are solved for the few that come out best when pools are
packed with nominal rates, a fixed part of saturation.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from planner.decode_candidates import DecodeCandidate
from planner.prefill_candidates import PrefillCandidate
from planner.question import Question
from planner.survival import lost_instances

# Instance sizes whose queues are solved, per pool.
QUEUED_SIZES = 8
# Part of its saturation rate that a queue is expected to carry within its limit; only ranks sizes.
NOMINAL = {"prefill": 0.93, "decode": 0.97}

Candidate = TypeVar("Candidate", PrefillCandidate, DecodeCandidate)


def best_per_size(found: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidate with the highest rate of each instance size, smallest size first."""
    best: dict[int, Candidate] = {}
    for candidate in found:
        known = best.get(candidate.devices)
        if known is None or candidate.requests_per_second > known.requests_per_second * (1 + 1e-9):
            best[candidate.devices] = candidate
    return [best[devices] for devices in sorted(best)]


def shortlist(
    question: Question, prefill: Sequence[PrefillCandidate], decode: Sequence[DecodeCandidate]
) -> tuple[list[PrefillCandidate], list[DecodeCandidate]]:
    """Return the candidates of the sizes that occur in the best packings of both pools.

    For every pair of sizes the best counts are found with nominal rates: the highest rate on the
    devices, or the fewest devices for the asked rate. Each size is ranked by its best pair.
    """
    scores: dict[tuple[str, int], float] = {}
    for first in prefill:
        for second in decode:
            score = pair_score(question, first, second)
            for key in (("prefill", first.devices), ("decode", second.devices)):
                scores[key] = max(scores.get(key, -math.inf), score)
    return pick(scores, "prefill", prefill), pick(scores, "decode", decode)


def pick(scores: dict[tuple[str, int], float], role: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates of the best-scored sizes."""

    def rank(candidate: Candidate) -> tuple[float, int]:
        return -scores.get((role, candidate.devices), -math.inf), candidate.devices

    return sorted(candidates, key=rank)[:QUEUED_SIZES]


def pair_score(question: Question, first: PrefillCandidate, second: DecodeCandidate) -> float:
    """Requests per second that the best counts of two sizes carry, or minus the devices for an asked rate."""
    rates = (NOMINAL["prefill"] * first.requests_per_second, NOMINAL["decode"] * second.requests_per_second)
    shared = question.prefill.budget == question.decode.budget
    room = question.prefill.devices, question.decode.devices
    lost = (
        lost_instances(question.survive, first.devices, question.prefill.devices_per_node),
        lost_instances(question.survive, second.devices, question.decode.devices_per_node),
    )
    asked = question.rate_per_second if question.objective in ("chips", "cost") else None
    if asked is not None:
        used = [
            (math.ceil(asked / rates[0]) + lost[0]) * first.devices,
            (math.ceil(asked / rates[1]) + lost[1]) * second.devices,
        ]
        fits = sum(used) <= room[0] if shared else used[0] <= room[0] and used[1] <= room[1]
        return -float(sum(used)) if fits else -1e9 - sum(used)
    best = 0.0
    for count in range(1, room[1] // second.devices + 1):
        left = room[0] - count * second.devices if shared else room[0]
        best = max(best, min((count - lost[1]) * rates[1], (left // first.devices - lost[0]) * rates[0]))
    return best
