"""`podplan.verify`: measured runs beside their predictions, and what later predictions learn from them."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ground.errors import BadInput
from ground.files import read_yaml, write_files
from ground.units import number_of, read_index
from hardware.engines import timed
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from planner.verification.next_runs import NextRun, next_runs
from planner.verification.outliers import NAMES, Loaded, outliers
from planner.verification.reports import Report, read_reports
from planner.verification.residuals import EXPERTS, FEATURES, UNTIMED, Residual
from planner.verification.runs import METRICS, Run, read_runs
from planner.verification.verify import Summary, Verified, by_label, calibration, point, summarise, verify_runs
from podplan.result import Result, Row, as_data, picked
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import Requests, closed_loop, open_loop

LABELS = ("engine", "hardware", "model")
SLOWER = 1.05
LEAST_REQUESTS, MOST_REQUESTS, REQUESTS_PER_CONCURRENCY = 500, 20_000, 10
MOST_NEXT = 100
USUAL_REQUESTS = 4000  # at a rate, where a report does not say how many


@dataclass(frozen=True, kw_only=True)
class VerifyResult(Result):
    """Measured runs beside their predictions.

    Attributes:
        runs: a run each, with its prediction, its intervals and, where it was skipped, why.
        notes: what would explain a measured value outside its interval, and how near the knee a load is.
        next: runs most likely to change the pick.
    """

    runs: tuple[Verified, ...]
    notes: tuple[str, ...] = ()
    next: tuple[NextRun, ...] = ()

    @property
    def compared(self) -> list[Verified]:
        """Runs that could be predicted."""
        return [each for each in self.runs if each.predicted]

    @property
    def holds(self) -> bool:
        """Whether every measured value lies in its interval; so it does where only the next runs are asked."""
        return bool(self.compared or (self.next and not self.runs)) and all(
            all(each.inside.values()) for each in self.compared
        )

    @property
    def summary(self) -> Summary:
        """Errors of all runs together."""
        return summarise(self.runs)

    @property
    def headline(self) -> str:
        """How many runs were compared, and how far predictions are off."""
        found = self.summary
        told = ", ".join(f"{NAMES[name]} {value:.1%}" for name, value in found.mape.items())
        return f"{found.count} runs compared, {len(self.runs) - found.count} skipped; mean |error| {told or 'of none'}"

    def rows(self) -> list[Row]:
        """Return a row per run and metric."""
        rows: list[Row] = []
        for each in self.compared:
            for name, error in each.error.items():
                low, high = each.interval[name]
                told = {"measured": each.run.measured[name], "predicted": each.predicted[name], "error": error}
                ends = {"low": low, "high": high, "inside": each.inside[name]}
                rows.append({"id": each.run.id, "metric": name, **told, **ends})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan verify --json`` prints."""
        rows = []
        for each in self.runs:
            ends = {name: {"low": low, "high": high} for name, (low, high) in each.interval.items()}
            told = picked(each, "id=run.id predicted measured=run.measured error inside") | {"interval": ends}
            rows.append(told | ({"reason": each.reason} if each.reason else {}))
        own = {label: as_data(by_label(self.runs, label)) for label in LABELS}
        whole = as_data(self.summary) | {"skipped": len(self.runs) - len(self.compared), "by": own}
        return {"rows": rows, "summary": whole} | picked(self, "notes next")


def verify(
    *results: str | Path,
    manifest: str | Path | None = None,
    calibration_file: str | Path | None = None,
    level: float | str = 0.8,
    next: int | str = 0,
) -> VerifyResult:
    """Set measured runs beside their predictions.

    Args:
        results: CSV tables of runs, and with a ``manifest`` reports of load generators.
        manifest: what ran, where the results are reports of load generators.
        calibration_file: what ``calibrate`` wrote of earlier runs; predictions learn from it.
        level: of the intervals.
        next: runs to name that would most likely change the pick of the plan whose manifest is given.

    Raises:
        BadInput: a file that is neither, a report without a manifest, a level not within 0 and 1.
    """
    inside, count = number_of(str(level)), read_index(str(next))
    if not 0 < inside < 1:
        raise BadInput(f"--level: {str(level)[:40]!r} is not a share between 0 and 1, such as 0.8")
    if count is None or count > MOST_NEXT:
        raise BadInput(f"--next: {str(next)[:40]!r} is not a number of runs from 1 to {MOST_NEXT}")
    known = read_calibration(Path(calibration_file)) if calibration_file is not None else []
    planned = None if manifest is None else read_manifest(Path(manifest))
    runs: list[Run] = []
    for path in map(Path, results):
        if path.suffix.lower() in (".csv", ".tsv"):
            runs += read_runs(path)
            continue
        reports = read_reports(path)
        if planned is None:
            raise BadInput(f"{path}: a report of {reports[0].tool} does not say what ran; give --manifest")
        runs += [_run(report, planned, number) for number, report in enumerate(reports, 1)]
    if count and manifest is None:
        raise BadInput("--next: give --manifest, of a plan that was written with --out")
    if not runs and not count:
        raise BadInput("RESULT: give at least one file of measured runs")
    knees: list[str] = []
    found = verify_runs(
        runs, known, inside, lambda asked: _played(asked, knees) if isinstance(asked, Loaded) else point(asked)
    )
    asked = next_runs(Path(manifest).parent, count, [*known, *calibration(found)]) if count and manifest else []
    return VerifyResult(runs=tuple(found), notes=(*knees, *outliers(found)), next=tuple(asked))


def calibrate(result: VerifyResult, path: str | Path, *, force: bool = False) -> None:
    """Write the errors of measured runs, verified without a calibration, for later predictions to learn from."""
    rows = [
        {"metric": name, "labels": dict(row.labels), "features": list(row.features), "error": row.error}
        for name, row in calibration(result.runs)
    ]
    head = {"podplan_calibration": 1, "features": list(FEATURES), "errors": rows}
    write_files({Path(path): yaml.safe_dump(head, sort_keys=False, width=120)}, force=force)


def read_calibration(path: Path) -> list[tuple[str, Residual]]:
    """Return what ``calibrate`` wrote; BadInput where a file is none of it."""
    data = read_yaml(path)
    if not isinstance(data, dict) or data.get("podplan_calibration") != 1 or not isinstance(data.get("errors"), list):
        raise BadInput(f"{path}: is no calibration that plan verify --calibrate writes")
    found = []
    for number, row in enumerate(data["errors"], 1):
        try:
            labels = {str(name): str(value) for name, value in row["labels"].items()}
            features, error = tuple(map(float, row["features"])), float(row["error"])
            known = row["metric"] in METRICS and len(features) == len(FEATURES)
            if not known or not math.isfinite(sum(features) + error):
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadInput(f"{path}: errors[{number - 1}] is not an error of a measured run") from None
        found.append((row["metric"], Residual(labels=labels, features=features, error=error)))
    return found


def _run(report: Report, manifest: Manifest, number: int) -> Run:
    pool = manifest.pools[-1]
    chips = sum(len(each.instances) * each.chips_per_instance for each in manifest.pools)
    measured = dict(report.measured)
    if report.output_tokens_per_second:
        measured[METRICS[2]] = report.output_tokens_per_second / chips
    reason = None if measured else f"{report.where}: states neither TTFT nor TPOT nor tokens per second"
    if report.concurrency is None and report.requests_per_second is None:
        reason = f"{report.where}: states neither a concurrency nor a rate"
    labels = {
        "engine": manifest.engine.id,
        "hardware": pool.hardware,
        "model": manifest.model.spec.name,
        "weights": pool.weights_dtype,
        "version": manifest.engine.version,
    }
    if manifest.model.spec.moe is not None:
        labels[EXPERTS] = "yes"
    if not timed(manifest.clusters[pool.hardware].spec, manifest.engine.id):
        labels[UNTIMED] = "yes"
    workload = manifest.workload
    prompt, answer = report.prompt_tokens or workload.input_tokens, report.output_tokens or workload.output_tokens
    residence = measured.get("ttft_seconds", 0.0) + measured.get("tpot_seconds", 0.0) * answer
    running = report.concurrency or (report.requests_per_second or 0.0) * residence
    return Run(
        id=f"{report.tool} {number}",
        features=(float(pool.devices_per_instance), max(running, 1.0), max(prompt, 1.0), max(answer, 1.0)),
        where=report.where,
        cells={},
        measured=measured,
        configuration=None if reason else Loaded(manifest=manifest, report=report),  # type: ignore[arg-type]
        reason=reason,
        labels=labels,
    )


def _played(loaded: Loaded, knees: list[str]) -> dict[str, float]:
    """Play what the load generator sent, from an empty system until all are served, as it measures them."""
    manifest, report = loaded.manifest, loaded.report
    changes: dict[str, object] = {}
    if report.prompt_tokens:
        changes |= {"input_tokens": report.prompt_tokens, "input_cv2": 0.0, "prompt_kinds": None}
    if report.output_tokens:
        changes |= {"output_tokens": report.output_tokens, "output_cv2": 0.0, "answer_kinds": None}
    workload = manifest.workload.model_copy(update=changes)
    options = SimulationOptions(mtp="expected")
    if report.concurrency:
        open_requests = max(round(report.concurrency), 1)
        usual = max(LEAST_REQUESTS, REQUESTS_PER_CONCURRENCY * open_requests)
        count = min(round(report.requests or usual), max(MOST_REQUESTS, usual))
        requests = closed_loop(workload, open_requests, max(count, open_requests))
    else:
        assert report.requests_per_second is not None, "a run has a concurrency or a rate"
        count = min(round(report.requests or USUAL_REQUESTS), MOST_REQUESTS)
        requests = open_loop(workload, report.requests_per_second, max(count, 1))
    found = simulate(manifest, requests, options)
    if not found.completed:
        tokens = f"{workload.input_tokens:g} + {workload.output_tokens:g} tokens"
        raise BadInput(f"no request of {tokens}, as the report has them, ends on this manifest")
    if not report.concurrency:
        knees.append(_knee(report, manifest, requests, options, found))
    chips = sum(len(each.instances) * each.chips_per_instance for each in manifest.pools)
    latencies = {"ttft_seconds": found.ttft_seconds, "tpot_seconds": found.tpot_seconds}
    values = {METRICS[2]: found.output_tokens_per_second / chips}
    values |= {name: latency.mean for name, latency in latencies.items() if latency is not None}
    return {name: value for name, value in values.items() if value > 0}


def _knee(
    report: Report, manifest: Manifest, requests: Requests, options: SimulationOptions, found: SimulationResult
) -> str:
    """Say how near the knee a rate is: how busy instances are, and what steps 5 % longer would make of TTFT.

    A system whose every step takes 1.05 times as long is the same one with time stretched, under arrivals 1.05 times
    as dense: TTFT is 1.05 times what it is there.
    """
    dense = replace(requests, arrival_seconds=requests.arrival_seconds / SLOWER)
    slow = simulate(manifest, dense, options)
    busy = " and ".join(f"{role} {share:.0%}" for role, share in found.utilisation.items())
    told = f"{report.where}: at {report.requests_per_second:.3g} requests/s {busy} busy"
    if found.ttft_seconds is None or slow.ttft_seconds is None or found.ttft_seconds.mean <= 0:
        return f"{told}."
    return f"{told}; steps 5 % longer make TTFT {SLOWER * slow.ttft_seconds.mean / found.ttft_seconds.mean:.2f} times."
