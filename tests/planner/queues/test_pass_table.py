"""The table of pass times: against the step cost that it was made of."""

import numpy as np
import pytest

from planner.balance.imbalance import parse_balance
from planner.costs.latency import balanced_cost
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from planner.queues.machine import Machine
from planner.queues.pass_table import PassTable
from tests.instances import instance

LONGEST, BUDGET = 40_000.0, 16_384.0


def _seconds(cost, load, microbatches):
    tokens, context, pairs, finishing, mean = load
    step = StepLoad(
        prefill_tokens=tokens,
        prefill_context_tokens=context,
        prefill_pairs=pairs,
        finishing_prompts=finishing,
        mean_tokens=mean,
    )
    return min(float(evaluate(cost, step, count).seconds) for count in range(1, microbatches + 1))


@pytest.mark.parametrize(
    ("model", "degrees", "microbatches"),
    [
        ("llama-3.1-70b", {"attention_tp": 4, "moe_tp": 4}, 1),
        ("qwen3-30b-a3b", {"attention_dp": 8, "moe_ep": 8}, 2),
        ("deepseek-r1", {"attention_dp": 16, "moe_ep": 16}, 2),
    ],
)
def test_passes_are_those_of_the_step_cost(model, degrees, microbatches):
    """Random passes, of one prompt or of several, fresh or on top of long prefixes: within 6 %, 1 % in the mean."""
    cost = balanced_cost(instance(model, "h800", "prefill", "bf16", **degrees), parse_balance("perfect"))
    ranks = degrees.get("attention_dp", 1)
    table = PassTable(Machine(cost, ranks, BUDGET, microbatches), LONGEST)
    random, errors = np.random.default_rng(3), []
    for _ in range(150):
        count = random.integers(1, 6)
        tokens = np.exp(random.uniform(np.log(16), np.log(BUDGET / count), count)).round()
        cached = (random.uniform(0, LONGEST - tokens) * (random.random(count) < 0.4)).round()
        pairs = float((tokens * cached + tokens * (tokens + 1) / 2).sum())
        mean = float(tokens.sum()) * random.uniform(1 / ranks, 1)
        load = (float(tokens.sum()), float(cached.sum()), pairs, float(count), mean)
        errors.append(table.seconds(load[:4], mean) / _seconds(cost, load, microbatches) - 1)
    assert np.abs(errors).max() < 0.06
    assert np.abs(errors).mean() < 0.01
