"""`podplan.simulate`: a manifest at work in virtual time, measured beside predicted."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

from ground.errors import BadInput
from ground.files import check_file, staging, writing
from ground.units import counted, parse_count, parse_rate
from planner.manifest.document import read_manifest
from planner.manifest.migration import union
from planner.manifest.schema import Manifest, ManifestWorkload, Prediction
from planner.placement.following import Changing, Rebalanced, rebalanced
from podplan.changing import PlayedMigration, measured_balance, read_autoscale, read_change, read_loads
from podplan.offered import Offered, check_most, read_offered, read_seed
from podplan.options import SimulateFlags, flag_name, flags_of
from podplan.readers import read_offline_lengths
from podplan.result import Result, Row, picked
from runtime.simulate.engine import NEVER
from runtime.simulate.faults import parse_fault
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.observe import Observer
from runtime.simulate.quantiles import interval
from runtime.simulate.run import simulate as run_simulation, with_policies
from runtime.simulate.workload import Requests, backlog

Progress = Callable[[float, int, int], None]  # is told the simulated seconds, and how many requests came and are done


class Planned(Protocol):
    """A plan, as ``podplan.plan`` returns it."""

    def manifest(self) -> Manifest:
        """Return the plan as a manifest."""
        ...


OF_A_TRACE = ("format", "scale_rate", "window", "repeat", "skip_bad_rows")


@dataclass(frozen=True, kw_only=True)
class SimulateResult(Result):
    """A run of a manifest, measured beside predicted.

    Attributes:
        manifest: what ran.
        offered: what arrived, which part of it was measured, and what was expected.
        measured: what the run came to, every figure in SI units.
    """

    manifest: Manifest
    offered: Offered
    measured: SimulationResult
    change: "PlayedMigration | None" = None  # of a migration: beside the run without it

    @property
    def headline(self) -> str:
        """What ran, and how much of it was measured."""
        return f"{self.manifest.model.spec.name}, {counted(self.measured.requests, 'request')} measured"

    def rows(self) -> list[Row]:
        """Return measured, predicted and error of every figure."""
        data = self.to_dict()
        return list(_compared(data, data["predicted"], data["relative_error"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan simulate --json`` prints; a key without a prediction holds null."""
        offered, result = self.offered, self.measured
        measured = {key: value for key, value in result.to_dict().items() if key not in ("steps", "wall_seconds")}
        predicted = (offered.expectation.prediction or Prediction()).model_dump(mode="json")
        return {
            **measured,
            "predicted": predicted,
            "relative_error": {key: relative_error(value, measured[key]) for key, value in predicted.items()},
            "wall_seconds": result.wall_seconds,
            "predicted_from": offered.expectation.basis,
            "measured_window": offered.measured,
            "notes": list(offered.notes),
            "seed": offered.options.seed,
            **({} if self.change is None else {"migration": self.change.to_dict(result)}),
        }


def _compared(measured: Any, predicted: Any, error: Any, name: str = "") -> Iterator[Row]:
    """Yield a row for every figure that has a prediction, nested ones by a dotted name."""
    for key, value in predicted.items():
        own = measured.get(key) if isinstance(measured, dict) else None
        off = error.get(key) if isinstance(error, dict) else None
        if isinstance(value, dict):
            yield from _compared(own, value, off, f"{name}{key}.")
        else:
            yield {"figure": f"{name}{key}", "measured": own, "predicted": value, "relative_error": off}


def relative_error(predicted: Any, measured: Any) -> Any:
    """Return predicted / measured - 1, key by key; null where one of them is missing or nothing was measured."""
    if isinstance(predicted, dict) and isinstance(measured, dict):
        return {key: relative_error(value, measured.get(key)) for key, value in predicted.items()}
    return predicted / measured - 1 if predicted is not None and measured else None


@dataclass(frozen=True, kw_only=True)
class PoliciesResult(Result):
    """Runs of the same requests under several policies.

    Attributes:
        runs: each policy's run, by its name.
    """

    runs: dict[str, SimulateResult]

    @property
    def headline(self) -> str:
        """What was compared."""
        return f"the same requests under {', '.join(self.runs)}"

    @property
    def results(self) -> dict[str, SimulationResult]:
        """What each policy measured."""
        return {name: run.measured for name, run in self.runs.items()}

    @property
    def offered(self) -> Offered:
        """What arrived under each."""
        return next(iter(self.runs.values())).offered

    def rows(self) -> list[Row]:
        """Return a row per policy."""
        rows: list[Row] = []
        for name, run in self.results.items():
            times = {"ttft": run.ttft_seconds, "tpot": run.tpot_seconds, "e2e": run.e2e_seconds}
            means = {f"{which}_mean_seconds": None if found is None else found.mean for which, found in times.items()}
            rows.append({"policy": name, **means, **picked(run, "slo_attainment goodput_requests_per_second")})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return every variant's figures and the differences to the first."""
        return {
            "policies": {name: run.to_dict() for name, run in self.runs.items()},
            "differences": {"to": next(iter(self.runs)), **differences(self.results)},
            "seed": self.offered.options.seed,
        }


MEASURES = {"ttft": "ttft_seconds", "tpot": "tpot_seconds", "e2e": "e2e_seconds", "attained": "slo_attainment"}


def differences(results: dict[str, SimulationResult]) -> dict[str, dict[str, Any]]:
    """Return each policy less the first one: mean and half width of a 95 % interval over batches of requests."""
    first = next(iter(results.values())).batches
    found: dict[str, dict[str, Any]] = {}
    for name, result in list(results.items())[1:]:
        one, other = first.matched(result.batches)
        found[name] = {}
        for measure, key in MEASURES.items():
            spread = interval(other.means(measure) - one.means(measure))
            found[name][key] = None if spread is None else {"mean": spread[0], "half_width": spread[1]}
    return found


def simulate(manifest: "str | Path | Manifest | Planned", **flags: object) -> SimulateResult:
    """Run a manifest in virtual time and compare what it does with what was predicted.

    Args:
        manifest: the path of a manifest, one that was read, or a plan.
        flags: the long flags of ``plan simulate``, such as ``trace="trace.jsonl.gz"``, ``rate="50/s"`` or
            ``fail=["node 3 at 10s for 1min"]``; ``policies`` of one run, ``simulate_policies`` compares several.
    """
    return simulated(_manifest(manifest), flags_of(SimulateFlags, flags))


def simulate_policies(
    manifest: "str | Path | Manifest | Planned", policies: str | list[str], **flags: object
) -> PoliciesResult:
    """Run the same requests under several policies; ``a+b`` sets two at once. The keywords are as for ``simulate``."""
    return simulated_policies(_manifest(manifest), flags_of(SimulateFlags, {**flags, "policies": policies}))


def _manifest(given: "str | Path | Manifest | Planned") -> Manifest:
    if isinstance(given, str | Path):
        return read_manifest(Path(given))
    return given if isinstance(given, Manifest) else given.manifest()


def simulated(manifest: Manifest, flags: SimulateFlags, progress: Progress | None = None) -> SimulateResult:
    """Return the run that flags ask for; ``progress`` is told how far it is."""
    manifest = with_policies(manifest, flags.policies.split("+")) if flags.policies else manifest
    change = None if flags.migration is None else read_change(flags, manifest)
    flags = flags if change is None else change.long_enough(flags)
    offered = _offered(manifest, flags)
    played = manifest if change is None else union(change.staged.stages)
    options = offered.options if change is None else change.begun(offered.options)
    with _observing(flags, progress) as observer:
        measured = run_simulation(played, offered.requests, options, observer)
        _check_measured(measured, flags.warmup)
    if change is None:
        return SimulateResult(manifest=manifest, offered=offered, measured=measured)
    without = run_simulation(manifest, offered.requests, replace(offered.options, faults=()))
    done = PlayedMigration(staged=change.staged, begin_seconds=change.at(offered.options), without=without)
    return SimulateResult(manifest=manifest, offered=offered, measured=measured, change=done)


def simulated_policies(manifest: Manifest, flags: SimulateFlags) -> PoliciesResult:
    """Return the runs of the same requests under the policies that flags name."""
    offered = _offered(manifest, flags)
    names = [name.strip() for name in (flags.policies or "").split(",") if name.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        raise BadInput("--policies: give different ones to compare, such as round_robin,least_load")
    variants = {name: with_policies(manifest, name.split("+")) for name in names}
    runs = {}
    for name, made in variants.items():
        measured = run_simulation(made, offered.requests, offered.options)
        runs[name] = SimulateResult(manifest=made, offered=offered, measured=measured)
    for run in runs.values():
        _check_measured(run.measured, None)
    return PoliciesResult(runs=runs)


def _offered(manifest: Manifest, flags: SimulateFlags) -> Offered:
    check_together(flags)
    return _with_scenario(flags, manifest, read_offered(flags, manifest, read_seed(flags.seed)))


def check_together(flags: SimulateFlags) -> None:
    """Raise BadInput where flags contradict each other."""
    for other in ("trace", "rate"):
        flags.check_apart((other, "concurrency"), "say when requests arrive")
    given = [flag for flag in ("trace", "rate", "concurrency") if getattr(flags, flag) is not None]
    for flag in OF_A_TRACE:
        if getattr(flags, flag) is not None and flags.trace is None:
            name = "--trace-format" if flag == "format" else flag_name(flag)
            raise BadInput(f"{name} belongs to a trace; give --trace FILE with it or leave it out")
    if flags.bursts is not None and (flags.trace is not None or flags.concurrency is not None):
        raise BadInput("--bursts: is for arrivals at a --rate; leave the flag out")
    if flags.cold and given and given != ["rate"]:
        raise BadInput(f"--cold: a run with --{given[0]} always starts empty; leave the flag out")
    for name, owner, what in (("timeseries_step", "timeseries", "step"), ("migrate_at", "migration", "time")):
        if getattr(flags, name) is not None and getattr(flags, owner) is None:
            raise BadInput(f"{flag_name(name)}: belongs to --{owner} FILE; give it or leave the {what} out")
    if flags.migration is not None and (flags.policies is not None or flags.autoscale is not None):
        raise BadInput("--migration: is played by itself; leave --policies and --autoscale out")
    if "," in (flags.policies or "") and (flags.requests_csv or flags.timeseries or flags.timeline):
        raise BadInput("--policies: compares several runs; files are written for one run, so leave them out")


def _with_scenario(flags: SimulateFlags, manifest: Manifest, offered: Offered) -> Offered:
    """Add offline requests, faults and expert loads to a run."""
    options = offered.options
    planned = manifest.workload.offline if flags.concurrency is None else None
    if flags.offline is not None or planned is not None:
        last = max(float(part.arrival_seconds.max()) for part in offered.requests())
        end = min((last if flags.trace else 0.0) or NEVER, options.measured_until_seconds)
        text = flags.offline
        if text is None and planned is not None:  # as many as come until then
            rate, count = planned.requests_per_second, max(math.ceil(planned.requests_per_second * min(last, end)), 1)
            text = f"{count},{planned.input_tokens:.0f}+{planned.output_tokens:.0f}@{rate!r}/s"
        options = replace(options, offline=_backlog(text or "", manifest, options.seed), measured_until_seconds=end)
    found = _rebalanced(flags, manifest, offered)
    faults = tuple(parse_fault(text) for text in flags.fail or ())
    scale = None if flags.autoscale is None else read_autoscale(flags.autoscale)
    made = replace(options, balance=found.balance, rebalances=found.changes, faults=faults, autoscale=scale)
    told = (found.note,) if found.note else ()
    return replace(offered, options=replace(made, stepping=flags.each_iteration), notes=(*offered.notes, *told))


def _rebalanced(flags: SimulateFlags, manifest: Manifest, offered: Offered) -> Rebalanced:
    """Return the imbalance of experts over the run; BadInput where nothing tells it, or faults change it, too."""
    if flags.expert_loads is None:
        if flags.rebalance is not None:
            raise BadInput("--rebalance: maps follow --expert-loads; give them or leave the flag out")
        return Rebalanced(balance={}, changes=(), note="")
    seed = offered.options.seed
    loads, drift = read_loads(manifest, flags.expert_loads, seed)
    if drift is None and flags.rebalance is None:
        return Rebalanced(balance=measured_balance(manifest, flags.expert_loads, seed), changes=(), note="")
    named = "--expert-loads" if flags.rebalance is None else "--rebalance"
    if flags.fail or flags.migration is not None or flags.concurrency is not None:
        other = "--fail" if flags.fail else "--concurrency" if flags.migration is None else "--migration"
        raise BadInput(f"{named}: loads that change go with a stream or a trace alone; leave {other} out")
    every = flags.seconds("rebalance", None)
    last = max(float(part.arrival_seconds.max()) for part in offered.requests())
    return rebalanced(manifest, Changing(loads=loads, drift_seconds=drift, every_seconds=every, last_seconds=last))


def _backlog(text: str, manifest: Manifest, seed: int) -> Requests:
    """Return the offline requests of ``N[,PROMPT+ANSWER][@RATE]``: lengths as planned, all there at once or evenly."""
    text, paced, rate = text.partition("@")
    counted, _, lengths = text.partition(",")
    if manifest.routing.offline != "equal" and not any(pool.role == "prefill" for pool in manifest.pools):
        raise BadInput(
            "--offline: aggregated instances put no request behind others; use a manifest of --shape disaggregated, or "
            "set its routing.offline to equal, which serves all in order"
        )
    count, workload = parse_count(counted, "--offline"), manifest.workload
    check_most("--offline", count)
    longest = manifest.model.spec.max_position
    if lengths:
        prompt, answer = read_offline_lengths(lengths, longest)
        workload = ManifestWorkload(input_tokens=prompt, output_tokens=answer)
    return backlog(workload, count, seed, parse_rate(rate, "--offline") if paced else None).within(longest)


def _check_measured(result: SimulationResult, warmup: str | None) -> None:
    if not result.requests:
        raise BadInput(f"--warmup: no request arrives after {warmup}, so nothing is measured; use a shorter one")


@contextmanager
def _observing(flags: SimulateFlags, progress: Progress | None) -> Iterator[Observer]:
    """Yield an observer with the files that were asked for; they take their places when the block ends well.

    Raises BadInput naming the file before anything runs: it is there and --force is not given, or cannot be written.
    """
    asked = {"requests": flags.requests_csv, "series": flags.timeseries, "timeline": flags.timeline}
    _check_apart(flags)
    for path in filter(None, asked.values()):
        check_file(path, force=flags.force)
    with staging(force=flags.force) as beside, ExitStack() as stack:
        files = {name: stack.enter_context(_opened(path, beside)) for name, path in asked.items() if path}
        yield Observer(**files, series_seconds=flags.seconds("timeseries_step", 1.0), progress=progress)


def _check_apart(flags: SimulateFlags) -> None:
    """Raise BadInput where two flags name one file."""
    taken: dict[Path, str] = {}
    for name in ("requests_csv", "timeseries", "timeline"):
        path = getattr(flags, name)
        if path is None:
            continue
        other = taken.setdefault(path.resolve(), name)
        if other != name:
            raise BadInput(f"{flag_name(other)} and {flag_name(name)} both name {path}; give each a file of its own")


def _opened(path: Path, beside: Callable[[Path], Path]) -> IO[str]:
    with writing(path):
        return beside(path).open("w", encoding="utf-8", newline="\n")
