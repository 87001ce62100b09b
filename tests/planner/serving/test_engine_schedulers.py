"""Against requests as the engines' own schedulers served them, with a linear step (``../shared/data``)."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from planner.engines.loader import load_engine
from planner.manifest.document import read_manifest
from planner.serving.aggregated import AggregatedPool, play_aggregated
from planner.serving.rules import rule_of_engine
from planner.serving.tables import Loads, step_table
from tests.planner.serving.costs import linear_cost, stream_of

DATA = Path(__file__).parents[3].parent / "shared/data/engine-schedulers"
OWN = Path(__file__).parent / "engines"
PLAN = OWN / "plan.yaml"
"""As it was planned when the schedulers ran it: qwen3-8b on one H100, of examples/deploy."""
CASES = {
    "base": (8192, 2_000_000, 256),
    "chunk": (2048, 2_000_000, 256),
    "long": (8192, 2_000_000, 256),
    "memory": (8192, 60_000, 256),
    "slots": (2048, 2_000_000, 96),
}
"""Token budget, KV tokens, batch slots."""
RULES: dict[str, tuple[str, dict[str, object]]] = {
    "vllm": ("vllm", {"overlapped": False}),  # the synchronous scheduler
    "sglang": ("sglang", {"overlapped": False}),
    "sglang-overlap": ("sglang", {}),
    "sglang-mixed": ("sglang", {"overlapped": False, "order": "mixed_chunk"}),
}
MOST = {"linear": (0.01, 0.01, 0.01, 0.05), "manifest": (0.025, 0.07, 0.01, 0.01)}
"""Largest errors against our own runs: KV binds in the linear ones, and a step is a fifth of the plan's TTFT at p99."""


def _told(arrival, answer, first, left):
    """TTFT mean and p99, TPOT mean and p99, of the middle 80 % of requests."""
    middle = slice(len(arrival) // 10, len(arrival) - len(arrival) // 10)
    arrival, answer, first, left = (column[middle] for column in (arrival, answer, first, left))
    ttft, more = first - arrival, answer > 1
    tpot = (left - first)[more] / (answer[more] - 1)
    return np.array([ttft.mean(), np.percentile(ttft, 99), tpot.mean(), np.percentile(tpot, 99)])


@pytest.mark.skipif(not DATA.is_dir(), reason="the engines' runs are not beside the repository")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", RULES)
def test_latencies_are_those_of_the_engines_own_scheduler(case, name):
    """TTFT and TPOT: means within 1 %, p99 within 3 %; 5 and 10 % are asked for where KV binds."""
    with gzip.open(DATA / f"{case}_{name}.csv.gz", "rt") as file:
        rows = np.array([[float(cell) for cell in row] for row in list(csv.reader(file))[1:]])
    assert (_errors(rows, CASES[case], name) <= np.array([0.01, 0.03, 0.01, 0.03])).all()


@pytest.mark.parametrize("path", sorted(OWN.glob("*.csv")), ids=lambda path: path.stem)
def test_latencies_are_those_of_runs_of_our_own(path):
    """400 requests each (scripts/engine_schedulers.py): a linear step and little KV, and the step of a plan on H100."""
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    case, name = path.stem.split("_")
    assert len(rows) == 400
    if case == "linear":
        errors = _errors(rows, (2048, 60_000, 96), name, fixed_lengths=name != "vllm")
    else:
        (pool,) = read_manifest(PLAN).pools
        limits = pool.limits
        sizes = (limits.tokens_per_device, pool.kv.capacity_tokens_per_rank, limits.requests_per_dp_rank)
        errors = _errors(rows, sizes, name, pool.step_costs["mixed"].to_step_cost())
    assert (errors <= np.array(MOST[case])).all()


def _errors(rows, case, name, cost=None, fixed_lengths=False):
    """Return by how much the core is off, of each figure of ``_told``; our own runs ignore the end of a sequence."""
    arrival, prompts, answers, first, left = rows.T
    budget, capacity, slots = case
    engine, changes = RULES[name]
    rule = rule_of_engine(load_engine(engine).scheduling, fixed_lengths=fixed_lengths)._replace(**changes)
    loads = Loads(ranks=1, budget_tokens=budget, longest_prompt=32_000, most_running=slots, kv_tokens_per_request=1000)
    pool = AggregatedPool(
        times=step_table(cost or linear_cost(5e-3, 20e-6, 1e-4), loads),
        ranks=1,
        budget_tokens=budget,
        slots=slots,
        capacity_tokens=capacity,
        rule=rule,
    )
    played = play_aggregated(pool, stream_of(arrival, prompts, answers))
    found = _told(arrival, answers, played.first_token_seconds, played.left_seconds)
    return np.abs(found / _told(arrival, answers, first, left) - 1)
