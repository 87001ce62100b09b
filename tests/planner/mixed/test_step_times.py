"""The table of step times: against the step cost that it was made of."""

import numpy as np
import pytest

from planner.balance.imbalance import parse_balance
from planner.costs.latency import balanced_cost
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from planner.mixed.step_times import StepTimes
from planner.mixed.steps import Aggregate
from planner.workload import Lengths, Workload
from tests.instances import instance

LONGEST, BUDGET, MOST = 20_000.0, 4096.0, 200


@pytest.mark.parametrize(
    ("model", "degrees", "microbatches"),
    [
        ("llama-3.1-70b", {"attention_tp": 4, "moe_tp": 4}, 1),
        ("qwen3-30b-a3b", {"attention_dp": 4, "moe_ep": 4}, 2),
        ("deepseek-r1", {"attention_dp": 16, "moe_ep": 16}, 2),
    ],
)
def test_steps_are_those_of_the_step_cost(model, degrees, microbatches):
    """Random steps, any number of running requests with more or less cached than usual: within 8 %, 1 % in the mean."""
    cost = balanced_cost(instance(model, "h800", "mixed", "bf16", **degrees), parse_balance("perfect"))
    ranks = degrees.get("attention_dp", 1)
    traffic = Workload(input_tokens=Lengths(mean=1500), output_tokens=Lengths(mean=300))
    aggregate = Aggregate(
        cost=cost,
        workload=traffic,
        ranks=ranks,
        budget_tokens=BUDGET,
        most_requests=MOST,
        microbatches=microbatches,
    )
    times, random, errors = StepTimes(aggregate), np.random.default_rng(3), []
    times.reach(LONGEST)
    for _ in range(150):
        running = int(np.exp(random.uniform(0, np.log(MOST * ranks))))
        each = running / ranks
        kv = each * 1650 * random.uniform(0.5, 1.5)
        tokens = np.exp(random.uniform(np.log(16), np.log(BUDGET - each))).round()
        cached = float(round(random.uniform(0, LONGEST - tokens))) * (random.random() < 0.5)
        pairs, mean = tokens * cached + tokens * (tokens + 1) / 2, tokens * random.uniform(1 / ranks, 1)
        load = [tokens, cached, pairs, 1.0]
        for prompts in (True, False):
            step = StepLoad(
                decode_sequences=each,
                decode_kv_tokens=kv,
                prefill_tokens=tokens * prompts,
                prefill_context_tokens=cached * prompts,
                prefill_pairs=pairs * prompts,
                finishing_prompts=float(prompts),
                mean_tokens=each + mean,
            )
            most = microbatches if tokens * prompts + max(each, 1.0) >= 2 else 1
            exact = min(float(evaluate(cost, step, count).seconds) for count in range(1, most + 1))
            beside = times.beside(running)
            told = beside.loaded(load, mean, kv) if prompts else beside.alone(mean, kv)
            errors.append(told / exact - 1)
    assert np.abs(errors).mean() < 0.01
    assert np.abs(errors).max() < 0.08


def test_numbers_of_running_requests_share_tables():
    """Up to 8 each has its own, then eight to an octave, the nearest: as many tables as octaves, not as requests."""
    cost = balanced_cost(
        instance("llama-3.1-70b", "h800", "mixed", "bf16", attention_tp=4, moe_tp=4), parse_balance("perfect")
    )
    traffic = Workload(input_tokens=Lengths(mean=1500), output_tokens=Lengths(mean=300))
    times = StepTimes(Aggregate(cost=cost, workload=traffic, ranks=1, budget_tokens=BUDGET, most_requests=MOST))
    times.reach(LONGEST)
    tables = {id(times.beside(running)) for running in range(129)}
    assert len(tables) == 9 + 8 * 4
    assert times.beside(100).kv_tokens == pytest.approx(104 * 1650, rel=0.05)
    times.reach(LONGEST / 2)
    assert id(times.beside(128)) in tables  # shorter prompts are in reach already
