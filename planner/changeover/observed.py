"""Observations of a running system, each with its uncertainty, what it carries by them, and the question they ask."""

import math
from dataclasses import dataclass, replace

from ground.errors import BadInput
from ground.prometheus import Histogram, Scrape
from ground.units import format_duration
from models.parameters import pictures_of
from planner.changeover.capacity import carried, total_carried
from planner.checks.manifests import from_manifest
from planner.engines.loader import all_engines, load_orchestrator
from planner.engines.spec import Metrics
from planner.manifest.schema import Manifest
from planner.plans.expectation import expect
from planner.question import Machines, Question
from planner.serving.capacity import Limits
from planner.serving.deployed import workload_of
from planner.workload import Lengths, Workload

SCORE, STEP_SCORE = 1.96, 1.2816  # standard deviations on each side that hold 95 % of a normal estimate, 80 % of steps
STEP_DEVIATION = 0.1  # relative, of a predicted TPOT where the plan states no interval: about the median error
LEAST_REQUESTS = 30  # least number of requests from which lengths and times are estimated


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Observations over ``seconds``, 0 for runs without traffic of their own; a field without observations is None.

    Half widths are those of 95 % intervals.
    """

    source: str
    seconds: float
    requests: float
    workload: Workload
    rate_per_second: float
    ttft_seconds: float | None = None  # TTFT at the plan's percentile
    tpot_seconds: float | None = None
    mean_tpot_seconds: float | None = None
    step_factor: float | None = None  # measured over predicted step time, from verified runs

    @property
    def rate_half_width(self) -> float:
        """Half width of the rate."""
        spread = math.sqrt(self.requests * max(self.workload.arrival_squared_cv, 1.0))
        return SCORE * spread / self.seconds if self.seconds else 0.0

    @property
    def prompt_half_width(self) -> float | None:
        """Half width of the mean prompt."""
        return _half_width(self.workload.input_tokens, self.requests) if self.seconds else None

    @property
    def answer_half_width(self) -> float | None:
        """Half width of the mean answer."""
        return _half_width(self.workload.output_tokens, self.requests) if self.seconds else None

    @property
    def upper_per_second(self) -> float:
        """Upper end of the rate."""
        return self.rate_per_second + self.rate_half_width


def of_metrics(since: Scrape, seconds: float, manifest: Manifest, source: str) -> Observed:
    """Return the observations from counters and histograms over some seconds, under any engine's names."""
    names = next((each for each in _known() if since.histogram(each.ttft) is not None), None)
    if names is None:
        raise BadInput(f"{source}: has no TTFT of vLLM, SGLang or Dynamo's front end; is it their /metrics?")
    ttft, tpot = since.histogram(names.ttft), since.histogram(names.tpot)
    prompts = since.histogram(names.prompt_lengths) if names.prompt_lengths else None
    answers = since.histogram(names.output_lengths) if names.output_lengths else None
    count = since.values.get(names.requests or "", 0.0) or (ttft.count if ttft else 0.0)
    if count < LEAST_REQUESTS:
        raise BadInput(
            f"{source}: {count:g} requests in {format_duration(seconds)} tell nothing; watch for longer (--window)"
        )
    cached = since.values.get(names.cached_tokens or "", 0.0)
    tokens = prompts.total if prompts else since.values.get(names.prompt_tokens, 0.0)
    output = answers.total if answers else since.values.get(names.output_tokens, 0.0)
    if tokens <= 0 or output <= 0:
        raise BadInput(f"{source}: counts no prompt or no output tokens; watch the instances that answer")
    planned, percentile = workload_of(manifest.workload), manifest.service_levels.percentile
    workload = Workload(
        input_tokens=_lengths(tokens / count, prompts),
        output_tokens=_lengths(output / count, answers),
        prefix_reuse=min(cached / tokens, 0.99),
        arrival_squared_cv=planned.arrival_squared_cv,
    )
    return Observed(
        source=source,
        seconds=seconds,
        requests=count,
        workload=workload,
        rate_per_second=count / seconds,
        ttft_seconds=ttft.at(percentile) if ttft else None,
        tpot_seconds=tpot.at(percentile) if tpot else None,
        mean_tpot_seconds=tpot.mean if tpot and tpot.count else None,
    )


def _known() -> list[Metrics]:
    """Return the names that engines and orchestrators serve, the front end's first."""
    profiles = [each.deployment.metrics for each in all_engines() if each.deployment is not None]
    return [each.value for each in (load_orchestrator("dynamo").metrics, *profiles) if each is not None]


def _lengths(mean: float, histogram: Histogram | None) -> Lengths:
    return Lengths(mean=max(mean, 1.0), squared_cv=histogram.squared_cv if histogram else 0.0)


def _half_width(lengths: Lengths, count: float) -> float:
    return SCORE * lengths.mean * math.sqrt(lengths.squared_cv / count)


def carries(manifest: Manifest, workload: Workload, slow: float) -> float:
    """Return the rate of a manifest within its limits with steps ``slow`` times as long as predicted.

    The queue at rate R with service times f times as long is the predicted queue at f R under limits f times as tight.
    """
    stated = Limits.of(manifest.service_levels)
    ttft, tpot = stated.ttft_seconds, stated.tpot_seconds
    limits = stated._replace(ttft_seconds=ttft and ttft / slow, tpot_seconds=tpot and tpot / slow)
    return total_carried(manifest, carried(manifest, workload, limits)) / slow


def step_factor(manifest: Manifest, seen: Observed) -> float:
    """Return measured over predicted step times, from verified runs or from the mean TPOT at the observed rate."""
    if seen.step_factor is not None:
        return seen.step_factor
    if seen.mean_tpot_seconds is None:
        return 1.0
    found = expect(manifest, seen.workload, seen.rate_per_second).prediction
    if found is None or found.tpot_seconds is None or not found.tpot_seconds.mean:
        return 1.0
    return seen.mean_tpot_seconds / found.tpot_seconds.mean


def step_interval(manifest: Manifest) -> tuple[float, float]:
    """Return the 80 % interval of measured over predicted step times, from the plan's own deviation."""
    try:
        deviation = max(pool.deviation for pool in from_manifest(manifest, workload_of(manifest.workload)).pools)
    except BadInput:
        deviation = STEP_DEVIATION
    return 1 - STEP_SCORE * deviation, 1 + STEP_SCORE * deviation


def question_of(manifest: Manifest, workload: Workload, rate: float) -> Question:
    """Return the question whose answer the manifest is, at another rate and for other traffic."""
    pools = {pool.role: pool for pool in manifest.pools}
    sides = {}
    for role in ("prefill", "decode"):
        pool = pools.get(role) or pools["mixed"]
        cluster = manifest.clusters[pool.hardware]
        devices = max(cluster.nodes, int(cluster.spec.nodes.value)) * int(cluster.spec.devices_per_node.value)
        sides[role] = Machines(hardware=cluster.spec, devices=devices, weights=pool.weights_dtype, budget=pool.hardware)
    levels, answering = manifest.service_levels, pools.get("decode") or pools["mixed"]
    if levels.ttft_seconds is None or levels.tpot_seconds is None:
        raise BadInput("--manifest: states no service levels that a plan could keep; plan it with --ttft and --tpot")
    engine, model, shown = manifest.engine, manifest.model.spec, manifest.workload.pictures
    if shown is not None and model.vision is not None:
        workload = replace(workload, pictures=pictures_of(model.vision, **shown.model_dump()))
    return Question(
        model=model,
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
        encode="separate" if "encode" in pools else "fused",
    )
