"""How far the queues are from the reference runtime: plans at several utilisations, predicted beside simulated.

    python benchmarks/queueing.py [--cases NAME,...] [--utilisations 0.5,0.7,0.85] [--requests N] [--seeds N]

A utilisation is the rate over what the tighter pool finishes when saturated. Errors are predicted / simulated - 1; ± is
half the 90 % interval of the simulated figure, from its values in the runs of all seeds.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import Any

from planner.instances.operating import PrefillServer
from planner.manifest.schema import Manifest
from planner.plans.assemble import assemble
from planner.plans.plan import DisaggregatedPlan
from planner.search.search import search
from podplan.offered import read_offered
from podplan.options import QuestionFlags, SimulateFlags
from podplan.question import read_question
from runtime.simulate.run import simulate

HISTOGRAM = str(Path(__file__).parent / "lengths.csv")
VARIED = {"isl": "1200", "isl_cv": "1", "osl": "256", "osl_cv": "0.8"}
CASES: dict[str, tuple[str, dict[str, str], dict[str, str], dict[str, str]]] = {
    # name: model, machines, traffic, limits
    "r1-cm384": ("deepseek-r1", {"hw": "cm384"}, {}, {}),
    "qwen3-30b-h100": ("qwen3-30b-a3b", {"hw": "h100", "nodes": "2"}, {}, {}),
    "qwen3-235b-h800": ("qwen3-235b-a22b", {"hw": "h800", "nodes": "8"}, {}, {}),
    "llama-70b-h200": ("llama-3.1-70b", {"hw": "h200", "nodes": "2"}, {"isl": "1024", "osl": "256"}, {}),
    "qwen3-30b-cm384-varied": (
        "qwen3-30b-a3b",
        {"hw": "cm384", "devices": "64"},
        VARIED,
        {},
    ),
    "llama-70b-h200-half": (
        "llama-3.1-70b",
        {"hw": "h200", "nodes": "2"},
        {"isl": "1024", "isl_cv": "0.5", "osl": "256", "osl_cv": "0.5"},
        {},
    ),
    "qwen3-8b-h100-twice": (
        "qwen3-8b",
        {"hw": "h100", "nodes": "1"},
        {"isl": "1000", "isl_cv": "2", "osl": "128", "osl_cv": "1"},
        {},
    ),
    "r1-cm384-varied": (
        "deepseek-r1",
        {"hw": "cm384", "devices": "256"},
        {"isl": "2048", "isl_cv": "1", "osl": "512", "osl_cv": "0.5"},
        {},
    ),
    "qwen3-30b-h100-histogram": ("qwen3-30b-a3b", {"hw": "h100", "nodes": "2"}, {"isl_histogram": HISTOGRAM}, {}),
    "qwen3-30b-cm384-bursts": ("qwen3-30b-a3b", {"hw": "cm384", "devices": "64"}, VARIED, {}),
    "qwen3-8b-h100-short": (
        "qwen3-8b",
        {"hw": "h100", "nodes": "1"},
        {"isl": "512", "osl": "128"},
        {"ttft": "500ms"},
    ),
}


BURSTS = {"qwen3-30b-cm384-bursts": 4.0}
"""Squared CV of the gaps between arrivals."""
STUDENT = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 8: 1.89, 10: 1.83}
"""Half the width of a 90 % interval of the mean of so many values, in their standard errors (Student's t)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run: errors of the predicted means and percentiles."""

    case: str
    utilisation: float
    errors: dict[str, float | None]
    simulated: dict[str, float]
    spread: dict[str, float]
    """Half the 90 % interval of what was simulated, relative."""
    attainment: tuple[float, float | None]
    """Of both limits together: simulated, and what was predicted beyond it."""


def plan_of(name: str) -> DisaggregatedPlan:
    """Return the plan of a case."""
    model, machines, traffic, limits = CASES[name]
    limits = {"shape": "disaggregated", **limits}
    flags = QuestionFlags(model=model, **machines, **traffic, **limits)
    best = search(read_question(flags).question, explain=False, beside=False).best
    if not isinstance(best, DisaggregatedPlan):
        sys.exit(f"case {name} has no plan of two pools")
    return best


def saturation(plan: DisaggregatedPlan) -> float:
    """Requests per second that the tighter pool finishes when it is always full."""
    decode = plan.decode.instances * plan.decode.candidate.requests_per_second
    return min(plan.prefill.instances * best_saturation(plan), decode)


def runs(name: str, utilisations: list[float], requests: int, seeds: int) -> Iterator[Row]:
    """Yield a row for each utilisation of a case."""
    plan = plan_of(name)
    manifest = with_bursts(assemble(plan, {}), BURSTS.get(name, 1.0))
    for utilisation in utilisations:
        rate = f"{utilisation * saturation(plan):.6g}/s"
        flags = SimulateFlags(manifest=Path(), rate=rate, requests=str(requests))
        yield compared(name, utilisation, [offered_and_run(flags, manifest, seed) for seed in range(seeds)])


def with_bursts(manifest: Manifest, arrival_cv2: float) -> Manifest:
    """Return the manifest with other arrivals: gaps are Gamma distributed."""
    workload = manifest.workload.model_copy(update={"arrival_cv2": arrival_cv2})
    return manifest.model_copy(update={"workload": workload})


def offered_and_run(flags: SimulateFlags, manifest: Manifest, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (simulated, predicted) of one run."""
    offered = read_offered(flags, manifest, seed)
    result = simulate(manifest, offered.requests(), offered.options).to_dict()
    prediction = offered.expectation.prediction
    return result, prediction.model_dump(mode="json") if prediction else {}


def compared(name: str, utilisation: float, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> Row:
    """Return the errors of the prediction against the mean of several runs."""
    errors: dict[str, float | None] = {}
    simulated: dict[str, float] = {}
    spread: dict[str, float] = {}
    for key in ("ttft", "tpot", "e2e"):
        for level in ("mean", "p50", "p90", "p99"):
            each = [run[f"{key}_seconds"][level] for run, _ in pairs]
            measured = sum(each) / len(pairs)
            if len(each) in STUDENT:
                half = STUDENT[len(each)] * stdev(each) / len(each) ** 0.5
                spread[f"{key} {level}"] = half / measured
            known = [told[f"{key}_seconds"][level] for _, told in pairs if told.get(f"{key}_seconds")]
            simulated[f"{key} {level}"] = measured
            errors[f"{key} {level}"] = sum(known) / len(known) / measured - 1 if known else None
    attained = sum(run["slo_attainment"] for run, _ in pairs) / len(pairs)
    told = [prediction["slo_attainment"] for _, prediction in pairs if prediction]
    return Row(
        case=name,
        utilisation=utilisation,
        errors=errors,
        simulated=simulated,
        spread=spread,
        attainment=(attained, sum(told) / len(told) - attained if told else None),
    )


def best_saturation(plan: DisaggregatedPlan) -> float:
    """Prompts per second of a prefill instance whose passes are always full."""
    return PrefillServer(plan.question, plan.prefill.candidate).saturation_per_second


SHOWN = ("ttft mean", "ttft p50", "ttft p90", "ttft p99", "tpot mean", "tpot p99", "e2e mean", "e2e p99")
COLUMNS = ("ttft mean", "ttft p50", "ttft p99", "tpot mean", "tpot p99", "e2e p99")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--utilisations", default="0.5,0.7,0.85")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3, choices=sorted(STUDENT))
    asked = parser.parse_args()
    utilisations = [float(text) for text in asked.utilisations.split(",")]
    print("| case | utilisation | simulated TTFT mean | p99 |", " | ".join(COLUMNS), "| attained | predicted |")
    print("|---|---|---|---|" + "---|" * (len(COLUMNS) + 2))
    for name in asked.cases.split(","):
        for row in runs(name, utilisations, asked.requests, asked.seeds):
            cells = ["-" if row.errors[key] is None else f"{row.errors[key]:+.1%}" for key in COLUMNS]
            times = (f"{row.simulated[key] * 1e3:.1f} ms ± {row.spread[key]:.0%}" for key in ("ttft mean", "ttft p99"))
            attained, beyond = row.attainment
            cells += [f"{attained:.1%}", "-" if beyond is None else f"{100 * beyond:+.1f}"]
            print(f"| {row.case} | {row.utilisation:.2f} |", " | ".join([*times, *cells]), "|", flush=True)


if __name__ == "__main__":
    main()
