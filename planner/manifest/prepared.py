"""Terms with numbers for coefficients, made ready for one load after the other: the loop of a simulation.

All linear forms of all stages are the rows of one matrix, so that a load takes one product instead of a loop over
terms. Where it has no work for some kernels, their rows are left out: there is a matrix for each set of variables
that are above 0, made when it is first met.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from planner.manifest.stacks import StackedTerms, StageTerms, stack
from planner.manifest.terms import Form, Number, Stage, StageTiming, StepCost, Term, Timings, timings


@dataclass(slots=True)
class PreparedStage(StageTiming):
    """All terms of one stage at one load: as ``StackedStage``, but few numbers, for which a loop is quicker."""

    compute_sum: float
    kernels: list[tuple[float, float]]
    """Compute and memory seconds of each kernel times 1 - serial: of these the longer counts."""

    def seconds(self, cores: Number = 1.0, dilation: Number = 1.0) -> Number:
        """Duration of the stage's terms one after the other; both are plain numbers here, as everything else is."""
        total = self.memory * dilation + self.fixed + self.compute_sum / cores
        for compute, moved in self.kernels:
            one, other = compute / cores, moved * dilation
            total += one if one >= other else other
        return total


@dataclass(slots=True)
class _StageRows:
    """Where in the product a stage's seconds stand: its sums, its kernels' compute and memory, its protocols."""

    sums: slice
    compute: slice
    moved: slice
    transfers: list[slice]

    def timing(self, product: list[float]) -> PreparedStage:
        """Return the stage at the load whose product with the matrix this is."""
        memory, fixed, demand, compute_sum = product[self.sums]
        for protocols in self.transfers:
            fixed += min(product[protocols])
        kernels = list(zip(product[self.compute], product[self.moved], strict=True))
        return PreparedStage([], [], memory, fixed, demand, compute_sum, kernels)


@dataclass(slots=True)
class _Table:
    """The linear forms of the kernels that run: [forms, variables]."""

    matrix: NDArray[np.float64]
    stages: list[tuple[Stage, _StageRows]]


@dataclass(slots=True)
class _Forms:
    """Forms one below the other."""

    rows: list[Form] = field(default_factory=list)

    def add(self, forms: Iterable[Form]) -> slice:
        """Append forms; return where they stand."""
        start = len(self.rows)
        self.rows.extend(forms)
        return slice(start, len(self.rows))


class PreparedTerms(StackedTerms):
    """Terms that take numbers by one product with a matrix; arrays term by term, which is quicker for one instance."""

    names: tuple[str, ...]
    tables: dict[tuple[bool, ...], _Table]

    def timings(self, values: Mapping[str, Number]) -> Timings:
        """Return the timing of every stage; those of ``planner.manifest.terms.timings`` but for rounding."""
        if not self:
            return {}
        point = [values[name] for name in self.names]
        if np.ndarray in set(map(type, point)):
            return timings(self, values)
        running = tuple([bool(value > 0) for value in point])
        table = self.tables.get(running)
        if table is None:
            at_work = {name for name, runs in zip(self.names, running, strict=True) if runs}
            table = self.tables[running] = _table(self.stages, self.names, at_work)
        product: list[float] = (table.matrix @ np.array(point)).tolist()
        return {stage: rows.timing(product) for stage, rows in table.stages}


def prepared(cost: StepCost) -> StepCost:
    """Return the cost with its terms ready for evaluation at numbers, many times.

    Raises: ValueError if a coefficient is an array.
    """
    return replace(
        cost, terms=_prepare(cost.terms), head_terms=_prepare(cost.head_terms), draft_terms=_prepare(cost.draft_terms)
    )


def _prepare(terms: tuple[Term, ...]) -> PreparedTerms:
    stacked = stack(terms)
    if stacked.shape:
        raise ValueError("terms of many instances are stacked, not prepared")
    result = PreparedTerms(stacked)
    result.stages, result.shape, result.launches = stacked.stages, stacked.shape, stacked.launches
    every = _forms_of(result.stages)
    result.names = tuple(sorted({name for form in every for name in form} | {"one"}))
    result.tables = {}
    return result


def _forms_of(stages: Mapping[Stage, StageTerms]) -> Iterator[Form]:
    for own in stages.values():
        for kernels in own.kernels:
            yield from (kernels.compute, kernels.moved)
        yield from (coefficients for coefficients, _ in own.movers.values())
        yield from (payload for transfer in own.transfers for _, payload in transfer.protocols)


def _table(stages: Mapping[Stage, StageTerms], names: tuple[str, ...], at_work: set[str]) -> _Table:
    forms = _Forms()
    rows = [(stage, _stage_rows(own, forms, at_work)) for stage, own in stages.items()]
    matrix = np.array([[float(form.get(name, 0.0)) for name in names] for form in forms.rows])
    return _Table(matrix, rows)


def _stage_rows(own: StageTerms, forms: _Forms, at_work: set[str]) -> _StageRows:
    kernels = [each for each in own.kernels if not at_work.isdisjoint(each.gate)]
    movers = [mover for names, mover in own.movers.items() if not at_work.isdisjoint(names)]
    transfers = [[_added([payload, {"one": latency}]) for latency, payload in each.protocols] for each in own.transfers]
    only = [protocols[0] for protocols in transfers if len(protocols) == 1]
    floors = sum(each.floors for each in kernels) + sum(each for _, each in movers)
    moved: list[Form] = [coefficients for coefficients, _ in movers]
    return _StageRows(
        sums=forms.add(
            [
                _added([*(each.serial_moved for each in kernels), *moved]),
                _added([{"one": floors}, *only]),
                _added([*(each.demand for each in kernels), *moved]),
                _added([each.serial_compute for each in kernels]),
            ]
        ),
        compute=forms.add(row for each in kernels for row in _split(each.compute, each.count)),
        moved=forms.add(row for each in kernels for row in _split(each.moved, each.count)),
        transfers=[forms.add(protocols) for protocols in transfers if len(protocols) > 1],
    )


def _split(form: Form, count: int) -> Iterator[Form]:
    """Return the forms of kernels, one each, out of columns [kernels, 1]."""
    for row in range(count):
        yield {name: np.asarray(column)[row, 0] for name, column in form.items()}


def _added(forms: Iterable[Form]) -> dict[str, Number]:
    total: dict[str, Number] = {}
    for form in forms:
        for name, value in form.items():
            total[name] = total.get(name, 0.0) + value
    return total
