"""Terms of many instances side by side: the same seconds as term by term, with a tenth of the array operations.

What of a term does not depend on the load is divided out once (``stack``); kernels of one stage stand in one
array, [kernels, instances], so that a stage's duration on a share of the cores is a handful of operations
however many kernels it has. Kernels that only move memory and have the same variables are one term.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.manifest.terms import (
    CommunicationTerm,
    ComputeTerm,
    Form,
    Number,
    Stage,
    StageTiming,
    StepCost,
    Term,
    Timings,
    form,
    launches_per_layer,
    smaller,
    timings,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Kernels of one stage whose forms have the same variables; seconds per unit of each variable.

    A kernel takes max(c, m) + serial min(c, m) + floor = max((1 - s) c, (1 - s) m) + s c + s m + floor: the first two
    kernel by kernel, [kernels, instances or 1], the others of all kernels together.
    """

    gate: tuple[str, ...]
    """Where none of these is above 0 there is no work, and nothing is launched."""
    compute: Form
    moved: Form
    serial_compute: Form
    serial_moved: Form
    demand: Form
    floors: float
    count: int


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Seconds per unit of each variable and latency, by protocol."""

    protocols: tuple[tuple[Number, Form], ...]


@dataclass(slots=True)
class StageTerms:
    """What a stage runs: kernels that compute, kernels that only move memory, and transfers."""

    kernels: list[_Kernels] = field(default_factory=list)
    movers: dict[tuple[str, ...], tuple[dict[str, Number], float]] = field(default_factory=dict)
    """By variables: memory seconds per unit of each, and the floors of all kernels together."""
    transfers: list[_Transfer] = field(default_factory=list)


class StackedTerms(tuple[Term, ...]):
    """Terms ready to be evaluated on arrays."""

    stages: Mapping[Stage, StageTerms]
    shape: tuple[int, ...]
    """Broadcast shape of all coefficients."""
    launches: Mapping[Stage, float]

    def timings(self, values: Mapping[str, Number]) -> Timings:
        """Return the timing of every stage at variables of one broadcast shape."""
        shape = np.broadcast_shapes(
            *{value.shape for value in values.values() if isinstance(value, np.ndarray)}, self.shape
        )
        gates: dict[tuple[str, ...], bool] = {}

        def runs(names: tuple[str, ...]) -> bool:
            if names not in gates:
                gates[names] = any(_positive(values[name]) for name in names)
            return gates[names]

        return {stage: _stage(own, values, shape, runs) for stage, own in self.stages.items()}

    def take(self, rows: NDArray[np.int64]) -> "StackedTerms":
        """Return the same for some of the instances; the terms themselves stay those of all."""
        result = StackedTerms(self)
        result.stages = {stage: _stage_at(own, rows) for stage, own in self.stages.items()}
        result.shape = (rows.size,) if self.shape else ()
        result.launches = self.launches
        return result


def _positive(value: Number) -> bool:
    """Whether a number, or every one of an array, exceeds 0."""
    return bool(value.size and value.min() > 0) if isinstance(value, np.ndarray) else value > 0


def _shapes(stages: Mapping[Stage, StageTerms]) -> Iterator[tuple[int, ...]]:
    """Shapes of all coefficients."""
    for own in stages.values():
        for kernel in own.kernels:
            yield from (np.shape(value) for each in (kernel.serial_compute, kernel.demand) for value in each.values())
        for coefficients, _ in own.movers.values():
            yield from (np.shape(value) for value in coefficients.values())
        for transfer in own.transfers:
            yield from (np.shape(latency) for latency, _ in transfer.protocols)


@dataclass(slots=True)
class StackedStage(StageTiming):
    """All terms of one stage at one load; arrays are flat, [kernels, points].

    ``memory`` and ``fixed`` hold what compute does not hide, ``compute_sum`` the compute that hides no memory.
    """

    shape: tuple[int, ...]
    compute: Array
    moved: Array
    """Compute and memory seconds of each kernel times 1 - serial: of these the longer counts."""
    compute_sum: Number
    scratch: Array

    def seconds(self, cores: Number = 1.0, dilation: Number = 1.0) -> Number:
        """Duration of the stage's terms one after the other on a share of the cores, memory slowed by ``dilation``."""
        total = self.memory * _flat(dilation, self.shape) + self.fixed
        if not self.compute.size:
            return _shaped(total, self.shape)
        per_core = 1.0 / _flat(cores, self.shape)
        longer = np.multiply(self.compute, per_core, out=self.scratch)
        if isinstance(dilation, np.ndarray) or dilation != 1.0:
            np.maximum(longer, self.moved * _flat(dilation, self.shape), out=longer)
        else:
            np.maximum(longer, self.moved, out=longer)
        return _shaped(total + longer.sum(axis=0) + self.compute_sum * per_core, self.shape)


def stack(terms: Iterable[Term]) -> StackedTerms:
    """Return the terms with everything divided out that does not depend on the load."""
    result = StackedTerms(terms)
    stages: dict[Stage, StageTerms] = {}
    alike: dict[tuple[Stage, str], list[ComputeTerm]] = {}
    for term in result:
        own = stages.setdefault(term.stage, StageTerms())
        if isinstance(term, CommunicationTerm):
            own.transfers.append(_transfer(term))
        elif term.flops:
            names = repr([sorted(each) for each in (term.flops, term.idle_flops, term.bytes)])
            alike.setdefault((term.stage, names), []).append(term)
        else:
            _add_mover(own, term)
    for (stage, _), kernels in alike.items():
        stages[stage].kernels.append(_kernels(kernels))
    result.stages, result.shape = stages, np.broadcast_shapes(*set(_shapes(stages)))
    result.launches = launches_per_layer(result)
    return result


def stacked(cost: StepCost) -> StepCost:
    """Return the cost with all of its terms stacked: for evaluation on arrays of instances or loads."""
    return replace(
        cost, terms=stack(cost.terms), head_terms=stack(cost.head_terms), draft_terms=stack(cost.draft_terms)
    )


def taken(cost: StepCost, rows: NDArray[np.int64]) -> StepCost:
    """Return the cost, with stacked terms, of some of the instances that it stands for."""
    changed: dict[str, Any] = {}
    for each in fields(cost):
        value = getattr(cost, each.name)
        if isinstance(value, StackedTerms):
            changed[each.name] = value.take(rows)
        elif isinstance(value, np.ndarray):
            changed[each.name] = _at(value, rows)
    hop = cost.pipeline_hop
    if hop is not None:
        protocols = tuple((_at(latency, rows), _at(rate, rows)) for latency, rate in hop.protocols)
        changed["pipeline_hop"] = replace(hop, bytes=_form_at(hop.bytes, rows), protocols=protocols)
    return replace(cost, **changed)


def _at(value: Number, rows: NDArray[np.int64]) -> Number:
    """Return the coefficients of some instances; what stands for all of them stays."""
    return value[..., rows] if isinstance(value, np.ndarray) and value.ndim and value.shape[-1] > 1 else value


def _form_at(coefficients: Form, rows: NDArray[np.int64]) -> dict[str, Number]:
    return {name: _at(value, rows) for name, value in coefficients.items()}


def _stage_at(own: StageTerms, rows: NDArray[np.int64]) -> StageTerms:
    return StageTerms(
        kernels=[
            replace(
                each,
                compute=_form_at(each.compute, rows),
                moved=_form_at(each.moved, rows),
                serial_compute=_form_at(each.serial_compute, rows),
                serial_moved=_form_at(each.serial_moved, rows),
                demand=_form_at(each.demand, rows),
            )
            for each in own.kernels
        ],
        movers={names: (_form_at(coefficients, rows), floors) for names, (coefficients, floors) in own.movers.items()},
        transfers=[
            _Transfer(tuple((_at(latency, rows), _form_at(payload, rows)) for latency, payload in transfer.protocols))
            for transfer in own.transfers
        ],
    )


def stage_timings(terms: tuple[Term, ...], values: Mapping[str, Number]) -> Timings:
    """Return the timing of every stage, of stacked terms on arrays and of others term by term."""
    return terms.timings(values) if isinstance(terms, StackedTerms) else timings(terms, values)


def stage_launches(terms: tuple[Term, ...]) -> Mapping[Stage, float]:
    """Return the kernels launched per layer of each stage."""
    return terms.launches if isinstance(terms, StackedTerms) else launches_per_layer(terms)


def _kernels(terms: Sequence[ComputeTerm]) -> _Kernels:
    compute = [_sum(_over(t.flops, t.flops_per_second), _over(t.idle_flops, t.flops_per_second)) for t in terms]
    moved = [_over(t.bytes, t.bytes_per_second) for t in terms]
    serial = [term.serial for term in terms]
    apart = [1.0 - each for each in serial]
    return _Kernels(
        gate=tuple(terms[0].flops),
        compute=_rows(compute, apart),
        moved=_rows(moved, apart),
        serial_compute=_weighted(compute, serial),
        serial_moved=_weighted(moved, serial),
        demand=_weighted(moved, [1.0] * len(terms)),
        floors=sum(term.floor_seconds for term in terms),
        count=len(terms),
    )


def _rows(forms: Sequence[Form], weights: Sequence[float]) -> dict[str, Number]:
    """Weighted forms one below the other: of each variable [forms, instances], [forms, 1] where all are alike."""
    stacked_forms: dict[str, Number] = {}
    for name in forms[0]:
        each = [form[name] * weight for form, weight in zip(forms, weights, strict=True)]
        rows = np.stack([np.atleast_1d(value) for value in np.broadcast_arrays(*each)])
        stacked_forms[name] = np.asarray(rows, dtype=np.float64)
    return stacked_forms


def _weighted(forms: Sequence[Form], weights: Sequence[float]) -> dict[str, Number]:
    """Weighted sum of forms."""
    total: dict[str, Number] = {}
    for own, weight in zip(forms, weights, strict=True):
        if weight:
            total = _sum(total, {name: value * weight for name, value in own.items()})
    return total


def _sum(one: Form, other: Form) -> dict[str, Number]:
    return {
        name: one.get(name, 0.0) + other.get(name, 0.0) for name in (*one, *(key for key in other if key not in one))
    }


def _add_mover(own: StageTerms, term: ComputeTerm) -> None:
    names = tuple(sorted(term.bytes))
    coefficients, floors = own.movers.get(names, ({}, 0.0))
    for name, value in _over(term.bytes, term.bytes_per_second).items():
        coefficients[name] = coefficients.get(name, 0.0) + value
    own.movers[names] = coefficients, floors + term.floor_seconds


def _transfer(term: CommunicationTerm) -> _Transfer:
    return _Transfer(tuple((latency, _over(term.bytes, rate)) for latency, rate in term.protocols))


def _over(form: Form, rate: Number) -> dict[str, Number]:
    return {name: value / rate for name, value in form.items()}


def _flat(value: Number, shape: tuple[int, ...]) -> Number:
    """Return a number as it is and an array as one row of the broadcast shape."""
    if not isinstance(value, np.ndarray) or len(shape) < 2:
        return value
    return np.broadcast_to(value, shape).reshape(-1)


def _shaped(value: Number, shape: tuple[int, ...]) -> Number:
    return value.reshape(shape) if isinstance(value, np.ndarray) and len(shape) > 1 else value


def _fill(out: Array, coefficients: Form, values: Mapping[str, Number]) -> None:
    """Write linear forms into ``out`` [kernels, broadcast shape]; coefficients are [kernels, instances or 1]."""
    first = True
    for name, coefficient in coefficients.items():
        spread = np.reshape(coefficient, (out.shape[0], *(1,) * (out.ndim - 2), -1))
        if first:
            np.multiply(spread, values[name], out=out)
            first = False
        elif name == "one":
            out += spread
        else:
            out += spread * values[name]


def joined(stages: Timings, names: tuple[Stage, ...], name: Stage) -> Timings:
    """Return stacked stages with those of ``names`` as one, called ``name``: they run one after the other.

    Other stages, and those that are not stacked, stay as they are.
    """
    parts = [stage for key, stage in stages.items() if key in names and isinstance(stage, StackedStage)]
    if len(parts) < 2:
        return stages
    kernels = [part for part in parts if part.compute.size]
    compute = np.concatenate([part.compute for part in kernels]) if kernels else parts[0].compute
    moved = np.concatenate([part.moved for part in kernels]) if kernels else parts[0].moved
    whole = StackedStage(
        terms=[],
        mixed=[],
        memory=_total(part.memory for part in parts),
        fixed=_total(part.fixed for part in parts),
        demand=_total(part.demand for part in parts),
        shape=parts[0].shape,
        compute=compute,
        moved=moved,
        compute_sum=_total(part.compute_sum for part in parts),
        scratch=np.empty_like(compute),
    )
    return {key: stage for key, stage in stages.items() if key not in names} | {name: whole}


def _total(values: Iterable[Number]) -> Number:
    total: Number = 0.0
    for value in values:
        total = total + value
    return total


Runs = Callable[[tuple[str, ...]], bool]


def _stage(own: StageTerms, values: Mapping[str, Number], shape: tuple[int, ...], runs: Runs) -> StackedStage:
    """Evaluate one stage. A kernel without work is not launched, as in ``planner.manifest.terms.timing``."""
    count, points = sum(kernels.count for kernels in own.kernels), math.prod(shape)
    compute, moved = np.empty((count, *shape)), np.empty((count, *shape))
    fixed: Number = 0.0
    memory: Number = 0.0
    demand: Number = 0.0
    compute_sum: Number = 0.0
    start = 0
    for kernels in own.kernels:
        part = slice(start, start := start + kernels.count)
        _fill(compute[part], kernels.compute, values)
        _fill(moved[part], kernels.moved, values)
        running: Number = 1.0
        if not runs(kernels.gate):
            running = np.asarray(_total(values[name] for name in kernels.gate) > 0, dtype=np.float64)
            compute[part] *= running
            moved[part] *= running
        fixed = fixed + kernels.floors * running
        compute_sum = compute_sum + form(kernels.serial_compute, values) * running
        memory = memory + form(kernels.serial_moved, values) * running
        demand = demand + form(kernels.demand, values) * running
    for names, (coefficients, floors) in own.movers.items():
        seconds = form(coefficients, values)
        memory, demand = memory + seconds, demand + seconds
        fixed = fixed + (floors if runs(names) else np.asarray(floors * (np.asarray(seconds) > 0), dtype=np.float64))
    for transfer in own.transfers:
        fixed = fixed + _transfer_seconds(transfer, values)
    compute = compute.reshape(count, points)
    return StackedStage(
        terms=[],
        mixed=[],
        memory=_flat(memory, shape),
        fixed=_flat(fixed, shape),
        demand=demand,
        shape=shape,
        compute=compute,
        moved=moved.reshape(count, points),
        compute_sum=_flat(compute_sum, shape),
        scratch=np.empty_like(compute),
    )


def _transfer_seconds(transfer: _Transfer, values: Mapping[str, Number]) -> Number:
    """Seconds of the fastest protocol."""
    best: Number | None = None
    for latency, payload in transfer.protocols:
        seconds = latency + form(payload, values)
        best = seconds if best is None else smaller(best, seconds)
    return 0.0 if best is None else best
