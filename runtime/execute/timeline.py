"""One decode iteration on the virtual clock: what its collectives take, and a trace of some ranks.

The plan's messages at the plan's widths: the small model's rows count as the real model's, and the requests in the run
as the planned batch. Devices compute for as long as the manifest's step costs say.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ground.units import MICRO
from planner.manifest.schema import Manifest, Pool
from planner.manifest.stepcost import stage_sum
from planner.manifest.terms import CommunicationTerm, Stage, StepLoad, timings, variables
from runtime.execute.clock import Clock, Span, Transfer, Way, Wire
from runtime.execute.run import Rank, Settings, build_world, make_ranks, run_ranks
from runtime.execute.timing import machine_of
from runtime.execute.transport import Loop

MOST_TRACED = 16
COMPUTED: tuple[tuple[str, tuple[Stage, ...]], ...] = (
    ("attention", ("attention",)),
    ("dense", ("dense",)),
    ("gate", ("gate",)),
    ("experts", ("experts", "shared")),
    ("head", ("head",)),
)


@dataclass(frozen=True, slots=True)
class Collective:
    """What the collectives of one kind took in the iteration, over all that the traced ranks ran."""

    name: str
    purpose: str
    ranks: int
    count: int
    mean_bytes: float
    mean_seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class Iteration:
    """One decode iteration: its time on the small model's layers, its collectives, and the traced ranks' events."""

    seconds: float
    layers: int
    collectives: list[Collective]
    spans: list[Span]
    transfers: list[Transfer]


def clocked_iteration(manifest: Manifest, settings: Settings) -> Iteration:
    """Prefill without a clock, then run one decode iteration on it and keep what happened on the first ranks."""
    world = build_world(manifest, settings)
    first = Loop()
    ranks = make_ranks(world, first)
    run_ranks(first, ranks, Rank.begin)
    pool, base = world.decode.layout.pool, world.decode.layout.base
    machine = machine_of(manifest, pool)

    def ways(sender: int, receiver: int) -> Way:
        return machine(sender - base, receiver - base)

    own = world.decode.layout.ranks
    traced = frozenset(own[: min(MOST_TRACED, len(own))])
    # What an element weighs: the real model's width over the small one's, the planned batch over the run's
    small = world.decode.small
    wider = small.source.hidden_size / small.spec.hidden_size
    fuller = pool.limits.requests_per_dp_rank * len(world.decode.layout.dp_groups()) / len(world.prompts)
    clock = Clock(
        ways, Wire(float_bytes=2.0 * wider * fuller, int8_bytes=wider * fuller, row_bytes=512.0 * fuller), traced
    )
    loop = Loop(clock)
    for number in own:
        ranks[number].worker.endpoint.loop = loop
        ranks[number].worker.compute_seconds = compute_seconds(manifest, pool)
    run_ranks(loop, {number: ranks[number] for number in own}, lambda rank: rank.iterate(0))
    end = max((span.end for span in clock.spans), default=0.0)
    layers = len(world.decode.small.layers) + world.decode.drafts
    return Iteration(end, layers, summed(clock.spans), clock.spans, clock.transfers)


def compute_seconds(manifest: Manifest, pool: Pool) -> dict[str, float]:
    """Return what a device computes per layer and microbatch, by kind, at the planned batch; messages left out."""
    cost = pool.step_costs["mixed" if pool.role == "mixed" else "decode"].to_step_cost()
    batch, workload = pool.limits.requests_per_dp_rank, manifest.workload
    queries = float(1 + pool.mtp.drafts)
    load = StepLoad(
        decode_sequences=float(batch),
        decode_kv_tokens=batch * (workload.input_tokens + workload.output_tokens / 2),
        mean_tokens=batch * queries,
    )
    values = variables(cost, load, pool.microbatches)
    stages = timings(tuple(term for term in cost.terms if not isinstance(term, CommunicationTerm)), values)
    return {kind: float(stage_sum(stages, names)) for kind, names in COMPUTED}


def summed(spans: Iterable[Span]) -> list[Collective]:
    """Return the spans by collective, purpose and size of group, longest in all first."""
    found: dict[tuple[str, str, int], list[Span]] = {}
    for span in spans:
        if span.name != "compute":
            found.setdefault((span.name, purpose_of(span.label), span.ranks), []).append(span)
    rows = [
        Collective(
            *key,
            count=len(own),
            mean_bytes=sum(span.payload_bytes for span in own) / len(own),
            mean_seconds=sum(span.end - span.start for span in own) / len(own),
            longest_seconds=max(span.end - span.start for span in own),
        )
        for key, own in found.items()
    ]
    return sorted(rows, key=lambda row: -row.count * row.mean_seconds)


def purpose_of(label: str) -> str:
    """Return what stands last in a label: "decode 0, microbatch 1, layer 3, attention" -> "attention"."""
    return label.rsplit(", ", 1)[-1]


def chrome_trace(iteration: Iteration) -> dict[str, Any]:
    """Return the trace in Chrome's format: a process per rank, a lane for its programs and two per plane.

    Times are microseconds of virtual time.
    """
    events: list[dict[str, Any]] = []
    for span in iteration.spans:
        lane = "compute" if span.name == "compute" else _microbatch(span.label)
        events.append(_event(span.rank, lane, f"{span.name}: {purpose_of(span.label)}", span, span.payload_bytes))
    traced = {span.rank for span in iteration.spans}
    for transfer in iteration.transfers:
        name = purpose_of(transfer.label)
        if transfer.sender in traced:
            events.append(_event(transfer.sender, f"{transfer.plane} out", name, transfer, transfer.payload_bytes))
        if transfer.receiver in traced:
            events.append(_event(transfer.receiver, f"{transfer.plane} in", name, transfer, transfer.payload_bytes))
    lanes = {(event["pid"], event["tid"]) for event in events}
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"rank {pid}"}}
        for pid in sorted({pid for pid, _ in lanes})
    ]
    return {"displayTimeUnit": "ns", "traceEvents": [*names, *sorted(events, key=lambda e: (e["pid"], e["ts"]))]}


def _microbatch(label: str) -> str:
    words = [word for word in label.split(", ") if word.startswith("microbatch")]
    return words[0] if words else "program"


def _event(rank: int, lane: str, name: str, when: Span | Transfer, payload_bytes: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": rank,
        "tid": lane,
        "ts": when.start / MICRO,
        "dur": (when.end - when.start) / MICRO,
        "args": {"bytes": payload_bytes, "label": when.label},
    }
