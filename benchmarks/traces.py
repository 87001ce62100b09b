"""How far predictions are from the reference runtime on windows of recorded traces.

    python benchmarks/traces.py FOLDER [--shape disaggregated|aggregated] [--utilisations 0.5,0.7,0.85]

FOLDER holds Azure's and Mooncake's conversation windows, which are not part of podplan. Windows of ten minutes are
played so fast that they load the plan to a utilisation: the rate over what the tighter pool finishes when everything
is there at once, measured for prefill in the runtime with the window's own requests; of aggregated instances the rate
over what their queue saturates at. Errors are predicted / simulated - 1: of the recursion over the window's own
requests, which is what a plan for a trace tells, and of the stationary queue of its moments.

Why the latter is off stand two more runs: mean TTFT of the same requests at uniform random instants over the one as
they came, - 1; and the error of the stationary queue against many times the window's requests in random order at
random instants, the first of them not counted: a stream that neither begins empty nor ends.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ground.trace_lengths import fitting
from ground.traces import read_trace, reused_tokens, window
from planner.instances.aggregated import AggregatedServer
from planner.manifest.schema import Manifest, Prediction
from planner.plans.aggregated import AggregatedPlan
from planner.plans.assemble import assemble
from planner.plans.expectation import expect
from planner.plans.plan import DisaggregatedPlan
from planner.search.search import search
from planner.workload import Trace, Traffic
from podplan.offered import Offered, read_offered
from podplan.options import QuestionFlags, SimulateFlags
from podplan.question import read_question
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import Requests

AZURE, MOONCAKE = "azure_llm_2023_conv_first20min.csv.gz", "mooncake_conversation_first20min.jsonl.gz"
TRACES = {
    "disaggregated": {AZURE: ("llama-3.1-70b", "h200", "8"), MOONCAKE: ("deepseek-v3.1", "h200", "32")},
    "aggregated": {AZURE: ("llama-3.1-70b", "h200", "8"), MOONCAKE: ("gpt-oss-120b", "h100", "8")},
}
STARTS_MINUTES = (0, 10)
AT_ONCE = "1e6"
"""How many times faster a window is played to have all of it there at once."""
ENDLESS = 20
"""Times a window's requests that stand for a stream without an end."""
SHOWN = (("ttft", "mean"), ("ttft", "p99"), ("tpot", "mean"), ("tpot", "p99"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Ten minutes of a trace on a plan."""

    path: Path
    start_minutes: int
    manifest: Manifest
    saturation_per_second: float
    """Of the tighter pool with this window's requests."""

    def played(self, factor: str) -> Offered:
        """Return the window's requests, so many times as fast as they came."""
        span = f"{self.start_minutes}min..{self.start_minutes + 10}min"
        flags = SimulateFlags(manifest=Path(), trace=str(self.path), window=span, scale_rate=factor)
        return read_offered(flags, self.manifest, 0)

    def at(self, rate_per_second: float) -> Offered:
        """Return the window's requests at a mean rate."""
        arrivals = next(iter(self.played("1").requests())).arrival_seconds
        own = (len(arrivals) - 1) / float(arrivals[-1] - arrivals[0])
        return self.played(f"{rate_per_second / own:.6g}")


def windows(path: Path, shape: str, model: str, hardware: str, devices: str) -> Iterator[Window]:
    """Yield the windows of a trace on the plan with the largest rate within a TTFT of 10 s."""
    limits = {"ttft": "10s", "objective": "throughput", "shape": shape}
    flags = QuestionFlags(model=model, hw=hardware, devices=devices, trace=str(path), **limits)
    best = search(read_question(flags).question, explain=False, beside=False).best
    if best is None:
        sys.exit(f"{path.name} has no plan")
    manifest = assemble(best, {})
    if isinstance(best, AggregatedPlan):
        each = AggregatedServer(best.question, best.mixed.candidate).player.saturation_per_second
        for start in STARTS_MINUTES:
            most = each * best.mixed.instances
            yield Window(path=path, start_minutes=start, manifest=manifest, saturation_per_second=most)
        return
    assert isinstance(best, DisaggregatedPlan), "a plan has one of two shapes"
    decode = best.decode.instances * best.decode.candidate.requests_per_second
    for start in STARTS_MINUTES:
        plain = Window(path=path, start_minutes=start, manifest=manifest, saturation_per_second=decode)
        full = plain.played(AT_ONCE)
        found = simulate(manifest, full.requests(), full.options)
        prefill = found.requests / (found.utilisation["prefill"] * found.duration_seconds)
        yield replace(plain, saturation_per_second=min(prefill, decode))


def rows_of(own: Window, offered: Offered) -> Trace:
    """Return a window's requests with what each reuses."""
    requests = next(iter(offered.requests()))
    start = own.start_minutes * 60.0
    model = own.manifest.model.spec
    whole = fitting(read_trace(own.path, None, dequantize_seed=0, seed=0), model.max_position, model.name)
    cut = window(whole, start, start + 600.0)
    return Trace(
        arrival_seconds=requests.arrival_seconds,
        input_tokens=requests.input_tokens,
        output_tokens=requests.output_tokens,
        reused_tokens=requests.reused_tokens if cut.hash_ids is None else reused_tokens(cut),
    )


def stationary(own: Window, rows: Trace, squared_cv: float | None = None) -> Prediction | None:
    """Return what the queue of the requests' moments says, as if the stream went on for ever."""
    traffic = Traffic.from_trace(rows)
    workload = traffic.workload if squared_cv is None else replace(traffic.workload, arrival_squared_cv=squared_cv)
    return expect(own.manifest, workload, traffic.rate_per_second).prediction


def endless(own: Window, rows: Trace) -> SimulationResult:
    """Return what comes of the window's requests many times, in random order at uniform random instants."""
    rng, count = np.random.default_rng(0), np.size(rows.arrival_seconds)
    order = np.concatenate([rng.permutation(count) for _ in range(ENDLESS)])
    span = ENDLESS * float(np.max(np.asarray(rows.arrival_seconds)))
    tokens, output, reused = (np.asarray(each) for each in (rows.input_tokens, rows.output_tokens, rows.reused_tokens))
    stream = Requests(
        arrival_seconds=np.sort(rng.uniform(0, span, order.size)),
        input_tokens=tokens[order],
        output_tokens=output[order],
        reused_tokens=np.minimum(reused, tokens - 1)[order].astype(np.int64),
    )
    options = SimulationOptions(warmup_seconds=span / ENDLESS, measured_until_seconds=span)
    return simulate(own.manifest, stream, options)


def shuffled(own: Window, offered: Offered, result: SimulationResult) -> float:
    """Return the mean TTFT of the same requests at uniform random instants over the one as they came."""
    requests = next(iter(offered.requests()))
    span = float(requests.arrival_seconds[-1])
    instants = np.sort(np.random.default_rng(0).uniform(0, span, len(requests)))
    found = simulate(own.manifest, replace(requests, arrival_seconds=instants), offered.options)
    assert found.ttft_seconds is not None
    assert result.ttft_seconds is not None
    return found.ttft_seconds.mean / result.ttft_seconds.mean - 1


def cells(found: Prediction | None, result: SimulationResult, shown: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the errors of a prediction."""
    told = []
    for name, level in shown:
        predicted, measured = (getattr(part, f"{name}_seconds", None) for part in (found, result))
        known = predicted is not None and measured is not None
        told.append(f"{getattr(predicted, level) / getattr(measured, level) - 1:+.1%}" if known else "none")
    return told


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the Azure and Mooncake windows")
    parser.add_argument("--utilisations", default="0.5,0.7,0.85")
    parser.add_argument("--shape", default="disaggregated", choices=sorted(TRACES))
    asked = parser.parse_args()
    names = [f"{name} {level}" for name, level in SHOWN]
    names += ["stationary ttft mean", "p99", "uniform instants", "stationary beside endless, ttft mean", "p99"]
    print("| window | utilisation | simulated TTFT mean, p99 |", " | ".join(names), "|")
    print("|---|---|---|" + "---|" * len(names))
    for file, where in TRACES[asked.shape].items():
        for own in windows(asked.folder / file, asked.shape, *where):
            for utilisation in map(float, asked.utilisations.split(",")):
                offered = own.at(utilisation * own.saturation_per_second)
                result, rows = simulate(own.manifest, offered.requests(), offered.options), rows_of(own, offered)
                assert result.ttft_seconds is not None
                told = cells(offered.expectation.prediction, result, SHOWN)
                told += cells(stationary(own, rows), result, SHOWN[:2])
                told.append(f"{shuffled(own, offered, result):+.1%}")
                told += cells(stationary(own, rows, squared_cv=1.0), endless(own, rows), SHOWN[:2])
                times = f"{result.ttft_seconds.mean:.3g}, {result.ttft_seconds.p99:.3g} s"
                name = f"{file.split('_')[0]} {own.start_minutes} min"
                print(f"| {name} | {utilisation:.2f} | {times} |", " | ".join(told), "|", flush=True)


if __name__ == "__main__":
    main()
