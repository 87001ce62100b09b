"""`plan MODEL --scenarios FILE`: one plan for several scenarios, and a policy where they are windows of time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ground.errors import BadInput, Infeasible, naming
from ground.files import read_yaml
from ground.units import HOUR_SECONDS, format_count, number_of, parse_duration
from planner.changeover.robust import (
    Layout,
    Policy,
    Robust,
    Scenario,
    at_hand,
    layouts_of,
    one_plan,
    options_of,
    policy,
)
from planner.search.search import search
from podplan.options import QuestionFlags, flags_of
from podplan.question_files import Entry, asked_of, merged_flags, read_rows, typed_of
from podplan.readers import read_fraction
from podplan.result import Result, Row

OWN_KEYS = ("name", "weight", "lasts")
SCENARIO_KEYS = (
    "rate",
    "isl",
    "osl",
    "isl_cv",
    "osl_cv",
    "isl_histogram",
    "osl_histogram",
    "prefix_reuse",
    "trace",
    "survive",
    "ttft",
    "tpot",
    "nodes",
    "chips",
    "devices",
    *OWN_KEYS,
)
MOST_SCENARIOS = 300
MOST_FACTOR = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ScenariosResult(Result):
    """One plan for a share of the scenarios and, over windows of time, a policy.

    Attributes:
        scenarios: each with the plan that is best for it alone.
        robust: the one plan; None where none holds in the share.
        policy: which layout in which window; None where scenarios do not say how long they last.
    """

    scenarios: tuple[Scenario, ...]
    share: float
    robust: Robust | None
    policy: Policy | None

    @property
    def headline(self) -> str:
        """The one plan, and what the policy saves."""
        if self.robust is None:
            return f"no plan holds in {self.share:.0%} of the scenarios"
        told = (
            f"one plan of {format_count(self.robust.layout.chips)} chips holds in "
            f"{sum(self.robust.holds)} of {len(self.scenarios)} scenarios, "
            f"at least {format_count(self.robust.least_chips)} are needed"
        )
        if self.policy is None:
            return told
        saved = 1 - self.policy.chip_hours / self.policy.peak_chip_hours
        return (
            f"{told}; moving between windows takes {format_count(self.policy.chip_hours)} chip-hours, "
            f"{self.policy.gap:.1%} above the bound, {saved:.0%} fewer than one plan for the peak"
        )

    def rows(self) -> list[Row]:
        """Return a row per scenario: what is best for it alone, whether the one plan holds, and the policy's layout."""
        found = []
        for number, each in enumerate(self.scenarios):
            row: Row = {
                "scenario": each.name,
                "requests_per_second": each.question.rate_per_second,
                "weight": each.weight,
                "chips_alone": each.best.chips if each.best else None,
                "least_chips": each.least_chips if math.isfinite(each.least_chips) else None,
                "one_plan_holds": self.robust.holds[number] if self.robust else None,
            }
            if self.policy is not None:
                layout = self.policy.layouts[number]
                row |= {
                    "policy_chips": layout.chips if layout else None,
                    "policy": layout_text(layout) if layout else None,
                }
            found.append(row)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the object that the command prints with ``--json``."""
        robust, windows = self.robust, self.policy
        return {
            "share": self.share,
            "scenarios": self.rows(),
            "one_plan": robust
            and {
                "chips": robust.layout.chips,
                "least_chips": robust.least_chips,
                "layout": layout_text(robust.layout),
            },
            "policy": windows
            and {
                "chip_hours": windows.chip_hours,
                "moving_chip_hours": windows.moving_chip_hours,
                "bound_chip_hours": windows.bound_chip_hours,
                "gap": windows.gap,
                "peak_chips": windows.peak.chips if windows.peak else None,
                "peak_chip_hours": windows.peak_chip_hours if windows.peak else None,
            },
        }


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

    Raises:
        BadInput: a keyword that is no flag, or a value that it cannot have.
    """
    flags_of(QuestionFlags, {"model": model, "hw": hw, **flags})
    typed = typed_of({"model": model, "hw": hw, **flags})
    return solved_scenarios(typed, Path(scenarios))


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
    made = [_scenario(base, where, row, number, growth) for number, (where, row) in enumerate(rows, start=1)]
    timed = [each.hours is not None for each in made]
    if any(timed) and not all(timed):
        raise BadInput(
            f"{path}: some scenarios say how long they last (lasts) and others do not; give it to all or none"
        )
    options = options_of(made)
    if not options:
        raise Infeasible(
            f"{path}: no scenario has a plan that keeps its limits; plan MODEL --rate says what binds each"
        )
    layouts = layouts_of(options, max(at_hand(each.question) for each in made))
    return ScenariosResult(
        scenarios=tuple(made),
        share=share,
        robust=one_plan(made, layouts, share),
        policy=policy(made, layouts) if all(timed) else None,
    )


def _scenario(base: Mapping[str, str], where: str, row: Mapping[str, str], number: int, growth: float) -> Scenario:
    values = merged_flags(base, {key: value for key, value in row.items() if key not in OWN_KEYS})
    if not {"rate", "trace"} & values.keys():
        raise BadInput(f"{where}: rate is missing; a scenario says how many requests arrive, such as 40/s")
    entry = Entry(name=row.get("name", f"scenario-{number}"), where=where, values={**values, "objective": "chips"})
    question = asked_of(entry).question
    question = replace(question, rate_per_second=(question.rate_per_second or 0.0) * growth)
    answer = search(question, explain=False)
    bound = answer.bound.value if answer.best and answer.bound else None
    return Scenario(
        name=entry.name,
        question=question,
        weight=_positive(row.get("weight", "1"), f"{where}: weight"),
        hours=parse_duration(row["lasts"], f"{where}: lasts") / HOUR_SECONDS if "lasts" in row else None,
        best=answer.best,
        least_chips=0.0 if answer.best is None else bound if bound is not None else answer.best.chips,
    )


def _positive(text: str, what: str) -> float:
    value = number_of(text)
    if not 0 < value < MOST_FACTOR:
        raise BadInput(f"{what}: {text[:40]!r} is not a number above 0, such as 1.2")
    return value
