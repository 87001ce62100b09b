"""From what happened to what is reported: the keys of ``plan simulate --json``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from planner.manifest.schema import Statistics
from runtime.simulate.decode import DecodeInstance
from runtime.simulate.ledger import Ledger, Measured
from runtime.simulate.observe import Watcher
from runtime.simulate.prefill import PrefillInstance
from runtime.simulate.quantiles import BatchMeans, interval
from runtime.simulate.system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run tells beside its requests, however it was made; by role where it is a mapping.

    Waits for KV links and their ``link_utilisation``, the share of all links of a role's devices that carry KV, are of
    the whole run. ``occupancy`` is over time: KV and slots set aside in decode over all there are, and the fullest
    rank's KV over the mean one.
    """

    occupancy: dict[str, float] | None
    expert_imbalance: dict[str, float]
    transfer_wait_seconds: float
    mean_transfer_wait_seconds: float
    link_utilisation: dict[str, float]
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
    cache, links = system.shared.cache, system.links
    return Ran(
        steps={role: sum(part.steps for part in parts) for role, parts in watcher.groups().items()},
        occupancy=watcher.occupancy.means(),
        expert_imbalance=_expert_imbalance(system),
        transfer_wait_seconds=links.waited_seconds if links else 0.0,
        mean_transfer_wait_seconds=links.waited_seconds / links.transfers if links and links.transfers else 0.0,
        link_utilisation=_link_utilisation(system),
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
    busy: list[dict[str, float]],
    window: Measured,
    wall_seconds: float,
) -> SimulationResult:
    """Return latencies of the requests that arrived in the window, and rates of what completed in it.

    A rate counts completions whenever their requests arrived: while a system fills up or falls behind it differs
    from the arrivals.

    Args: ``busy`` seconds of the ``instances`` of each role at the ends of warm-up, window and run.
    """
    latencies = ledger.latencies
    seconds = max(window.end_seconds - window.start_seconds, 0.0)
    per_second = 1.0 / seconds if seconds > 0 else 0.0
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
        utilisation=_utilisation(instances, busy, window.start_seconds > 0, seconds),
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


def _utilisation(
    instances: Mapping[str, int], busy: list[dict[str, float]], warm: bool, seconds: float
) -> dict[str, float]:
    """Return busy time over time in the window, mean over the instances of a role."""
    end = busy[1] if len(busy) > 2 else busy[-1]
    start = busy[0] if len(busy) > 1 and warm else dict.fromkeys(end, 0.0)
    if len(busy) == 2 and not warm:
        end = busy[0]
    return {
        role: (end[role] - start[role]) / (count * seconds) if seconds > 0 else 0.0 for role, count in instances.items()
    }


def _link_utilisation(system: System) -> dict[str, float]:
    """Return the share of time up to the last transfer in which a role's links carry KV, mean over its devices."""
    if system.links is None or not system.links.transfers:
        return {}
    seconds = system.links.last_seconds
    parts: dict[str, Sequence[PrefillInstance | DecodeInstance]] = {"prefill": system.prefill, "decode": system.decode}
    devices = {role: sum(part.ranks * part.rank_devices for part in own) for role, own in parts.items()}
    return {role: system.links.link_seconds / (count * seconds) for role, count in devices.items() if count}


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
