"""Terms with numbers for coefficients, made ready for one load after the other: the loop of a simulation.

All linear forms of all stages are the rows of one matrix, so that a load takes one product instead of a loop over
terms. Where it has no work for some kernels, their rows are left out: there is a matrix for each set of variables
that are above 0, made when it is first met.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from planner.manifest.curves import Curve, at
from planner.manifest.runs import Run, Transfers, added, runs_of
from planner.manifest.stacks import ReadyTerms
from planner.manifest.terms import Form, Number, Stage, Stages, StepCost, Term, launches_per_layer, timings


@dataclass(slots=True)
class PreparedStage:
    """All terms of one stage at one load: as ``StackedStage``, but few numbers, for which a loop is quicker."""

    memory: float
    fixed: float
    demand: float
    compute_sum: float
    kernels: list[tuple[float, float]]
    """Compute and memory seconds of each kernel times 1 - serial: of these the longer counts."""
    per_core: float = 1.0
    """How much longer kernels compute on the stage's share of the cores."""

    def on(self, cores: Number) -> "PreparedStage":
        """Return the stage on a share of the cores."""
        per_core = self.per_core / float(cores)
        return PreparedStage(self.memory, self.fixed, self.demand, self.compute_sum, self.kernels, per_core)

    def seconds(self, cores: Number = 1.0, dilation: Number = 1.0) -> Number:
        """Duration of the stage's terms one after the other; both are plain numbers here, as everything else is."""
        per_core = self.per_core / cores
        total = self.memory * dilation + self.fixed + self.compute_sum * per_core
        for compute, moved in self.kernels:
            one, other = compute * per_core, moved * dilation
            total += one if one >= other else other
        return total


@dataclass(slots=True)
class _StageRows:
    """Where in the product a stage's seconds stand: its sums, its kernels' compute and memory, its protocols."""

    sums: slice
    compute: slice
    moved: slice
    transfers: list[slice]
    curves: list[tuple[slice, Curve]]
    """Where the load of each curve stands."""

    def timing(self, product: list[float]) -> PreparedStage:
        """Return the stage at the load whose product with the matrix this is."""
        memory, fixed, demand, compute_sum = product[self.sums]
        for protocols in self.transfers:
            fixed += min(product[protocols])
        for place, curve in self.curves:
            fixed += at(curve.points, product[place][0])
        kernels = list(zip(product[self.compute], product[self.moved], strict=True))
        return PreparedStage(memory, fixed, demand, compute_sum, kernels)


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


class PreparedTerms(ReadyTerms):
    """Terms that take numbers by one product with a matrix; arrays term by term, which is quicker for one instance."""

    runs: list[Run]
    transfers: dict[Stage, Transfers]
    names: tuple[str, ...]
    tables: dict[tuple[bool, ...], _Table]

    def timings(self, values: Mapping[str, Number]) -> Stages:
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
            table = self.tables[running] = _table(self, at_work)
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
    result = PreparedTerms(terms)
    result.runs, result.transfers = runs_of(result)
    every = list(_forms_of(result))
    if any(np.ndim(value) for form in every for value in form.values()):
        raise ValueError("terms of many instances are stacked, not prepared")
    result.launches = launches_per_layer(result)
    result.names = tuple(sorted({name for form in every for name in form} | {"one"}))
    result.tables = {}
    return result


def _forms_of(terms: PreparedTerms) -> Iterator[Form]:
    for run in terms.runs:
        yield from (*run.compute, *run.moved, run.compute_sum, run.memory)
    for sent in terms.transfers.values():
        yield from (sent.only, *(protocol for each in sent.fastest for protocol in each))
        yield from (curve.load for curve in sent.curves)


def _table(terms: PreparedTerms, at_work: set[str]) -> _Table:
    forms = _Forms()
    rows = [
        (stage, _stage_rows([run for run in terms.runs if run.stage == stage], sent, forms, at_work))
        for stage, sent in terms.transfers.items()
    ]
    matrix = np.array([[float(form.get(name, 0.0)) for name in terms.names] for form in forms.rows])
    return _Table(matrix, rows)


def _stage_rows(runs: list[Run], sent: Transfers, forms: _Forms, at_work: set[str]) -> _StageRows:
    runs = [run for run in runs if not at_work.isdisjoint(run.gate)]
    moved = [form for run in runs for form in run.moved]
    return _StageRows(
        sums=forms.add(
            [
                _added(run.memory for run in runs),
                _added([{"one": sum(run.floors for run in runs)}, sent.only]),
                _added([*(run.memory for run in runs), *moved]),
                _added(run.compute_sum for run in runs),
            ]
        ),
        compute=forms.add(form for run in runs for form in run.compute),
        moved=forms.add(moved),
        transfers=[forms.add(protocols) for protocols in sent.fastest],
        curves=[(forms.add([curve.load]), curve) for curve in sent.curves],
    )


def _added(forms: Iterable[Form]) -> Form:
    total: Form = {}
    for form in forms:
        total = added(total, form)
    return total
