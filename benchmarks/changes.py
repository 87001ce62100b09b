"""A policy over two days made of recorded windows, beside its bound, one plan for the peak and a reactive autoscaler.

    python benchmarks/changes.py [FOLDER of traces]

Eight windows of six hours, each a piece of a recorded trace at a rate of its own; a second model comes with the second
day, and in its second window a node is lost with the instances on it. Both models share eight nodes, then seven. Every
window's layouts play their own requests; migrations lead from what really stands to what is wanted, and each is played
under the lesser traffic of its windows, as planned and with another node lost in its middle.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ground.traces import Trace, first_requests, read_trace, repeat, requests_per_second, scale_rate, window
from planner.changeover.change import Changeover, Conditions, change
from planner.changeover.policy import Joint, Policy, Robust, Space, one_plan, space_of
from planner.changeover.robust import Scenario, solved_scenario, stood
from planner.checks.on_trace import least_chips
from planner.manifest.migration import Staged, union
from planner.manifest.schema import Manifest
from planner.programme.proof import Bound
from planner.workload import Traffic
from podplan.options import QuestionFlags
from podplan.planning import rows_of
from podplan.question import read_question
from podplan.scenarios import policy_on_traces
from runtime.simulate.changes import Autoscale, Migrating
from runtime.simulate.faults import Outage
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import Requests, from_trace

HOURS, HOUR_SECONDS = 6.0, 3600.0
CLUSTER, NODES, LOST_IN = "h200", 8, 5
KEPT = 0.98
"""Of requests within both limits, where each limit holds at p99."""
TRACES = {
    "r1": ("servegen_deepseek-r1_00h-06h.tar.gz", 7200.0),
    "azure": ("azure_llm_2023_conv_first20min.csv.gz", 0.0),
    "large": ("servegen_m-large_day0_12h-18h.tar.gz", 3600.0),
    "mooncake": ("mooncake_conversation_first20min.jsonl.gz", 0.0),
}
PIECE_REQUESTS, PIECE_SECONDS = 3_000, 120.0
"""Of a window are played: at least so many requests and seconds, as far as the recording goes."""
DAYS: dict[str, list[tuple[str, float] | None]] = {
    "qwen3-235b-a22b": [
        ("r1", 12), ("azure", 60), ("large", 90), ("mooncake", 3),
        ("r1", 15), ("azure", 68), ("large", 100), ("azure", 25),
    ],
    "qwen3-32b": [None, None, None, None, ("large", 10), ("azure", 14), ("azure", 20), ("large", 8)],
}  # fmt: skip
LEAD_SECONDS = 30.0
FILLS = (1.0, 0.8, 0.6)
REACTIVE_SECONDS = (400.0, 800.0)
"""Of each window that the autoscaler plays: the shorter has its reaction, the difference is what it settles to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A window's requests at its rate."""

    trace: Trace
    rate: float

    def requests(self, manifest: Manifest, seconds: float = 0.0) -> Requests:
        """Return them, as many as come in so many seconds at least."""
        trace = repeat(self.trace, max(int(seconds * self.rate / len(self.trace)) + 1, 1))
        return from_trace(scale_rate(trace, self.rate / requests_per_second(trace)), manifest.workload)


Pieces = Mapping[tuple[str, str], Piece]
"""By window and model."""


def pieces_of(folder: Path) -> dict[tuple[str, str], Piece]:
    """Return every window's piece of some thousand requests."""
    recorded = {
        name: window(read_trace(folder / file, dequantize_seed=0), begin, float("inf"))
        for name, (file, begin) in TRACES.items()
    }

    def piece(name: str, rate: float) -> Piece:
        count = max(PIECE_REQUESTS, int(PIECE_SECONDS * rate))
        return Piece(trace=first_requests(recorded[name], count), rate=rate)

    return {
        (f"window {number}", model): piece(*each)
        for model, day in DAYS.items()
        for number, each in enumerate(day)
        if each is not None
    }


def scenario(name: str, model: str, piece: Piece) -> Scenario:
    """Return a window's question to a model with its own plan, played on the piece."""
    nodes = str(NODES - (int(name.split()[1]) > LOST_IN))
    flags = QuestionFlags(
        model=model, hw=CLUSTER, nodes=nodes, ttft="5s", tpot="50ms", rate="1/s", shape="disaggregated",
        objective="chips", engine="reference",
    )  # fmt: skip
    asked = read_question(flags)
    rows = rows_of(piece.trace, reuse_stated=False)
    assert rows is not None, "recorded windows have arrivals of their own"
    question = replace(asked.question, workload=Traffic.from_trace(rows).workload, rate_per_second=piece.rate)
    return solved_scenario(name, question, rows, hours=HOURS)


def loose_bound(own: Scenario, piece: Piece) -> float:
    """Return chips that a window needs however prefill spreads its requests: decode by what full batches carry."""
    rows = rows_of(piece.trace, reuse_stated=False)
    assert rows is not None and own.best is not None, "every window has a plan on its trace"
    found = least_chips(own.best, rows, Bound(objective="chips", value=0.0, gap=0.0, covers=""))
    assert found is not None, "every window is asked for the fewest chips of separate pools"
    return found.value


def found_policy(pieces: Pieces, scenarios: list[Scenario]) -> tuple[Space, Policy]:
    """Return the policy over the two days, every layout of which keeps its requests' limits where one does."""
    space = space_of(scenarios)
    assert space is not None, "every model has a plan"
    made = [(each, pieces[each.name, each.question.model.name].trace) for each in scenarios]
    return space, policy_on_traces(space, made)


def in_window(space: Space, number: int, joint: Joint) -> dict[str, tuple[Manifest, Scenario]]:
    """Return the manifests of a window's models with what is asked of each."""
    asked = space.windows[number].asked
    both = [(layout, each) for layout, each in zip(joint, asked, strict=True) if each is not None]
    made = stood([(layout, each.question) for layout, each in both])
    return {each.question.model.name: (one, each) for one, (_, each) in zip(made, both, strict=True)}


def nodes_of(manifest: Manifest) -> set[int]:
    """Return the nodes that its instances stand on."""
    return {node for pool in manifest.pools for each in pool.instances for node in each.nodes}


def stands_on(manifest: Manifest, free: list[int]) -> Manifest:
    """Return a manifest whose instances stand on other nodes, in their order."""
    to = dict(zip(sorted(nodes_of(manifest)), free, strict=False))
    pools = [
        pool.model_copy(
            update={"instances": [i.model_copy(update={"nodes": [to[n] for n in i.nodes]}) for i in pool.instances]}
        )
        for pool in manifest.pools
    ]
    cluster = manifest.clusters[CLUSTER].model_copy(update={"nodes": NODES})
    return manifest.model_copy(update={"pools": pools, "clusters": {CLUSTER: cluster}})


@dataclass(slots=True)
class Floor:
    """What really stands, by model, and the nodes that are lost."""

    stands: dict[str, Manifest]
    lost: set[int]

    def steps(self, model: str, new: Manifest, *, both: bool) -> Changeover:
        """Return the steps of a model to another manifest on nodes that are neither lost nor another model's."""
        old = self.stands[model]
        others = {node for name, each in self.stands.items() if name != model for node in nodes_of(each)}
        asked = Conditions(
            both=both,
            spare_nodes=NODES - max(old.clusters[CLUSTER].nodes, new.clusters[CLUSTER].nodes),
            without=frozenset((CLUSTER, node) for node in self.lost | others),
        )
        found = change(old, new, asked)
        stated = {name: getattr(new, name) for name in ("workload", "service_levels", "predicted")}
        self.stands[model] = found.stages[-1].model_copy(update=stated)
        return found


def played(found: Changeover, before: Piece, after: Piece, *faults: Outage, seconds: float = 0.0) -> SimulationResult:
    """Return what the steps do from ``LEAD_SECONDS`` on: the next window's requests come once all has started."""
    staged, whole = Staged(found.migration, found.stages), union(found.stages)
    steps = found.migration.steps
    started = 1 + max(number for number, step in enumerate(steps) if step.start or not number)
    turn = LEAD_SECONDS + sum(step.seconds for step in steps[:started])
    rest = max(found.migration.promise.seconds, 60.0) + 2 * LEAD_SECONDS
    parts = [(before, turn), (after, rest)] if before is not after else [(before, max(seconds, turn + rest))]
    requests = _joined([(piece.requests(found.stages[0], length), length) for piece, length in parts])
    options = SimulationOptions(migrating=Migrating(staged=staged, at_seconds=LEAD_SECONDS), faults=faults)
    return simulate(whole, requests, options)


def told(name: str, found: Changeover, plain: SimulationResult, broken: SimulationResult | None) -> str:
    """Return a line about a change that was played."""
    promise = found.migration.promise
    text = (
        f"  {name}: {len(found.order.moves)} steps, {promise.seconds:.0f} s, below {promise.below_seconds:.0f} s, "
        f"promised {promise.attainment(plain.duration_seconds):.1%}, measured {plain.slo_attainment:.1%} in "
        f"{plain.duration_seconds:.0f} s, lost {plain.failed + plain.running}"
    )
    if broken is None:
        return text
    return f"{text}; with a node lost in its middle {broken.slo_attainment:.1%}, lost {broken.failed + broken.running}"


def over_the_days(space: Space, found: Policy, pieces: Pieces) -> None:
    """Play every window, every change between two, and the loss of a node with what recovers from it."""
    floor = Floor({}, set())
    for number, (own, joint) in enumerate(zip(space.windows, found.layouts, strict=True)):
        assert joint is not None, "every window has a plan, of the nearest limits at least"
        wanted = in_window(space, number, joint)
        print(f"{own.name}: {sum(each.chips for each in joint):g} chips, bound {own.least_chips:g}")
        for model, (manifest, each) in sorted(wanted.items(), key=lambda item: -(item[0] in floor.stands)):
            if model not in floor.stands:
                taken = {node for other in floor.stands.values() for node in nodes_of(other)} | floor.lost
                floor.stands[model] = stands_on(manifest, sorted(set(range(NODES)) - taken))
            else:
                found_ = floor.steps(model, manifest, both=True)
                if found_.order.moves:
                    middle = LEAD_SECONDS + found_.migration.promise.seconds / 2
                    node = str(min(nodes_of(found_.stages[0])))
                    fault = Outage(kind="node", target=node, at_seconds=middle, for_seconds=60.0)
                    both = pieces[f"window {number - 1}", model], pieces[own.name, model]
                    print(told(f"to it, {model}", found_, played(found_, *both), played(found_, *both, fault)))
            kept = simulate(manifest, pieces[own.name, model].requests(manifest))
            limits = f"; {each.relaxed}" if each.relaxed else ""
            print(f"  {model}: {each.question.rate_per_second:g}/s, {kept.slo_attainment:.1%} kept{limits}", flush=True)
        if number == LOST_IN:
            lose(floor, space, number, pieces)


def lose(floor: Floor, space: Space, number: int, pieces: Pieces) -> None:
    """Lose the node of a decode instance of the first model for good, and play what recovers from it."""
    model = next(iter(floor.stands))
    decode = next(pool for pool in floor.stands[model].pools if pool.role == "decode")
    node = decode.instances[0].nodes[0]
    floor.lost.add(node)
    found = floor.steps(model, floor.stands[model], both=False)
    piece = pieces[space.windows[number].name, model]
    fault = Outage(kind="node", target=str(node), at_seconds=LEAD_SECONDS, for_seconds=1e6)
    result = played(found, piece, piece, fault, seconds=900.0)
    print(told(f"node {node} lost, {model}", found, result, None))
    missed = (1 - result.slo_attainment) * result.requests / (piece.rate * HOURS * HOUR_SECONDS)
    print(f"  that is {missed:.2%} of the window's requests", flush=True)


def reactive(space: Space, peak: Robust, pieces: Pieces, model: int) -> tuple[float, float]:
    """Return chip-hours and attainment of KEDA's rule on the instances of the one plan for the peak.

    Instances take as long to start as the policy's, the threshold is what the plan holds, and it begins with all. A
    window that the plan does not serve is left out, and counted as one with all instances.
    """
    asked = [
        each
        for own, holds in zip(space.windows, peak.holds, strict=True)
        if holds and (each := own.asked[model]) is not None
    ]
    busiest = max(asked, key=lambda each: each.least_chips)
    (manifest,) = stood([(peak.layouts[model], busiest.question)])
    for each in asked:
        kept = simulate(manifest, pieces[each.name, each.question.model.name].requests(manifest)).slo_attainment
        if kept < KEPT:
            print(f"  the peak's instances keep {kept:.1%} in {each.name}")
    needs = [need for need in peak.layouts[model].option.needs if need is not None]
    start = change(manifest, manifest, Conditions(without=frozenset({(CLUSTER, 0)}), spare_nodes=NODES)).order.seconds
    rule = Autoscale(least=min(min(need) for need in needs), startup_seconds=start)
    best = (np.inf, 0.0)
    for fill in FILLS:
        options = SimulationOptions(autoscale=replace(rule, fill=fill))
        runs = []
        for seconds in REACTIVE_SECONDS:
            parts = [pieces[each.name, each.question.model.name].requests(manifest, seconds) for each in asked]
            runs.append(simulate(manifest, _joined([(part, seconds) for part in parts]), options))
        short, long = runs
        times = (HOURS * HOUR_SECONDS - REACTIVE_SECONDS[0]) / (REACTIVE_SECONDS[1] - REACTIVE_SECONDS[0])
        held, kept, count = (
            a + times * (b - a)
            for a, b in [
                (short.changes["device_seconds"], long.changes["device_seconds"]),
                (short.slo_attainment * short.requests, long.slo_attainment * long.requests),
                (short.requests, long.requests),
            ]
        )
        per_chip = manifest.pools[0].devices_per_instance / manifest.pools[0].chips_per_instance
        idle = (
            HOURS
            * peak.layouts[model].chips
            * (sum(own.asked[model] is not None for own in space.windows) - len(asked))
        )
        best = (held / per_chip / HOUR_SECONDS + idle, min(kept / count, 1.0))
        print(
            f"  autoscaler, fill {fill:g}: {best[0]:.0f} chip-hours, {best[1]:.1%} kept "
            f"({short.slo_attainment:.1%} in each window's first {REACTIVE_SECONDS[0]:.0f} s)",
            flush=True,
        )
        if best[1] >= KEPT:
            break
    return best


def _joined(parts: list[tuple[Requests, float]]) -> Requests:
    """Return requests one after the other, each for so many seconds."""
    columns: dict[str, list[np.ndarray]] = {}
    begin = 0.0
    for part, seconds in parts:
        for name in ("arrival_seconds", "input_tokens", "output_tokens", "reused_tokens"):
            values = getattr(part, name)[part.arrival_seconds < seconds]
            columns.setdefault(name, []).append(values + begin if name == "arrival_seconds" else values)
        begin += seconds
    return Requests(**{name: np.concatenate(own) for name, own in columns.items()})


def main() -> None:
    """Make the two days, solve and play them, print the figures."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "shared/data/traces")
    pieces = pieces_of(folder)
    scenarios = [scenario(name, model, piece) for (name, model), piece in pieces.items()]
    space, found = found_policy(pieces, scenarios)
    over_the_days(space, found, pieces)
    count = len(space.windows)
    peak = next(each for served in range(count, 0, -1) if (each := one_plan(space, served / count)) is not None)
    hours = 0.0
    for number, model in enumerate(DAYS):
        print(model)
        hours += reactive(space, peak, pieces, number)[0]
    print(f"policy {found.chip_hours:.0f} chip-hours, {found.moving_chip_hours:.1f} of them to move")
    surely = HOURS * sum(loose_bound(each, pieces[each.name, each.question.model.name]) for each in scenarios)
    print(f"bound {found.bound_chip_hours:.0f}, gap {found.gap:.1%}; whatever prefill does to bursts {surely:.0f}")
    free = found.replanned_chip_hours - found.replanned_moving_chip_hours
    print(f"re-planning at every window {found.replanned_chip_hours:.0f}, with free moves {free:.0f}")
    unserved = [own.name for own, holds in zip(space.windows, peak.holds, strict=True) if not holds]
    print(f"one plan for the peak {peak.chips * HOURS * count:.0f}, reactive {hours:.0f}; not served: {unserved}")


if __name__ == "__main__":
    main()
