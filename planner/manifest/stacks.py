"""Terms of many instances side by side: the same seconds as term by term, with a tenth of the array operations.

What of a term does not depend on the load is divided out once (``stack``). What is left are linear forms of the
variables: seconds that a kernel computes, and seconds that it keeps the memory busy. Kernels that have work
under the same condition (their gate) form a block, one below the other, whatever their stage: an evaluation
fills one array, [compute or memory, kernels, points], block by block, and stages are slices of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ground.arrays import Floats, Ints
from planner.manifest.runs import NONE, Block, Place, Run, Transfers, runs_of
from planner.manifest.terms import (
    EXPERT_STAGES,
    Form,
    Number,
    Stage,
    StageTiming,
    StepCost,
    Term,
    dedicated,
    launches_per_layer,
    plus,
    timings,
)

# Stages of one stream stand side by side: kernels behind one gate are then one block.
ORDER: tuple[Stage, ...] = ("dense", "attention", "gate", "dispatch", "combine", "shared", "experts", "head", "draft")


class StackedTerms(tuple[Term, ...]):
    """Terms ready to be evaluated on arrays of instances, of loads, or of both."""

    launches: Mapping[Stage, float]
    blocks: Sequence[Block]
    places: Mapping[Stage, Place]
    shape: tuple[int, ...]  # broadcast shape of all coefficients

    def timings(self, values: Mapping[str, Number]) -> "dict[Stage, StackedStage]":
        """Return the timing of every stage at variables of one broadcast shape."""
        shape = np.broadcast_shapes(
            *{value.shape for value in values.values() if isinstance(value, np.ndarray)}, self.shape
        )
        last = self.blocks[-1] if self.blocks else None
        pair = np.empty((2, last.rows.stop if last else 0, *shape))
        sums = np.empty((2, last.runs.stop if last else 0, *shape))
        floors: list[Number] = []
        for block in self.blocks:
            running = _running(block.gate, values)
            if isinstance(running, float):
                pair[:, block.rows] = sums[:, block.runs] = 0.0
                floors += [0.0] * len(block.floors)
                continue
            own = values
            if running is not None:
                own = {name: values[name] * running for name in (*block.kernels, *block.sums)}
            if block.kernels:
                _fill(pair[:, block.rows], block.kernels, own)
            _fill(sums[:, block.runs], block.sums, own)
            floors += block.floors if running is None else [each * running for each in block.floors]
        return {
            stage: StackedStage(
                pair[0, place.rows],
                pair[1, place.rows],
                compute_sum=_total(sums[0, place.runs]),
                memory=_total(sums[1, place.runs]),
                fixed=sum(floors[place.runs], place.transfers.seconds(values)),
            )
            for stage, place in self.places.items()
        }

    def take(self, rows: Ints) -> "StackedTerms":
        """Return the same for some of the instances; the terms themselves stay those of all."""
        result = StackedTerms(self)
        result.blocks = [
            replace(
                block,
                kernels=_form_at(block.kernels, rows),
                sums=_form_at(block.sums, rows),
                floors=[_at(each, rows) for each in block.floors],
            )
            for block in self.blocks
        ]
        result.places = {
            stage: replace(place, transfers=_transfers_at(place.transfers, rows))
            for stage, place in self.places.items()
        }
        result.shape = (rows.size,) if self.shape else ()
        result.launches = self.launches
        return result


@dataclass(slots=True)
class StackedStage:
    """All terms of one stage at one load: a slice of the kernels of all stages.

    ``compute`` and ``moved`` are seconds of each kernel times 1 - serial, of which the longer counts;
    ``compute_sum`` is compute that hides no memory, ``memory`` and ``fixed`` what no compute hides.
    """

    compute: Floats
    moved: Floats
    compute_sum: Number
    memory: Number
    fixed: Number
    _demand: Number | None = None

    @property
    def demand(self) -> Number:
        """Seconds for which the stage would keep the memory busy."""
        if self._demand is None:
            self._demand = self.memory + _total(self.moved) if self.moved.size else self.memory
        return self._demand

    @property
    def work(self) -> Number:
        """Seconds that the stage computes on all cores."""
        return plus(self.compute_sum, _total(self.compute)) if self.compute.size else self.compute_sum

    @property
    def rest(self) -> Number:
        """Seconds that no cores shorten and no compute hides."""
        return self.fixed + self.memory

    def on(self, cores: Number) -> "StackedStage":
        """Return the stage on a share of the cores."""
        per_core = 1.0 / cores
        fixed = self.fixed + self.compute_sum * per_core
        return StackedStage(self.compute * per_core, self.moved, 0.0, self.memory, fixed, self.demand)

    def seconds(self, cores: Number = 1.0, dilation: Number = 1.0) -> Number:
        """Duration of the stage's terms one after the other on a share of the cores, memory slowed by ``dilation``."""
        if not isinstance(cores, float) or cores != 1.0:
            return self.on(cores).seconds(1.0, dilation)
        if isinstance(dilation, float) and dilation == 1.0:
            memory, longer = self.memory, np.maximum(self.compute, self.moved)
        else:
            memory, longer = self.memory * dilation, self.moved * dilation
            np.maximum(self.compute, longer, out=longer)
        total = plus(self.fixed + memory, self.compute_sum)
        return total + _total(longer) if longer.size else total


Stages = Mapping[Stage, StageTiming | StackedStage]  # what each stage takes at one load, term by term or by arrays


def stack(terms: Iterable[Term], stages: Mapping[Stage, Stage] = NONE, names: Mapping[str, str] = NONE) -> StackedTerms:
    """Return the terms with everything divided out that does not depend on the load.

    ``stages`` and variables by ``names`` are taken for others, as ``runs_of`` does.
    """
    result = StackedTerms(terms)
    runs, transfers = runs_of(result, stages, names)
    ordered: list[Run] = []
    for stage in ORDER:
        gate = ordered[-1].gate if ordered else ()
        ordered += sorted((run for run in runs if run.stage == stage), key=lambda run: run.gate != gate)
    result.blocks = _blocks(ordered)
    result.places = _places(ordered, transfers)
    result.shape = np.broadcast_shapes(*set(_shapes(result)))
    result.launches = launches_per_layer(result)
    return result


def _blocks(runs: Sequence[Run]) -> list[Block]:
    """Return neighbours behind one gate as blocks."""
    blocks: list[Block] = []
    start = rows = 0
    while start < len(runs):
        stop = start
        while stop < len(runs) and runs[stop].gate == runs[start].gate:
            stop += 1
        own = runs[start:stop]
        kernels = [pair for run in own for pair in zip(run.compute, run.moved, strict=True)]
        blocks.append(
            Block(
                gate=runs[start].gate,
                rows=slice(rows, rows + len(kernels)),
                kernels=_columns(kernels),
                runs=slice(start, stop),
                sums=_columns([(run.compute_sum, run.memory) for run in own]),
                floors=[run.floors for run in own],
            )
        )
        start, rows = stop, rows + len(kernels)
    return blocks


def _columns(pairs: Sequence[tuple[Form, Form]]) -> dict[str, Floats]:
    """Return forms of compute and memory by variable: [2, forms, instances], [2, forms, 1] where all are alike."""
    columns: dict[str, Floats] = {}
    for name in dict.fromkeys(name for pair in pairs for own in pair for name in own):
        shapes = {np.shape(own[name]) for pair in pairs for own in pair if name in own}
        column = columns[name] = np.zeros((2, len(pairs), *(np.broadcast_shapes((1,), *shapes))))
        for row, pair in enumerate(pairs):
            for part, own in enumerate(pair):
                column[part, row] = own.get(name, 0.0)
    return columns


def _places(runs: Sequence[Run], transfers: Mapping[Stage, Transfers]) -> dict[Stage, Place]:
    """Return where each stage's kernels and runs stand, in the order in which the stages came."""
    places: dict[Stage, Place] = {}
    for stage, sent in transfers.items():
        own = [number for number, run in enumerate(runs) if run.stage == stage]
        first, last = (own[0], own[-1] + 1) if own else (0, 0)
        start, stop = (sum(len(run.compute) for run in runs[:number]) for number in (first, last))
        places[stage] = Place(slice(start, stop), slice(first, last), sent)
    return places


def _shapes(terms: StackedTerms) -> Iterator[tuple[int, ...]]:
    """Shapes of all coefficients, () where they are alike for all instances."""
    for block in terms.blocks:
        for column in (*block.kernels.values(), *block.sums.values()):
            yield column.shape[2:] if column.shape[-1] > 1 else ()
        yield from (np.shape(each) for each in block.floors)
    for place in terms.places.values():
        for own in (place.transfers.only, *(protocol for each in place.transfers.fastest for protocol in each)):
            yield from (np.shape(value) for value in own.values())
        for load, points in place.transfers.curves:
            yield points.shape[1:]
            yield from (np.shape(value) for value in load.values())


def stacked(cost: StepCost, *, decoding: bool = False) -> StepCost:
    """Return the cost with its terms stacked, for evaluation on arrays of instances or loads.

    Stages that always run one after the other stand together, and so do those that a step runs once, of the head and of
    drafts, where there are any. ``decoding`` steps carry running requests alone: every token and every row of the head
    is theirs.
    """
    none = not isinstance(cost.queries_per_sequence, np.ndarray) and cost.queries_per_sequence == 1
    names = {"tokens": "decode", "rows": "decode"} if decoding else NONE
    once = stack(cost.head_terms if none else (*cost.head_terms, *cost.draft_terms), names=names)
    return replace(cost, terms=stack(cost.terms, one_after_the_other(cost), names), head_terms=once, draft_terms=())


def one_after_the_other(cost: StepCost) -> Mapping[Stage, Stage]:
    """Return the stages that run right before or after another one in any arrangement, by that one.

    A dedicated shared expert runs beside the routed ones.
    """
    if cost.rule != "attention_experts":
        return NONE if dedicated(cost) else {"shared": "experts"}
    return dict.fromkeys(("dispatch", "combine") if dedicated(cost) else EXPERT_STAGES[1:], "gate")


def taken(cost: StepCost, rows: Ints) -> StepCost:
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
        changed["pipeline_hop"] = hop._replace(bytes=_form_at(hop.bytes, rows), protocols=protocols)
    return replace(cost, **changed)


def _at(value: Any, rows: Ints) -> Any:
    """Return the coefficients of some instances; what stands for all of them stays."""
    if not isinstance(value, np.ndarray) or not value.ndim or value.shape[-1] == 1:
        return value
    if rows.size == 1:
        return value[..., int(rows[0]) : int(rows[0]) + 1]
    return (
        value[rows] if value.ndim == 1 else np.take(value, rows, axis=-1, mode="clip")
    )  # twice as quick as [..., rows]


def _form_at(coefficients: Mapping[str, Any], rows: Ints) -> dict[str, Any]:
    return {name: _at(value, rows) for name, value in coefficients.items()}


def _transfers_at(transfers: Transfers, rows: Ints) -> Transfers:
    fastest: list[list[Form]] = [[_form_at(protocol, rows) for protocol in each] for each in transfers.fastest]
    curves: list[tuple[Form, Floats]] = [
        (_form_at(load, rows), _at(points, rows) if points.ndim > 1 else points) for load, points in transfers.curves
    ]
    return Transfers(_form_at(transfers.only, rows), fastest, curves)


def stage_timings(terms: tuple[Term, ...], values: Mapping[str, Number]) -> Stages:
    """Return the timing of every stage, of stacked terms by arrays and of others term by term."""
    return terms.timings(values) if isinstance(terms, StackedTerms) else timings(terms, values)


def stage_launches(terms: tuple[Term, ...]) -> Mapping[Stage, float]:
    """Return the kernels launched per layer of each stage."""
    return terms.launches if isinstance(terms, StackedTerms) else launches_per_layer(terms)


def _running(gate: tuple[str, ...], values: Mapping[str, Number]) -> Floats | float | None:
    """Return 1 where a block has work and 0 elsewhere; None where it has work everywhere, a plain 0 where nowhere."""
    if any(_positive(values[name]) for name in gate):
        return None
    if not any(isinstance(values[name], np.ndarray) for name in gate):
        return 0.0
    work: Number = 0.0
    for name in gate:
        work = work + values[name]
    return np.asarray(np.asarray(work) > 0, dtype=np.float64)


def _positive(value: Number) -> bool:
    """Whether a number, or every one of an array, exceeds 0."""
    return bool(value.size and value.min() > 0) if isinstance(value, np.ndarray) else value > 0


def _fill(out: Floats, columns: Mapping[str, Floats], values: Mapping[str, Number]) -> None:
    """Write linear forms into ``out`` [2, forms, *points]; coefficients are [2, forms, instances or 1]."""
    filled = False
    for name, column in columns.items():
        depth = out.ndim - 2
        spread = column.reshape(*column.shape[:2], *(1,) * (depth - 1), -1) if depth else column[..., 0]
        if not filled:
            np.multiply(spread, values[name], out=out)
        elif isinstance(values[name], float) and values[name] == 1.0:
            out += spread
        else:
            out += spread * values[name]
        filled = True
    if not filled:
        out[...] = 0.0


def _total(rows: Floats) -> Number:
    """Return the sum of rows, [points]."""
    return rows[0] if len(rows) == 1 else np.add.reduce(rows)
