"""What the terms of a stage ask for, with everything divided out that does not depend on the load.

What is left are linear forms of the variables of ``planner.manifest.terms``: seconds that kernels compute, seconds
that they keep the memory busy, and seconds of transfers. ``stacks`` evaluates them on arrays.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ground.arrays import Floats
from planner.manifest.curves import along, logarithms
from planner.manifest.terms import CommunicationTerm, ComputeTerm, CurveTerm, Form, Number, Stage, Term, form, smaller

NONE: Mapping[Any, Any] = {}


@dataclass(slots=True)
class Run:
    """What one stage computes behind one gate, in seconds per unit of each variable.

    A kernel takes max(c, m) + serial min(c, m) + floor = max((1 - s) c, (1 - s) m) + s c + s m + floor: the first two
    are ``compute`` and ``moved``, kernel by kernel; the others add up, and so does all that only moves memory.
    """

    stage: Stage
    gate: tuple[str, ...]  # where none of these is above 0 there is no work, and nothing is launched
    compute: list[Form] = field(default_factory=list)
    moved: list[Form] = field(default_factory=list)
    compute_sum: Form = field(default_factory=dict)
    memory: Form = field(default_factory=dict)
    floors: Number = 0.0

    def add(self, term: ComputeTerm, names: Mapping[str, str] = NONE) -> None:
        """Add a kernel; variables stand for others by ``names``."""
        self.floors = self.floors + term.floor_seconds
        moved = renamed(over(term.bytes, term.bytes_per_second), names)
        if not term.flops:
            self.memory = added(self.memory, moved)
            return
        work = added(over(term.flops, term.flops_per_second), over(term.idle_flops, term.flops_per_second))
        compute = renamed(work, names)
        if term.serial:
            self.compute_sum = added(self.compute_sum, times(compute, term.serial))
            self.memory = added(self.memory, times(moved, term.serial))
            compute, moved = times(compute, 1.0 - term.serial), times(moved, 1.0 - term.serial)
        self.compute.append(compute)
        self.moved.append(moved)


@dataclass(slots=True)
class Transfers:
    """What one stage sends, seconds per unit of each variable with latencies as those of ``one``, and its curves."""

    only: Form = field(default_factory=dict)  # of all transfers that have one protocol, added up
    fastest: list[list[Form]] = field(default_factory=list)  # of each other transfer, by protocol, and of slow reads
    curves: list[tuple[Form, Floats]] = field(default_factory=list)
    """Of kernels that were measured along a curve: the form of their load, and the ``logarithms`` of its points."""

    def add(self, term: CommunicationTerm, names: Mapping[str, str] = NONE) -> None:
        """Add a collective or an exchange; variables stand for others by ``names``."""
        payload = renamed(term.bytes, names)
        protocols: list[Form] = [added(over(payload, rate), {"one": latency}) for latency, rate in term.protocols]
        if len(protocols) == 1:
            self.only = added(self.only, protocols[0])
        elif protocols:
            self.fastest.append(protocols)

    def seconds(self, values: Mapping[str, Number]) -> Number:
        """Seconds of all transfers, each by its fastest protocol, and of all kernels along a curve."""
        total = form(self.only, values)
        for protocols in self.fastest:
            best = form(protocols[0], values)
            for other in protocols[1:]:
                best = smaller(best, form(other, values))
            total = total + best
        for load, points in self.curves:
            total = total + along(points, form(load, values))
        return total


@dataclass(slots=True)
class Block:
    """Runs behind one gate as arrays; the coefficients of a variable are [compute or memory, forms, instances or 1]."""

    gate: tuple[str, ...]
    rows: slice  # of the kernels of all blocks
    kernels: dict[str, Floats]
    runs: slice  # of the runs of all blocks
    sums: dict[str, Floats]
    floors: list[Number]  # by run


@dataclass(slots=True)
class Place:
    """Where a stage's kernels and runs stand, and what it sends."""

    rows: slice
    runs: slice
    transfers: Transfers


def runs_of(
    terms: Iterable[Term], stages: Mapping[Stage, Stage] = NONE, names: Mapping[str, str] = NONE
) -> tuple[list[Run], dict[Stage, Transfers]]:
    """Return what the stages of terms compute, stage by stage and gate by gate, and what each of them sends.

    ``stages`` are taken for others, one after the other with them; variables for others of the same value by ``names``.
    """
    runs: dict[tuple[Stage, tuple[str, ...]], Run] = {}
    transfers: dict[Stage, Transfers] = {}
    for term in terms:
        stage = stages.get(term.stage, term.stage)
        sent = transfers.setdefault(stage, Transfers())
        if isinstance(term, CommunicationTerm):
            sent.add(term, names)
            continue
        if isinstance(term, CurveTerm):
            sent.curves.append((renamed(term.load, names), logarithms(term.seconds)))
            continue
        if term.slow:
            slower = renamed(times(over(term.bytes, term.bytes_per_second), term.slow), names)
            sent.fastest.append([slower, {"one": term.slow_seconds}])
        gate = tuple(sorted({names.get(name, name) for name in term.flops or term.bytes}))
        runs.setdefault((stage, gate), Run(stage, gate)).add(term, names)
    return list(runs.values()), transfers


def added(one: Form, other: Form) -> dict[str, Number]:
    """Return the sum of two forms."""
    total = dict(one)
    for name, value in other.items():
        total[name] = total[name] + value if name in total else value
    return total


def over(coefficients: Form, rate: Number) -> dict[str, Number]:
    """Return seconds per unit of each variable at a rate."""
    return {name: value / rate for name, value in coefficients.items()}


def times(coefficients: Form, factor: float) -> dict[str, Number]:
    """Return a part of a form."""
    return {name: value * factor for name, value in coefficients.items()}


def renamed(coefficients: Form, names: Mapping[str, str]) -> Form:
    """Return a form with variables taken for others of the same value."""
    if names.keys().isdisjoint(coefficients):
        return coefficients
    total: Form = {}
    for name, value in coefficients.items():
        total = added(total, {names.get(name, name): value})
    return total
