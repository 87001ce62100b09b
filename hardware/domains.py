"""Which shapes the packaged measurements of an entry cover: outside them a fit is extrapolated."""

from dataclasses import dataclass
from functools import cache
from typing import get_args

from hardware.fits import CALIBRATION
from hardware.measurements import ATTENTIONS, DIRECTIONS, MATMULS, Measurement, read_measurements
from hardware.spec import CollectiveOp

MARGIN = 2.0
"""How far past the measured shapes, as a factor, a curve is still taken as measured: curves of rows, keys and bytes
are smooth over a factor of two."""


IN_GRAPH = " in graph"


@dataclass(frozen=True, slots=True)
class Domain:
    """Smallest and largest measured shape of one family, and ranks where it has any."""

    quantity: str
    low: float
    high: float
    least_ranks: float = 0.0
    most_ranks: float = float("inf")

    def outside(self, value: float, ranks: float) -> tuple[str, float, float, float] | None:
        """Return (quantity, value, low, high) of a shape that lies outside by more than ``MARGIN``; None inside."""
        axes = (self.quantity, value, self.low, self.high), ("ranks", ranks, self.least_ranks, self.most_ranks)
        return next((axis for axis in axes if not axis[2] / MARGIN <= axis[1] <= axis[3] * MARGIN), None)


@cache
def domains(name: str) -> dict[str, Domain]:
    """Return what is measured of the catalogue entry ``name``, by family; empty for one without measurements."""
    families: dict[str, list[Measurement]] = {}
    for row in read_measurements(sorted(CALIBRATION.glob("*.csv")), name):
        families.setdefault(row.family, []).append(row)
    for family in [name for name in families if name.endswith(IN_GRAPH)]:
        # A graph's own kernel is taken where it is faster, the plain collective elsewhere.
        families[family] = families[family] + families.get(family.removesuffix(IN_GRAPH), [])
    return {family: _domain(rows) for family, rows in families.items()}


def _domain(rows: list[Measurement]) -> Domain:
    what = rows[0].what
    if what in MATMULS:
        return _over(rows, "rows", "rows per group")
    if what in ATTENTIONS:
        return _over(rows, "mean_keys", "keys per query")
    if what in get_args(CollectiveOp):
        return _over(rows, "message_bytes", "bytes", "ranks")
    assert what in DIRECTIONS, "packaged measurements are of kernels, collectives and exchanges"
    return _over(rows, "payload_bytes", "bytes", "degree")


def _over(rows: list[Measurement], column: str, quantity: str, ranks: str | None = None) -> Domain:
    values = [row.shape[column] for row in rows]
    if ranks is None:
        return Domain(quantity, min(values), max(values))
    sizes = [row.shape[ranks] for row in rows]
    return Domain(quantity, min(values), max(values), min(sizes), max(sizes))
