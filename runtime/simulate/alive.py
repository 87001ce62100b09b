"""The requests of a run through the compiled loops: in pieces as they come, in columns while they are in the system."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from runtime.simulate.workload import Requests

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PIECE = 2048
"""Requests between two samples of how full an instance is."""


def pieces(parts: Iterable[Requests], marks: list[float]) -> Iterator[tuple[Requests, float]]:
    """Yield the parts in pieces with the time until which each is played, cut at the marks; the last one to its end."""
    left, before = list(marks), None
    for part in parts:
        begun = part.under_way
        cuts = [*range(begun + _PIECE, len(part), _PIECE), len(part)]
        while left and part.arrival_seconds[-1] > left[0]:
            cuts.append(max(int(np.searchsorted(part.arrival_seconds, left.pop(0), side="right")), begun))
        first = 0
        for last in sorted(set(cuts)):
            if before is not None:
                yield before
            piece = part.piece(first, last)
            end = float(piece.arrival_seconds[-1]) if last > first else 0.0
            mark = next((mark for mark in marks if last < len(part) and end <= mark < part.arrival_seconds[last]), end)
            before, first = (piece, mark), last
    if before is not None:
        yield before[0], np.inf


class Alive:
    """The requests in the system as columns, by rising number."""

    def __init__(self) -> None:
        self._next = 0
        names = ("number", "arrival", "inputs", "outputs", "reused", "begun", "first", "started", "origin")
        self._columns = {name: np.zeros(0) for name in names}

    def add(self, part: Requests) -> Ints:
        """Take requests in and return their numbers; those in decode already have had their first token."""
        count = len(part)
        numbers = np.arange(self._next, self._next + count)
        self._next += count
        begun = np.zeros(count)
        begun[: part.under_way] = part.begun_tokens
        more = {
            "number": numbers,
            "arrival": np.where(np.arange(count) < part.under_way, -1.0, part.arrival_seconds),
            "inputs": part.input_tokens,
            "outputs": part.output_tokens,
            "reused": part.reused_tokens,
            "begun": begun,
        }
        rest = np.zeros(count)
        self._columns = {name: np.append(held, more.get(name, rest)) for name, held in self._columns.items()}
        return numbers

    def _places(self, numbers: Ints) -> Ints:
        return np.searchsorted(self._columns["number"], numbers)

    def note(self, numbers: Ints, **columns: NDArray[np.float64] | Ints) -> None:
        """Note figures of some."""
        places = self._places(numbers)
        for name, column in columns.items():
            self._columns[name][places] = column

    def rows(self, numbers: Ints) -> dict[str, Floats]:
        """Return the columns of some."""
        places = self._places(numbers)
        return {name: column[places] for name, column in self._columns.items()}

    def take(self, numbers: Ints) -> dict[str, Floats]:
        """Return the columns of some, which are gone from then on."""
        places = self._places(numbers)
        found = {name: column[places] for name, column in self._columns.items()}
        stay = np.ones(self._columns["number"].size, dtype=bool)
        stay[places] = False
        self._columns = {name: column[stay] for name, column in self._columns.items()}
        return found
