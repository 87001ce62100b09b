"""Decode rows of which only the leading ones are solved, against all of them solved."""

import numpy as np
import pytest

from planner.instances.candidates import Count
from planner.instances.space import role_rows
from planner.offers import decode_offers as rooms
from planner.offers.decode_kinds import DecodeKind
from planner.offers.offer import Offers
from planner.question import Question
from tests.questions import small_question

ASKED = [
    {"hardware": "cm384", "devices": 64, "tpot_seconds": 0.05, "drafts": (0, 1)},
    {"hardware": "cm384", "devices": 64, "tpot_seconds": 0.02, "drafts": (0,), "microbatches": (2,)},
    {"model": "qwen3-30b-a3b", "devices": 16, "tpot_seconds": 0.015},
    {"model": "qwen3-8b", "devices": 4, "tpot_seconds": 0.008},
]


def offers_of(question: Question, leading: int, few: int) -> tuple[Offers, int]:
    """Return the offers of decode with so many rows of each size solved, and the candidates that were costed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rooms, "LEADING", leading)
        patch.setattr(rooms, "FEW", few)
        count = Count()
        offers = rooms.decode_offers(question, role_rows(question, "decode"), count, 0.002)
        return offers, count.evaluated


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_what_is_left_open_is_bounded_and_the_leading_rows_are_not(asked):
    """No bound is below what a row carries, and of each size those that carry most are known in their order."""
    question = small_question(**asked)
    every, _ = offers_of(question, 2, 10**9)
    some, _ = offers_of(question, 2, 0)

    assert some.devices.tolist() == every.devices.tolist()
    assert (some.bound_per_second >= every.bound_per_second * (1 - 1e-9)).all()
    for devices in set(every.devices.tolist()):
        own = np.flatnonzero(every.devices == devices)
        first, other = (own[np.argsort(-offers.bound_per_second[own], kind="stable")][:2] for offers in (every, some))
        assert some.bound_per_second[other] == pytest.approx(every.bound_per_second[first], rel=1e-9)


@pytest.mark.parametrize("asked", ASKED[:3], ids=str)
def test_rows_that_were_left_open_are_built_as_all_others_are(asked):
    """The largest batch, its microbatches and its seconds."""
    question = small_question(**asked)
    every, some = offers_of(question, 1, 10**9)[0], offers_of(question, 1, 0)[0]

    left = np.flatnonzero(some.bound_per_second > every.bound_per_second * (1 + 1e-9))
    assert left.size
    for number in left[:: max(left.size // 12, 1)].tolist():
        one, other = every.build(number), some.build(number)
        assert isinstance(one, DecodeKind) and isinstance(other, DecodeKind)
        assert one.full.candidate.batch == other.full.candidate.batch
        assert one.full.candidate.microbatches == other.full.candidate.microbatches
        assert one.full.candidate.iteration_seconds == pytest.approx(other.full.candidate.iteration_seconds, rel=1e-9)


@pytest.mark.parametrize(("share", "percentile"), [(0.5, 99.0), (0.8, 50.0), (0.98, 99.0)])
def test_no_cap_carries_more_than_the_row(share, percentile):
    """A load that is bounded gets more slots, not a lower rate; and bounds are no smaller than what is carried."""
    asked = {"most_utilisation": share, "percentile": percentile, "tpot_seconds": 0.03}
    offers, _ = offers_of(small_question("qwen3-30b-a3b", "h20", 4, lengths=(4096.0, 256.0), **asked), 2, 0)
    for number in range(0, len(offers), 6):
        kind = offers.build(number)
        most = kind.pool_capacity(1)
        assert most <= kind.bound_per_second * (1 + 1e-9) <= offers.bound_per_second[number] * (1 + 2e-9)
        for cap in np.geomspace(kind._full[0][0], kind.room, 12).astype(int).tolist():
            assert kind._server(cap).pool_capacity(1) <= most * (1 + 1e-9)
