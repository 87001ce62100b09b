"""`podplan.watch`: what a running system tells beside its plan, and whether a change pays."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ground.errors import BadInput, Infeasible
from ground.units import HOUR_SECONDS, format_duration, format_rate
from planner.changeover.capacity import carried, total_carried
from planner.changeover.change import Asked, Change, change
from planner.changeover.moving import Terms
from planner.checks.manifests import from_manifest
from planner.checks.margins import Limits
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from planner.plans.assemble import assemble
from planner.plans.expectation import expect, workload_of
from planner.plans.plan import Plan
from planner.question import Machines, Question
from planner.search.search import search
from planner.search.sure import restated, stressed
from planner.workload import Workload
from podplan.options import Flags, Text, flag, flags_of
from podplan.plan_data import plan_json
from podplan.readers import read_fraction
from podplan.rebalancing import measured_balance
from podplan.result import Result, Row, picked
from podplan.seen import Observed, look

STEP_DEVIATION = 0.1
"""Of a predicted TPOT, relative, where the plan states no interval: the predictions' own median error is about that."""

SEEN = "source seconds requests rate_per_second rate_half_width ttft_seconds tpot_seconds"
LENGTHS = "mean=workload.{0}_tokens.mean squared_cv=workload.{0}_tokens.squared_cv"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFlags(Flags):
    """What runs, and what a change is weighed by."""

    manifest: Text = flag("FILE", "The manifest that runs.", needed=True)
    window: Text = flag("DURATION", "Between two scrapes of an endpoint, or of two files [60s].", unit="s")
    hold: Text = flag("DURATION", "How long the traffic that is seen is taken to last [1h].", unit="s")
    headroom: Text = flag("SHARE", "Room over the rate that a plan shall keep [0.1].")
    expert_loads: Text = flag("FILE", "Token counts of experts, layers x experts, measured while it ran.")
    startup: Text = flag("DURATION", "From loaded weights to the first request [60s].", unit="s")


@dataclass(frozen=True, kw_only=True)
class WatchResult(Result):
    """What is seen beside the plan, and the change that would mend it.

    Attributes:
        seen: the estimates.
        factor, factor_interval: measured over predicted step times, and where the plan itself expects 80 % of such.
        carries: requests per second that the plan carries within its limits, with steps as long as they are measured.
        plan, found: the plan for what is seen, and the steps to it; None where the one that runs does.
        pays, why: whether the change is worth its cost, and the arithmetic.
        balance: measured busiest expert rank over the mean by role, beside the plan's.
    """

    manifest: Manifest
    seen: Observed
    factor: float
    factor_interval: tuple[float, float]
    carries: float
    balance: dict[str, tuple[float, float]]
    plan: Plan | None = None
    found: Change | None = None
    pays: bool = False
    why: str = ""

    @property
    def violated(self) -> bool:
        """Whether step times lie outside the plan's interval."""
        return not self.factor_interval[0] <= self.factor <= self.factor_interval[1]

    @property
    def headroom(self) -> float:
        """Room over the upper end of the rate, as a share of it; below 0 where the plan is too small."""
        return self.carries / self.seen.upper_per_second - 1

    @property
    def headline(self) -> str:
        """What is seen, and what follows."""
        return (
            f"{format_rate(self.seen.rate_per_second)} ± {format_rate(self.seen.rate_half_width)}, the plan carries "
            f"{format_rate(self.carries)}: {'a change pays' if self.pays else 'no change pays'}"
        )

    def rows(self) -> list[Row]:
        """Return one row of estimates."""
        seen = self.seen
        return [
            {
                **picked(seen, SEEN),
                "step_factor": self.factor,
                "carries_requests_per_second": self.carries,
                "headroom": self.headroom,
                "pays": self.pays,
            }
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan watch --json`` prints."""
        seen = self.seen
        return {
            **picked(seen, f"{SEEN} mean_tpot_seconds"),
            "input_tokens": picked(seen, f"{LENGTHS.format('input')} half_width=prompt_half_width"),
            "output_tokens": picked(seen, f"{LENGTHS.format('output')} half_width=answer_half_width"),
            "prefix_reuse": seen.workload.prefix_reuse,
            "step_factor": {"value": self.factor, "low": self.factor_interval[0], "high": self.factor_interval[1]},
            "interval_violated": self.violated,
            "carries_requests_per_second": self.carries,
            "headroom": self.headroom,
            "expert_balance": {role: {"measured": now, "planned": then} for role, (now, then) in self.balance.items()},
            "change_pays": self.pays,
            "why": self.why,
            "plan": plan_json(self.plan, compact=True) if self.plan else None,
            "migration": self.found
            and {
                "steps": [step.model_dump(mode="json") for step in self.found.migration.steps],
                "promise": self.found.migration.promise.model_dump(mode="json"),
            },
        }


def watch(*sources: str, **flags: object) -> WatchResult:
    """Look once at what runs: what is seen, what it means, and the change that would mend it.

    Args:
        sources: URLs of metrics, files of them, a request log, or results that ``verify`` reads.
        flags: the long flags of ``plan watch``; ``manifest`` is needed.

    Raises:
        BadInput: a source that tells nothing, a keyword that is no flag, or a value that it cannot have.
    """
    typed = flags_of(WatchFlags, flags)
    manifest = read_manifest(Path(typed.manifest or ""))
    hold = typed.seconds("hold", HOUR_SECONDS)
    room = read_fraction(typed.headroom, "--headroom", 0.1)
    seen = look(sources, manifest, typed.manifest or "", typed.seconds("window", None))
    factor = step_factor(manifest, seen)
    slow = max(factor, 0.05)
    base = WatchResult(
        manifest=manifest,
        seen=seen,
        factor=factor,
        factor_interval=_interval(manifest),
        carries=_carries(manifest, seen.workload, slow),
        balance=_balance(manifest, typed.expert_loads),
    )
    question = _question(manifest, seen.workload, seen.upper_per_second * (1 + room))
    best = search(stressed(question, slow), explain=False, beside=False).best
    best = None if best is None else restated(best, question, slow)
    startup = typed.seconds("startup", None, zero=True)
    if best is None:
        told = "no plan on these machines carries it, with the room asked for: plan MODEL --rate says what binds"
        return replace(base, why=told)
    return _weighed(base, best, hold, startup)


def _weighed(base: WatchResult, best: Plan, hold: float, startup: float | None) -> WatchResult:
    """Return whether the plan that was found is worth going to."""
    old, seen = base.manifest, base.seen
    chips = sum(pool.chips_per_instance * len(pool.instances) for pool in old.pools)
    fits, fewer = base.headroom >= 0, chips - best.chips
    if fits and fewer <= 0:
        return replace(base, why=f"the plan holds with {base.headroom:.0%} of room, and none with fewer chips does")
    new = assemble(best, {"model": old.model.spec.name})
    terms = Terms.of(new) if startup is None else replace(Terms.of(new), startup_seconds=startup)
    asked = Asked(workload=seen.workload, rate_per_second=seen.rate_per_second, terms=terms)
    try:
        found = change(old, new, asked)
    except Infeasible as error:
        return replace(base, plan=best, why=f"the plan for it cannot be reached step by step: {error}")
    promise = found.migration.promise
    if not found.order.moves:
        return replace(base, why="the plan for what is seen is the one that runs")
    if not fits:
        why = (
            f"the plan misses its limits at the upper end of the rate ({base.headroom:.0%} of room); the change takes "
            f"{format_duration(promise.seconds)}, {format_duration(promise.below_seconds)} of it below the limits"
        )
        return replace(base, plan=best, found=found, pays=True, why=why)
    # There and back, since traffic that falls may rise again: what is held beside the smaller plan, and what is missed.
    cost = 2 * (promise.seconds * fewer + promise.below_seconds * chips)
    saved = fewer * hold
    least = cost / fewer
    why = (
        f"{fewer:g} fewer chips for {format_duration(hold)} save {saved / HOUR_SECONDS:.3g} chip-hours; there and back "
        f"costs {cost / HOUR_SECONDS:.3g}, so it pays once the traffic stays for {format_duration(least)} (--hold)"
    )
    return replace(base, plan=best, found=found, pays=saved > cost, why=why)


def _carries(manifest: Manifest, workload: Workload, slow: float) -> float:
    """Return what a manifest carries within its limits with steps ``slow`` times as long as predicted.

    All service times times f at a rate R are the predicted ones at the rate f R under limits f times as tight.
    """
    stated = Limits.of(manifest.service_levels, 1.0)
    ttft, tpot = stated.ttft_seconds, stated.tpot_seconds
    limits = replace(stated, ttft_seconds=ttft and ttft / slow, tpot_seconds=tpot and tpot / slow)
    return total_carried(manifest, carried(manifest, workload, limits)) / slow


def step_factor(manifest: Manifest, seen: Observed) -> float:
    """Return measured over predicted step times: of verified runs, or of the mean TPOT at the rate that is seen."""
    if seen.step_factor is not None:
        return seen.step_factor
    if seen.mean_tpot_seconds is None:
        return 1.0
    found = expect(manifest, seen.workload, seen.rate_per_second).prediction
    if found is None or found.tpot_seconds is None or not found.tpot_seconds.mean:
        return 1.0
    return seen.mean_tpot_seconds / found.tpot_seconds.mean


def _interval(manifest: Manifest) -> tuple[float, float]:
    """Return where measured over predicted step times lie with 80 %, by the plan's own deviation."""
    try:
        deviation = from_manifest(manifest, workload_of(manifest.workload)).deviation
    except BadInput:
        deviation = STEP_DEVIATION
    return 1 - 1.2816 * deviation, 1 + 1.2816 * deviation


def _balance(manifest: Manifest, loads: str | None) -> dict[str, tuple[float, float]]:
    if loads is None:
        return {}
    measured = measured_balance(manifest, loads, 0)
    planned = {pool.role: pool.step_costs[pool.role].to_step_cost() for pool in manifest.pools}
    return {role: (value, float(planned[role].balance)) for role, value in measured.items() if role in planned}


def _question(manifest: Manifest, workload: Workload, rate: float) -> Question:
    """Return the question whose answer the manifest is, at another rate and for other traffic."""
    pools = {pool.role: pool for pool in manifest.pools}
    sides = {}
    for role in ("prefill", "decode"):
        pool = pools.get(role) or manifest.pools[0]
        cluster = manifest.clusters[pool.hardware]
        devices = max(cluster.nodes, int(cluster.spec.nodes.value)) * int(cluster.spec.devices_per_node.value)
        sides[role] = Machines(hardware=cluster.spec, devices=devices, weights=pool.weights_dtype, budget=pool.hardware)
    levels, answering = manifest.service_levels, pools.get("decode") or manifest.pools[0]
    if levels.ttft_seconds is None or levels.tpot_seconds is None:
        raise BadInput("--manifest: states no service levels that a plan could keep; plan it with --ttft and --tpot")
    engine = manifest.engine
    return Question(
        model=manifest.model.spec,
        prefill=sides["prefill"],
        decode=sides["decode"],
        workload=workload,
        ttft_seconds=levels.ttft_seconds,
        tpot_seconds=levels.tpot_seconds,
        percentile=levels.percentile,
        rate_per_second=rate,
        objective="chips",
        kv_dtype=answering.kv_dtype,
        drafts=tuple(range(answering.mtp.drafts + 1)),
        acceptance=answering.mtp.acceptance,
        engine=engine.id if engine.id == "reference" else f"{engine.id}@{engine.version}",
        shape="aggregated" if "mixed" in pools else "disaggregated",
    )
