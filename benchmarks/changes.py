"""A policy over two days made of recorded windows, beside its bound, one plan for the peak and a reactive autoscaler.

    python benchmarks/changes.py [FOLDER of traces]

Eight windows of six hours a model, each a piece of a recorded trace at a rate of its own; a second model comes with the
second day, and a node is lost from its second window on. Every window's layout plays its own requests, and every
migration is played under the lesser traffic of its windows, once as planned and once with a node lost in its middle.
Mooncake's window is left out: of prompts of up to 126,000 tokens no layout tried here keeps 99 % within 5 s.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from ground.traces import Trace, first_requests, read_trace, repeat, requests_per_second, scale_rate, window
from planner.changeover.change import Asked, change
from planner.changeover.robust import Layout, Policy, Scenario, layouts_of, options_of, policy
from planner.manifest.migration import Staged, union
from planner.manifest.schema import Manifest
from planner.plans.assemble import assemble
from planner.question import Question
from planner.search.search import search
from planner.workload import Traffic
from podplan.on_trace import rows_of
from podplan.options import QuestionFlags
from podplan.question import read_question
from runtime.simulate.autoscale import Autoscale
from runtime.simulate.faults import Fault
from runtime.simulate.migration import Migrating
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import Requests, from_trace

HOURS = 6.0
NODES, LOST_FROM = 8, 6
HEADROOMS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5)
"""Over a window's rate, the first with which its own plan keeps its own requests; the bound is without."""
KEPT = 0.98
"""Of requests within both limits, each of which 99 % keep."""
TRACES = {
    "r1": ("servegen_deepseek-r1_00h-06h.tar.gz", 7200.0),
    "azure": ("azure_llm_2023_conv_first20min.csv.gz", 0.0),
    "large": ("servegen_m-large_day0_12h-18h.tar.gz", 3600.0),
}
PIECE_REQUESTS = 3_000
DAYS: dict[str, list[tuple[str, float] | None]] = {
    "qwen3-235b-a22b": [
        ("r1", 12), ("azure", 60), ("large", 90), ("azure", 30),
        ("r1", 15), ("azure", 68), ("large", 100), ("azure", 25),
    ],
    "qwen3-32b": [None, None, None, None, ("large", 10), ("azure", 14), ("azure", 20), ("large", 8)],
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A window's requests at its rate."""

    trace: Trace
    rate: float

    def requests(self, manifest: Manifest, rate: float | None = None, seconds: float = 0.0) -> Requests:
        """Return them, as many as come in so many seconds at least, at their own rate or another one."""
        played = self.rate if rate is None else rate
        times = max(int(seconds * played / len(self.trace)) + 1, 1)
        trace = repeat(self.trace, times)
        return from_trace(scale_rate(trace, played / requests_per_second(trace)), manifest.workload)


def pieces(folder: Path) -> dict[str, Trace]:
    """Return a few thousand requests of each trace."""
    found = {}
    for name, (file, begin) in TRACES.items():
        trace = read_trace(folder / file, dequantize_seed=0)
        trace = window(trace, begin, float("inf"))
        found[name] = first_requests(trace, PIECE_REQUESTS)
    return found


def scenario(question: Question, name: str, piece: Piece) -> Scenario:
    """Return a window as a question, with the bound at its rate and the plan with headroom."""
    rows = rows_of(piece.trace, reuse_stated=False)
    assert rows is not None, "recorded windows have arrivals of their own"
    workload = Traffic.from_trace(rows).workload
    asked = replace(question, workload=workload, rate_per_second=piece.rate)
    bound = search(asked, explain=False)
    assert bound.bound is not None, f"{name} has no plan"
    for headroom in HEADROOMS:
        roomy = replace(asked, rate_per_second=piece.rate * headroom)
        best = search(roomy, explain=False, beside=False).best
        assert best is not None, f"{name} has no plan with {headroom:g} times its rate"
        if simulated(assemble(best, {}), piece) >= KEPT:
            break
    return Scenario(name=name, question=roomy, weight=1.0, hours=HOURS, best=best, least_chips=bound.bound.value)


def simulated(manifest: Manifest, piece: Piece) -> float:
    """Return the share of a window's requests within both limits."""
    return simulate(manifest, piece.requests(manifest)).slo_attainment


def played_move(first: Layout, second: Layout, ends: Sequence[Scenario], own: Sequence[Piece]) -> dict[str, float]:
    """Return what a migration promises and does, as planned and with a node lost in its middle."""
    low = min(range(2), key=lambda each: own[each].rate)
    old, new = first.manifest(ends[0].question), second.manifest(ends[1].question)
    old = old.model_copy(update={"predicted": first.option.manifest.predicted})
    spare = max(NODES - max(sum(c.nodes for c in m.clusters.values()) for m in (old, new)), 0)
    asked = Asked(workload=ends[low].question.workload, rate_per_second=own[low].rate, spare_nodes=spare)
    found = change(old, new, asked)
    staged, seconds = Staged(found.migration, found.stages), found.migration.promise.seconds
    requests = own[low].requests(old, seconds=1.5 * seconds + 120)
    options = SimulationOptions(migrating=Migrating(staged=staged, at_seconds=30.0))
    whole = union(found.stages)
    plain = simulate(whole, requests, options)
    lost = Fault(kind="node", target="0", at_seconds=30.0 + seconds / 2, for_seconds=60.0)
    broken = simulate(whole, requests, replace(options, faults=(lost,)))
    return {
        "seconds": seconds,
        "below": found.migration.promise.below_seconds,
        "promised": found.migration.promise.attainment(plain.duration_seconds),
        "measured": plain.slo_attainment,
        "lost": float(plain.failed + plain.running + broken.failed + broken.running),
        "faulty": broken.slo_attainment,
    }


def reactive(found: Policy, windows: Sequence[Scenario], own: Sequence[Piece], seconds: float) -> tuple[float, float]:
    """Return chip-hours and attainment of KEDA's rule on the peak's instances, each window so long, hours scaled."""
    assert found.peak is not None, "some layout serves every window"
    manifest = found.peak.manifest(windows[0].question)
    parts = [piece.requests(manifest, seconds=seconds) for piece in own]
    columns: dict[str, list[object]] = {
        "arrival_seconds": [],
        "input_tokens": [],
        "output_tokens": [],
        "reused_tokens": [],
    }
    for number, part in enumerate(parts):
        inside = part.arrival_seconds < seconds
        for name, column in columns.items():
            values = getattr(part, name)[inside]
            column.append(values + number * seconds if name == "arrival_seconds" else values)
    joined = Requests(**{name: np.concatenate(column) for name, column in columns.items()})  # type: ignore[arg-type]
    result = simulate(manifest, joined, SimulationOptions(autoscale=Autoscale(begin=1)))
    per_chip = manifest.pools[0].devices_per_instance / manifest.pools[0].chips_per_instance
    scale = HOURS * len(own) / (seconds * len(own) / 3600)
    return result.changes["device_seconds"] / per_chip / 3600 * scale, result.slo_attainment


def main() -> None:
    """Make the two days, solve and play them, print the tables."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "shared/data/traces")
    recorded, totals = pieces(folder), dict.fromkeys(("policy", "bound", "peak", "reactive"), 0.0)
    fits = [0.0] * 8
    for model, day in DAYS.items():
        flags = QuestionFlags(
            model=model, hw="h200", nodes=str(NODES), ttft="5s", tpot="50ms", rate="1/s", shape="disaggregated"
        )
        question = read_question(flags).question
        own = [Piece(trace=recorded[each[0]], rate=each[1]) for each in day if each is not None]
        first = len(day) - len(own)
        windows = [scenario(question, f"window {first + number}", piece) for number, piece in enumerate(own)]
        layouts = layouts_of(options_of(windows), NODES * 8)
        found = policy(windows, layouts)
        print(f"{model}: policy {found.chip_hours:.0f} chip-hours ({found.moving_chip_hours:.1f} moving), ", end="")
        print(f"bound {found.bound_chip_hours:.0f}, gap {found.gap:.1%}, peak {found.peak_chip_hours:.0f}")
        for number, (layout, each, piece) in enumerate(zip(found.layouts, windows, own, strict=True)):
            assert layout is not None, "every window has a plan"
            fits[first + number] += layout.chips
            kept = simulated(layout.manifest(each.question), piece)
            told = f"{layout.chips:g} chips {layout.counts}, bound {each.least_chips:g}"
            room = (each.question.rate_per_second or 0.0) / piece.rate
            print(f"  {each.name}: {piece.rate:g}/s x {room:g}, {told}, {kept:.1%} kept")
        for (number, before), (_, after) in pairwise(enumerate(found.layouts)):
            assert before is not None and after is not None, "every window has a plan"
            if before.option is after.option and before.counts == after.counts:
                continue
            move = played_move(before, after, windows[number : number + 2], own[number : number + 2])
            print(f"  {number + first} -> {number + first + 1}: " + ", ".join(f"{k} {v:.3g}" for k, v in move.items()))
        hours, kept = reactive(found, windows, own, 600.0)
        print(f"  reactive autoscaler: {hours:.0f} chip-hours, {kept:.1%} kept", flush=True)
        for name, value in (
            ("policy", found.chip_hours),
            ("bound", found.bound_chip_hours),
            ("peak", found.peak_chip_hours),
            ("reactive", hours),
        ):
            totals[name] += value
    for number, chips in enumerate(fits):
        nodes = NODES - (number >= LOST_FROM)
        print(f"window {number}: {chips:g} chips of {nodes * 8} on {nodes} nodes")
    gap = totals["policy"] / totals["bound"] - 1
    print(", ".join(f"{name} {value:.0f}" for name, value in totals.items()) + f"; gap {gap:.1%}")


if __name__ == "__main__":
    main()
