"""Virtual time of messages: latency and bandwidth per link, full duplex, contention per port and plane.

A message leaves through its sender's port and enters through its receiver's; it holds both for bytes/bandwidth and
has arrived a latency later. A port serves messages in the order in which they were sent, one at a time, and a message
whose receiver's port is busy holds up those behind it. In a mesh every pair has ports of its own.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hardware.links import common_scope
from hardware.spec import HardwareSpec
from runtime.execute.exchange import Rows
from runtime.execute.transport import Key, Loop

COUNT_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class Sized:
    """A payload that is nothing but its size."""

    payload_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What array elements weigh on the wire: the small model's arrays stand for rows of the real width.

    Integer arrays beside rows (slots, places) ride in the fixed part of a message, ``row_bytes`` per INT8 row: scale
    and metadata, 512 bytes in CloudMatrix384 section 4.2.1.
    """

    float_bytes: float = 8.0
    int8_bytes: float = 1.0
    row_bytes: float = 0.0

    def size(self, payload: Any) -> float:
        """Bytes of a payload: arrays, and tuples and lists of them."""
        if isinstance(payload, Rows):
            if payload.scale is None:
                return payload.values.size * self.float_bytes
            return payload.values.size * self.int8_bytes + len(payload.values) * self.row_bytes
        if isinstance(payload, Sized):
            return payload.payload_bytes
        if isinstance(payload, np.ndarray):
            return payload.size * self.float_bytes if payload.dtype.kind == "f" else 0.0
        return sum(self.size(part) for part in payload) if isinstance(payload, tuple | list) else COUNT_BYTES


@dataclass(frozen=True, slots=True)
class Way:
    """How a message goes: plane, latency, bandwidth, and the ports that it holds."""

    plane: str
    latency_seconds: float
    bandwidth_bytes_per_second: float
    out_port: Any
    in_port: Any
    mesh: bool = False  # whether each pair has ports of its own


Ways = Callable[[int, int], Way]


@dataclass(slots=True)
class Machine:
    """Ways between the ranks of one instance, at nominal bandwidths: ``device_of`` [ranks] numbers their devices.

    ``sharing``: devices of a plane that use one NIC together, which has one device's bandwidth.
    """

    hardware: HardwareSpec
    device_of: list[int]
    sharing: dict[str, int] = field(default_factory=dict)

    def __call__(self, sender: int, receiver: int) -> Way:
        """Return the way from a rank to another."""
        a, b = self.device_of[sender], self.device_of[receiver]
        scope = common_scope(self.hardware, a, b)
        mesh, pair = scope.topology == "mesh", scope.pair_bandwidth_bytes_per_second
        rate = pair.value if mesh and pair is not None else scope.bandwidth_bytes_per_second.value
        plane, latency = scope.plane, scope.latency_seconds.value
        if mesh:
            return Way(plane, latency, rate, (plane, a, b, "out"), (plane, a, b, "in"), mesh=True)
        share = self.sharing.get(plane, 1)
        return Way(plane, latency, rate, (plane, a // share, "out"), (plane, b // share, "in"))


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message on its link."""

    sender: int
    receiver: int
    plane: str
    label: str
    start: float
    end: float
    payload_bytes: float


@dataclass(frozen=True, slots=True)
class Span:
    """One rank's time in a collective over so many ranks with what it put in, or at computing (of one rank)."""

    rank: int
    name: str
    label: str
    ranks: int
    start: float
    end: float
    payload_bytes: float


@dataclass(slots=True)
class _Waiting:
    """A message in front of its links."""

    way: Way
    key: Key
    payload: Any
    payload_bytes: float
    label: str


@dataclass(slots=True)
class Clock:
    """Carries messages through ports; keeps transfers and spans of the ranks in ``traced`` (None: of none)."""

    ways: Ways
    wire: Wire = field(default_factory=Wire)
    traced: frozenset[int] | None = None
    transfers: list[Transfer] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    _queues: dict[Any, deque[_Waiting]] = field(default_factory=dict)
    _held: set[Any] = field(default_factory=set)
    _blocked: dict[Any, deque[Any]] = field(default_factory=dict)
    _known: dict[tuple[int, int], Way] = field(default_factory=dict)
    _device_free: dict[int, float] = field(default_factory=dict)

    def carry(self, loop: Loop, key: Key, payload: Any, label: str) -> None:
        """Queue a message at its sender's port; one to oneself is there at once."""
        receiver, sender, _ = key
        if receiver == sender:
            loop.arrive(key, payload)
            return
        way = self._known.get((sender, receiver))
        if way is None:
            way = self._known[sender, receiver] = self.ways(sender, receiver)
        size = self.wire.size(payload)
        self._queues.setdefault(way.out_port, deque()).append(_Waiting(way, key, payload, size, label))
        if way.out_port not in self._held:
            self._start(loop, way.out_port)

    def _start(self, loop: Loop, port: Any) -> None:
        """Send the first message of a free port if its receiver's port is free, else wait for that."""
        queue = self._queues[port]
        if not queue:
            return
        first = queue[0]
        self._held.add(port)
        if first.way.in_port in self._held:
            self._blocked.setdefault(first.way.in_port, deque()).append(port)
            return
        queue.popleft()
        self._held.add(first.way.in_port)
        busy = first.payload_bytes / first.way.bandwidth_bytes_per_second
        loop.at(loop.now + busy, partial(self._free, loop, port, first.way.in_port))
        arrival = loop.now + busy + first.way.latency_seconds
        loop.at(arrival, partial(loop.arrive, first.key, first.payload))
        if self.traced is not None and (first.key[0] in self.traced or first.key[1] in self.traced):
            way = first.way
            self.transfers.append(
                Transfer(first.key[1], first.key[0], way.plane, first.label, loop.now, arrival, first.payload_bytes)
            )

    def _free(self, loop: Loop, out_port: Any, in_port: Any) -> None:
        """Release both ports and let the next messages through, the longest waiting first."""
        self._held -= {out_port, in_port}
        blocked = self._blocked.get(in_port)
        if blocked:
            self._start(loop, blocked.popleft())
        if out_port not in self._held:
            self._start(loop, out_port)

    def occupy(self, rank: int, seconds: float, now: float, label: str) -> float:
        """Compute on a rank's device after what it computes already."""
        start = max(now, self._device_free.get(rank, 0.0))
        self._device_free[rank] = start + seconds
        self.record(rank, "compute", label, 1, (), start, start + seconds)
        return start + seconds

    def record(self, rank: int, name: str, label: str, ranks: int, payload: Any, start: float, end: float) -> None:
        """Keep a span of a traced rank: ``Span`` says what, of what it put in its size."""
        if self.traced is not None and rank in self.traced:
            self.spans.append(Span(rank, name, label, ranks, start, end, self.wire.size(payload)))
