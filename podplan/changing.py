"""What `plan simulate` plays beside requests: a migration, an autoscaler, or loads of experts that change."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ground.arrays import Floats
from ground.errors import BadInput
from ground.units import number_of, parse_count, parse_duration
from planner.manifest.loads import placement_balance
from planner.manifest.migration import Staged, read_migration
from planner.manifest.schema import Manifest
from planner.placement.following import Loads
from planner.placement.loadfiles import read_loads as load_file
from planner.plans.expectation import planned_rate
from podplan.options import SimulateFlags
from runtime.simulate.changes import Autoscale, Migrating
from runtime.simulate.engine import generator
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.options import SimulationOptions

LEAD_SECONDS = 5.0  # measured before the first step
LATENCIES = ("ttft_seconds", "tpot_seconds", "e2e_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedChange:
    """A migration that is to be played, from ``at_seconds`` on; None: soon after measuring begins."""

    staged: Staged
    rate_per_second: float
    at_seconds: float | None

    def at(self, options: SimulationOptions) -> float:
        """Return when it begins."""
        return options.warmup_seconds + LEAD_SECONDS if self.at_seconds is None else self.at_seconds

    def begun(self, options: SimulationOptions) -> SimulationOptions:
        """Return the options of the run with it."""
        return replace(options, migrating=Migrating(staged=self.staged, at_seconds=self.at(options)))

    def long_enough(self, flags: SimulateFlags) -> SimulateFlags:
        """Return flags that measure a stream for as long as the steps take and a third, unless they say how long."""
        if flags.requests is not None or flags.trace is not None or flags.concurrency is not None:
            return flags
        seconds = 4 / 3 * self.staged.migration.promise.seconds + 2 * LEAD_SECONDS + (self.at_seconds or 0.0)
        return replace(flags, requests=str(math.ceil(seconds * self.rate_per_second)))


def read_change(flags: SimulateFlags, manifest: Manifest) -> AskedChange:
    """Return the migration that flags name; BadInput where it does not begin at the manifest."""
    staged = read_migration(Path(flags.migration or ""), begin=manifest)
    given = flags.per_second("rate", None)
    return AskedChange(
        staged=staged,
        rate_per_second=given or planned_rate(manifest),
        at_seconds=flags.seconds("migrate_at", None, zero=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedMigration:
    """A migration that was played, and the same requests ``without`` it and without faults."""

    staged: Staged
    begin_seconds: float
    without: SimulationResult

    def promised(self, found: SimulationResult) -> float:
        """Share of the measured requests that was promised to keep both limits at least."""
        return self.staged.migration.promise.attainment(found.duration_seconds)

    def seconds(self, found: SimulationResult) -> float | None:
        """Return how long the steps took; None where they had not ended with the last request."""
        ended = found.changes.get("ended_seconds")
        return None if ended is None else ended - self.begin_seconds

    def to_dict(self, found: SimulationResult) -> dict[str, Any]:
        """Return what was promised and what it cost."""
        promise = self.staged.migration.promise
        cost = {}
        for name in LATENCIES:
            now, before = getattr(found, name), getattr(self.without, name)
            both = now is not None and before is not None
            cost[name] = {key: getattr(now, key) - getattr(before, key) for key in ("mean", "p99")} if both else None
        goodput = found.goodput_requests_per_second - self.without.goodput_requests_per_second
        return {
            "begin_seconds": self.begin_seconds,
            "seconds": self.seconds(found),
            "planned_seconds": promise.seconds,
            "steps_ended": found.changes.get("steps_ended"),
            "promised_attainment": self.promised(found),
            "kept_promise": found.slo_attainment >= self.promised(found),
            "attainment_without": self.without.slo_attainment,
            "cost": {**cost, "goodput_requests_per_second": goodput},
        }


def read_autoscale(text: str) -> Autoscale:
    """Return the rule of ``--autoscale``; BadInput naming the part that is wrong."""
    given: dict[str, Any] = {}
    for word in () if text.strip().lower() == "keda" else text.split(","):
        name, _, value = (part.strip() for part in word.partition("="))
        what = f"--autoscale: {name[:20]}"
        if name in ("least", "begin"):
            given[name] = parse_count(value, what)
        elif name in ("startup", "period", "stabilisation"):
            given[f"{name}_seconds"] = parse_duration(value, what, allow_zero=name != "period")
        elif name in ("fill", "tolerance"):
            given[name] = number_of(value)
            if not 0 < given[name] <= 1:
                raise BadInput(f"{what}: {value[:20]!r} is not a share above 0, such as 0.85")
        else:
            known = "least, begin, fill, tolerance, startup, period and stabilisation"
            raise BadInput(f"--autoscale: {word[:40]!r} is not keda nor NAME=VALUE of {known}")
    return Autoscale(**given)


def read_loads(manifest: Manifest, text: str, seed: int) -> tuple[Loads, float | None]:
    """Return the popularity of experts, and after how many seconds it changes; None: never.

    ``lognormal:SIGMA`` and ``zipf:S`` draw the popularity of each layer's experts, with ``@5min`` anew every 5 min;
    anything else is a file of loads as plan place reads it, of whose time slices the sum counts. Rows are MoE layers in
    order; they repeat if there are fewer than the model has.

    Raises BadInput naming the file and what is wrong.
    """
    if manifest.model.spec.moe is None:
        raise BadInput(f"--expert-loads: {manifest.model.spec.name} has no experts; leave the flag out")
    experts, layers = manifest.model.spec.moe.experts, manifest.model.spec.layers
    name, _, every = text.partition("@")
    if _drawn(name, experts, layers, seed) is None:
        found = load_file(Path(text)).loads
        read = found.sum(axis=2) if found.ndim == 3 else found
        if read.shape[1] != experts:
            raise BadInput(f"--expert-loads: {text} has {read.shape[1]} experts, the model {experts}")
        return lambda number: read, None

    def loads(number: int) -> Floats:
        drawn = _drawn(name, experts, layers, seed + 7919 * number)
        assert drawn is not None, "the name was tried"
        return drawn

    return loads, parse_duration(every, "--expert-loads") if every else None


def measured_balance(manifest: Manifest, text: str, seed: int) -> dict[str, float]:
    """Return the busiest expert rank over the mean by role, averaged over layers; ``text`` as in ``read_loads``."""
    loads = read_loads(manifest, text, seed)[0](0)
    return {
        pool.role: placement_balance(pool.expert_map, loads) for pool in manifest.pools if pool.expert_map is not None
    }


def _drawn(text: str, experts: int, layers: int, seed: int) -> Floats | None:
    """Return popularities [layers, experts] of a named distribution, None where ``text`` names none."""
    name, colon, number = text.partition(":")
    if not colon or name not in ("lognormal", "zipf"):
        return None
    width = number_of(number)
    if not 0 <= width <= 5:
        raise BadInput(f"--expert-loads: {text[:40]!r} needs a number from 0 to 5, such as lognormal:0.5 or zipf:1")
    random = generator(seed, "expert loads")
    if name == "lognormal":
        return np.exp(width * random.standard_normal((layers, experts)))
    return np.stack([random.permutation(np.arange(1.0, experts + 1) ** -width) for _ in range(layers)])
