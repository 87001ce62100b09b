"""Operators inside a step beside published breakdowns: a total may be right because errors cancel.

``planner/published/components.csv``: a case of ``cases.csv``, with drafts and microbatches of its own where the
breakdown tells them, the operators that make up a published part, and what was published of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal, get_args

from ground.errors import BadInput
from ground.files import csv_table, read_text
from planner.accuracy import PUBLISHED, load_cases, predictions
from planner.costs.predict import Configuration, Prediction

Measure = Literal["seconds", "share", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A published part of a step: busy ``seconds`` of a layer and microbatch, or of the ``step``, or its exposed
    ``share`` of the iteration.
    """

    case: str
    configuration: Configuration
    part: str
    operators: tuple[str, ...]
    measure: Measure
    published: float
    url: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentComparison:
    """A part beside its prediction."""

    component: Component
    predicted: float

    @property
    def error(self) -> float:
        """predicted / published - 1."""
        return self.predicted / self.component.published - 1


def load_components(path: Path = PUBLISHED / "components.csv") -> list[Component]:
    """Return the published parts in the order of the file.

    Raises BadInput naming the file and the line of a row that cannot be read.
    """
    cases = {case.id: case.configuration for case in load_cases()}
    return [_component(row, where, cases) for where, row in csv_table(read_text(path), str(path))]


def compare_components() -> list[ComponentComparison]:
    """Return every published part beside its prediction."""
    components = load_components()
    answers = predictions([component.configuration for component in components])
    return [
        ComponentComparison(component=component, predicted=part_of(answer, component))
        for component, answer in zip(components, answers, strict=True)
    ]


def part_of(answer: Prediction, component: Component) -> float:
    """Return what a prediction says of a part. Raises BadInput for an operator that the step does not have."""
    if component.measure == "step":
        return answer.iteration_seconds
    known = {operator.name: operator for operator in answer.operators}
    if missing := [name for name in component.operators if name not in known]:
        raise BadInput(f"components.csv: {component.case} has no operator {missing[0]}")
    chosen = [known[name] for name in component.operators]
    if component.measure == "share":
        return sum(operator.exposed_seconds for operator in chosen) / answer.iteration_seconds
    return sum(operator.seconds / operator.count for operator in chosen)


def middle_error(results: Sequence[ComponentComparison]) -> float:
    """Return the median |error| of some parts."""
    return median(abs(result.error) for result in results)


def _component(row: dict[str, str], where: str, cases: dict[str, Configuration]) -> Component:
    try:
        configuration = cases[row["case"]]
        if row["drafts"]:
            configuration = replace(configuration, drafts=int(row["drafts"]), acceptance=float(row["acceptance"]))
        if row["microbatches"]:
            configuration = replace(configuration, microbatches=int(row["microbatches"]))
        return Component(
            case=row["case"],
            configuration=configuration,
            part=row["part"],
            operators=tuple(row["operators"].split()),
            measure=next(measure for measure in get_args(Measure) if measure == row["measure"]),
            published=float(row["published"]),
            url=row["url"],
            note=row["note"],
        )
    except (KeyError, ValueError, StopIteration) as error:
        raise BadInput(f"{where}: {error!r} is not a published part of a step") from None
