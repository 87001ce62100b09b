"""Token copies to expert ranks and back: dispatch and combine.

``DirectExchange`` is CloudMatrix384 section 4.2.1: what comes back belongs where the metadata of what was sent says.
``LaneExchange`` is the hybrid of MixServe section III-D, experts cut inside a node: each device receives one part of
the hidden axis, the node gathers it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, Ints
from runtime.execute.collectives import Comm, all_gather, cut, reduce_scatter, sparse_all_to_all
from runtime.execute.kernels import quantise
from runtime.execute.layout import Copies, Lanes

Compute = Callable[[Floats, Ints], Awaitable[Floats]]  # partial outputs [n, h] of rows [n, h] in slots [n]


class Rows(NamedTuple):
    """Rows of a message [n, w]: float64, or INT8 beside a scale per row [n, 1]."""

    values: Floats | NDArray[np.int8]
    scale: Floats | None

    def taken(self, index: Ints) -> "Rows":
        """Return some of the rows."""
        return Rows(self.values[index], None if self.scale is None else self.scale[index])

    def lane(self, lane: int, lanes: int) -> "Rows":
        """Return a part of the hidden axis."""
        width = self.values.shape[1] // lanes
        return Rows(self.values[:, lane * width : (lane + 1) * width], self.scale)

    def unpacked(self) -> Floats:
        """Return the rows in float64."""
        return np.asarray(self.values, dtype=np.float64) if self.scale is None else self.values * self.scale


class Message(NamedTuple):
    """What dispatch sends: rows, the slot of each, and where in the sender's copies it belongs (token and key)."""

    rows: Rows
    slot: Ints
    place: Ints


class Reply(NamedTuple):
    """What combine sends: outputs and where they belong."""

    rows: Floats
    place: Ints


def packed(x: Floats, int8: bool) -> Rows:
    """Return rows for sending; early quantisation once per token, before copies are made."""
    return Rows(*quantise(x)) if int8 else Rows(x, None)


@dataclass(slots=True)
class DirectExchange:
    """Dispatch and combine between all ranks of an EP group; ``world`` is in the order of the EP ranks."""

    world: Comm
    int8: bool
    traffic: Ints

    async def run(self, x: Floats, copies: Copies, compute: Compute) -> Floats:
        """Send each copy to its EP rank, compute what arrives, send it back by the metadata that came with it."""
        sent = self._messages(packed(x, self.int8), copies)
        label, start = self.world.label, self.world.endpoint.now
        self.world.label = f"{label}, dispatch"
        arrived = await sparse_all_to_all(self.world, sent)
        self.world.done("dispatch", start, list(sent.values()))
        sources = sorted(arrived)
        out = np.zeros((0, x.shape[1]))
        if sources:
            messages = [arrived[source] for source in sources]
            rows = np.concatenate([message.rows.unpacked() for message in messages])
            out = await compute(rows, np.concatenate([message.slot for message in messages]))
        self.world.label = f"{label}, combine"
        start = self.world.endpoint.now
        replies = await self._return(arrived, sources, out, list(sent))
        self.world.done("combine", start, out)
        self.world.label = label
        outputs = np.zeros((len(copies.token), x.shape[1]))
        for reply in replies.values():
            outputs[reply.place] = reply.rows
        return outputs

    def _messages(self, rows: Rows, copies: Copies) -> dict[int, Message]:
        """Return the message for every EP rank that has one."""
        order = np.argsort(copies.ep, kind="stable")
        targets, starts = np.unique(copies.ep[order], return_index=True)
        ends = np.append(starts, len(order))[1:]
        messages = {}
        for target, start, end in zip(targets.tolist(), starts.tolist(), ends.tolist(), strict=True):
            place = order[start:end]
            self.traffic[target] += end - start
            messages[target] = Message(rows.taken(copies.token[place]), copies.slot[place], place)
        return messages

    async def _return(
        self, arrived: dict[int, Message], sources: list[int], out: Floats, asked: list[int]
    ) -> dict[int, Reply]:
        """Send outputs back; whoever sent something knows that it gets an answer, so no counts are exchanged."""
        index, n = self.world.index, self.world.size
        ends = np.cumsum([0, *(len(arrived[source].slot) for source in sources)])
        mine = {
            source: Reply(out[a:b], arrived[source].place)
            for source, a, b in zip(sources, ends, ends[1:], strict=False)
        }
        for source in sorted(sources, key=lambda source: (source - index) % n):
            if source != index:
                self.world.send(source, mine[source])
        return {to: mine[to] if to == index else await self.world.receive(to) for to in asked}


@dataclass(slots=True)
class LaneExchange:
    """Experts cut over m devices: parts of the hidden axis between nodes, whole rows inside one.

    ``world`` are the ranks that take part, each of which sends and has experts; ``inner`` is its MoE TP group.
    ``senders[unit][lane]`` and ``experts[ep][lane]`` are indices in ``world``: a unit is a part of the tokens of an
    attention group. With ``fused`` every unit is gathered as it arrives (MixServe Algorithm 2) and every reply
    reduced before it leaves (Algorithm 1, read as reduce-scatter, exchange, all-gather); without, each step waits for
    the one before it.
    """

    world: Comm
    inner: Comm
    senders: list[list[int]]
    experts: list[list[int]]
    unit: int
    ep: int
    lanes: Lanes
    int8: bool
    fused: bool
    traffic: Ints

    async def run(self, x: Floats, copies: Copies, compute: Compute) -> Floats:
        """Return the lanes that this rank serves of the outputs, [c, lanes · h/m], one lane behind the other."""
        label, start = self.world.label, self.world.endpoint.now
        sending = _Sending(self, packed(x, self.int8), copies)
        for _ in () if self.in_rounds else self.experts:
            sending.next()
        self.inner.label, self.world.label = f"{label}, all-gather", f"{label}, dispatch"
        batches = await self._gather(x.shape[1], sending)
        self.world.done("hybrid dispatch", start, x)
        slots = np.concatenate([message.slot for _, _, message in batches])
        out = await compute(np.concatenate([rows for _, rows, _ in batches]), slots)
        self.inner.label, self.world.label = f"{label}, reduce-scatter", f"{label}, combine"
        start = self.world.endpoint.now
        await self._reply(batches, out, sending)
        for _ in self.experts:
            await sending.collect()
        self.world.done("hybrid combine", start, sending.outputs)
        self.world.label = label
        return sending.outputs

    @property
    def in_rounds(self) -> bool:
        """Whether rounds are taken in step: each unit is one EP rank's devices, so that ranks meet pair by pair."""
        return self.fused and self.senders == self.experts

    def at_home(self, unit: int, ep: int) -> bool:
        """Whether a unit's ranks are the expert rank's own devices, which hold the whole rows already."""
        return self.senders[unit] == self.experts[ep]

    def _in_turn(self) -> list[int]:
        """Units in the order in which they arrive: from the node just behind on backwards, one's own last."""
        here = [unit for unit, ranks in enumerate(self.senders) if set(ranks) <= set(self.experts[self.ep])]
        first = here[0] if here else 0
        units = len(self.senders)
        return [(first - 1 - step) % units for step in range(units)]

    async def _gather(self, hidden: int, sending: "_Sending") -> list[tuple[int, Floats, Message]]:
        """Receive one lane of every unit's copies and gather whole rows inside the node."""
        lane, units = self.inner.index, self._in_turn()
        if self.fused:
            return await self._gather_as_they_come(units, sending)
        messages = [await self.world.receive(self.senders[unit][lane]) for unit in units]
        away = [i for i, unit in enumerate(units) if not self.at_home(unit, self.ep)]
        parts = [message.rows.unpacked() for message in messages]
        whole = await self._joined(np.concatenate([parts[i] for i in away])) if away else np.zeros((0, hidden))
        ends = np.cumsum([0, *(len(parts[i]) for i in away)])
        for number, i in enumerate(away):
            parts[i] = whole[ends[number] : ends[number + 1]]
        return [(unit, parts[i], messages[i]) for i, unit in enumerate(units)]

    async def _gather_as_they_come(self, units: list[int], sending: "_Sending") -> list[tuple[int, Floats, Message]]:
        """MixServe Algorithm 2: while a shard is gathered inside the node the next one crosses between nodes."""
        if self.in_rounds:
            sending.next()
        batches = []
        for unit in units:
            message = await self.world.receive(self.senders[unit][self.inner.index])
            if self.in_rounds:
                sending.next()
            rows = message.rows.unpacked()
            batches.append((unit, rows if self.at_home(unit, self.ep) else await self._joined(rows), message))
        return batches

    async def _joined(self, rows: Floats) -> Floats:
        return np.concatenate(await all_gather(self.inner, rows), axis=1)

    async def _reply(self, batches: list[tuple[int, Floats, Message]], out: Floats, sending: "_Sending") -> None:
        """Add partial outputs up inside the node, a lane per device, and send each unit its copies' lane.

        Fused this is MixServe Algorithm 1 as reduce-scatter, exchange, all-gather: while one node's sums cross, the
        next node's are reduced.
        """
        lane, m = self.inner.index, self.lanes.m
        ends = np.cumsum([0, *(len(message.slot) for _, _, message in batches)])
        if not self.fused:
            whole = await reduce_scatter(self.inner, cut(out, m, axis=1))
        for i, (unit, _, message) in enumerate(batches):
            if self.fused:
                own = await reduce_scatter(self.inner, cut(out[ends[i] : ends[i + 1]], m, axis=1))
            else:
                own = whole[ends[i] : ends[i + 1]]
            if self.in_rounds and i:
                await sending.collect()
            self.world.send(self.senders[unit][lane], Reply(own, message.place))


class _Sending:
    """One rank's copies on their way: EP ranks in turn, the node ahead first and one's own last."""

    def __init__(self, exchange: LaneExchange, rows: Rows, copies: Copies) -> None:
        """Nothing is sent yet."""
        self.exchange, self.rows, self.copies = exchange, rows, copies
        n, me = len(exchange.experts), exchange.world.index
        lanes = [lane for lane, sender in enumerate(exchange.senders[exchange.unit]) if sender == me]
        turn = [(exchange.ep + 1 + step) % n for step in range(n)]
        self._to_send, self._to_collect = iter(turn), iter(turn)
        width = rows.values.shape[1] // exchange.lanes.m
        self.outputs = np.zeros((len(copies.token), len(lanes) * width))
        self._lanes, self._width = lanes, width

    def next(self) -> None:
        """Send the next EP rank its copies, a message per lane; nothing where all are sent."""
        exchange, copies = self.exchange, self.copies
        ep = next(self._to_send, None)
        if ep is None:
            return
        place = np.flatnonzero(copies.ep == ep)
        exchange.traffic[ep] += len(place)
        for lane in self._lanes:
            taken = self.rows.taken(copies.token[place])
            if not exchange.at_home(exchange.unit, ep):
                taken = taken.lane(lane, exchange.lanes.m)
            exchange.world.send(exchange.experts[ep][lane], Message(taken, copies.slot[place], place))

    async def collect(self) -> None:
        """Receive the replies of the next EP rank; nothing where all are there."""
        exchange, ep = self.exchange, next(self._to_collect, None)
        if ep is None:
            return
        for number, lane in enumerate(self._lanes):
            reply = await exchange.world.receive(exchange.experts[ep][lane])
            self.outputs[reply.place, number * self._width : (number + 1) * self._width] = reply.rows
