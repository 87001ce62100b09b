"""`plan MODEL --scenarios FILE`: one plan for several scenarios, and a policy where they are windows of time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ground.errors import BadInput, Infeasible, file_names, naming
from ground.files import read_yaml
from ground.traces import Trace, requests_per_second, scale_rate
from ground.units import DAY_SECONDS, HOUR_SECONDS, format_count, number_of, parse_duration
from ground.workers import spread
from planner.changeover.policy import Joint, LateStart, Policy, Robust, Space, late_starts, one_plan, policy, space_of
from planner.changeover.robust import Layout, Scenario, solved_scenario, stood
from planner.manifest.document import dump_manifest
from planner.manifest.schema import Manifest
from planner.plans.day import Window
from planner.search.fleet import asked_rate, on_pools
from podplan.day import clock_text
from podplan.fleets import FleetInput
from podplan.options import SIZES
from podplan.planning import playable, settled
from podplan.question import Asked
from podplan.question_files import Entry, asked_of, merged_flags, read_rows, typed_of
from podplan.readers import read_fraction
from podplan.result import Result, Row, as_json, picked
from runtime.simulate.run import simulate
from runtime.simulate.workload import from_trace

OWN_KEYS = ("name", "weight", "lasts")
SCENARIO_KEYS = (
    *("model", "rate", "isl", "osl", "isl_cv", "osl_cv", "isl_histogram", "osl_histogram", "prefix_reuse", "trace"),
    *("survive", "ttft", "tpot", *SIZES, *OWN_KEYS),
)
POLICY = "chip_hours moving_chip_hours bound_chip_hours gap replanned_chip_hours replanned_moving_chip_hours"
MOST_SCENARIOS = 300
MOST_FACTOR = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ScenariosResult(Result):
    """One plan for a share of the scenarios and, over windows of time, a policy.

    Attributes:
        space: the scenarios by window, and the layouts that each model may have.
        robust: the one plan; None where none holds in the share.
        policy: which layouts in which window; None where scenarios do not say how long they last.
        daily: whether the first window follows the last one.
    """

    share: float
    space: Space
    robust: Robust | None
    policy: Policy | None
    daily: bool = False

    @property
    def late(self) -> list[LateStart]:
        """Starts that wait until others have drained, where models share the devices."""
        return late_starts(self.space, self.policy, around=self.daily) if self.policy is not None else []

    @property
    def headline(self) -> str:
        """The one plan, and what the policy saves."""
        told = (
            f"no plan holds in {self.share:.0%} of the scenarios"
            if self.robust is None
            else (
                f"one plan of {format_count(self.robust.chips)} chips holds in "
                f"{sum(self.robust.holds)} of {len(self.space.windows)} scenarios, "
                f"at least {format_count(self.robust.least_chips)} are needed"
            )
        )
        if self.policy is None:
            return told
        peak, saved = self.policy.peak_chip_hours, ""
        pairs = zip(self.space.windows, self.policy.layouts, strict=True)
        unserved = [window.name for window, joint in pairs if joint is None]
        if unserved:
            saved = f", without {' and '.join(unserved)}, which no layout serves"
        elif self.policy.peak is not None:
            saved = f", {1 - self.policy.chip_hours / peak:.0%} fewer than one plan for the peak"
        return (
            f"{told}; moving between windows takes {format_count(self.policy.chip_hours)} chip-hours, "
            f"{self.policy.gap:.1%} above the bound{saved}"
        )

    def rows(self) -> list[Row]:
        """Return a row per scenario: what is best for it alone, whether the one plan holds, and the policy's layout."""
        found = []
        for number, model, each in self.asked():
            row: Row = {
                **picked(each, "scenario=name model=question.model.name requests_per_second=question.rate_per_second"),
                "weight": each.weight,
                "chips_alone": each.best.chips if each.best else None,
                "least_chips": each.least_chips if each.best else None,
                "relaxed": each.relaxed,
                "one_plan_holds": self.robust.holds[number] if self.robust else None,
            }
            if self.policy is not None:
                own = (joint := self.policy.layouts[number]) and joint[model]
                row |= {"policy_chips": own.chips if own else None, "policy": layout_text(own) if own else None}
            found.append(row)
        return found

    def asked(self) -> list[tuple[int, int, Scenario]]:
        """Return the number of its window and of its model with each scenario."""
        return [
            (number, model, each)
            for number, window in enumerate(self.space.windows)
            for model, each in enumerate(window.asked)
            if each is not None
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that the command prints with ``--json``."""
        robust, windows, peak = self.robust, self.policy, self.policy and self.policy.peak
        layouts = {"layouts": [layout_text(each) for each in robust.layouts]} if robust else {}
        at_peak = {
            "peak_chips": sum(each.chips for each in peak) if peak else None,
            "peak_chip_hours": windows.peak_chip_hours if windows and peak else None,
        }
        return {
            "share": self.share,
            "scenarios": self.rows(),
            "one_plan": robust and picked(robust, "chips least_chips") | layouts,
            "policy": windows and picked(windows, POLICY) | at_peak,
            "late_starts": [each._asdict() for each in self.late],
        }

    def manifests(self) -> dict[str, Manifest]:
        """Return the one plan, under the largest rates that it holds for, and the layouts of every window, by file."""
        found: dict[str, Manifest] = {}
        every = range(len(self.space.windows))
        if self.robust is not None:
            held = [number for number in every if self.robust.holds[number]]
            found |= self._named("one-plan", self.robust.layouts, held)
        for number in every:
            joint = self.policy.layouts[number] if self.policy else None
            if joint is not None:
                found |= self._named(f"{number + 1:02d}-{self.space.windows[number].name}", joint, [number])
        return found

    def _named(self, name: str, joint: Joint, windows: Sequence[int]) -> dict[str, Manifest]:
        """Return the manifests of layouts for what windows ask; a model that none asks but that stays has its own."""
        together = []
        for model, layout in enumerate(joint):
            all_asked = [window.asked[model] for window in self.space.windows]
            asked = [each for each in (all_asked[number] for number in windows) if each] or [e for e in all_asked if e]
            if any(layout.counts):
                largest = max(asked, key=lambda each: each.question.rate_per_second or 0.0)
                together.append((layout, largest.question))
        names = [name if len(joint) == 1 else f"{name}-{question.model.name}" for _, question in together]
        return dict(zip((f"{each}.yaml" for each in file_names(names)), stood(together), strict=True))

    def files(self) -> dict[str, str]:
        """Return scenarios.json and the manifests."""
        texts = {name: dump_manifest(each) for name, each in self.manifests().items()}
        return {"scenarios.json": as_json(self.to_dict()), **texts}


def taking_turns(asked: FleetInput) -> ScenariosResult:
    """Return the layouts of a fleet's models in the windows of their days, on the same devices.

    Raises BadInput: models on several machines, or one model twice; Infeasible: a window whose models the devices do
    not hold.
    """
    fleet = asked.fleet
    if len(fleet.devices) > 1:
        raise BadInput("switch: models that switch stand on one machine; give one pool to all")
    if fleet.objective != "chips":
        raise BadInput(f"switch: models that switch take the fewest chips; leave objective: {fleet.objective} out")
    pairs = zip(fleet.members, asked.asked, strict=True)
    days = [one.day or (Window(0.0, DAY_SECONDS, asked_rate(each)),) for each, one in pairs]
    begins = sorted({window.begin_seconds for day in days for window in day})
    known: dict[tuple[str, float], Scenario] = {}
    made: list[Scenario] = []
    for begin, end in pairwise([*begins, begins[0] + DAY_SECONDS]):
        hours = (end - begin) / HOUR_SECONDS
        for member, day in zip(fleet.members, days, strict=True):
            rate = min(day, key=lambda window: (begin - window.begin_seconds) % DAY_SECONDS).rate_per_second
            if not rate:
                continue
            key = member.name, rate
            if key not in known:
                known[key] = solved_scenario("", replace(on_pools(fleet, member), rate_per_second=rate))
            made.append(replace(known[key], name=clock_text(begin), weight=hours, hours=hours))
    _check_together(made, Path("models"))
    space = space_of(made)
    if space is None:
        raise Infeasible("a model of the fleet has no plan in any window; plan MODEL --rate says what binds each")
    found = ScenariosResult(share=1.0, space=space, robust=one_plan(space, 1.0), policy=policy(space), daily=True)
    for window, joint in zip(space.windows, found.policy.layouts if found.policy else (), strict=True):
        if joint is None:
            least = format_count(window.least_chips)
            raise Infeasible(
                f"at {window.name} the nodes do not hold the models apart; they take {least} chips at least"
            )
    return found


def layout_text(layout: Layout) -> str:
    """Return the instances of a layout, such as ``3 x 16 prefill + 1 x 32 decode``."""
    pools = zip(layout.option.pools, layout.counts, strict=True)
    return " + ".join(f"{count} x {pool.devices_per_instance} {pool.role} ({pool.strategy})" for pool, count in pools)


def robust(model: str, *, hw: object, scenarios: str | Path, **flags: object) -> ScenariosResult:
    """Find one plan that holds in several scenarios, and a policy where they are windows of time.

    Args:
        model: as for ``plan``.
        hw: as for ``plan``.
        scenarios: the file of scenarios, whose flags stand over those given here.
        flags: the long flags of ``plan search``.
    """
    return solved_scenarios(typed_of({"model": model, "hw": hw, **flags}), Path(scenarios))


def solved_scenarios(base: Mapping[str, str], path: Path) -> ScenariosResult:
    """Return the answer to the scenarios of a file under the flags of a question."""
    with naming("--scenarios"):
        data = read_yaml(path)
    rows = read_rows(path, "scenarios", SCENARIO_KEYS, MOST_SCENARIOS)
    if not isinstance(data, dict) or not rows:
        raise BadInput(f"{path}: must be a mapping with a list of scenarios, such as - rate: 40/s")
    unknown = sorted(str(key) for key in data.keys() - {"scenarios", "share", "growth"})
    if unknown:
        raise BadInput(f"{path}: {unknown[0][:40]} is not a known key; accepted are scenarios, share and growth")
    share = read_fraction(str(data.get("share", 1)), f"{path}: share", 1.0)
    growth = _positive(str(data.get("growth", 1)), f"{path}: growth")
    read = [_scenario(base, *each, number) for number, each in enumerate(rows, 1)]
    _check_together([each for each, _ in read], path)
    pairs = list(spread(lambda at: _solved(*read[at], growth), range(len(rows))))
    made = [each for each, _ in pairs]
    space = space_of(made)
    if space is None:
        raise Infeasible(f"{path}: a model has no plan in any scenario; plan MODEL --rate says what binds each")
    return ScenariosResult(
        share=share,
        space=space,
        robust=one_plan(space, share),
        policy=policy_on_traces(space, pairs) if made[0].hours is not None else None,
    )


def policy_on_traces(space: Space, made: Sequence[tuple[Scenario, Trace | None]]) -> Policy:
    """Return the policy whose layouts keep their windows' limits on their traces, where they have some.

    Queues judge a layout that was planned for other windows; each that the policy takes is played, and struck out where
    it is late, until all that it takes keep the limits. A window's own plan was played when it was searched.
    """
    traces = {id(each): trace for each, trace in made}
    known: dict[tuple[int, int, int, tuple[int, ...]], bool] = {}
    while True:
        found, late = policy(space), []
        for number, window in enumerate(space.windows):
            for model, (each, layout) in enumerate(zip(window.asked, found.layouts[number] or (), strict=False)):
                trace = traces.get(id(each))
                if each is None or trace is None:
                    continue
                key = (number, model, id(layout.option), layout.counts)
                if key not in known:
                    known[key] = layout.is_own(each) or _keeps(layout, each, trace)
                if not known[key]:
                    late.append((number, model, layout))
        if not late:
            return found
        space = replace(space, late=(*space.late, *late))


def _keeps(layout: Layout, scenario: Scenario, trace: Trace) -> bool:
    """Whether as many requests of a trace keep both limits as do where each holds at its percentile."""
    question = scenario.question
    (manifest,) = stood([(layout, question)])
    faster = scale_rate(trace, (question.rate_per_second or 0.0) / requests_per_second(trace))
    return simulate(manifest, from_trace(faster, manifest.workload)).slo_attainment >= 2 * question.percentile / 100 - 1


def _check_together(made: Sequence[Scenario], path: Path) -> None:
    """Raise BadInput where scenarios of one name are no window of several models, or only some say how long it is."""
    if len({each.hours is None for each in made}) > 1:
        raise BadInput(
            f"{path}: some scenarios say how long they last (lasts) and others do not; give it to all or none"
        )
    for each in made:
        alike = [other for other in made if other.name == each.name]
        models = [other.question.model.name for other in alike]
        if len(set(models)) < len(models):
            raise BadInput(
                f"{path}: {each.name[:40]!r} stands twice for {models[0]}; scenarios of one name happen at once"
            )
        if len({(other.hours, other.weight) for other in alike}) > 1:
            raise BadInput(f"{path}: {each.name[:40]!r} has two weights or lengths; give its models the same")


def _scenario(base: Mapping[str, str], where: str, row: Mapping[str, str], number: int) -> tuple[Scenario, Asked]:
    """Return a scenario as it is asked, before anything is searched."""
    values = merged_flags(base, {key: value for key, value in row.items() if key not in OWN_KEYS})
    if not {"rate", "trace"} & values.keys():
        raise BadInput(f"{where}: rate is missing; a scenario says how many requests arrive, such as 40/s")
    entry = Entry(name=row.get("name", f"scenario-{number}"), where=where, values={**values, "objective": "chips"})
    asked = asked_of(entry)
    weight = _positive(row.get("weight", "1"), f"{where}: weight")
    hours = parse_duration(row["lasts"], f"{where}: lasts") / HOUR_SECONDS if "lasts" in row else None
    found = Scenario(name=entry.name, question=asked.question, weight=weight, hours=hours, best=None, least_chips=0.0)
    return found, asked


def _solved(scenario: Scenario, asked: Asked, growth: float) -> tuple[Scenario, Trace | None]:
    """Return a scenario with its own plan, and the trace that plans can be played on."""
    asked = settled(asked)
    question = replace(asked.question, rate_per_second=(asked.question.rate_per_second or 0.0) * growth)
    rows = playable(asked)
    solved = solved_scenario(scenario.name, question, rows, weight=scenario.weight, hours=scenario.hours)
    return solved, None if rows is None else asked.trace


def _positive(text: str, what: str) -> float:
    value = number_of(text)
    if not 0 < value < MOST_FACTOR:
        raise BadInput(f"{what}: {text[:40]!r} is not a number above 0, such as 1.2")
    return value
