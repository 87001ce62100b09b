"""The table of step times: against the step cost that it was made of."""

from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytest

from planner.balance.imbalance import parse_balance
from planner.costs.latency import balanced_cost
from planner.loops import tables_loop
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepCost, StepLoad
from planner.serving.tables import Loads, step_table
from tests.instances import instance
from tests.planner.serving.costs import linear_cost

LONGEST, BUDGET, KV = 40_000.0, 8_192.0, 2_000.0
PLACES = 256

Load = tuple[tuple[float, float, float, float], float]
INSTANCES = pytest.mark.parametrize(
    ("model", "degrees", "microbatches"),
    [
        ("llama-3.1-70b", {"attention_tp": 4, "moe_tp": 4}, 1),
        ("gpt-oss-120b", {"attention_dp": 4, "moe_ep": 4}, 1),
        ("qwen3-30b-a3b", {"attention_dp": 8, "moe_ep": 8}, 2),
        ("deepseek-r1", {"attention_dp": 16, "moe_ep": 16}, 2),
    ],
)


def _reached(function: Callable[..., Any]) -> Callable[..., Any]:
    """What loops alone call, as Python can."""
    return numba.njit(lambda *arguments: function(*arguments))  # type: ignore[no-any-return]


alone_seconds, alone_line = _reached(tables_loop.alone_seconds), _reached(tables_loop.alone_line)
loaded_seconds, pass_seconds = _reached(tables_loop.loaded_seconds), _reached(tables_loop.pass_seconds)


def _seconds(cost: StepCost, loads: Loads, sequences: float, kv: float, load: Load, mean: float) -> float:
    """Seconds by the step cost itself; ``mean`` are tokens of the mean rank, running requests included."""
    (tokens, context, pairs, ended), _ = load
    step = StepLoad(
        decode_sequences=sequences,
        decode_kv_tokens=kv,
        prefill_tokens=tokens,
        prefill_context_tokens=context,
        prefill_pairs=pairs,
        finishing_prompts=ended,
        mean_tokens=mean,
    )
    two = loads.microbatches > 1 and cost.moe_layers and max(sequences, tokens, mean) >= 2
    return min(float(evaluate(cost, step, count).seconds) for count in ((1, 2) if two else (1,)))


def _prompts(random: np.random.Generator, ranks: int) -> Iterator[Load]:
    """Yield prompts of a rank, one or several, fresh or on top of long prefixes, and tokens of the mean rank."""
    for _ in range(150):
        count = random.integers(1, 6)
        tokens = np.exp(random.uniform(np.log(16), np.log(BUDGET / count), count)).round()
        cached = (random.uniform(0, LONGEST - tokens) * (random.random(count) < 0.4)).round()
        pairs = float((tokens * cached + tokens * (tokens + 1) / 2).sum())
        total = float(tokens.sum())
        load = (total, float(cached.sum()), pairs, float(random.integers(0, count + 1)))
        yield load, total * random.uniform(1 / ranks, 1)


def _table(model, degrees, microbatches, phase):
    cost = balanced_cost(instance(model, "h800", phase, "bf16", **degrees), parse_balance("perfect"))
    ranks = degrees.get("attention_dp", 1)
    running = {} if phase == "prefill" else {"most_running": PLACES * ranks, "kv_tokens_per_request": KV}
    budget = 0.0 if phase == "decode" else BUDGET
    loads = Loads(ranks=ranks, budget_tokens=budget, longest_prompt=LONGEST, microbatches=microbatches, **running)
    return cost, loads, step_table(cost, loads)


def _passes(cost, loads, table):
    """Random prefill passes: seconds of the table, and of the step cost."""
    for load in _prompts(np.random.default_rng(3), loads.ranks):
        yield pass_seconds(table, *load[0], load[1]), _seconds(cost, loads, 0.0, 0.0, load, load[1])


def _running(random, cost, loads):
    """Random running requests of unusual KV: all of them, those of a rank, its KV, and tokens of the mean rank."""
    running = int(np.exp(random.uniform(0, np.log(loads.most_running))))
    each = running / loads.ranks
    return running, each, each * KV * random.uniform(0.3, 2), each * float(cost.queries_per_sequence)


def _loaded(cost, loads, table):
    """Random prompts beside running requests."""
    random = np.random.default_rng(4)
    for load in _prompts(random, loads.ranks):
        running, each, kv, mean = _running(random, cost, loads)
        found = loaded_seconds(table, running, load[0], load[1], each, kv)
        yield found, _seconds(cost, loads, each, kv, load, load[1] + mean)


def _alone(cost, loads, table):
    """Random numbers of requests, a rank with more than its share of them and of their cached tokens."""
    random = np.random.default_rng(5)
    for _ in range(150):
        running, each, kv, mean = _running(random, cost, loads)
        sequences = each + random.integers(0, 4) * (loads.ranks > 1)
        found = alone_seconds(table, running, 0.0, sequences, kv)
        yield found, _seconds(cost, loads, sequences, kv, ((0.0, 0.0, 0.0, 0.0), 0.0), mean)


@INSTANCES
@pytest.mark.parametrize(
    ("phase", "pairs", "mean", "worst"),
    [("prefill", _passes, 0.01, 0.06), ("mixed", _loaded, 0.01, 0.065), ("decode", _alone, 0.001, 0.015)],
)
def test_steps_are_those_of_the_step_cost(model, degrees, microbatches, phase, pairs, mean, worst):
    """Of random loads, within the mean and the worst error that ``step_table`` tells."""
    errors = [abs(found / known - 1) for found, known in pairs(*_table(model, degrees, microbatches, phase))]
    assert np.mean(errors) < mean
    assert np.max(errors) < worst


@pytest.mark.parametrize(("phase", "pairs"), [("prefill", _passes), ("mixed", _loaded)])
def test_steps_bend_where_keys_are_out_of_reach(phase, pairs):
    """Sparse attention, beyond 2,048 keys: prompts in between two knots were up to 14 % too quick."""
    found = pairs(*_table("deepseek-v3.2", {"attention_dp": 8, "moe_ep": 8}, 1, phase))
    errors = [abs(told / known - 1) for told, known in found]
    assert np.mean(errors) < 0.01
    assert np.max(errors) < 0.065


def test_a_linear_cost_is_met_exactly():
    """With and without prompts, at any load."""
    cost = linear_cost(5e-3, 20e-6, 1e-4, per_kv=1e-8, per_pair=1e-10)
    table = step_table(
        cost, Loads(ranks=1, budget_tokens=2048, longest_prompt=9000, most_running=100, kv_tokens_per_request=500)
    )
    random = np.random.default_rng(6)
    for load, mean in _prompts(random, 1):
        tokens, _, pairs, _ = load
        running, kv = int(random.integers(0, 100)), random.uniform(0, 1e6)
        bare = 5e-3 + running * 1e-4 + (kv * 1e-8 if running else 0.0)
        kv = kv if running else 0.0
        assert alone_seconds(table, running, 0.0, running, kv) == pytest.approx(bare, rel=1e-9)
        found = loaded_seconds(table, running, load, mean, running, kv)
        assert found == pytest.approx(bare + tokens * 20e-6 + pairs * 1e-10, rel=1e-9)
    assert alone_line(table, 10, 0.0)[2] == pytest.approx(1e-8)


def test_a_table_of_decode_alone_is_small():
    """No loads with prompts are evaluated where there is no budget for them."""
    _, _, table = _table("deepseek-r1", {"attention_dp": 16, "moe_ep": 16}, 2, "decode")
    assert table.loaded.size < 300
    assert table.alone.size < 300
