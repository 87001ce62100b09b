"""Solving only what matters gives what solving everything gives."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import strategies as st

from planner.instances.candidates import Count
from planner.instances.space import role_rows
from planner.objective import Aim
from planner.offers.decode_offers import decode_offers
from planner.offers.prefill_offers import prefill_offers
from planner.programme.columns import Side
from planner.programme.programme import Programme
from planner.programme.proof import proven
from tests.planner.programme.offers import offers_of
from tests.questions import machines, small_question

POOL = machines("qwen3-8b", "h100", 6)
# A loss of nearly all would leave rates of 1e-16, which no solver tells from none.
OFFER = st.tuples(st.integers(1, 6), st.floats(1, 20), st.floats(0, 0.99), st.floats(1, 1.5))


@dataclass
class Queue:
    """A server with a rate per instance that grows with their number, up to a bound."""

    each: float
    gain: float
    solved: list[int] = field(default_factory=list)
    independent: bool = False
    few: float | None = None

    def likely_capacity(self, instances: int, least_per_second: float, lower_per_second: float = 0.0) -> float | None:
        """What few requests show, but for what is less than the least."""
        return None if self.few is None else max(instances * self.few, 0.9 * least_per_second)

    def pool_capacity(self, instances: int) -> float:
        """Largest rate."""
        self.solved.append(instances)
        return instances * self.each * (1 - self.gain / instances)

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether it is at least so much."""
        return self.pool_capacity(instances) >= rate_per_second

    def at(self, instances: int) -> "Queue":
        """Nothing to choose."""
        return self


def test_hopeless_columns_are_never_solved():
    """One offer is far ahead: nothing else is asked for its queue."""
    queues = [Queue(10.0, 0.0), Queue(1.0, 0.0)]
    offers = offers_of(*((1, queue.each * 1.02, lambda queue=queue: queue) for queue in queues))
    own = Side("prefill", POOL, offers)

    Programme((((own,),),), Aim(devices={POOL.budget: 6}, objective="throughput")).settle()

    assert queues[0].solved and not queues[1].solved


def test_offers_race_on_few_requests_before_one_is_solved():
    """All bounds let them lead; the offer that leads on few requests is solved in full, the others are only tried."""
    queues = [Queue(few * 0.95, 0.0, few=few) for few in (8.0, 10.0, 9.0)]
    own = Side("mixed", POOL, offers_of(*((1, 12.0, lambda queue=queue: queue) for queue in queues)))
    programme = Programme((((own,),),), Aim(devices={POOL.budget: 6}, objective="throughput"))

    likely = programme.likely()

    assert own.offer[likely[0].columns[0]] == 1
    assert [bool(queue.solved) for queue in queues] == [False, True, False]
    assert programme.carried(programme.settle()) == pytest.approx(57.0)


def test_offers_race_once_one_carries_more_than_the_incumbent():
    """Bounds are in the wrong order; of three that carry more than the incumbent only the best is solved in full."""
    queues = [Queue(few * 0.95, 0.0, few=few) for few in (8.0, 9.0, 10.0)]
    kinds = zip((12.0, 11.9, 11.8), queues, strict=True)
    own = Side("mixed", POOL, offers_of(*((1, bound, lambda queue=queue: queue) for bound, queue in kinds)))
    programme = Programme((((own,),),), Aim(devices={POOL.budget: 6}, objective="throughput"))

    assert programme.carried(programme.settle(0.5)) == pytest.approx(57.0)
    solved = [column for column in np.flatnonzero(own.exact) if own.instances[column] == 6]
    assert own.offer[solved].tolist() == [2]


@pytest.mark.parametrize("each", [7.0, 9.0])
def test_offers_that_are_thought_to_carry_less_than_the_incumbent_are_still_proven(each: float) -> None:
    """Few requests show 6 each, the incumbent carries 8: the search ends, and finds the offer where it carries more."""
    own = Side("mixed", POOL, offers_of((1, 12.0, lambda: queue)))
    queue = Queue(each, 0.0, few=6.0)
    programme = Programme((((own,),),), Aim(devices={POOL.budget: 6}, objective="throughput"))

    picks = programme.settle(48.0)

    assert (picks is not None) == (each > 8) and (picks is None or programme.carried(picks) == pytest.approx(54.0))


@dataclass
class Counted(Queue):
    """A server whose few requests take a turn."""

    count: Count = field(default_factory=Count)

    def likely_capacity(self, instances: int, least_per_second: float, lower_per_second: float = 0.0) -> float | None:
        """What few requests show, but for what is less than the least."""
        self.count.turns += 1
        return super().likely_capacity(instances, least_per_second, lower_per_second)


@pytest.mark.parametrize(("end", "carried", "solved"), [(0, 48.0, 1), (1, 54.0, 1), (9, 54.0, 2)])
def test_a_long_search_ends_with_the_best_so_far_and_says_so(end: int, carried: float, solved: int) -> None:
    """What the high bound of an offer leaves open is the gap of a search that ended: in the race, or after it."""
    count = Count(end=end)
    queues = [Counted(each, 0.0, few=each, count=count) for each in (8.0, 9.0)]
    kinds = zip((12.0, 11.0), queues, strict=True)
    own = Side("mixed", POOL, offers_of(*((1, bound, lambda queue=queue: queue) for bound, queue in kinds)))
    programme = Programme((((own,),),), Aim(devices={POOL.budget: 6}, objective="throughput"), count=count)

    picks = programme.settle()
    bound = proven(programme, picks, [""], ())

    assert programme.carried(picks) == pytest.approx(carried)
    assert bound.reached == pytest.approx(carried) and sum(bool(queue.solved) for queue in queues) == solved
    assert bound.ended == (end < 9) and (bound.value > 60) == bound.ended


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "qwen3-8b", "devices": 4, "squared_cv": 1.0},
        {"model": "qwen3-8b", "devices": 4, "ttft_seconds": 0.06},
        {"hardware": "cm384", "devices": 8, "tpot_seconds": 0.02},
    ],
    ids=str,
)
def test_no_queue_passes_its_bound(asked):
    """Of a sample of offers and counts, with equal prompts and with others."""
    question = small_question(**asked)
    random = np.random.default_rng(5)
    offers = [
        prefill_offers(question, role_rows(question, "prefill"), Count()),
        decode_offers(question, role_rows(question, "decode"), Count(), 0.001),
    ]
    for own in offers:
        assert own
        for number in random.choice(len(own), min(len(own), 3), replace=False):
            rates = [own.build(int(number)).pool_capacity(count) / count for count in (1, 3)]
            assert max(rates) <= own.bound_per_second[number] * (1 + 1e-6)


def test_other_numbers_of_a_solved_kind_come_before_other_kinds():
    """One kind is guessed best, carries half of that and is still the best: others are asked for no less than that."""
    asked: list[float] = []

    class Slow(Queue):
        def pool_carries(self, instances: int, rate_per_second: float) -> bool:
            asked.append(rate_per_second)
            return super().pool_carries(instances, rate_per_second)

    kinds = [Queue(5.0, 0.0), *(Slow(each, 0.0) for each in (1.0, 2.0, 3.0))]
    prefill = Side("prefill", POOL, offers_of(*((1, 10.0, lambda kind=kind: kind) for kind in kinds)))
    decode = Side("decode", POOL, offers_of((1, 5.0, lambda: Queue(5.0, 0.0))))

    both = Programme((((prefill, decode),),), Aim(devices={POOL.budget: 6}, objective="throughput"))
    choice = both.likely()

    assert choice is not None and both.carried(choice) == 15.0
    assert asked and min(asked) >= 15.0


def test_one_look_at_the_most_instances_tells_of_fewer():
    """A kind whose six instances carry less than is known is not asked for one, two, ... of them."""
    asked: list[int] = []

    class Slow(Queue):
        def pool_carries(self, instances: int, rate_per_second: float) -> bool:
            asked.append(instances)
            return super().pool_carries(instances, rate_per_second)

    slow = Slow(1.0, 0.0)
    own = Side("prefill", POOL, offers_of((1, 5.0, lambda: Queue(5.0, 0.0)), (1, 30.0, lambda: slow)))

    both = Programme((((own,),),), Aim(devices={POOL.budget: 6}, objective="throughput"))
    choice = both.settle(29.0)

    assert choice is not None and both.carried(choice) == 30.0
    assert asked == [6]


def test_no_more_instances_are_looked_at_than_cost_less_than_what_is_known():
    """Two of a good kind carry the rate on four devices: of a slow kind three are asked for, and so not one or two."""
    slow = Queue(5.0, 0.0)
    own = Side("prefill", POOL, offers_of((2, 10.0, lambda: Queue(10.0, 0.0)), (1, 30.0, lambda: slow)))
    aim = Aim(devices={POOL.budget: 6}, objective="chips", rate=18.0)

    both = Programme((((own,),),), aim)
    own.solve(int(np.flatnonzero((own.offer == 0) & (own.left == 2))[0]), 18.0)
    choice = both.settle(18.0)

    assert choice is not None and both.incumbent(choice).spent[0] == 4.0
    assert 3 in slow.solved and not {1, 2} & set(slow.solved)


@pytest.mark.parametrize("rate", [10.0, 24.0, 31.0])
def test_what_suffices_is_solved_alone(rate: float) -> None:
    """Any columns that carry the rate, where there are some; how much others carry is not asked."""
    queues = [Queue(4.0, 0.5), Queue(5.0, 0.0)]
    offers = offers_of(*((1, 2 * queue.each, lambda queue=queue: queue) for queue in queues))
    own = Side("prefill", POOL, offers)
    picks = Programme((((own,),),), Aim(devices={POOL.budget: 6}, objective="chips", rate=rate)).sufficient()

    assert (picks is None) == (rate > 30)
    if picks is not None:
        found = picks[0].columns
        assert own.server(int(own.offer[found[0]])).pool_carries(int(own.left[found[0]]), rate)
        assert own.exact.sum() == 1
