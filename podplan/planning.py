"""`podplan.plan`: the deployment that serves a load best on a machine, and what it rests on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ground.errors import BadInput, Infeasible
from ground.units import carried_rate, counted, format_duration
from ground.workers import Executor, spread
from planner.changeover.growth import Month, by_month
from planner.checks.jobs import job_seconds
from planner.checks.margins import Sureness, sureness
from planner.checks.on_trace import OnTrace, search_on_trace
from planner.plans.day import over_the_day
from planner.plans.plan import Plan
from planner.programme.proof import Bound
from planner.search.answer import Answer
from planner.search.changes.refusal import answered
from planner.search.pareto import MOST_LEVELS, wide_front
from planner.search.search import Aside, at_need, search
from planner.workload import TraceRows
from podplan.assumptions import assumptions
from podplan.day import day_json
from podplan.job import job_json, late
from podplan.options import given
from podplan.plan_data import (
    bound_json,
    engines_json,
    format_json,
    growth_json,
    levels_of,
    plan_json,
    plan_row,
    published_json,
    question_json,
    queueing_json,
    sure_json,
)
from podplan.question import Asked
from podplan.question_files import asked_of, single_question, typed_of
from podplan.readers import read_tokens
from podplan.result import Result, Row, as_json
from podplan.traffic import MOST_REQUESTS

if TYPE_CHECKING:
    from ground.arrays import Floats
    from ground.traces import Trace
    from planner.manifest.schema import Manifest
    from podplan.simulation import SimulateResult

FILES = ("manifest.yaml", "plan.json")


@dataclass(frozen=True, kw_only=True)
class Answered(Result):
    """A question and its answer.

    Attributes:
        asked: the flags as they were given, and the question that they stand for, defaults filled in.
        answer: the planner's answer, every figure in SI units.
    """

    asked: Asked
    answer: Answer

    @property
    def best(self) -> Plan | None:
        """The best plan; None where none keeps the limits."""
        return self.answer.best

    @cached_property
    def sureness(self) -> Sureness | None:
        """With which confidence the plan keeps its limits; None without one."""
        return None if self.answer.best is None else sureness(self.answer.best)

    @property
    def feasible(self) -> bool:
        """Whether some plan keeps the limits."""
        return self.answer.best is not None


@dataclass(frozen=True, kw_only=True)
class PlanResult(Answered):
    """The answer to a question.

    Attributes:
        seconds: how long the search took.
        on_trace: what the plan does on the requests of the trace that was asked about, if they can be played.
        months: what to buy in which month, where the rate grows.
    """

    seconds: float
    on_trace: OnTrace | None = None
    months: tuple[Month, ...] = ()

    @property
    def pareto(self) -> tuple[Plan, ...]:
        """Plans that trade rate, chips and latencies otherwise than the best one."""
        return self.answer.pareto

    @property
    def bound(self) -> Bound | None:
        """How good a plan could be at best, and over what that is proven."""
        return self.answer.bound

    @property
    def binding_limit(self) -> str | None:
        """What keeps the plan from being better, or from being at all."""
        return self.answer.binding_limit

    @property
    def explanation(self) -> str:
        """Why, in words."""
        return self.answer.explanation

    @property
    def headline(self) -> str:
        """What the plan does, or what binds where there is none."""
        plan = self.best
        if plan is None:
            return f"no plan is feasible (binding limit: {self.binding_limit}): {self.explanation}"
        machines = dict.fromkeys(pool.machines.hardware.name for _, pool in plan.pools())
        job = self.asked.job
        ended = "" if job is None else f" and end the job in {format_duration(job_seconds(plan, job))}"
        return (
            f"{plan.question.model.name} on {' and '.join(machines)} with {plan.question.engine}: "
            f"{counted(plan.nodes, 'node')}, {counted(plan.chips, 'chip')} serve "
            f"{carried_rate(plan.requests_per_second)}{ended}; {self.binding_limit} binds."
        )

    def rows(self) -> list[Row]:
        """Return the Pareto front, one plan a row, the best one first; without a plan what binds."""
        question, best = self.asked.question, self.best
        names = dict.fromkeys(machines.hardware.name for machines in (question.prefill, question.decode))
        head: Row = {
            "model": question.model.name,
            "hardware": " + ".join(names),
            "feasible": self.feasible,
            "binding_limit": self.binding_limit,
            "percentile": question.percentile,
        }
        if best is None:
            return [head]
        others = [plan for plan in self.pareto if plan is not best]
        return [
            head | plan_row(best),
            *(head | plan_row(plan) | {"binding_limit": plan.binding_limit} for plan in others),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan search --json`` prints."""
        asked, answer, best = self.asked, self.answer, self.best
        return {
            "flags": given(asked.flags),
            "question": question_json(asked),
            "assumptions": assumptions(asked, best),
            "feasible": self.feasible,
            "percentile": answer.question.percentile,
            "best": plan_json(best) | sure_json(self.sureness) if best else None,
            "pareto": [plan_json(plan, compact=True) for plan in answer.pareto],
            "candidates_evaluated": answer.candidates_evaluated,
            "search_seconds": self.seconds,
            "bound": bound_json(answer.bound) if answer.bound else None,
            "day": day_json(over_the_day(best, asked.day), levels_of(best)) if best and asked.day else None,
            "job": job_json(best, asked.job) if best and asked.job else None,
            "growth": growth_json(self.months) if self.months else None,
            "on_trace": trace_json(self.on_trace, levels_of(best)) if best and self.on_trace else None,
            "queueing": queueing_json(best, levels_of(best)) if best else None,
            "published": [published_json(beside) for beside in answer.published],
            "engines": engines_json(answer),
            "formats": [format_json(tried) for tried in answer.formats],
            "cut": {role: dict(rules) for role, rules in answer.cut.items()},
            "binding_limit": answer.binding_limit,
            "explanation": answer.explanation,
        }

    def manifest(self) -> "Manifest":
        """Return the plan as a manifest, complete enough to run; Infeasible without a plan."""
        return self._manifest

    @cached_property
    def _manifest(self) -> "Manifest":
        from planner.plans.assemble import assemble  # takes 0.1 s to import

        if self.best is None:
            raise Infeasible(self.headline)
        return assemble(self.best, question_json(self.asked))

    def files(self) -> Mapping[str, str]:
        """Return manifest.yaml and plan.json; Infeasible without a plan."""
        from planner.manifest.document import dump_manifest

        # Without the time that it took, so that the same question gives the same bytes.
        data = {key: value for key, value in self.to_dict().items() if key != "search_seconds"}
        return dict(zip(FILES, (dump_manifest(self.manifest()), as_json(data)), strict=True))

    def simulate(self, **flags: Any) -> "SimulateResult":
        """Run the plan in virtual time; the keywords are those of ``podplan.simulate``."""
        from podplan.simulation import simulate

        return simulate(self.manifest(), **flags)


def plan(model: str, *, hw: object = None, pareto: int | str | None = None, **flags: object) -> PlanResult:
    """Find the deployment that serves a load best on a machine: pools, strategies, batches, and why.

    Args:
        model: a catalogue name, or the path of a config.json or of a model YAML; without ``hw`` a question file, of
            several questions the one that ``name`` names.
        hw: a catalogue name or YAML, or one for each role: ``{"prefill": "910b", "decode": "cm384"}``.
        pareto: levels of TTFT, TPOT and devices that a wide Pareto front is searched over, 2 to 8.
        flags: the long flags of ``plan search``, such as ``nodes=4, rate="100/s", ttft="2s", tpot=0.05``; numbers are
            SI.

    Returns:
        The answer; an infeasible question gives one with ``feasible`` false.
    """
    asked = asked_of(single_question(typed_of({"model": model, "hw": hw, **flags}), "search"))
    return widened(solved(asked), read_levels(None if pareto is None else str(pareto)))


def solved(
    asked: Asked, *, explain: bool = True, beside: bool = True, play: bool = True, aside: Aside = at_need
) -> PlanResult:
    """Return the answer to a question; ``play`` candidates on the requests of a trace, where it can be.

    ``explain`` says what binds by solving changed questions, ``beside`` sets published deployments beside the plan,
    which are searched ``aside``.
    """
    begin = perf_counter()
    first = partial(answered, beside=beside, aside=aside)
    asked, known = _settled(asked, first)
    job = asked.job if asked.job and asked.job.seconds else None
    if known is not None and play:
        answer, on_trace = known
    elif asked.trace is not None and play:
        answer, on_trace = traced(asked, first)
    else:
        search_plan = answered if explain and job is None else search
        answer, on_trace = search_plan(asked.question, beside=beside, aside=aside), None
    if job is not None and explain and answer.best is None:
        answer = late(asked.question, job, asked.with_job)
    growing = asked.growth and answer.best and explain
    months = tuple(by_month(asked.question, answer.best, asked.growth, spread)) if growing and answer.best else ()
    asked = replace(asked, question=answer.question)  # in the number format that was chosen
    return PlanResult(asked=asked, answer=answer, seconds=perf_counter() - begin, on_trace=on_trace, months=months)


def settled(asked: Asked) -> Asked:
    """Return a question as it is planned: with what prompts find in its own instances, at the rate of its job."""
    return _settled(asked, partial(search, beside=False))[0]


def _settled(asked: Asked, first: Callable[..., Answer]) -> "tuple[Asked, tuple[Answer, OnTrace | None] | None]":
    """Return a question as ``settled``, and its answer where that had to be known."""
    known = None
    if asked.question.prefix_routing is not None:
        from podplan.prefixes import in_own_caches  # with the runtime, which only this needs

        asked, known = in_own_caches(
            asked, partial(traced, first=first), lambda each: (search(each.question, beside=False), None)
        )
    if asked.job is not None:
        asked = replace(asked, question=asked.job.ending_in_time(asked.question))
    return asked, known


def read_levels(text: str | None) -> int | None:
    """Return over how many levels of the limits and of the devices the front reaches; None where not asked."""
    if text is None:
        return None
    levels = read_tokens(text, "--pareto", 0)
    if not 2 <= levels <= MOST_LEVELS:
        raise BadInput(f"--pareto: {levels} is not from 2 to {MOST_LEVELS} levels of TTFT, TPOT and devices each")
    return levels


def widened(found: PlanResult, levels: int | None, executor: Executor | None = None) -> PlanResult:
    """Return an answer with a Pareto front over so many levels; as it is without a plan or levels."""
    if levels is None or found.best is None:
        return found
    begin = perf_counter()
    front = wide_front(found.answer.question, found.best, levels, executor or spread)
    evaluated = found.answer.candidates_evaluated + front.candidates_evaluated
    answer = replace(found.answer, pareto=front.plans, candidates_evaluated=evaluated)
    return replace(found, answer=answer, seconds=found.seconds + perf_counter() - begin)


def playable(asked: Asked) -> TraceRows | None:
    """Return the requests of the trace of a question, where a plan can be played on them, as ``rows_of``.

    None beside offline requests, which the trace has not: it tells lengths and a rate, and ``simulate`` plays both.
    """
    if asked.question.queueing != "bulk" or asked.question.offline is not None:
        return None
    return rows_of(asked.trace, reuse_stated=asked.flags.prefix_reuse is not None)


def rows_of(trace: "Trace | None", *, reuse_stated: bool) -> TraceRows | None:
    """Return the requests of a trace with what each reuses, where they can be played.

    None without a trace; where it has no times, or turns that follow answers; where another reuse than its own was
    stated.
    """
    if trace is None or not trace.timed or len(trace) > MOST_REQUESTS or reuse_stated:
        return None
    if trace.delay_seconds is not None and bool(np.isfinite(trace.delay_seconds).any()):
        return None
    from ground.traces import reused_tokens

    return TraceRows.of(trace, None if trace.hash_ids is None else reused_tokens(trace))


def traced(asked: Asked, first: Callable[..., Answer]) -> tuple[Answer, OnTrace | None]:
    """Return the answer to a question with a trace, and what its plan does on it where it can be played."""
    rows = playable(asked)
    if rows is None:
        return first(asked.question), None
    return search_on_trace(asked.question, rows, first, first)


def trace_json(found: OnTrace, percentiles: tuple[float, ...]) -> dict[str, object]:
    """Return the figures in SI units."""
    recorded, columns = found.recorded, ("ttft_seconds", "tpot_seconds", "e2e_seconds")
    return {
        "played_times": found.factor,
        "requests": int(recorded.ttft_seconds.size),
        **{name: _recorded_json(getattr(recorded, name), percentiles) for name in columns},
        "slo_attainment": found.attainment,
        "keeps_limits": found.keeps,
        "most_requests_per_second": found.most_per_second,
    }


def _recorded_json(seconds: "Floats", percentiles: tuple[float, ...]) -> dict[str, float] | None:
    known = seconds[~np.isnan(seconds)]
    if not known.size:
        return None
    at = np.percentile(known, percentiles).tolist()
    return {"mean": float(known.mean())} | {f"p{level:g}": value for level, value in zip(percentiles, at, strict=True)}
