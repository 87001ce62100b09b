"""From what happened to what is reported: the keys of ``plan simulate --json``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from planner.manifest.schema import Statistics
from runtime.simulate.decode import DecodeInstance
from runtime.simulate.ledger import Ledger, Measured
from runtime.simulate.observe import Watcher
from runtime.simulate.prefill import PrefillInstance
from runtime.simulate.quantiles import BatchMeans, interval
from runtime.simulate.system import System


class Spent(NamedTuple):
    """Seconds of a run up to a time; KV that crosses links counts when it is sent."""

    busy_seconds: dict[str, float]  # of steps, by role, summed over instances
    link_seconds: float = 0.0  # carrying KV, summed over links
    waited_seconds: float = 0.0  # of KV for its links, summed over transfers
    transfers: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run tells beside its requests, however it was made; by role where it is a mapping.

    ``occupancy`` is over time: KV and slots set aside in decode over all there are, and the fullest rank's KV over the
    mean one.
    """

    occupancy: dict[str, float] | None
    expert_imbalance: dict[str, float]
    steps: dict[str, int]
    events: int
    ssd_hit_share: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    role_flips: int = 0
    changes: dict[str, float] = field(default_factory=dict)
    """Of a migration or an autoscaler: device-seconds held, steps and when they ended, instances that came and went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult(Ran):
    """Counts and latencies of the requests offered in the measured window, and the rates in it.

    requests = completed + failed + running. Latencies are over completed requests, None where
    there is none (TPOT needs an output of two tokens). ``slo_attainment`` is the share of all offered
    requests that completed within every limit; ``goodput_requests_per_second`` counts those. ``confidence`` holds half
    widths of 95 % intervals of means, from batches of consecutive requests. Figures of offline requests stand apart.
    ``wall_seconds`` is the event loop alone.
    """

    requests: int
    completed: int
    failed: int
    running: int
    duration_seconds: float
    requests_per_second: float
    output_tokens_per_second: float
    ttft_seconds: Statistics | None
    tpot_seconds: Statistics | None
    e2e_seconds: Statistics | None
    queueing_seconds: Statistics | None
    slo_attainment: float
    goodput_requests_per_second: float
    utilisation: dict[str, float]
    transfer_wait_seconds: float
    mean_transfer_wait_seconds: float
    link_utilisation: dict[str, float]  # share of all links of a role's devices that carry KV
    confidence: dict[str, float]
    prefix_hit_share: float
    failures: dict[str, int]
    retried_requests: int
    offline: dict[str, float] | None
    wall_seconds: float
    batches: BatchMeans

    def to_dict(self) -> dict[str, object]:
        """Return the result as plain data."""
        latencies = ("ttft_seconds", "tpot_seconds", "e2e_seconds", "queueing_seconds")
        left_out = (*latencies, "batches")
        plain = {key: getattr(self, key) for key in self.__dataclass_fields__ if key not in left_out}
        return plain | {key: value.model_dump() if (value := getattr(self, key)) else None for key in latencies}


def ran_of(system: System, watcher: Watcher, *, faults: Mapping[str, int], changes: dict[str, float]) -> Ran:
    """Return what a run of the event engine tells beside its requests."""
    cache = system.shared.cache
    return Ran(
        steps={role: sum(part.steps for part in parts) for role, parts in watcher.groups().items()},
        occupancy=watcher.occupancy.means(),
        expert_imbalance=_expert_imbalance(system),
        events=system.shared.engine.events,
        ssd_hit_share=cache.ssd_hit_tokens / cache.asked_tokens if cache.asked_tokens else 0.0,
        faults=dict(sorted(faults.items())),
        changes=changes,
        role_flips=system.roles.flips if system.roles is not None else 0,
    )


def result_of(
    ledger: Ledger,
    ran: Ran,
    instances: Mapping[str, int],
    link_devices: Mapping[str, int],
    marks: Sequence[Spent],
    window: Measured,
    wall_seconds: float,
) -> SimulationResult:
    """Return latencies of the requests that arrived in the window, and rates of what completed in it.

    A rate counts completions whenever their requests arrived: while a system fills up or falls behind it differs
    from the arrivals.

    Args: ``marks`` at the ends of warm-up, window and run; devices with KV links, by role.
    """
    latencies = ledger.latencies
    seconds = max(window.end_seconds - window.start_seconds, 0.0)
    per_second = 1.0 / seconds if seconds > 0 else 0.0
    spent = _spent_within(marks, window.start_seconds > 0)
    offered, done, failed = ledger.offered, ledger.offered_completed, ledger.offered_failed
    return SimulationResult(
        **{each.name: getattr(ran, each.name) for each in fields(Ran)},
        requests=offered,
        completed=done,
        failed=failed,
        running=offered - done - failed,
        duration_seconds=seconds,
        requests_per_second=ledger.finished * per_second,
        output_tokens_per_second=ledger.finished_tokens * per_second,
        ttft_seconds=latencies["ttft"].statistics(),
        tpot_seconds=latencies["tpot"].statistics(),
        e2e_seconds=latencies["e2e"].statistics(),
        queueing_seconds=latencies["queueing"].statistics(),
        slo_attainment=ledger.attained / offered if offered else 0.0,
        goodput_requests_per_second=ledger.good * per_second,
        utilisation={role: spent.busy_seconds[role] / count * per_second for role, count in instances.items()},
        transfer_wait_seconds=spent.waited_seconds,
        mean_transfer_wait_seconds=spent.waited_seconds / spent.transfers if spent.transfers else 0.0,
        link_utilisation={role: spent.link_seconds / count * per_second for role, count in link_devices.items()},
        confidence={
            name: found[1]
            for name in ledger.batches.names
            if (found := interval(ledger.batches.means(name))) is not None
        },
        prefix_hit_share=ledger.reused_tokens / ledger.prompt_tokens if ledger.prompt_tokens else 0.0,
        failures=dict(sorted(ledger.reasons.items())),
        retried_requests=ledger.retried,
        offline=_offline(ledger, per_second),
        wall_seconds=wall_seconds,
        batches=ledger.batches,
    )


def _spent_within(marks: Sequence[Spent], warm: bool) -> Spent:
    """Return what was spent in the window."""
    end = marks[1] if len(marks) > 2 else marks[-1]
    if len(marks) == 2 and not warm:
        end = marks[0]
    if len(marks) == 1 or not warm:
        return end
    busy, *sums = marks[0]
    return Spent(
        {role: seconds - busy.get(role, 0.0) for role, seconds in end.busy_seconds.items()},
        *(last - first for last, first in zip(end[1:], sums, strict=True)),
    )


def link_devices(system: System) -> dict[str, int]:
    """Return the devices of the pools of each role with KV links; none where no KV has crossed."""
    if system.links is None or not system.links.transfers:
        return {}
    parts: dict[str, Sequence[PrefillInstance | DecodeInstance]] = {"prefill": system.prefill, "decode": system.decode}
    devices = {role: sum(x.ranks * x.rank_devices for x in own if x.pool.role == role) for role, own in parts.items()}
    return {role: count for role, count in devices.items() if count}


def _expert_imbalance(system: System) -> dict[str, float]:
    """Return the busiest expert rank over the mean, as the steps of each role count it."""
    found: dict[str, float] = {}
    for part in system.parts:
        if part.cost.experts and part.phase == part.pool.role:
            found.setdefault(part.phase, float(part.cost.balance))
    return found


def _offline(ledger: Ledger, per_second: float) -> dict[str, float] | None:
    if not ledger.offline_offered:
        return None
    return {
        "requests": ledger.offline_offered,
        "completed": ledger.offline_completed,
        "running": ledger.offline_offered - ledger.offline_completed,
        "output_tokens_per_second": ledger.offline_tokens * per_second,
    }
