"""Requests into the system: on their stamps, after the last turn of a session, or when another one leaves."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from runtime.simulate.engine import ARRIVAL, NEVER, Engine
from runtime.simulate.request import Request
from runtime.simulate.workload import Requests

_Row = tuple[float, int, int, int]


class ArrivalFeed:
    """Gives the engine one arrival at a time; parts are taken from an iterator as they are needed."""

    def __init__(self, engine: Engine, parts: Iterable[Requests], arrive: Callable[[Request], None]) -> None:
        self._engine, self._arrive = engine, arrive
        self._parts = iter(parts)
        self._rows: Iterator[_Row] = iter(())
        self._part: Requests | None = None
        self._next: _Row | None = None
        self._number = self._position = 0
        self._closed = False
        self._turns: dict[int, deque[tuple[float, list[Request]]]] = {}
        self._open: dict[int, int] = {}
        self.seconds = NEVER

    def begin(self) -> list[Request]:
        """Take the first part; return the requests that are in decode already, which are measured nowhere."""
        self._next_part()
        part = self._part
        begun = []
        for tokens in part.begun_tokens.tolist() if part is not None else []:
            request = self._request(next(self._rows))
            request.arrival, request.begun = -1.0, tokens
            begun.append(request)
        if part is not None and part.concurrency:
            self._closed = True
            for _ in range(min(part.concurrency, len(part) - part.under_way)):
                self._one_more()
        else:
            if part is not None and part.session is not None:
                self._hold_turns(part)
            self._look_ahead()
        return begun

    @property
    def follows(self) -> bool:
        """Whether requests are sent when others leave."""
        return self._closed or bool(self._turns)

    def _next_part(self) -> bool:
        part = next(self._parts, None)
        if part is None:
            return False
        self._part, self._position = part, 0
        columns = (part.arrival_seconds, part.input_tokens, part.output_tokens, part.reused_tokens)
        self._rows = zip(*(column.tolist() for column in columns), strict=True)
        return True

    def _request(self, row: _Row) -> Request:
        request = Request(self._number, row[0], row[1], row[2], row[3])
        part = self._part
        if part is not None and part.blocks is not None:
            request.blocks = part.blocks[self._position].tolist()
        if part is not None and part.session is not None:
            request.session = int(part.session[self._position])
        self._number += 1
        self._position += 1
        return request

    def _hold_turns(self, part: Requests) -> None:
        """Keep later turns back until the turn before them ends; requests of a delay below 0 go with those before."""
        assert part.session is not None and part.delay_seconds is not None
        first: list[tuple[_Row, list[Request]]] = []
        last: dict[int, list[Request]] = {}
        for row, delay in zip(self._rows, part.delay_seconds.tolist(), strict=True):
            request = self._request(row)
            if delay < 0 and request.session in last:
                last[request.session].append(request)
                continue
            turn = [request]
            if np.isnan(delay):
                first.append((row, turn))
            else:
                self._turns.setdefault(request.session, deque()).append((delay, turn))
            if request.session >= 0:
                last[request.session] = turn
        for row, turn in first:
            self._send(turn, row[0])
        self._rows = iter(())

    def _send(self, turn: list[Request], seconds: float) -> None:
        """Let the requests of a turn arrive together."""
        if turn[0].session >= 0:
            self._open[turn[0].session] = len(turn)
        for request in turn:
            request.arrival = seconds
            self._engine.at(seconds, ARRIVAL, self._arrive, request)

    def _look_ahead(self) -> None:
        row = next(self._rows, None)
        while row is None:
            if not self._next_part():
                self.seconds, self._next = NEVER, None
                return
            row = next(self._rows, None)
        self._next = row
        self.seconds = row[0]

    def deliver(self) -> None:
        """Let the next request arrive."""
        row = self._next
        assert row is not None, "the engine asks for arrivals that are there"
        request = self._request(row)
        self._look_ahead()
        self._arrive(request)

    def left(self, request: Request) -> None:
        """Let the closed loop's next request in, or the next turn of a session some time later."""
        if self._closed:
            self._one_more()
        elif request.session >= 0 and self._turns.get(request.session):
            self._open[request.session] -= 1
            if self._open[request.session]:
                return
            delay, turn = self._turns[request.session].popleft()
            self._send(turn, self._engine.now_seconds + delay)

    def _one_more(self) -> None:
        row = next(self._rows, None)
        if row is not None:
            self._send([self._request(row)], self._engine.now_seconds)
