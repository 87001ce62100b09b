"""Passes of a recorded stream: against passes that can be done by hand, and Lindley's recursion."""

import numpy as np
import pytest

from planner.balance.imbalance import parse_balance
from planner.costs.latency import balanced_cost
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from planner.queues.machine import Machine
from planner.queues.recorded_prefill import prefill_recorded
from planner.workload import Trace
from tests.instances import instance


def _machine(budget: float, ranks: int = 1) -> Machine:
    degrees = {"attention_dp": ranks, "moe_ep": ranks} if ranks > 1 else {}
    deployment = instance("qwen3-30b-a3b", "h800", "prefill", "bf16", **degrees)
    return Machine(balanced_cost(deployment, parse_balance("perfect")), ranks, budget, 1)


def _pass(machine: Machine, *parts: tuple[int, int, bool]) -> float:
    """Seconds of a pass of (tokens, cached tokens, whether the prompt ends) on one group."""
    tokens = float(sum(part[0] for part in parts))
    load = StepLoad(
        prefill_tokens=tokens,
        prefill_context_tokens=float(sum(part[1] for part in parts)),
        prefill_pairs=float(sum(new * done + new * (new + 1) / 2 for new, done, _ in parts)),
        finishing_prompts=float(sum(part[2] for part in parts)),
        mean_tokens=tokens / machine.ranks,
    )
    return float(evaluate(machine.cost, load, 1).seconds)


def _trace(arrival, tokens, reused=None) -> Trace:
    return Trace(arrival_seconds=arrival, input_tokens=tokens, output_tokens=np.ones(len(tokens)), reused_tokens=reused)


def test_passes_by_hand():
    """Four prompts at once, room for two and a half: two passes, and the third prompt waits for its own."""
    machine = _machine(2500)
    found = prefill_recorded(machine, 1, "round_robin", _trace([0.0] * 4, [1000] * 4))
    full = _pass(machine, (1000, 0, True), (1000, 0, True))
    assert found.first_token_seconds == pytest.approx([full, full, 2 * full, 2 * full], rel=0.01)
    assert found.busy_seconds == pytest.approx(2 * full, rel=0.01)


def test_a_long_prompt_takes_several_passes_and_shares_its_last():
    """5,000 tokens at a budget of 2,000: three passes, the last of which has room for the prompt behind."""
    machine = _machine(2000)
    found = prefill_recorded(machine, 1, "round_robin", _trace([0.0, 0.0], [5000, 800]))
    parts = [_pass(machine, (2000, 0, False)), _pass(machine, (2000, 2000, False))]
    last = _pass(machine, (1000, 4000, True), (800, 0, True))
    assert found.first_token_seconds == pytest.approx([sum(parts) + last] * 2, rel=0.01)


def test_whole_reused_parts_take_no_pass():
    """Of 5,000 tokens 4,500 are reused: one pass with 500 new tokens on top of them."""
    machine = _machine(2000)
    found = prefill_recorded(machine, 1, "round_robin", _trace([0.0], [5000], [4500]))
    assert found.first_token_seconds[0] == pytest.approx(_pass(machine, (500, 4500, True)), rel=0.01)


def test_one_prompt_per_pass_is_lindley():
    """Where a pass holds one prompt, waits are max(0, wait + service - gap), whatever the arrivals."""
    machine = _machine(1000)
    random = np.random.default_rng(0)
    alone = _pass(machine, (1000, 0, True))
    arrival = np.cumsum(random.gamma(0.3, alone / 0.3 / 0.8, 500))
    found = prefill_recorded(machine, 1, "round_robin", _trace(arrival, [1000] * 500))
    wait, waits = 0.0, [0.0]
    for gap in np.diff(arrival):
        wait = max(0.0, wait + alone - gap)
        waits.append(wait)
    assert found.first_token_seconds - arrival == pytest.approx(np.array(waits) + alone, rel=0.01)


def test_instances_take_turns_or_the_least_load():
    """A long prompt at one of two instances: in turn the third prompt waits behind it, by load it does not."""
    machine = _machine(4000)
    trace = _trace([0.0, 0.001, 0.002], [4000, 1000, 1000])
    turns, least = (prefill_recorded(machine, 2, policy, trace) for policy in ("round_robin", "least_load"))
    assert turns.first_token_seconds[2] > turns.first_token_seconds[0]
    assert least.first_token_seconds[2] < least.first_token_seconds[0]
    assert turns.origin.tolist() == [0, 1, 0]
    assert least.origin.tolist() == [0, 1, 1]


def test_groups_share_a_pass():
    """Eight prompts on eight groups end in one pass; so many more behind them in the next one."""
    machine = _machine(1000, ranks=8)
    found = prefill_recorded(machine, 1, "round_robin", _trace([0.0] * 12, [1000] * 12))
    assert len(set(found.first_token_seconds[:8])) == 1
    assert len(set(found.first_token_seconds[8:])) == 1
    assert sorted(found.origin[:8].tolist()) == list(range(8))


def test_overload_leaves_a_backlog_that_grows():
    """Twice what the instance finishes: the last prompt waits for half of the window, no more and no less."""
    machine = _machine(1000)
    alone = _pass(machine, (1000, 0, True))
    arrival = np.arange(400) * alone / 2
    found = prefill_recorded(machine, 1, "round_robin", _trace(arrival, [1000] * 400))
    assert found.first_token_seconds[-1] == pytest.approx(400 * alone, rel=0.01)
