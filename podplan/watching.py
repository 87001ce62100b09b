"""`podplan.watch`: what a running system tells beside its plan, and whether a change pays."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

from ground.errors import BadInput, Infeasible
from ground.files import read_text
from ground.prometheus import Scrape, parse_scrape
from ground.traces import read_trace
from ground.units import HOUR_SECONDS, format_duration, format_rate
from planner.changeover.change import Changeover, Conditions, change
from planner.changeover.moving import Terms
from planner.changeover.observed import (
    LEAST_REQUESTS,
    Observed,
    carries,
    of_metrics,
    question_of,
    step_factor,
    step_interval,
)
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from planner.plans.assemble import assemble
from planner.plans.expectation import planned_rate
from planner.plans.plan import Plan
from planner.search.search import search
from planner.search.sure import ROLES, restated, stressed
from planner.serving.deployed import workload_of
from planner.workload import Traffic
from podplan.changing import measured_balance
from podplan.options import Flags, Text, flag, flags_of
from podplan.plan_data import plan_json
from podplan.planning import rows_of
from podplan.readers import read_fraction
from podplan.result import Result, Row, picked
from podplan.verification import verify

USUAL_SECONDS = 60.0  # between two scrapes of an endpoint
MOST_SCRAPE_BYTES = 100_000_000
WAIT_SECONDS = 10.0  # for a byte of an answer; for all of it twice as long

SEEN = "source seconds requests rate_per_second rate_half_width ttft_seconds tpot_seconds"
LENGTHS = "mean=workload.{0}_tokens.mean squared_cv=workload.{0}_tokens.squared_cv"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFlags(Flags):
    """What runs, and what a change is weighed by."""

    manifest: Text = flag("FILE", "The manifest that runs.", needed=True)
    window: Text = flag("DURATION", "Between two scrapes of an endpoint, or of two files [60s].", unit="s")
    hold: Text = flag("DURATION", "How long the observed traffic is expected to last [1h].", unit="s")
    headroom: Text = flag("SHARE", "Share by which the rate may rise in a new plan [0.1].")
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
    found: Changeover | None = None
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
            picked(seen, SEEN) | picked(self, "step_factor=factor carries_requests_per_second=carries headroom pays")
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
            "migration": self.found and self.found.migration.model_dump(mode="json", include={"steps", "promise"}),
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
        factor_interval=step_interval(manifest),
        carries=carries(manifest, seen.workload, slow),
        balance=_balance(manifest, typed.expert_loads),
    )
    question = question_of(manifest, seen.workload, seen.upper_per_second * (1 + room))
    best = search(stressed(question, dict.fromkeys(ROLES, slow)), beside=False).best
    best = None if best is None else restated(best, question)
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
    asked = Conditions(workload=seen.workload, rate_per_second=seen.rate_per_second, terms=terms)
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


def _balance(manifest: Manifest, loads: str | None) -> dict[str, tuple[float, float]]:
    if loads is None:
        return {}
    measured = measured_balance(manifest, loads, 0)
    planned = {pool.role: pool.step_costs[pool.phase].to_step_cost() for pool in manifest.pools}
    return {role: (value, float(planned[role].balance)) for role, value in measured.items() if role in planned}


def look(sources: Sequence[str], manifest: Manifest, path: str, window: float | None) -> Observed:
    """Return what sources tell, metrics over a ``window`` of seconds; BadInput naming one that tells nothing."""
    if not sources:
        raise BadInput("give what to watch: URLs or files of metrics, a request log, or results of plan verify")
    if all(source.startswith(("http://", "https://")) for source in sources):
        before, start = _scraped(sources), time.monotonic()
        time.sleep(seconds := window or USUAL_SECONDS)
        return of_metrics(_scraped(sources) - before, time.monotonic() - start or seconds, manifest, ", ".join(sources))
    texts = {source: _text(source) for source in sources}
    if all(text is not None for text in texts.values()):
        scrapes = [parse_scrape(text or "", source) for source, text in texts.items()]
        if len(scrapes) == 1:
            return of_metrics(scrapes[0], _lifetime(scrapes[0], sources[0], window), manifest, sources[0])
        if len(scrapes) != 2:
            raise BadInput(f"{sources[2]}: give two files of metrics, an earlier and a later one, not {len(scrapes)}")
        seconds = window or os.path.getmtime(sources[1]) - os.path.getmtime(sources[0])
        if seconds <= 0:
            raise BadInput("--window: the second file is not younger than the first; say how long lies between them")
        return of_metrics(scrapes[1] - scrapes[0], seconds, manifest, sources[1])
    if len(sources) == 1 and not os.path.isdir(sources[0]) and not sources[0].endswith(".json"):
        try:
            return of_trace(sources[0], manifest)
        except BadInput:
            if not sources[0].endswith(".csv"):
                raise
    return of_results(sources, manifest, path)


def _scraped(sources: Sequence[str]) -> Scrape:
    total = Scrape({}, {})
    for source in sources:
        total = total + parse_scrape(_fetched(source), source)
    return total


def _fetched(source: str) -> str:
    """Return what a URL answers; BadInput where that has not come whole in time, even if bytes come now and then."""
    found: list[bytes | Exception] = []

    def fetch() -> None:
        try:
            with urlopen(source, timeout=WAIT_SECONDS) as answer:
                found.append(answer.read(MOST_SCRAPE_BYTES))
        except (OSError, HTTPException, ValueError) as error:
            found.append(error)

    fetching = Thread(target=fetch, daemon=True)
    fetching.start()
    fetching.join(2 * WAIT_SECONDS)
    answered = found[0] if found else TimeoutError("not whole in time")
    if isinstance(answered, Exception):
        raise BadInput(f"{source[:100]}: does not answer: {answered}")
    return answered.decode("utf-8", "replace")


def _text(source: str) -> str | None:
    """Return the text of a file of metrics; None where its first line shows that it is none."""
    if os.path.isdir(source) or source.endswith((".gz", ".csv", ".json", ".jsonl", ".tar")):
        return None
    text = read_text(Path(source))
    first = next((line for line in text.splitlines() if line.strip()), "")
    sample = first[:1].isalpha() and " " in first and "," not in first.split("{")[0]
    return text if sample or first.startswith("#") else None


def _lifetime(scrape: Scrape, source: str, window: float | None) -> float:
    """Return the seconds that a single scrape covers: from the start of the process to when it was written."""
    if window is not None:
        return window
    started = scrape.values.get("process_start_time_seconds")
    seconds = os.path.getmtime(source) - started if started else 0.0
    if seconds <= 0:
        raise BadInput(
            f"{source}: one scrape tells no rate; give an earlier one before it, or --window since the start"
        )
    return seconds


def of_trace(source: str, manifest: Manifest) -> Observed:
    """Return what a request log tells: rate, lengths and reuse."""
    trace = read_trace(Path(source))
    rows = rows_of(trace, reuse_stated=False)
    if rows is None:
        raise BadInput(f"{source}: has no arrivals of its own; a log of what came, with times, tells a rate")
    if len(trace) < LEAST_REQUESTS:
        raise BadInput(f"{source}: {len(trace)} requests tell nothing; give at least {LEAST_REQUESTS}")
    traffic, seconds = Traffic.from_trace(rows), float(trace.arrival_seconds[-1] - trace.arrival_seconds[0])
    rate, workload = traffic.rate_per_second, traffic.workload
    return Observed(source=source, seconds=seconds, requests=len(trace), workload=workload, rate_per_second=rate)


def of_results(sources: Sequence[str], manifest: Manifest, path: str) -> Observed:
    """Return what verified runs tell: how long steps are beside their predictions; traffic is the plan's."""
    paths = [str(each) for source in sources for each in _files(Path(source))]
    if not paths:
        raise BadInput(f"{sources[0]}: holds no results; CSV and JSON files are read, as plan verify reads them")
    found = verify(*paths, manifest=path if any(not each.endswith(".csv") for each in paths) else None)
    errors = [each.error.get("tpot_seconds", -1.0) for each in found.compared]  # -1: of one token, nothing to wait for
    errors = [1 / (1 + error) for error in errors if error > -1]
    if not errors:
        reason = next((each.reason for each in found.runs if each.reason), "they state no TPOT")
        raise BadInput(f"{sources[0]}: no run could be set beside a prediction: {reason}")
    return Observed(
        source=", ".join(sources),
        seconds=0.0,
        requests=len(errors),
        workload=workload_of(manifest.workload),
        rate_per_second=planned_rate(manifest),
        step_factor=sorted(errors)[len(errors) // 2],
    )


def _files(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.suffix in (".csv", ".json")) if path.is_dir() else [path]
