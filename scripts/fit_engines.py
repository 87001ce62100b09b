"""Fit what no table of operators gives about engines, on released runs alone, with one model or machine left out.

    python scripts/fit_engines.py RUNS.csv

For each constant that `planner/engines/behaviour.yaml` calls fitted, prints the value with the smallest mean error and
the error of each group of runs that the fit did not see, beside its error without the constant. Nothing else in podplan
is fitted to end-to-end runs but the deviations of intervals (scripts/fit_residuals.py).
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from ground.records import Sourced
from models.loader import load_model
from planner.costs import operators
from planner.costs.predict import predict
from planner.engines import behaviour as engines
from planner.engines.behaviour import REQUEST_SECONDS, host_costs
from planner.verification.runs import Run, read_runs


@dataclass(frozen=True)
class Constant:
    """A field of an engine's behaviour: what is tried, in seconds, and which runs and metric it is fitted on."""

    engine: str
    field: str
    tried: tuple[float, ...]
    """The first is what stands without the constant."""
    metric: str
    apart: str
    """Label of the runs that are left out together."""
    weights: tuple[str, ...] = ()
    dense: bool = False
    """Whether it is fitted on models without experts."""

    def value(self, seconds: float) -> Any:
        """Return the field's value."""
        one = Sourced(value=seconds, kind="fitted", source="tried")
        if self.field == "prompt_moe_layer_seconds":
            return {machine: one for machine in ("h100", "h200")}
        if self.field != "expert_start_up_seconds":
            return one
        return {f"{machine} {dtype}": one for machine in ("h100", "h200") for dtype in self.weights}


Tried = float | tuple[float, ...]
LAUNCHES = (0.0, 5e-4, 1e-3, 1.5e-3, 2e-3, 2.5e-3, 3e-3)
CONSTANTS = (
    Constant(
        "trtllm", "prompt_moe_layer_seconds", (0.0, 0.6e-3, 1e-3, 1.4e-3, 1.8e-3, 2.2e-3), "ttft_seconds", "model"
    ),
    Constant("trtllm", "prompt_layer_seconds", (0.0, 3e-4, 5e-4, 7e-4, 9e-4), "ttft_seconds", "model", dense=True),
    Constant("trtllm", "expert_start_up_seconds", (0.0, 2e-5, 3e-5, 4e-5), "tpot_seconds", "strategy", ("mxfp4",)),
    Constant("sglang", "prompt_expert_launch_seconds", LAUNCHES, "ttft_seconds", "hardware"),
)


FAR = 0.5
"""What a larger error counts for: some servers compiled kernels while measured, and no constant mends those runs."""
ADMISSION = (0.0, 0.0025, 0.005, 0.0075, 0.01)
HOST = tuple(product((0.005, 0.01, 0.015, 0.02), (3e-6, 5e-6, 7e-6, 9e-6)))
"""What is tried of a request's and a prompt token's way through the host, in seconds (``engines.behaviour``)."""


def main(path: Path) -> None:
    """Fit every constant."""
    runs = [run for run in read_runs(path) if run.configuration is not None]
    fit_host(runs)
    fit_admission(runs)
    for constant in CONSTANTS:
        own = [run for run in runs if run.labels["engine"] == constant.engine and constant.metric in run.measured]
        own = [run for run in own if (load_model(run.labels["model"]).moe is None) == constant.dense]
        own = [run for run in own if not constant.weights or run.labels["weights"] in constant.weights]
        off = {seconds: errors(constant, own, seconds) for seconds in constant.tried}
        told(f"{constant.engine} {constant.field}, {constant.metric}", own, constant.apart, off)


def fit_host(runs: list[Run]) -> None:
    """Fit what all engines share: a request's way through the host and that of each of its prompt tokens."""
    own = [run for run in runs if "ttft_seconds" in run.measured and run.labels["engine"] != "sglang"]
    told("host, ttft_seconds", own, "model", {tried: [host_error(run, *tried) for run in own] for tried in HOST})


def fit_admission(runs: list[Run]) -> None:
    """Fit how much of a request's way through the host the steps with prompts wait for, by TPOT."""
    whole, original, off = operators.ADMISSION_SECONDS + REQUEST_SECONDS, operators.ADMISSION_SECONDS, {}
    own = [run for run in runs if "tpot_seconds" in run.measured]
    for tried in ADMISSION:
        operators.ADMISSION_SECONDS = tried
        hosts = (run.configuration.host._replace(request_seconds=whole - tried) for run in own if run.configuration)
        answers = [predict(replace(run.configuration, host=host)) for run, host in zip(own, hosts, strict=True)]  # type: ignore[type-var]
        pairs = zip(answers, own, strict=True)
        off[tried] = [abs((each.tpot_seconds or 0.0) / run.measured["tpot_seconds"] - 1) for each, run in pairs]
    operators.ADMISSION_SECONDS = original
    told("admission, tpot_seconds", own, "model", off)


def told(name: str, own: list[Run], apart: str, off: Mapping[Tried, list[float]]) -> None:
    """Print the value with the smallest mean error beside the first one, and those found with a group left out."""
    first = next(iter(off))

    def fitted(among: list[int], others: list[int]) -> str:
        best = min(off, key=lambda tried: mean(off[tried][number] for number in among))
        before, after = (mean(off[tried][number] for number in others) for tried in (first, best))
        return f"{best} s, {before:.1%} -> {after:.1%}"

    every = list(range(len(own)))
    print(f"{name}: {fitted(every, every)} of {len(own)} runs")
    for group in sorted({run.cells[apart] for run in own}):
        out = [number for number in every if own[number].cells[apart] == group]
        print(f"  without {group}: {fitted([number for number in every if number not in out], out)}")


def host_error(run: Run, request_seconds: float, token_seconds: float) -> float:
    """Relative error of a run's TTFT with a host of these costs."""
    assert run.configuration is not None
    host = run.configuration.host._replace(request_seconds=request_seconds, token_seconds=token_seconds)
    answer = predict(replace(run.configuration, host=host))
    assert answer.ttft_seconds is not None
    return abs(answer.ttft_seconds / run.measured["ttft_seconds"] - 1)


def errors(constant: Constant, own: list[Run], seconds: float) -> list[float]:
    """Relative errors of the runs with a value of the constant."""
    known = engines.behaviour(constant.engine)
    assert known is not None
    changed, original = replace(known, **{constant.field: constant.value(seconds)}), engines._known
    engines._known = lambda: {constant.engine: [changed]}  # type: ignore[assignment]
    engines.behaviour.cache_clear()
    found = []
    for run in own:
        assert run.configuration is not None
        answer = predict(replace(run.configuration, host=host_costs(constant.engine)))
        found.append(min(abs(getattr(answer, constant.metric) / run.measured[constant.metric] - 1), FAR))
    engines._known = original
    engines.behaviour.cache_clear()
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
