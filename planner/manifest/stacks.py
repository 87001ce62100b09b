"""Terms of many instances side by side: the same seconds as term by term, with a tenth of the array operations.

What of a term does not depend on the load is divided out once (``stack``); kernels of one stage stand in one
array, [kernels, instances], so that a stage's duration on a share of the cores is a handful of operations
however many kernels it has. Kernels that only move memory and have the same variables are one term.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

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
    smaller,
    timings,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Seconds per unit of each variable: of the product, of unfilled tiles, of memory; and what is fixed."""

    work: Form
    idle: Form
    moved: Form
    floor: float
    serial: float


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Seconds per unit of each variable and latency, by protocol."""

    protocols: tuple[tuple[Number, Form], ...]


@dataclass(slots=True)
class _StageTerms:
    kernels: list[_Kernel] = field(default_factory=list)
    movers: dict[tuple[str, ...], tuple[dict[str, Number], float]] = field(default_factory=dict)
    """By variables: memory seconds per unit of each, and the floors of all kernels together."""
    transfers: list[_Transfer] = field(default_factory=list)


class StackedTerms(tuple[Term, ...]):
    """Terms ready to be evaluated on arrays."""

    stages: Mapping[Stage, _StageTerms]
    shape: tuple[int, ...]
    """Broadcast shape of all coefficients."""

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


def _positive(value: Number) -> bool:
    """Whether a number, or every one of an array, exceeds 0."""
    return bool(value.size and value.min() > 0) if isinstance(value, np.ndarray) else value > 0


def _shapes(stages: Mapping[Stage, _StageTerms]) -> Iterator[tuple[int, ...]]:
    """Shapes of all coefficients."""
    for own in stages.values():
        for kernel in own.kernels:
            yield from (np.shape(value) for each in (kernel.work, kernel.moved) for value in each.values())
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
    stages: dict[Stage, _StageTerms] = {}
    for term in result:
        own = stages.setdefault(term.stage, _StageTerms())
        if isinstance(term, CommunicationTerm):
            own.transfers.append(_transfer(term))
        elif term.flops:
            own.kernels.append(_kernel(term))
        else:
            _add_mover(own, term)
    result.stages, result.shape = stages, np.broadcast_shapes(*set(_shapes(stages)))
    return result


def stacked(cost: StepCost) -> StepCost:
    """Return the cost with all of its terms stacked: for evaluation on arrays of instances or loads."""
    return replace(
        cost, terms=stack(cost.terms), head_terms=stack(cost.head_terms), draft_terms=stack(cost.draft_terms)
    )


def stage_timings(terms: tuple[Term, ...], values: Mapping[str, Number]) -> Timings:
    """Return the timing of every stage, of stacked terms on arrays and of others term by term."""
    return terms.timings(values) if isinstance(terms, StackedTerms) else timings(terms, values)


def _kernel(term: ComputeTerm) -> _Kernel:
    return _Kernel(
        work=_over(term.flops, term.flops_per_second),
        idle=_over(term.idle_flops, term.flops_per_second),
        moved=_over(term.bytes, term.bytes_per_second),
        floor=term.floor_seconds,
        serial=term.serial,
    )


def _add_mover(own: _StageTerms, term: ComputeTerm) -> None:
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


def _fill(out: Array, coefficients: Form, values: Mapping[str, Number]) -> Array:
    """Write a linear form into ``out``, the broadcast shape."""
    names = list(coefficients)
    if not names:
        out[...] = 0.0
        return out
    np.multiply(coefficients[names[0]], values[names[0]], out=out)
    return _add(out, {name: coefficients[name] for name in names[1:]}, values)


def _add(out: Array, coefficients: Form, values: Mapping[str, Number]) -> Array:
    for name, coefficient in coefficients.items():
        out += coefficient * values[name]
    return out


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


def _stage(own: _StageTerms, values: Mapping[str, Number], shape: tuple[int, ...], runs: Runs) -> StackedStage:
    """Evaluate one stage. A kernel without work is not launched, as in ``planner.manifest.terms.timing``."""
    count, points = len(own.kernels), math.prod(shape)
    compute, moved = np.empty((count, *shape)), np.empty((count, *shape))
    fixed: Number = sum(kernel.floor for kernel in own.kernels)
    for number, kernel in enumerate(own.kernels):
        work = _fill(compute[number], kernel.work, values)
        running = None if runs(tuple(kernel.work)) else work > 0
        _add(work, kernel.idle, values)
        _fill(moved[number], kernel.moved, values)
        if running is not None:
            compute[number] *= running
            moved[number] *= running
            fixed = fixed - np.asarray(kernel.floor * ~running)
    memory: Number = 0.0
    for names, (coefficients, floors) in own.movers.items():
        seconds = form(coefficients, values)
        memory = memory + seconds
        fixed = fixed + (floors if runs(names) else np.asarray(floors * (np.asarray(seconds) > 0)))
    for transfer in own.transfers:
        fixed = fixed + _transfer_seconds(transfer, values)
    memory, fixed = _flat(memory, shape), _flat(fixed, shape)
    compute, moved = compute.reshape(count, points), moved.reshape(count, points)
    serial = np.array([kernel.serial for kernel in own.kernels])[:, None]
    compute_sum = (serial * compute).sum(axis=0) if count else 0.0
    demand = memory + (moved.sum(axis=0) if count else 0.0)
    memory = memory + ((serial * moved).sum(axis=0) if count else 0.0)
    compute *= 1.0 - serial
    moved *= 1.0 - serial
    return StackedStage(
        terms=[],
        mixed=[],
        memory=memory,
        fixed=fixed,
        demand=_shaped(demand, shape),
        shape=shape,
        compute=compute,
        moved=moved,
        compute_sum=compute_sum,
        scratch=np.empty_like(compute),
    )


def _transfer_seconds(transfer: _Transfer, values: Mapping[str, Number]) -> Number:
    """Seconds of the fastest protocol."""
    best: Number | None = None
    for latency, payload in transfer.protocols:
        seconds = latency + form(payload, values)
        best = seconds if best is None else smaller(best, seconds)
    return 0.0 if best is None else best
