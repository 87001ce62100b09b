"""Passes of many instances at once: against the same rule written out prompt by prompt."""

from collections import deque

import numpy as np
import pytest

from planner.balance.imbalance import parse_balance
from planner.costs.latency import balanced_cost
from planner.queues.machine import Machine
from planner.queues.pass_surface import PassSurface
from planner.queues.prompts import Prompts
from planner.queues.recorded_prefill import prefill_recorded
from planner.queues.sampled_passes import Lanes, PassRecursion, Streams
from planner.workload import Trace
from tests.instances import instance

TOKENS = np.array([150.0, 700.0, 1900.0, 5200.0, 13_000.0])
REUSED = np.array([0.0, 300.0, 0.0, 4000.0, 0.0])
WEIGHTS = np.array([0.4, 0.3, 0.2, 0.07, 0.03])
PROMPTS = Prompts(TOKENS, REUSED, WEIGHTS)
NONE = np.zeros(8, dtype=np.int64)


def _machine(ranks: int, budget: float = 2048.0) -> Machine:
    degrees = {"attention_dp": ranks, "moe_ep": ranks} if ranks > 1 else {}
    deployment = instance("qwen3-30b-a3b", "h800", "prefill", "bf16", **degrees)
    return Machine(balanced_cost(deployment, parse_balance("perfect")), ranks, budget, 1)


def _streams(ranks: int, streams: int, places: int) -> tuple[Streams, np.ndarray]:
    rng = np.random.default_rng(ranks)
    kinds = rng.choice(TOKENS.size, (streams, places), p=WEIGHTS)
    return Streams.of(np.cumsum(rng.exponential(1.0, kinds.shape), axis=1), kinds, ranks), kinds


def _by_hand(machine, surface, arrivals, kinds):
    """When each prompt's last pass ends: groups as lists, one prompt after the other."""
    queue, under_way = deque(range(kinds.size)), {}
    ends, now = np.zeros(kinds.size), 0.0
    while queue or under_way:
        begin = now if under_way else max(now, arrivals[queue[0]])
        room, loads = [machine.budget_tokens] * machine.ranks, np.zeros((machine.ranks, 4))
        last, going_on = [], {}

        def put(group, prompt, done, room=room, loads=loads, last=last, going_on=going_on):
            tokens, reused = TOKENS[kinds[prompt]], REUSED[kinds[prompt]]
            end = min(done + room[group], tokens)
            room[group] -= end - done
            cached = min(max(done, reused), end)
            new = end - cached
            loads[group] += [new, cached if new else 0, new * cached + new * (new + 1) / 2, end == tokens]
            if end == tokens:
                last.append(prompt)
            else:
                going_on[group] = (prompt, end)

        for group, (prompt, done) in under_way.items():
            put(group, prompt, done)
        while queue and arrivals[queue[0]] <= begin:
            start = REUSED[kinds[queue[0]]] // machine.budget_tokens * machine.budget_tokens
            left = TOKENS[kinds[queue[0]]] - start
            group = int(np.argmax(room))
            if room[group] < (left if left <= machine.budget_tokens else 1):
                break
            put(group, queue.popleft(), start)
        busiest = loads[[loads[:, 0].argmax(), loads[:, 2].argmax()]].T
        took = surface.seconds(tuple(busiest), np.full(2, loads[:, 0].mean())).max()
        now, under_way = begin + took, going_on
        ends[last] = now
    return ends


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_every_pass_is_that_of_the_rule(ranks: int) -> None:
    """Prompts cut, reused and short ones on one to eight groups at three loads: the same ends to the last digit."""
    machine = _machine(ranks)
    surface = PassSurface(machine, float(TOKENS.max()))
    streams, kinds = _streams(ranks, 2, 150)
    rates = np.array([0.2, 0.8, 3.0]) * ranks
    lanes = Lanes(np.repeat([0, 1], 3), np.tile(rates, 2), np.zeros(6), NONE[:6], NONE[:6], np.full(6, 150))
    found = PassRecursion(machine, PROMPTS, surface).finished(streams, lanes)
    for lane in range(6):
        arrivals = streams.arrivals[lane // 3, :150] / lanes.rates[lane]
        assert found[lane].tolist() == _by_hand(machine, surface, arrivals, kinds[lane // 3]).tolist()


def test_lanes_do_not_know_of_one_another() -> None:
    """What an instance does is the same alone and beside others."""
    machine = _machine(4)
    recursion = PassRecursion(machine, PROMPTS, PassSurface(machine, float(TOKENS.max())))
    streams, _ = _streams(4, 5, 200)
    every = Lanes(
        np.arange(5), np.linspace(1.0, 9.0, 5), np.linspace(0.0, 2.0, 5), NONE[:5], np.full(5, 20), np.full(5, 150)
    )
    together = recursion.finished(streams, every)
    for lane in range(5):
        columns = (every.stream, every.rates, every.begin_seconds, every.start, every.first, every.last)
        one = Lanes(*(column[[lane]] for column in columns))
        assert recursion.finished(streams, one).tolist() == together[[lane]].tolist()


class _Counted:
    """A second a pass; the tokens of all."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.tokens = ranks, 0.0

    def seconds(self, load, mean_tokens):
        self.tokens += mean_tokens[: mean_tokens.size // 2].sum() * self.ranks
        return np.ones(mean_tokens.size)


def test_tokens_are_neither_lost_nor_computed_twice() -> None:
    """All passes together compute what the prompts bring less what was reused."""
    counted = _Counted(4)
    streams, kinds = _streams(4, 3, 300)
    lanes = Lanes(np.arange(3), np.array([2.0, 8.0, 50.0]), np.zeros(3), NONE[:3], NONE[:3], np.full(3, 300))
    found = PassRecursion(_machine(4), PROMPTS, counted).finished(streams, lanes)  # type: ignore[arg-type]
    assert np.isfinite(found).all()
    assert counted.tokens == (TOKENS - REUSED)[kinds].sum()


def test_it_agrees_with_the_recursion_of_recorded_streams() -> None:
    """The same prompts there, with a table of its own: mean within 2 %, 99th percentile within 4 %."""
    machine = _machine(4)
    streams, kinds = _streams(4, 1, 2500)
    rate = 12.0
    arrivals = streams.arrivals[0, :2500] / rate
    trace = Trace(
        arrival_seconds=arrivals,
        input_tokens=TOKENS[kinds[0]],
        output_tokens=np.ones(2500),
        reused_tokens=REUSED[kinds[0]],
    )
    told = prefill_recorded(machine, 1, "round_robin", trace).first_token_seconds - arrivals
    lanes = Lanes(NONE[:1], np.array([rate]), np.zeros(1), NONE[:1], NONE[:1], np.array([2500]))
    recursion = PassRecursion(machine, PROMPTS, PassSurface(machine, float(TOKENS.max())))
    found = recursion.finished(streams, lanes)[0] - arrivals
    assert found.mean() == pytest.approx(told.mean(), rel=0.02)
    assert np.quantile(found, 0.99) == pytest.approx(np.quantile(told, 0.99), rel=0.04)
