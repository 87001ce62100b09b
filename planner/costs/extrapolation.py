"""Which operators of a prediction run at shapes that their fit was not measured at."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hardware.domains import domains
from planner.manifest.terms import CommunicationTerm, Number, StepCost, StepLoad, Term, form, variables


@dataclass(frozen=True, slots=True)
class Extrapolated:
    """An operator outside what was measured: its value on the axis, and the measured range."""

    operator: str
    quantity: str
    value: float
    low: float
    high: float


def extrapolated(hardware: str, cost: StepCost, load: StepLoad, microbatches: int) -> tuple[Extrapolated, ...]:
    """Return the operators of a step (numbers only) outside the measured shapes of their family.

    Families that no packaged measurement of ``hardware`` covers are not judged: `plan hardware --check` lists them
    as assumed.
    """
    known = domains(hardware)
    values = variables(cost, load, microbatches)
    whole = values if microbatches == 1 else variables(cost, load, 1)
    found: dict[str, Extrapolated] = {}
    for terms, held in ((cost.terms, values), (cost.head_terms, whole), (cost.draft_terms, whole)):
        for term, value, ranks in _shapes(terms, held):
            family = term.shape.family if term.shape else ""
            domain = known.get(family)
            if domain is not None and value > 0 and (axis := domain.outside(value, ranks)) is not None:
                found[term.name] = Extrapolated(term.name, *axis)
    return tuple(found.values())


def _shapes(terms: Iterable[Term], values: Mapping[str, Number]) -> Iterator[tuple[Term, float, float]]:
    """Yield each term that has a shape, its value and its ranks; (one group for products that read nothing)."""
    for term in terms:
        if term.shape is None:
            continue
        below = float(form(term.shape.denominator, values))
        above = float(form(term.shape.numerator, values))
        ranks = float(term.shape.ranks) if isinstance(term, CommunicationTerm) else 1.0
        yield term, above / below if below else 0.0, ranks
