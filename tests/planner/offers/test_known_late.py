"""What one late instance tells of others, against their own queues."""

import math
from dataclasses import replace
from functools import cache

import pytest

from planner.instances.decode_candidates import Count
from planner.instances.operating import MOST_UTILISATION
from planner.instances.space import role_rows
from planner.offers.kinds import PrefillKind
from planner.offers.known_late import KnownLate
from planner.offers.prefill_offers import prefill_offers
from planner.queues.machine import Machine
from tests.questions import small_question


@cache
def _kinds() -> list[PrefillKind]:
    question = small_question("deepseek-v2-lite", "cm384", 8, squared_cv=1.0, lengths=(2048.0, 128.0), ttft_seconds=0.4)
    offers = prefill_offers(question, role_rows(question, "prefill"), Count())
    kinds = [offers.build(number) for number in range(len(offers))]
    return [kind for kind in kinds if isinstance(kind, PrefillKind) and kind.budgets.prompts.size]


def _slowed(machine: Machine, seconds: float) -> Machine:
    """The same with so much more in every pass."""
    return replace(machine, cost=replace(machine.cost, host_seconds=machine.cost.host_seconds + seconds))


def test_slower_ones_are_told_late_and_quicker_ones_are_not() -> None:
    """At the same rate, at more instances, at lower rates; of instances that cannot keep up, too."""
    machine, limit = _kinds()[0]._server(0).machine, 0.4
    known = KnownLate(limit, 16384.0)
    known.add(machine, 2, (5.0, 10.0), 1.5 * limit)

    assert known.least_tail(machine, 2, 5.0) == pytest.approx(1.5 * limit)
    assert known.least_tail(_slowed(machine, 0.01), 2, 5.0) > 1.5 * limit
    assert 1.4 * limit < known.least_tail(machine, 2, 4.9) < 1.5 * limit
    assert known.least_tail(machine, 2, 4.0) == 0  # far below the rate that is known
    assert known.least_tail(machine, 3, 5.0) == 0  # prompts come more evenly
    assert known.least_tail(replace(machine, budget_tokens=2 * machine.budget_tokens), 2, 5.0) == 0
    known.add(machine, 1, (50.0, 10.0), math.inf)
    assert math.isinf(known.least_tail(machine, 1, 10.0))
    assert known.least_tail(machine, 1, 9.9) < math.inf


def test_what_rows_tell_of_each_other_is_so() -> None:
    """Rows of a search, asked for a rate with and without what others have shown: the same ones carry it."""
    question, told = _kinds()[0].question, 0
    rows: dict[tuple[int, int], list[PrefillKind]] = {}
    for kind in _kinds():
        rows.setdefault((kind.row.strategy.devices, kind.row.strategy.attention_dp), []).append(kind)
    for own in [own for own in rows.values() if len(own) > 1][:2]:
        rate = 1.05 * max(kind.pool_capacity(1) for kind in own[:2])
        late = KnownLate(question.ttft_seconds, 16384.0)
        for kind in own[:2]:
            alone = [kind._tail(place, 1, rate) for place in range(kind.budgets.prompts.size)]
            for place, tail in enumerate(alone):
                machine = kind._server(place).machine
                if late.least_tail(machine, 1, rate):
                    told += 1
                    assert tail > question.ttft_seconds
                if tail > question.ttft_seconds:
                    late.add(machine, 1, (rate, MOST_UTILISATION * kind._server(place).saturation_per_second), tail)
    assert told
