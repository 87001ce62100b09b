"""What a running system told: rate, lengths, reuse and step times, each with its uncertainty."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from ground.errors import BadInput
from ground.files import read_text
from ground.prometheus import Histogram, Scrape, parse_scrape
from ground.traces import read_trace
from ground.units import format_duration
from planner.engines.loader import all_engines, load_orchestrator
from planner.engines.spec import Metrics
from planner.manifest.schema import Manifest
from planner.plans.expectation import planned_rate, workload_of
from planner.workload import Lengths, Traffic, Workload
from podplan.on_trace import rows_of
from podplan.verification import verify

SCORE = 1.96
"""Standard deviations on each side that hold 95 % of a normal estimate."""
USUAL_SECONDS = 60.0
"""Between two scrapes of an endpoint."""
LEAST_REQUESTS = 30
"""Fewer tell neither lengths nor times."""
MOST_SCRAPE_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a system told in some ``seconds``, 0 for runs without traffic of their own; None where it tells nothing.

    Half widths are those of 95 % intervals.
    """

    source: str
    seconds: float
    requests: float
    workload: Workload
    rate_per_second: float
    ttft_seconds: float | None = None
    """At the plan's percentile."""
    tpot_seconds: float | None = None
    mean_tpot_seconds: float | None = None
    step_factor: float | None = None
    """Measured over predicted step time, where verified runs tell it."""

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

    @property
    def times_steps(self) -> bool:
        """Whether it tells how long steps take."""
        return self.step_factor is not None or self.mean_tpot_seconds is not None


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
        try:
            with urlopen(source, timeout=10) as answer:
                text = answer.read(MOST_SCRAPE_BYTES).decode("utf-8", "replace")
        except (OSError, HTTPException, ValueError) as error:
            raise BadInput(f"{source[:100]}: does not answer: {error}") from None
        total = total + parse_scrape(text, source)
    return total


def _text(source: str) -> str | None:
    """Return a file of metrics; None for what is none by its first line."""
    if os.path.isdir(source) or source.endswith((".gz", ".csv", ".json", ".jsonl", ".tar")):
        return None
    text = read_text(Path(source))
    first = next((line for line in text.splitlines() if line.strip()), "")
    return (
        text
        if first.startswith("#") or (first and first[0].isalpha() and " " in first and "," not in first.split("{")[0])
        else None
    )


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


def of_metrics(since: Scrape, seconds: float, manifest: Manifest, source: str) -> Observed:
    """Return what counters and histograms of some seconds tell, of whichever engine's names are there."""
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


def of_trace(source: str, manifest: Manifest) -> Observed:
    """Return what a request log tells: rate, lengths and reuse."""
    trace = read_trace(Path(source))
    rows = rows_of(trace, reuse_stated=False)
    if rows is None:
        raise BadInput(f"{source}: has no arrivals of its own; a log of what came, with times, tells a rate")
    if len(trace) < LEAST_REQUESTS:
        raise BadInput(f"{source}: {len(trace)} requests tell nothing; give at least {LEAST_REQUESTS}")
    traffic = Traffic.from_trace(rows)
    seconds = float(trace.arrival_seconds[-1] - trace.arrival_seconds[0])
    return Observed(
        source=source,
        seconds=seconds,
        requests=len(trace),
        workload=traffic.workload,
        rate_per_second=traffic.rate_per_second,
    )


def of_results(sources: Sequence[str], manifest: Manifest, path: str) -> Observed:
    """Return what verified runs tell: how long steps are beside their predictions; traffic is the plan's."""
    paths = [str(each) for source in sources for each in _files(Path(source))]
    if not paths:
        raise BadInput(f"{sources[0]}: holds no results; CSV and JSON files are read, as plan verify reads them")
    with_manifest = any(not each.endswith(".csv") for each in paths)
    found = verify(*paths, manifest=path if with_manifest else None)
    errors = [1 / (1 + each.error["tpot_seconds"]) for each in found.compared if "tpot_seconds" in each.error]
    if not errors:
        reason = next((each.reason for each in found.runs if each.reason), "they state no TPOT")
        raise BadInput(f"{sources[0]}: no run could be set beside a prediction: {reason}")
    rate = planned_rate(manifest)
    middle = sorted(errors)[len(errors) // 2]
    return Observed(
        source=", ".join(sources),
        seconds=0.0,
        requests=len(errors),
        workload=workload_of(manifest.workload),
        rate_per_second=rate,
        step_factor=middle,
    )


def _files(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.suffix in (".csv", ".json")) if path.is_dir() else [path]
