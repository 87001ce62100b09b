"""`podplan.compare` and `podplan.sweep`: the best plans of several questions, side by side or over a range."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import Any

from ground.errors import BadInput, suggest
from ground.units import number_of, parse_count
from ground.workers import Workers, executor_of
from podplan.options import UNITS, QuestionFlags, flag_name, flags_of, names_of, text_of
from podplan.planning import solved
from podplan.question import Asked, read_question
from podplan.question_files import Entry, asked_of, questions_in_place, typed_of
from podplan.readers import spaced
from podplan.result import Result, Row

MOST_COMPARED = 200
MOST_POINTS = 1000
SWEPT = tuple(name for name in names_of(QuestionFlags) if name not in ("model", "trace", "format", "engine"))
COUNTS = ("isl", "osl", "nodes", "chips", "devices", "mtp", "redundant_experts", "max_instance_devices")
_OF_ROLES = ("strategy", "instances")
_RANGE = re.compile(r"\s*([0-9.]+)([^0-9.]*)\.\.([0-9.]+)([^0-9.:]*):([0-9]{1,9})(:log)?\s*")


Named = tuple[dict[str, str], Asked]  # a question with what begins its row


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A swept flag, its values as they would be typed, and whether they lie a factor apart."""

    field: str
    values: Sequence[str]
    logarithmic: bool = False


@dataclass(frozen=True, kw_only=True)
class CompareResult(Result):
    """The best plans of several questions.

    Attributes:
        table: a row per plan; a question without one has ``feasible`` false and what binds.
        asked: the questions.
        axes: the flags that were swept; none of a comparison.
    """

    table: tuple[Row, ...]
    asked: tuple[Asked, ...]
    axes: tuple[Axis, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether any question has a plan."""
        return any(row["feasible"] for row in self.table)

    @property
    def headline(self) -> str:
        """How many have a plan."""
        return f"{sum(row['feasible'] is True for row in self.table)} of {len(self.table)} have a plan"

    def rows(self) -> tuple[Row, ...]:
        """Return a row per plan."""
        return self.table

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan compare --json`` and ``plan sweep --json`` print."""
        return {"rows": [dict(row) for row in self.table]}


def compare(
    questions: str | Sequence[str | Mapping[str, object]] | None = None,
    *,
    front: bool = False,
    workers: Workers = None,
    **flags: object,
) -> CompareResult:
    """Set the best plans of several models and machines, or of several questions, side by side.

    Args:
        questions: a question file; with ``hw`` a model or several, by commas or in a list; or a list of questions,
            each a mapping of ``plan``'s keywords, to which ``flags`` are added.
        front: all plans of each Pareto front, not only the best.
        workers: processes that share the questions, or ``dask:ADDRESS`` [the cores].
        flags: the long flags of ``plan compare``.
    """
    if questions is None or isinstance(questions, str):
        entries = compared_entries(typed_of({"model": questions, **flags}))
    elif all(isinstance(one, str) for one in questions):
        entries = compared_entries(typed_of({"model": ",".join(map(str, questions)), **flags}))
    else:
        own = [typed_of({**flags, **one}) for one in questions if isinstance(one, Mapping)]
        entries = [
            Entry(name=one.get("name", f"{one.get('model')} on {one.get('hw')}"), where="", values=one) for one in own
        ]
    return _compared([({"question": entry.name}, asked_of(entry)) for entry in entries], workers, front=front)


def _compared(asked: list[Named], workers: Workers, *, front: bool = False, axes: Sequence[Axis] = ()) -> CompareResult:
    """Return the best plan of every question, or its front, each behind what tells its row from others."""
    rows = chain.from_iterable(executor_of(workers)(partial(_rows, front), asked))
    return CompareResult(table=tuple(rows), asked=tuple(one for _, one in asked), axes=tuple(axes))


def _rows(front: bool, asked: Named) -> list[Row]:
    name, one = asked
    rows = solved(one, explain=False, beside=front, play=False).rows()
    return [{**name, **row} for row in (rows if front else rows[:1])]


def compared_entries(typed: Mapping[str, str]) -> list[Entry]:
    """Return the questions of a file, or of every model on every machine with every layout that flags name."""
    entries = questions_in_place(typed, "compare", "--hw h800,h200")
    if entries is not None:
        return entries
    hw = typed["hw"]
    models, machines = _listed(typed["model"]), [hw] if "=" in hw else _listed(hw)
    layouts = [{"strategy": own.strip()} for own in typed["strategy"].split("|")] if "strategy" in typed else [{}]
    if (count := len(models) * len(machines) * len(layouts)) > MOST_COMPARED:
        raise BadInput(f"--hw: {count} questions are more than the {MOST_COMPARED} that are compared")
    return [
        Entry(
            name=" ".join([f"{one} on {machine}", *(own.values() if len(layouts) > 1 else ())]),
            where="",
            values={**typed, "model": one, "hw": machine, **own},
        )
        for one in models
        for machine in machines
        for own in layouts
    ]


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip())) or [text]


def sweep(
    model: str | None = None,
    *,
    over: str | Sequence[str] | Mapping[str, Sequence[object]],
    workers: Workers = None,
    **flags: object,
) -> CompareResult:
    """Find the best plan at every point of one range, or of two; a point without one stays, with what binds.

    Args:
        model: a catalogue name, or the path of a config.json or of a model YAML.
        over: ``"tpot=20ms..100ms:9"`` or two of them in a list; or values by keyword, ``{"isl": [1024, 4096]}``.
        workers: processes that share the points, or ``dask:ADDRESS`` [the cores].
        flags: the long flags of ``plan sweep``, ``hw`` among them.
    """
    if isinstance(over, Mapping):
        ranges = [
            f"{name}={','.join(text_of(each, UNITS.get(name, '')) for each in own)}" for name, own in over.items()
        ]
    else:
        ranges = [over] if isinstance(over, str) else list(over)
    typed = typed_of({"model": model, **flags})
    if typed.get("model") is None or typed.get("hw") is None:
        raise BadInput("give MODEL, --hw HW and --over FLAG=VALUES; see plan sweep --help")
    axes = _axes(ranges, typed)
    points = [
        dict(zip((axis.field for axis in axes), values, strict=True)) for values in product(*(a.values for a in axes))
    ]
    asked = [(point, read_question(flags_of(QuestionFlags, {**typed, **point}))) for point in points]
    return _compared(asked, workers, axes=axes)


def _axes(over: Sequence[str], typed: Mapping[str, str]) -> list[Axis]:
    """Return the swept flags; BadInput for none, three, or one that stands beside its own flag."""
    if not over or len(over) > 2:
        raise BadInput("--over: sweep one or two flags, such as --over tpot=20ms..100ms:9")
    axes = [_axis(text) for text in over]
    for axis in axes:
        if axis.field in typed:
            raise BadInput(f"{flag_name(axis.field)} and --over {axis.field} both give it; leave one of them out")
    if len({axis.field for axis in axes}) < len(axes):
        raise BadInput(f"--over: {axes[0].field} is swept twice; put its values into one list")
    count = len(axes[0].values) * (len(axes[1].values) if len(axes) > 1 else 1)
    if count > MOST_POINTS:
        raise BadInput(f"--over: {count} points are more than the {MOST_POINTS} that are swept; use fewer")
    return axes


def _axis(text: str) -> Axis:
    name, equals, values = text.partition("=")
    field = name.strip().removeprefix("--").replace("-", "_")
    if not equals or not values.strip():
        raise BadInput(f"--over: {text[:40]!r} is not FLAG=VALUES, such as isl=1k,4k or tpot=20ms..100ms:9")
    if field not in SWEPT:
        raise BadInput(f"--over: {name.strip()[:40]!r} is no flag to sweep{suggest(field, SWEPT)}")
    match = _RANGE.fullmatch(values)
    if match is None:
        if ".." in values:
            raise BadInput(f"--over: {values[:40]!r} is not a range like 20ms..100ms:9, or with :log behind it")
        between = "|" if "|" in values or field in _OF_ROLES else ","  # values for roles hold commas of their own
        return Axis(field=field, values=[part.strip() for part in values.split(between) if part.strip()])
    first, unit, last, other, count, logarithmic = match.groups()
    ends = number_of(first), number_of(last)
    if math.isnan(sum(ends)):
        raise BadInput(f"--over: {values[:40]!r} has an end that is no number")
    units = [own.strip() for end, own in zip(ends, (unit, other), strict=True) if end or own.strip()]  # 0 has any unit
    if len(set(units)) > 1 and field in COUNTS:  # 512..4k
        ends = parse_count(first + unit, "--over"), parse_count(last + other, "--over")
        units = []
    if len(set(units)) > 1:
        raise BadInput(f"--over: {values[:40]!r} has two units; write both ends in one, such as 20ms..100ms:9")
    try:
        found = spaced(*ends, int(count), logarithmic=logarithmic is not None)
    except BadInput as error:
        raise BadInput(f"--over: {values[:40]!r}: {error}") from None
    unit = units[0] if units else ""
    points = [each if each in ends else float(f"{each:.4g}") for each in found]  # as they are printed
    whole = field in COUNTS and not unit
    typed = [f"{round(each)}" if whole else f"{each:.10g}{unit}" for each in points]
    return Axis(field=field, values=typed, logarithmic=logarithmic is not None)
