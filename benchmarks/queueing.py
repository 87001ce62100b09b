"""How far plans' figures are from the reference runtime at several utilisations: predicted beside simulated.

    python benchmarks/queueing.py [--cases NAME,...] [--utilisations 0.5,0.7,0.85] [--requests N] [--seeds N]
    python benchmarks/queueing.py --cases llama-70b-h200 --links 0.3,0.6,0.85
    python benchmarks/queueing.py --cases azure,mooncake,azure-aggregated --traces FOLDER

A utilisation is the rate over what the tighter pool finishes when saturated. Errors are predicted / simulated - 1; ± is
half the 90 % interval of the simulated figure, from its values in the runs of all seeds. With ``--links`` the plane is
made so slow that the links of the busier side carry KV for such a share of time. FOLDER holds Azure's and Mooncake's
conversation windows, which are not part of podplan: windows of ten minutes are played as fast as the utilisation asks.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

import podplan
from ground.traces import read_trace, requests_per_second, window
from planner.manifest.schema import Manifest
from planner.plans.expectation import decode_behind, pool_pair
from planner.plans.servers import server_of
from planner.serving.deployed import workload_of

VARIED = {"isl": 1200, "isl_cv": 1, "osl": 256, "osl_cv": 0.8}
LONG = {"isl": 2048, "isl_cv": 1, "osl": 512, "osl_cv": 0.5}
SMALL = {"hw": "cm384", "devices": 64}
CASES: dict[str, dict[str, Any]] = {
    "r1-cm384": {"model": "deepseek-r1", "hw": "cm384"},
    "r1-cm384-varied": {"model": "deepseek-r1", "hw": "cm384", "devices": 256, **LONG},
    "qwen3-30b-h100": {"model": "qwen3-30b-a3b", "hw": "h100", "nodes": 2},
    "qwen3-30b-h100-histogram": {
        "model": "qwen3-30b-a3b", "hw": "h100", "nodes": 2, "isl_histogram": Path(__file__).parent / "lengths.csv",
    },
    "qwen3-30b-cm384-varied": {"model": "qwen3-30b-a3b", **SMALL, **VARIED},
    "qwen3-30b-cm384-bursts": {"model": "qwen3-30b-a3b", **SMALL, **VARIED},
    "qwen3-235b-h800": {"model": "qwen3-235b-a22b", "hw": "h800", "nodes": 8},
    "llama-70b-h200": {"model": "llama-3.1-70b", "hw": "h200", "nodes": 2, "isl": 1024, "osl": 256},
    "llama-70b-h200-half": {
        "model": "llama-3.1-70b", "hw": "h200", "nodes": 2, "isl": 1024, "isl_cv": 0.5, "osl": 256, "osl_cv": 0.5,
    },
    "qwen3-8b-h100-twice": {"model": "qwen3-8b", "hw": "h100", "isl": 1000, "isl_cv": 2, "osl": 128, "osl_cv": 1},
    "qwen3-8b-h100-short": {"model": "qwen3-8b", "hw": "h100", "isl": 512, "osl": 128, "ttft": 0.5},
    "azure": {"model": "llama-3.1-70b", "hw": "h200", "ttft": 10},
    "azure-aggregated": {"model": "llama-3.1-70b", "hw": "h200", "ttft": 10, "shape": "aggregated"},
    "mooncake": {"model": "deepseek-v3.1", "hw": "h200", "nodes": 4, "ttft": 10},
    "mooncake-aggregated": {"model": "gpt-oss-120b", "hw": "h100", "ttft": 10, "shape": "aggregated"},
}  # fmt: skip
BURSTS = {"qwen3-30b-cm384-bursts": 4.0}
"""Squared CV of the gaps between arrivals."""
TRACES = {"azure": "azure_llm_2023_conv_first20min.csv.gz", "mooncake": "mooncake_conversation_first20min.jsonl.gz"}
WINDOWS = ((0, 600), (600, 1200))
"""Seconds of a trace."""
COLUMNS = ("ttft mean", "ttft p50", "ttft p99", "tpot mean", "tpot p99", "e2e p99")
Run = dict[str, Any]


def saturation(plan: Any) -> float:
    """Requests per second that the tighter pool finishes when it is always full."""
    question = plan.question
    most = (pool.instances * server_of(plan, pool, question).most_per_second for _, pool in plan.pools())
    return float(min(most)) / question.most_utilisation


def slowed(manifest: Manifest, rate: float, load: float) -> Manifest:
    """Return the manifest on a plane so slow that the busier side's links carry KV for that share of time."""
    pools, kv = pool_pair(manifest), manifest.kv_transfer
    assert not isinstance(pools, str) and kv is not None, "a case for links has two pools"
    several = len(pools[1].instances)
    links, _ = decode_behind(manifest, pools, workload_of(manifest.workload))(rate / several, several)
    assert links is not None, "links carry what the plan does"
    slower = kv.bandwidth_bytes_per_second * max(links.utilisation.values()) / load
    return manifest.model_copy(update={"kv_transfer": kv.model_copy(update={"bandwidth_bytes_per_second": slower})})


def runs(name: str, utilisations: list[float], asked: argparse.Namespace) -> Iterator[tuple[str, list[Run]]]:
    """Yield what was run of a case, and the run of every seed."""
    trace = None if (file := TRACES.get(name.partition("-")[0])) is None else Path(asked.traces) / file
    found = podplan.plan(**({"shape": "disaggregated"} | CASES[name]), **({"trace": trace} if trace else {}))
    manifest = found.manifest()
    workload = manifest.workload.model_copy(update={"arrival_cv2": BURSTS.get(name, manifest.workload.arrival_cv2)})
    manifest = manifest.model_copy(update={"workload": workload})
    for utilisation in utilisations:
        rate, told = utilisation * saturation(found.best), f"{name} | {utilisation:.2f}"
        if trace is None:
            for load in asked.links:
                slow = manifest if load is None else slowed(manifest, rate, load)
                flags = {"rate": f"{rate:.6g}/s", "requests": asked.requests}
                own = [podplan.simulate(slow, **flags, seed=seed).to_dict() for seed in range(asked.seeds)]
                yield told if load is None else f"{told}, links {load:.2f}", own
            continue
        for begin, end in WINDOWS:
            factor = rate / requests_per_second(window(read_trace(trace, dequantize_seed=0), begin, end))
            flags = {"trace": trace, "window": f"{begin}s..{end}s", "scale_rate": factor}
            yield f"{told}, from {begin} s", [podplan.simulate(manifest, **flags).to_dict()]


def figure(run: Run, column: str) -> float:
    """Return a figure of a run or of its prediction."""
    name, level = column.split()
    return float(run[f"{name}_seconds"][level])


def row(told: str, own: list[Run]) -> str:
    """Return a row of the table: simulated TTFT, and the errors of the prediction against the mean of all seeds."""
    cells = []
    for column in ("ttft mean", "ttft p99"):
        each = [figure(run, column) for run in own]
        half = student.ppf(0.95, len(each) - 1) * stdev(each) / len(each) ** 0.5 if each[1:] else None
        cells.append(f"{fmean(each) * 1e3:.1f} ms" + ("" if half is None else f" ± {half / fmean(each):.0%}"))
    known = [run["predicted"] for run in own if run["predicted"]["ttft_seconds"]]
    for column in COLUMNS:
        measured = fmean(figure(run, column) for run in own)
        cells.append(f"{fmean(figure(each, column) for each in known) / measured - 1:+.1%}" if known else "-")
    attained = fmean(run["slo_attainment"] for run in own)
    beyond = fmean(each["slo_attainment"] for each in known) - attained if known else None
    cells += [f"{attained:.1%}", "-" if beyond is None else f"{100 * beyond:+.1f}"]
    waits = [run["mean_transfer_wait_seconds"] for run in (*own[:1], *known[:1])]
    cells.append(" / ".join("-" if wait is None else f"{wait * 1e3:.1f} ms" for wait in waits))
    return f"| {told} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(name for name in CASES if name.partition("-")[0] not in TRACES))
    parser.add_argument("--utilisations", default="0.5,0.7,0.85")
    parser.add_argument("--links", default=[None], type=lambda text: [float(each) for each in text.split(",")])
    parser.add_argument("--traces", default=".", help="folder with the Azure and Mooncake windows")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    columns = ("case", "utilisation", "TTFT mean", "p99", *COLUMNS, "attained", "predicted", "link wait, told")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in asked.cases.split(","):
        for told, own in runs(name, [float(text) for text in asked.utilisations.split(",")], asked):
            print(row(told, own), flush=True)


if __name__ == "__main__":
    main()
