"""Means, percentiles and confidence intervals in a memory that does not grow with what is added."""

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, student
from planner.manifest.schema import Statistics

MOST_EXACT = 1 << 17
_CELLS_PER_E = 2000
_LEAST_SECONDS, _DECADES_E = 1e-7, 40
BATCHES = 64


class Quantiles:
    """Mean and percentiles of values: exact up to 131,072 of them, then from a histogram with cells of 0.05 %."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0.0
        self._kept: list[Floats] = []
        self._cells: NDArray[np.int64] | None = None

    def add(self, values: Floats) -> None:
        """Add values that are not negative."""
        self.count += values.size
        self._sum += float(values.sum())
        if self._cells is not None:
            self._fold(values)
            return
        self._kept.append(values)
        if self.count > MOST_EXACT:
            self._cells = np.zeros(_CELLS_PER_E * _DECADES_E + 2, dtype=np.int64)
            for part in self._kept:
                self._fold(part)
            self._kept = []

    def _fold(self, values: Floats) -> None:
        assert self._cells is not None
        cells = np.log(np.maximum(values, _LEAST_SECONDS) / _LEAST_SECONDS) * _CELLS_PER_E
        self._cells += np.bincount(np.minimum(cells.astype(np.int64), self._cells.size - 1), minlength=self._cells.size)

    def at(self, percent: float) -> float:
        """Return a percentile: linear between exact values, else the middle of its cell."""
        if self._cells is None:
            return float(np.percentile(np.concatenate(self._kept), percent))
        rank = percent / 100 * (self.count - 1)
        cell = int(np.searchsorted(np.cumsum(self._cells), rank, side="right"))
        return float(_LEAST_SECONDS * np.exp((cell + 0.5) / _CELLS_PER_E))

    def statistics(self) -> Statistics | None:
        """Return mean, p50, p90 and p99; None without values."""
        if not self.count:
            return None
        p50, p90, p99 = (self.at(percent) for percent in (50, 90, 99))
        return Statistics(mean=self._sum / self.count, p50=p50, p90=p90, p99=p99)


class BatchMeans:
    """Sums over consecutive requests in at most 64 batches of equal length, which doubles when they run out.

    A request's batch follows from its number, so runs on the same requests have the same batches
    (batch means with common random numbers; A. M. Law, Simulation Modeling and Analysis, sections 9.5.3 and 11.2).
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.size = 16
        self._sums = np.zeros((len(names), BATCHES))
        self._counts = np.zeros((len(names), BATCHES))

    def add(self, numbers: NDArray[np.int64], values: dict[str, Floats]) -> None:
        """Add values of requests; those that are not a number are left out."""
        while numbers.size and int(numbers.max()) // self.size >= BATCHES:
            self._double()
        cells = numbers // self.size
        for row, name in enumerate(self.names):
            valid = ~np.isnan(values[name])
            self._sums[row] += np.bincount(cells[valid], weights=values[name][valid], minlength=BATCHES)
            self._counts[row] += np.bincount(cells[valid], minlength=BATCHES)

    def _double(self) -> None:
        for table in (self._sums, self._counts):
            folded = table[:, 0::2] + table[:, 1::2]
            table[:, : BATCHES // 2] = folded
            table[:, BATCHES // 2 :] = 0.0
        self.size *= 2

    def matched(self, other: "BatchMeans") -> tuple["BatchMeans", "BatchMeans"]:
        """Return both with batches of the longer size."""
        while self.size < other.size:
            self._double()
        while other.size < self.size:
            other._double()
        return self, other

    def means(self, name: str) -> Floats:
        """Return the mean of each batch, not a number where it is empty, [64]."""
        row = self.names.index(name)
        counts = self._counts[row]
        return np.where(counts > 0, self._sums[row] / np.where(counts > 0, counts, 1.0), np.nan)


def interval(batch_means: Floats) -> tuple[float, float] | None:
    """Return mean and half width of a 95 % interval over batches; None with fewer than 4 of them."""
    known = batch_means[~np.isnan(batch_means)]
    if known.size < 4:
        return None
    width = student(0.975, float(known.size - 1)) * float(known.std(ddof=1)) / np.sqrt(known.size)
    return float(known.mean()), float(width)
