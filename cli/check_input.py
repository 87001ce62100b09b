"""One question of `plan check`: what is weighed, under which traffic, against which limits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cli.flags import read_fraction
from cli.on_trace import playable
from cli.question_file import Entry
from cli.question_options import search_flags
from cli.search_flags import SearchInput, read_search
from ground.errors import BadInput
from planner.checks.check import Limits, Margin, Search, Verdict, check_deployed, check_question, over_windows
from planner.checks.deployed_trace import plan_on
from planner.plans.day import Window, peak_rate

if TYPE_CHECKING:
    from cli.check_manifest import ManifestQuestion

OWN_KEYS = ("manifest", "confidence")
STATIONARY = "stationary queues"


Windows = list[tuple[Window, tuple[Margin, ...]]]
"""Of a day, the margins that each window leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCheck:
    """What one question asks: a search, or the verdict on a manifest."""

    name: str
    searched: SearchInput | None
    fixed: "ManifestQuestion | None"
    confidence: float | None

    def verdict(self, search_plan: Search) -> Verdict:
        """Return the verdict; ``search_plan`` is called where a plan must be found."""
        if self.fixed is not None:
            fixed, played = self.fixed, self.fixed.rows is not None and self.fixed.unlike is None
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
        unlike = self.fixed and self.fixed.unlike
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
            return AskedCheck(
                name=entry.name, searched=None, fixed=_manifest_question(entry.values), confidence=confidence
            )
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


def _manifest_question(values: Mapping[str, str]) -> "ManifestQuestion":
    from cli.check_manifest import read_manifest_question  # the schema of manifests takes a tenth of a second

    return read_manifest_question(values)
