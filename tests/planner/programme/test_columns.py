"""Solving only what matters gives what solving everything gives."""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st

from planner.instances.candidates import Count
from planner.objective import Aim
from planner.programme.columns import Side
from planner.programme.programme import Programme
from planner.programme.proof import proven
from tests.planner.programme.offers import offers_of
from tests.questions import machines

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


def test_offers_race_on_few_requests_before_one_is_solved():
    """All bounds let them lead; the offer that leads on few requests is solved in full, the others are only tried."""
    queues = [Queue(few * 0.95, 0.0, few=few) for few in (8.0, 10.0, 9.0)]
    own = Side("mixed", POOL, offers_of(*((1, 12.0, lambda queue=queue: queue) for queue in queues)))
    programme = Programme((((own,),),), Aim(devices={POOL.budget: 6}, objective="throughput"))

    likely = programme.likely()

    assert own.offer[likely[0].columns[0]] == 1
    assert [bool(queue.solved) for queue in queues] == [False, True, False]
    assert programme.carried(programme.settle()) == pytest.approx(57.0)


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
