"""What explains a measured value outside its interval, computed from the deployment."""

import re
from dataclasses import replace

from planner.manifest.schema import Manifest
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from planner.verification.outliers import Loaded, imbalance, outliers
from planner.verification.reports import Report
from planner.verification.runs import Run
from planner.verification.verify import Verified
from tests.deploy.cases import plan

PROMPT, ANSWER = 4096.0, 1024.0


def outlier(manifest: Manifest, *, running: float, ttft: float = 1.0, tpot: float = 0.02) -> Verified:
    """Return a run of ``manifest`` with so many requests open, for which 1 s and 20 ms were predicted."""
    predicted = {"ttft_seconds": 1.0, "tpot_seconds": 0.02}
    run = Run(
        id="vllm 1",
        features=(1.0, running, PROMPT, ANSWER),
        where="r.json",
        cells={},
        measured={"ttft_seconds": ttft, "tpot_seconds": tpot},
        configuration=Loaded(manifest=manifest, report=Report(where="r.json", tool="vllm")),  # type: ignore[arg-type]
    )
    interval = {name: (0.9 * value, 1.1 * value) for name, value in predicted.items()}
    return Verified(run=run, predicted=predicted, interval=interval)


def test_a_full_cache_explains_waiting_and_an_empty_one_is_told_apart() -> None:
    """TTFT alone is off: whether the load fills the KV cache of a rank, and which cache it would fill."""
    manifest = plan("dense-mixed")
    pool = manifest.pools[-1]
    ranks, room = len(pool.instances) * pool.degrees.attention_dp, pool.kv.capacity_tokens_per_rank
    filling = ranks * room / (PROMPT + ANSWER / 2)
    (note,) = outliers([outlier(manifest, running=filling, ttft=3.0)])
    assert note.startswith("vllm 1: TTFT is 3.00 times the prediction, with TPOT as predicted")
    assert "takes 100% of the KV cache: requests wait for memory" in note
    (note,) = outliers([outlier(manifest, running=filling / 4, ttft=3.0)])
    assert f"less than {room / 4:,.0f} tokens of KV ({room:,.0f} planned)" in note


def test_an_imbalance_is_named_that_makes_the_step_as_long() -> None:
    """The busiest rank's load that is told makes the modelled step as much longer as the measured one."""
    manifest = plan("r1-cm384")
    pool = manifest.pools[-1]
    cost, ratio = pool.step_costs["decode"].to_step_cost(), 1.2
    ranks = len(pool.instances) * pool.degrees.attention_dp
    (note,) = outliers([outlier(manifest, running=48.0 * ranks, tpot=0.02 * ratio)])
    found = re.search(r"the busiest expert rank has ([\d.]+) times the mean load", note)
    queries = float(cost.queries_per_sequence)
    load = StepLoad(decode_sequences=48.0, decode_kv_tokens=48.0 * (PROMPT + ANSWER / 2), mean_tokens=48.0 * queries)
    skewed = replace(cost, balance=float(found[1]))
    assert abs(evaluate(skewed, load, 1).seconds / evaluate(cost, load, 1).seconds / ratio - 1) < 0.02


def test_no_imbalance_explains_a_dense_model_or_any_slowness() -> None:
    """A model without experts has none, and a step a hundred times as long has another cause."""
    assert imbalance(outlier(plan("dense-mixed"), running=64.0), 1.5) == ""
    assert "no imbalance of experts alone" in imbalance(outlier(plan("r1-cm384"), running=3072.0), 100.0)
