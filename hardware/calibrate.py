"""Fit the efficiency curves of a catalogue entry to measured times: robust least squares on relative errors.

For each family of measurements the fit's parameters p minimise

    Σ rho((fitted(p) / measured - 1)²) + Σ (0.02 · (p - p_entry) / scale)²

with rho(z) = 2·(sqrt(1 + z/c²) - 1)·c², c = 0.1 (soft L1, ``scipy.optimize.least_squares``): one bad
row does not bend the curve. The second sum holds what the rows do not determine at the entry's own
value; where they do determine it, it weighs as much as a fiftieth of one row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from ground.arrays import Floats
from ground.errors import BadInput
from ground.records import Sourced
from ground.validation import plain
from hardware.fits import (
    Product,
    attention_seconds,
    collective_seconds,
    exchange_seconds,
    feed_forward_seconds,
    matmul_seconds,
)
from hardware.measurements import ATTENTIONS, DIRECTIONS, MATMULS, Measurement
from hardware.spec import (
    AttentionFit,
    CollectiveFit,
    CollectiveOp,
    Dtype,
    ExchangeFit,
    ExchangePoint,
    Fitted,
    HardwareSpec,
    MatmulFit,
    Number,
    VectorFit,
)

HOLD = 0.02
SOFT = 0.1
EDGE = 1e-9
Bounds = dict[str, tuple[float, float, float]]  # lowest, highest, and the size of a typical change of each parameter

MATMUL: Bounds = {
    "peak_fraction": (0.01, 1.0, 0.3),
    "half_rows": (0.0, 2000.0, 50.0),
    "half_depth": (0.0, 4000.0, 300.0),
    "memory_fraction": (0.01, 1.0, 0.3),
    "serial_fraction": (0.0, 1.0, 0.3),
    "floor_seconds": (0.0, 1e-3, 5e-6),
}
ATTENTION: Bounds = {
    "peak_fraction": (0.01, 1.0, 0.3),
    "half_length": (0.0, 20000.0, 500.0),
    "memory_fraction": (0.01, 1.0, 0.3),
    "floor_seconds": (0.0, 1e-3, 1e-5),
}
VECTOR: Bounds = {"memory_fraction": (0.01, 1.0, 0.3), "floor_seconds": (0.0, 1e-3, 5e-6)}


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One family: its rows, the entry's fit and the new one, and relative errors of both, [rows]."""

    family: str
    rows: tuple[Measurement, ...]
    fit: Fitted | Sourced
    before: Floats
    after: Floats

    @property
    def median_before(self) -> float:
        """Median |fitted/measured - 1| of the entry as it was."""
        return float(np.median(np.abs(self.before)))

    @property
    def median_after(self) -> float:
        """Median |fitted/measured - 1| of the new fit."""
        return float(np.median(np.abs(self.after)))

    @property
    def worst(self) -> Measurement:
        """The row that the new fit is farthest from."""
        return self.rows[int(np.argmax(np.abs(self.after)))]


@dataclass(frozen=True, slots=True)
class Known:
    """A family as an entry has it: its fit, the seconds of the rows under such a fit, and what fits them anew."""

    fit: Any
    seconds: Callable[[Any], Number]
    anew: Callable[[], Any]


def calibrate(hw: HardwareSpec, measurements: Sequence[Measurement]) -> list[Calibrated]:
    """Return every family of ``measurements`` fitted, in the order in which they occur.

    Raises BadInput for a family that ``hw`` has no fit of, and without any rows.
    """
    if not measurements:
        raise BadInput(f"no row of the measurements is for {hw.name}; leave out the column used_by, or name it there")
    return [_calibrated(family, rows, _known(hw, rows)) for family, rows in _families(measurements).items()]


def errors(hw: HardwareSpec, measurements: Sequence[Measurement]) -> dict[str, Floats]:
    """Return fitted/measured - 1 of an entry's own fits by family, [rows of it]; BadInput as ``calibrate``."""
    families = {family: (rows, _known(hw, rows)) for family, rows in _families(measurements).items()}
    return {family: _relative(known.seconds(known.fit), rows) for family, (rows, known) in families.items()}


def _families(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    families: dict[str, list[Measurement]] = {}
    for row in measurements:
        families.setdefault(row.family, []).append(row)
    return families


def _calibrated(family: str, rows: list[Measurement], known: Known) -> Calibrated:
    new = known.anew()
    after = _relative(known.seconds(new), rows)
    if isinstance(new, Fitted):
        new = _stamped(new, rows, after)
    return Calibrated(family, tuple(rows), new, _relative(known.seconds(known.fit), rows), after)


def _known(hw: HardwareSpec, rows: list[Measurement]) -> Known:
    what = rows[0].what
    if what in MATMULS:
        return _matmul(hw, rows)
    if what in ATTENTIONS:
        return _attention(hw, rows)
    if what == "memory_copy":
        return _memory(hw, rows)
    if what in get_args(CollectiveOp):
        return _collective(hw, rows)
    return _exchange(hw, rows) if what in DIRECTIONS else _launch(hw, rows)


def _matmul(hw: HardwareSpec, rows: list[Measurement]) -> Known:
    name, dtype = rows[0].family.split()
    known: dict[Dtype, MatmulFit] = hw.kernels.gemm if name == "gemm" else hw.kernels.grouped_gemm
    key = next((key for key in known if key == dtype), None)
    if key is None:
        raise BadInput(f"{hw.name} has no {name} fit for {dtype}; its device multiplies {', '.join(known)}")
    blocks = np.array([row.what == "feed_forward" for row in rows])
    product = Product(*(_column(rows, column) for column in ("groups", "rows", "columns", "depth")))

    def seconds(tried: MatmulFit) -> Floats:
        whole = feed_forward_seconds(hw.device, key, tried, product)
        return np.where(blocks, whole, matmul_seconds(hw.device, key, tried, product))

    return _fields(known[key], MATMUL, seconds, rows)


def _attention(hw: HardwareSpec, rows: list[Measurement]) -> Known:
    flops, moved, keys = (_column(rows, column) for column in ("flops", "bytes", "mean_keys"))

    def seconds(tried: AttentionFit) -> Number:
        return attention_seconds(hw.device, tried, flops, moved, keys)

    return _fields(getattr(hw.kernels, rows[0].what), ATTENTION, seconds, rows)


def _memory(hw: HardwareSpec, rows: list[Measurement]) -> Known:
    moved, bandwidth = _column(rows, "bytes"), hw.device.memory_bandwidth_bytes_per_second.value

    def seconds(tried: VectorFit) -> Floats:
        return moved / (bandwidth * tried.memory_fraction) + tried.floor_seconds

    return _fields(hw.kernels.vector, VECTOR, seconds, rows)


def _fields(fit: Any, bounds: Bounds, seconds: Callable[[Any], Number], rows: list[Measurement]) -> Known:
    """Return a family whose parameters are fields of its fit."""
    start = {name: float(getattr(fit, name)) for name in bounds}
    return Known(fit, seconds, lambda: _best(bounds, start, lambda values: replace(fit, **values), seconds, rows))


def _collective(hw: HardwareSpec, rows: list[Measurement]) -> Known:
    words = rows[0].words
    wanted = (rows[0].what, words["scope"], words["in_graph"] == "yes")
    fit = next((held for held in hw.collectives if (held.op, held.scope, held.in_graph) == wanted), None)
    if fit is None:
        scopes = ", ".join(scope.name for scope in hw.scopes)
        raise BadInput(f"{hw.name} has no fit of {rows[0].family}; its scopes are {scopes}")
    message, ranks = _column(rows, "message_bytes"), _column(rows, "ranks")
    bounds: Bounds = {}
    for number, protocol in enumerate(fit.protocols):
        rate = protocol.bandwidth_bytes_per_second
        bounds[f"{number} latency_seconds"] = (0.0, 1e-2, 1e-5)
        bounds[f"{number} bandwidth_bytes_per_second"] = (rate / 50, rate * 50, rate / 3)
        for name in ("latency_per_rank_seconds", "latency_per_doubling_seconds"):
            if held := getattr(protocol, name):
                bounds[f"{number} {name}"] = (0.0, 1e-3, held)
    places = {name: name.split() for name in bounds}
    start = {name: float(getattr(fit.protocols[int(place)], own)) for name, (place, own) in places.items()}

    def build(values: dict[str, float]) -> CollectiveFit:
        protocols = []
        for number, protocol in enumerate(fit.protocols):
            mine = ((name.split(), value) for name, value in values.items())
            own: dict[str, Any] = {name: value for (place, name), value in mine if place == str(number)}
            protocols.append(replace(protocol, **own))
        return replace(fit, protocols=protocols)

    def seconds(tried: CollectiveFit) -> Number:
        return collective_seconds(hw, tried, message, ranks)

    return Known(fit, seconds, lambda: _best(bounds, start, build, seconds, rows))


def _exchange(hw: HardwareSpec, rows: list[Measurement]) -> Known:
    """Each measured degree on its own: with several payloads both numbers, with one the bandwidth alone."""
    wanted = (rows[0].what, rows[0].words["mode"])
    fit = next((held for held in hw.exchanges if (held.direction, held.mode) == wanted), None)
    if fit is None:
        raise BadInput(f"{hw.name} has no fit of {rows[0].family}, whose message format a calibration cannot know")

    def anew() -> ExchangeFit:
        points = {point.degree: point for point in fit.points}
        for degree in sorted({int(row.shape["degree"]) for row in rows}):
            points[degree] = _exchange_point(hw, fit, degree, [row for row in rows if row.shape["degree"] == degree])
        return replace(fit, points=[points[degree] for degree in sorted(points)])

    payload, degrees = _column(rows, "payload_bytes"), _column(rows, "degree")
    return Known(fit, lambda tried: exchange_seconds(hw, tried, payload, degrees), anew)


def _exchange_point(hw: HardwareSpec, fit: ExchangeFit, degree: int, rows: list[Measurement]) -> ExchangePoint:
    over = degree > hw.server_devices  # a card's rate starts from a card's
    near = min(
        fit.points, key=lambda point: ((point.degree > hw.server_devices) != over, abs(np.log2(point.degree / degree)))
    )
    rate, payload = near.bandwidth_bytes_per_second, _column(rows, "payload_bytes")
    bounds = {"bandwidth_bytes_per_second": (rate / 50, rate * 50, rate / 3)}
    if len(set(payload.tolist())) > 1:
        bounds["latency_seconds"] = (0.0, 1e-2, 1e-5)
    start = {name: float(getattr(near, name)) for name in bounds}

    def build(values: dict[str, Any]) -> ExchangePoint:
        return replace(near, **{"degree": degree, **values})

    others = [point for point in fit.points if point.degree != degree]

    def seconds(point: ExchangePoint) -> Number:
        return exchange_seconds(hw, replace(fit, points=[*others, point]), payload, float(degree))

    return _best(bounds, start, build, seconds, rows)


def _launch(hw: HardwareSpec, rows: list[Measurement]) -> Known:
    """The median of what was measured."""
    value, told = float(np.median(_column(rows, "seconds"))), f"{rows[0].version}, {len(rows)} times"
    new = Sourced(value=value, kind="measured", source=rows[0].source, note=told)
    return Known(getattr(hw.host, f"{rows[0].what}_seconds"), lambda held: held.value, lambda: new)


def _best(
    bounds: Bounds,
    start: dict[str, float],
    build: Callable[[dict[str, float]], Any],
    seconds: Callable[[Any], Number],
    rows: list[Measurement],
) -> Any:
    """Return what is built of the parameters with the least errors."""
    return build(_minimum(bounds, start, lambda values: _relative(seconds(build(values)), rows)))


def _minimum(bounds: Bounds, start: dict[str, float], errors: Callable[[dict[str, float]], Floats]) -> dict[str, float]:
    """Return the parameters of the module's minimum, four significant digits each."""
    from scipy.optimize import least_squares  # 0.4 s: only a calibration pays it

    names = list(bounds)
    low, high, scale = (np.array([bounds[name][place] for name in names]) for place in range(3))
    origin = np.clip(np.array([start[name] for name in names]), low, high)

    def residuals(scaled: Floats) -> Floats:
        values = dict(zip(names, (scaled * scale).tolist(), strict=True))
        return np.concatenate([errors(values), HOLD * (scaled - origin / scale)])

    margin = EDGE * scale  # the solver starts inside its bounds
    inner = np.clip(origin, low + margin, high - margin) / scale
    found = least_squares(residuals, inner, bounds=(low / scale, high / scale), loss="soft_l1", f_scale=SOFT)
    return {name: float(f"{value:.4g}") for name, value in zip(names, found.x * scale, strict=True)}


def _stamped(fit: Any, rows: list[Measurement], after: Floats) -> Any:
    """Return the fit with where it comes from and how far it is off."""
    sources, versions = dict.fromkeys(row.source for row in rows), dict.fromkeys(row.version for row in rows)
    return replace(
        fit,
        kind="fitted",
        source="; ".join(sources),
        version="; ".join(versions),
        median_residual=float(f"{np.median(np.abs(after)):.2g}"),
        note=f"{len(rows)} measured times, fitted by plan calibrate",
    )


def _column(rows: list[Measurement], name: str) -> Floats:
    return np.array([row.seconds if name == "seconds" else row.shape[name] for row in rows])


def _relative(fitted: Number, rows: list[Measurement]) -> Floats:
    return np.asarray(fitted, dtype=np.float64) / _column(rows, "seconds") - 1.0


def overlay(hw: HardwareSpec, name: str, families: Sequence[Calibrated]) -> dict[str, Any]:
    """Return the YAML document of an entry that is ``hw`` with the fits of ``families``."""
    document: dict[str, Any] = {
        "schema_version": hw.schema_version,
        "name": name,
        "title": f"{hw.title}, calibrated",
        "based_on": {"name": hw.name, "why": "fits of plan calibrate over the catalogue's", "same_device": True},
    }
    kernels: dict[str, Any] = {}
    for family in families:
        data = plain(family.fit, mode="json", exclude_none=True)
        first, *rest = family.family.split()
        if first in ("gemm", "grouped_gemm"):
            kernels.setdefault(first, {})[rest[0]] = data
        elif first in ATTENTIONS:
            kernels[first] = data
        elif first == "memory_copy":
            kernels["vector"] = data
        elif first in ("eager_launch", "graph_launch"):
            document.setdefault("host", {})[f"{first}_seconds"] = data
        else:
            document.setdefault("exchanges" if first in DIRECTIONS else "collectives", []).append(data)
    if kernels:
        document["kernels"] = kernels
    return document
