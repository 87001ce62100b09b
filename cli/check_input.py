"""One question of `plan check`: what is weighed, under which traffic, against which limits."""

import math
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from cli.flags import flag_name, read_fraction
from cli.lengths import Stated, check_positions, read_lengths
from cli.on_trace import playable, rows_of
from cli.question_file import Entry
from cli.question_options import search_flags
from cli.search_flags import SearchInput, read_limit, read_percentile, read_search, read_survive
from cli.traffic import LENGTH_FIELDS, Asked, TrafficFlags, read_rate, read_traffic
from planner.checks.check import Limits, Margin, Search, Verdict, check_deployed, check_question, over_windows
from planner.checks.deployed import Deployed
from planner.checks.deployed_trace import manifest_on, plan_on
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from planner.plans.day import Window, peak_rate
from planner.plans.expectation import planned_rate, workload_of
from planner.plans.recorded import unlike_steps
from planner.queues.prompts import answer_kinds, histogram_kinds
from planner.survival import Loss
from planner.workload import Trace, Workload
from podplan.errors import BadInput
from podplan.records import dataclass

Kinds = TypeVar("Kinds")
Prompts = tuple[tuple[float, float, float], ...] | None
"""Kinds of prompts as (tokens, reused tokens, weight); None where moments tell all."""

OWN_KEYS = ("manifest", "confidence")
STATIONARY = "stationary queues"
_OF_A_MANIFEST = (*LENGTH_FIELDS, "prefix_reuse", "rate", "rate_profile", "trace", "format")
_LIMITS = ("ttft", "tpot", "percentile", "survive")


Windows = list[tuple[Window, tuple[Margin, ...]]]
"""Of a day, the margins that each window leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestQuestion:
    """A fixed deployment, the traffic and the limits that it is weighed against."""

    path: str
    manifest: Manifest
    workload: Workload
    limits: Limits
    survive: Loss | None
    day: tuple[Window, ...] = ()
    rows: Trace | None = None
    """Of a trace that can be played."""
    traced: bool = False
    """Whether a trace was given."""

    @property
    def deployed(self) -> Deployed:
        """What the manifest deploys, under the traffic."""
        return manifest_on(self.manifest, self.workload, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCheck:
    """What one question asks: a search, or the verdict on a manifest."""

    name: str
    searched: SearchInput | None
    fixed: ManifestQuestion | None
    confidence: float | None

    def verdict(self, search_plan: Search) -> Verdict:
        """Return the verdict; ``search_plan`` is called where a plan must be found."""
        if self.fixed is not None:
            fixed, played = self.fixed, self.fixed.rows is not None and unlike_steps(self.fixed.manifest) is None
            found = check_deployed(fixed.deployed, fixed.limits, confidence=self.confidence, loss=fixed.survive)
            return replace(found, played=played)
        assert self.searched is not None, "a check has a question or a manifest"
        question, rows = self.searched.question, playable(self.searched)
        return check_question(question, confidence=self.confidence, search_plan=search_plan, trace=rows)

    def basis(self, verdict: Verdict) -> str:
        """Say what the figures are of."""
        if verdict.played:
            return "the requests of the trace themselves, played at the rate"
        traced = self.fixed.traced if self.fixed is not None else self.searched and self.searched.trace is not None
        if not traced or not verdict.margins:
            return STATIONARY
        return f"{STATIONARY} of the trace's moments, for {self._not_played(verdict)}"

    def _not_played(self, verdict: Verdict) -> str:
        """Say why a trace was not played."""
        unlike = self.fixed and unlike_steps(self.fixed.manifest)
        if unlike:
            return unlike
        rows = self.fixed.rows if self.fixed is not None else self.searched and playable(self.searched)
        if rows is None:
            return "turns that wait for answers, a stated reuse and M/M/1 cannot be played"
        return "it has fewer requests than three times those under way"

    def windows(self, verdict: Verdict) -> Windows:
        """Return what each window of the day sees of the deployment; none without a day or a plan."""
        if self.fixed is not None:
            fixed = self.fixed
            return over_windows(fixed.deployed, fixed.limits, fixed.day, self.confidence) if fixed.day else []
        assert self.searched is not None, "a check has a question or a manifest"
        plan, day = verdict.plan, self.searched.day
        if plan is None or not day:
            return []
        limits = Limits.of(self.searched.question, peak_rate(day))
        return over_windows(
            plan_on(plan, playable(self.searched) if verdict.played else None), limits, day, self.confidence
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A question with its verdict and the seconds that it took."""

    asked: AskedCheck
    verdict: Verdict
    seconds: float
    windows: Windows = field(default_factory=list)
    """Of a day, what each of its windows sees of the deployment that is sized for the worst."""

    @property
    def basis(self) -> str:
        """What the figures are of."""
        return self.asked.basis(self.verdict)


def read_entry(entry: Entry) -> AskedCheck:
    """Return what a question asks; BadInput names the place in the file, and the key or flag."""
    try:
        confidence = read_confidence(entry.get("confidence"))
        if entry.get("manifest") is not None:
            return AskedCheck(name=entry.name, searched=None, fixed=_fixed(entry.values), confidence=confidence)
        for needed in ("model", "hw"):
            if entry.get(needed) is None:
                raise BadInput(f"{needed} is missing; a question needs model and hw, or manifest")
        if entry.get("objective") is not None:
            raise BadInput("--objective: a check asks whether limits hold, whatever is best; leave it out")
        asked = read_search(search_flags(entry.values))
        return AskedCheck(name=entry.name, searched=asked, fixed=None, confidence=confidence)
    except BadInput as error:
        raise BadInput(f"{entry.where}: {error}" if entry.where else str(error)) from None


def read_confidence(text: str | None) -> float | None:
    """Return the confidence that is asked for; BadInput naming the flag."""
    if text is None:
        return None
    try:
        value = read_fraction(text, "--confidence", 0.5)
    except BadInput:
        value = math.nan  # a share at all is not enough: what is right is told once
    if not 0.5 <= value <= 0.999:
        raise BadInput(f"--confidence: {text[:40]!r} must be from 0.5, the figures as predicted, to 0.999")
    return value


def _fixed(values: Mapping[str, str]) -> ManifestQuestion:
    """Return the question about a manifest; its own traffic and limits hold where none are given."""
    for key in values:
        if key not in (*_OF_A_MANIFEST, *_LIMITS, *OWN_KEYS):
            raise BadInput(f"{flag_name(key)}: a manifest fixes the deployment; leave one of the two out")
    path = values["manifest"]
    manifest = read_manifest(Path(path))
    asked = _traffic(values, manifest)
    rate = planned_rate(manifest) if asked.rate_per_second is None else asked.rate_per_second
    levels = manifest.service_levels
    ttft = levels.ttft_seconds if "ttft" not in values else read_limit(values["ttft"], "--ttft")
    tpot = levels.tpot_seconds if "tpot" not in values else read_limit(values["tpot"], "--tpot")
    if ttft is None and tpot is None:
        raise BadInput(f"--ttft: {path} states no service levels; give --ttft or --tpot")
    percentile = read_percentile(values["percentile"]) if "percentile" in values else levels.percentile
    limits = Limits(ttft_seconds=ttft, tpot_seconds=tpot, percentile=percentile, rate_per_second=rate)
    return ManifestQuestion(
        path=path,
        manifest=manifest,
        workload=asked.workload,
        limits=limits,
        survive=read_survive(values.get("survive")),
        day=asked.day,
        rows=rows_of(asked.trace, reuse_stated="prefix_reuse" in values),
        traced=asked.trace is not None,
    )


def _traffic(values: Mapping[str, str], manifest: Manifest) -> Asked:
    """Return lengths, rate and day: of a trace, or the manifest's with what was given in their place."""
    model = manifest.model.spec
    if "trace" in values:
        flags = TrafficFlags(**{key: value for key, value in values.items() if key in _OF_A_MANIFEST})
        return read_traffic(flags, model)
    if "format" in values:
        raise BadInput("--format tells the format of a trace; give --trace FILE with it or leave it out")
    workload = workload_of(manifest.workload)
    prompt = read_lengths("isl", values, workload.input_tokens)
    answer = read_lengths("osl", values, workload.output_tokens)
    check_positions(prompt, answer, model)
    reuse = read_fraction(values.get("prefix_reuse"), "--prefix-reuse", workload.prefix_reuse, below_one=True)
    rate, day = read_rate(values.get("rate"), values.get("rate_profile"))
    traffic = replace(
        workload,
        input_tokens=prompt.lengths,
        output_tokens=answer.lengths,
        prefix_reuse=reuse,
        prompts=_prompts(values, workload, prompt, reuse),
        answers=answer_kinds(*answer.histogram) if answer.histogram else _kept(values, "osl", workload.answers),
    )
    return Asked(workload=traffic, rate_per_second=rate, day=day)


def _prompts(values: Mapping[str, str], known: Workload, stated: Stated, reuse: float) -> Prompts:
    """Return the kinds of prompts that were given, or the manifest's, with the reuse that was."""
    if stated.histogram is not None:
        return histogram_kinds(*stated.histogram, reuse)
    kept = _kept(values, "isl", known.prompts)
    if kept is None or "prefix_reuse" not in values:
        return kept
    lengths, _, weights = (np.array(column) for column in zip(*kept, strict=True))
    tokens, places = np.unique(lengths, return_inverse=True)
    return histogram_kinds(tokens, np.bincount(places, weights) / weights.sum(), reuse)


def _kept(values: Mapping[str, str], side: str, known: Kinds | None) -> Kinds | None:
    """Return the kinds that a manifest has, unless lengths of that side were given."""
    return known if values.keys().isdisjoint((side, f"{side}_cv", f"{side}_distribution")) else None
