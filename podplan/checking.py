"""`podplan.check`: do the limits hold, by how much, with which confidence, and after a loss?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ground.errors import BadInput, naming
from ground.units import carried_rate, counted, format_rate
from ground.workers import Workers, executor_of
from planner.checks.check import Search, Verdict, check_deployed, check_question
from planner.checks.deployed import Deployed, plan_on
from planner.checks.margins import AfterLoss, Margin, most_within, over_windows
from planner.plans.day import Window
from planner.plans.plan import Plan
from planner.plans.servers import spare_instances
from planner.question import Loss, Question
from planner.search.answer import Answer
from planner.search.changes.refusal import answered
from planner.serving.capacity import Limits
from planner.serving.deployed import workload_of
from planner.workload import TraceRows, Workload
from podplan.day import windows_json
from podplan.job import late
from podplan.options import QuestionFlags, flag_name
from podplan.plan_data import plan_json, question_json
from podplan.planning import playable, rows_of, settled
from podplan.question import Asked
from podplan.question_files import CHECK_KEYS, CHECKED, Entry, asked_of, questions_in_place, typed_of
from podplan.readers import read_confidence, read_headroom, read_limit, read_percentile, read_survive
from podplan.result import Result, Row, picked
from podplan.traffic import LENGTH_FIELDS, read_traffic, with_hits

if TYPE_CHECKING:
    from planner.manifest.schema import Manifest

_OF_A_MANIFEST = (*LENGTH_FIELDS, "prefix_reuse", "rate", "rate_profile", "trace", "format")
_LIMITS = ("ttft", "tpot", "percentile", "survive")
STATIONARY = "stationary queues"
Windows = list[tuple[Window, tuple[Margin, ...]]]  # of a day, the margins that each window leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestQuestion:
    """A fixed deployment, the traffic and the limits that it is weighed against."""

    path: str
    manifest: "Manifest"
    workload: Workload
    limits: Limits
    rate_per_second: float
    survive: Loss | None
    day: tuple[Window, ...] = ()
    rows: TraceRows | None = None  # of a trace that can be played
    traced: bool = False  # whether a trace was given

    @property
    def deployed(self) -> Deployed:
        """What the manifest deploys, under the traffic."""
        from planner.checks.manifests import manifest_on

        return manifest_on(self.manifest, self.workload, self.rows)

    @property
    def unlike(self) -> str | None:
        """Why a trace cannot be played on it."""
        from planner.plans.recorded import unlike_steps

        return unlike_steps(self.manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCheck:
    """What one question asks: a search, or the verdict on a manifest."""

    name: str
    searched: Asked | None = None
    fixed: ManifestQuestion | None = None
    confidence: float | None
    headroom: float = 0.0
    where: str = ""  # file and place in it, of a question file

    @property
    def sure(self) -> tuple[float | None, float]:
        """The confidence and the headroom that are asked for."""
        return self.confidence, self.headroom

    def verdict(self, search_plan: Search) -> Verdict:
        """Return the verdict; ``search_plan`` is called where a plan must be found."""
        if self.fixed is not None:
            fixed, played = self.fixed, self.fixed.rows is not None and self.fixed.unlike is None
            deployed, limits, rate, sure = fixed.deployed, fixed.limits, fixed.rate_per_second, self.sure
            found = check_deployed(deployed, limits, rate, *sure, loss=fixed.survive)
            if not found.holds and not played:
                most = most_within(deployed, limits, rate, fixed.survive, *sure)
                carried = f"it carries {carried_rate(most)}" if most else "it carries no rate within the limits"
                margins = (*found.margins, *([Margin(name="rate", limit=rate, value=most)] if most else []))
                found = replace(found, margins=margins, explanation=f"{found.explanation}; {carried}")
            return replace(found, played=played)
        assert self.searched is not None, "a check has a question or a manifest"
        question, rows = self.searched.question, playable(self.searched)
        found, job = check_question(question, search_plan=search_plan, trace=rows), self.searched.job
        if found.holds or job is None or job.seconds is None:
            return found
        refusal = late(question, job, self.searched.with_job)
        return replace(found, binding=refusal.binding_limit, explanation=refusal.explanation)

    def basis(self, verdict: Verdict) -> str:
        """Say what the figures are of."""
        told, rate = STATIONARY, verdict.rate_per_second
        traced = self.fixed.traced if self.fixed is not None else self.searched and self.searched.trace is not None
        if verdict.played:
            told = "the requests of the trace themselves, played at the rate"
        elif traced and verdict.margins:
            told = f"{told} of the trace's moments, for {self._not_played()}"
        beside = f" at {format_rate(rate * (1 + self.headroom))}, with {self.headroom:.0%} headroom" if rate else ""
        return f"{told}{beside if self.headroom else ''}"

    def _not_played(self) -> str:
        """Say why a trace was not played."""
        if self.fixed and self.fixed.unlike:
            return self.fixed.unlike
        rows = self.fixed.rows if self.fixed is not None else self.searched and playable(self.searched)
        if rows is None:
            return "turns that wait for answers, a stated reuse and M/M/1 cannot be played"
        return "it has fewer requests than three times those under way"

    def windows(self, verdict: Verdict) -> Windows:
        """Return what each window of the day sees of the deployment; none without a day or a plan."""
        if self.fixed is not None:
            fixed = self.fixed
            return over_windows(fixed.deployed, fixed.limits, fixed.day, *self.sure) if fixed.day else []
        assert self.searched is not None, "a check has a question or a manifest"
        plan, day = verdict.plan, self.searched.day
        if plan is None or not day:
            return []
        rows = playable(self.searched) if verdict.played else None
        return over_windows(plan_on(plan, rows), Limits.of(self.searched.question), day, *self.sure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A question with its verdict and the seconds that it took.

    ``windows`` is what each window of a day sees of the deployment that is sized for the worst.
    """

    asked: AskedCheck
    verdict: Verdict
    seconds: float
    windows: Windows = field(default_factory=list)

    @property
    def basis(self) -> str:
        """What the figures are of."""
        return self.asked.basis(self.verdict)

    def to_dict(self) -> dict[str, Any]:
        """Return the question's object in what ``plan check --json`` prints."""
        verdict, asked = self.verdict, self.asked
        return {
            "name": asked.name,
            "feasible": verdict.holds,
            "binding_limit": verdict.binding,
            "explanation": verdict.explanation,
            "basis": self.basis,
            "question": question_json(asked.searched) if asked.searched else asked.fixed and _fixed_json(asked.fixed),
            "margins": [margin_json(margin) for margin in verdict.margins],
            **picked(verdict, "rate_per_second confidence held_confidence"),
            "after_loss": verdict.after_loss and loss_json(verdict.after_loss),
            "day": self._day_json() if self.windows else None,
            "best": plan_json(verdict.plan, compact=True) if verdict.plan else None,
            "wall_seconds": self.seconds,
        }

    def _day_json(self) -> dict[str, object]:
        """Return what every window of a day sees of the deployment; no margins where nothing arrives."""
        rows = [{"margins": [margin_json(margin) for margin in margins]} for _, margins in self.windows]
        return windows_json([window for window, _ in self.windows], rows)


@dataclass(frozen=True, kw_only=True)
class CheckResult(Result):
    """The verdicts on one question or on several.

    Attributes:
        questions: each question with its verdict, in the order in which they were asked.
    """

    questions: tuple[Checked, ...]

    @property
    def feasible(self) -> bool:
        """Whether every limit of every question holds."""
        return all(each.verdict.holds for each in self.questions)

    @property
    def headline(self) -> str:
        """How many questions hold."""
        return f"{sum(each.verdict.holds for each in self.questions)} of {len(self.questions)} questions hold"

    def rows(self) -> list[Row]:
        """Return a row per question: what is reached of each limit, and the room left."""
        found = []
        for each in self.questions:
            row: Row = {"name": each.asked.name, "feasible": each.verdict.holds, "binding_limit": each.verdict.binding}
            for margin in each.verdict.margins:
                row |= {f"{margin.name}_limit": margin.limit, margin.name: margin.value}
                row[f"{margin.name}_margin"] = margin.share
            found.append({**row, "held_confidence": each.verdict.held_confidence, "seconds": each.seconds})
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan check --json`` prints."""
        return {"feasible": self.feasible, "questions": [each.to_dict() for each in self.questions]}


def check(question: str | None = None, *, workers: Workers = None, **flags: object) -> CheckResult:
    """Say whether limits hold, by how much, with which confidence, and after a loss.

    Args:
        question: a question file, or with ``hw`` a model; None with ``manifest``.
        workers: processes that share the questions, or ``dask:ADDRESS`` [the cores].
        flags: the long flags of ``plan check``, such as ``rate``, ``ttft``, ``confidence`` and ``manifest``.
    """
    asked = [read_entry(entry) for entry in _entries(typed_of({"model": question, **flags}, *CHECK_KEYS))]
    found = chain.from_iterable(executor_of(workers)(_verdicts, _alike(asked)))
    return CheckResult(
        questions=tuple(
            Checked(asked=asked[number], verdict=verdict, windows=windows, seconds=took)
            for number, verdict, windows, took in sorted(found, key=lambda each: each[0])
        )
    )


def _entries(typed: Mapping[str, str]) -> list[Entry]:
    """Return the questions that flags ask, or those of the file that stands in place of a model."""
    if "manifest" in typed:
        return [Entry(name=typed.get("model") or typed["manifest"], where="", values=typed)]
    if "model" not in typed:
        raise BadInput("give a question file, MODEL with --hw HW, or --manifest FILE; see plan check --help")
    entries = questions_in_place(typed, "check", "--hw cm384")
    if entries is None:
        return [Entry(name=typed["model"], where="", values=typed)]
    shared = {key: typed[key] for key in (*CHECK_KEYS, *CHECKED) if key in typed}
    return [replace(one, values={**one.values, **shared}) for one in entries]


def _alike(asked: Sequence[AskedCheck]) -> list[list[tuple[int, AskedCheck]]]:
    """Return questions with their places, those together that one search answers: they differ in their rate only."""
    groups: list[tuple[Question | None, list[tuple[int, AskedCheck]]]] = []
    for number, one in enumerate(asked):
        question = None
        if one.searched is not None:
            question = replace(one.searched.question, rate_per_second=None, objective="throughput")
        own = next((members for known, members in groups if question is not None and known == question), None)
        if own is None:
            groups.append((question, own := []))
        own.append((number, one))
    return [members for _, members in groups]


Found = tuple[int, Verdict, Windows, float]  # place, verdict, windows of the day and seconds of a question


def _verdicts(group: Sequence[tuple[int, AskedCheck]]) -> list[Found]:
    """Return what each question comes to; what differs in its rate only is searched once."""
    found, known = list[Found](), list[tuple[Question, Answer]]()

    def searched(question: Question) -> Answer:
        same = (answer for asked, answer in known if asked == question)
        answer = next(same, None) or answered(question, beside=False)
        known.append((question, answer))
        return answer

    for number, one in group:
        begin = perf_counter()
        verdict = one.verdict(searched)
        found.append((number, verdict, one.windows(verdict), perf_counter() - begin))
    return found


def read_entry(entry: Entry) -> AskedCheck:
    """Return what a question asks; BadInput names the place in the file, and the key or flag."""
    with naming(entry.where):
        asked = AskedCheck(
            name=entry.name,
            confidence=read_confidence(entry.get("confidence")),
            headroom=read_headroom(entry.get("headroom")),
            where=entry.where,
        )
        if entry.get("manifest") is not None:
            return replace(asked, fixed=_read_manifest_question(entry.values))
        if entry.get("objective") is not None:
            raise BadInput("--objective: a check asks whether limits hold, whatever is best; leave it out")
        searched = settled(asked_of(entry))
        if searched.day and searched.question.offline is not None:
            raise BadInput("--rate-profile: a check beside --offline knows one rate; give --rate instead")
        return replace(asked, searched=searched)


def margin_json(margin: Margin) -> dict[str, object]:
    """Return a limit beside what is reached."""
    unit = "per_second" if margin.name == "rate" else "seconds"
    return picked(margin, f"name limit_{unit}=limit value_{unit}=value margin=share holds")


def loss_json(after: AfterLoss) -> dict[str, object]:
    """Return what is left after a loss."""
    margins = [margin_json(margin) for margin in after.margins]
    return picked(after, "loss lost_instances=lost.counts feasible=holds") | {"margins": margins}


def after_text(after: AfterLoss | None) -> str:
    """Say which instances are lost and how much room is left to each limit then."""
    if after is None:
        return ""
    room = (
        f"{margin.name.upper()} {'cannot keep up' if margin.share is None else f'{margin.share:+.1%}'}"
        for margin in after.margins
    )
    return f"{lost_text(after)}: {', '.join(room)}"


def lost_text(after: AfterLoss) -> str:
    """Say how many instances of each role are lost."""
    lost = (counted(count, f"{role} instance") for role, count in after.lost.counts.items() if count)
    return f"{' and '.join(lost)} gone"


def spares_text(plan: Plan | None, verdict: Verdict) -> str:
    """Say how many instances of each pool the rate does not need; of a trace only its play after a loss tells that."""
    if plan is None or verdict.after_loss is None or verdict.played:
        return ""
    return ", ".join(f"{spare_instances(plan, pool)} {role}" for role, pool in plan.pools())


def _read_manifest_question(values: Mapping[str, str]) -> ManifestQuestion:
    """Return the question about a manifest; its own traffic and limits hold where none are given."""
    # The schema of manifests takes a tenth of a second, which other questions are spared.
    from planner.manifest.document import read_manifest
    from planner.plans.expectation import planned_rate

    for key in values:
        if key not in (*_OF_A_MANIFEST, *_LIMITS, *CHECK_KEYS, *CHECKED):
            why = "is planned already, and its latencies alone are weighed" if key == "max_utilisation" else ""
            raise BadInput(f"{flag_name(key)}: a manifest {why or 'fixes the deployment'}; leave one of the two out")
    path = values["manifest"]
    manifest = read_manifest(Path(path))
    flags = QuestionFlags(**{key: value for key, value in values.items() if key in _OF_A_MANIFEST})
    spec, known = manifest.model.spec, workload_of(manifest.workload)
    asked = read_traffic(flags, spec, lambda trace: with_hits(trace, manifest.cache(trace.block_tokens)), known)
    rate = planned_rate(manifest) if asked.rate_per_second is None else asked.rate_per_second
    levels = manifest.service_levels
    ttft = levels.ttft_seconds if "ttft" not in values else read_limit(values["ttft"], "--ttft")
    tpot = levels.tpot_seconds if "tpot" not in values else read_limit(values["tpot"], "--tpot")
    if ttft is None and tpot is None:
        raise BadInput(f"--ttft: {path} states no service levels; give --ttft or --tpot")
    percentile = read_percentile(values["percentile"]) if "percentile" in values else levels.percentile
    limits = Limits(ttft_seconds=ttft, tpot_seconds=tpot, percentile=percentile)
    return ManifestQuestion(
        path=path,
        manifest=manifest,
        workload=asked.workload,
        limits=limits,
        rate_per_second=rate,
        survive=read_survive(values.get("survive")),
        day=asked.day,
        rows=rows_of(asked.trace, reuse_stated="prefix_reuse" in values),
        traced=asked.trace is not None,
    )


def _fixed_json(fixed: ManifestQuestion) -> dict[str, object]:
    return {
        "manifest": fixed.path,
        "model": fixed.manifest.model.spec.name,
        "input_tokens": picked(fixed.workload.input_tokens, "mean squared_cv"),
        "output_tokens": picked(fixed.workload.output_tokens, "mean squared_cv"),
        **picked(fixed, "rate_per_second"),
        **picked(fixed.limits, "ttft_seconds tpot_seconds percentile"),
        "survive": fixed.survive,
    }
