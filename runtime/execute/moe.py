"""The MoE layer of a rank that has attention: route, exchange, weigh, add.

Three ways, by what the devices hold (docs/execute.md): every device holds all tokens (nothing is dispatched), experts
are cut by TP alone (tokens are gathered, partial sums scattered), or copies travel to EP ranks and back.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from ground.errors import Fault
from planner.manifest.layout import Place
from runtime.execute.collectives import Comm, all_gather, all_reduce, all_reduce_max, cut, reduce_scatter
from runtime.execute.exchange import DirectExchange, LaneExchange, Reply, Rows, packed
from runtime.execute.kernels import Routes, linear, row_peaks, silu
from runtime.execute.layout import SHARED, Batch, Copies
from runtime.execute.partition import Setup
from runtime.execute.reference import gate
from runtime.execute.worker import Worker


async def moe(worker: Worker, layer: int, x: Floats, batch: Batch, routes: Routes | None = None) -> Floats:
    """Return routed and shared experts of normed tokens x; ``routes`` replace the gate's where a test forces them."""
    routes = gate(worker.setup.weights, layer, x) if routes is None else routes
    degrees = worker.setup.layout.pool.degrees
    if degrees.domains:
        out = await disaggregated(worker, layer, x, routes, batch)
    elif degrees.attention_dp == 1 and not worker.staged:
        out = await all_tokens_everywhere(worker, layer, x, routes, batch)
    elif degrees.moe_ep == 1:
        out = await tensor_parallel(worker, layer, x, routes, batch)
    else:
        out = await exchanged(worker, layer, x, routes, batch)
    at = f"model.layers.{layer}.mlp.shared_experts"
    if has_local_shared(worker) and not worker.is_cut(f"{at}.down_proj.weight"):
        out = out + await worker.swiglu(at, x, None)
    return out


def has_local_shared(worker: Worker) -> bool:
    """Whether attention ranks hold the shared expert themselves."""
    mapping = worker.setup.layout.pool.expert_map
    return bool(worker.setup.small.moe.shared_experts) and not (mapping and mapping.shared_expert_ranks)


async def cut_shared(worker: Worker, layer: int, x: Floats, group: Comm) -> Floats | None:
    """Return this rank's partial sum of a shared expert that is cut over the group that adds up, else None."""
    at = f"model.layers.{layer}.mlp.shared_experts"
    if has_local_shared(worker) and worker.is_cut(f"{at}.down_proj.weight"):
        return await worker.swiglu(at, x, group)
    return None


def weighted(outputs: Floats, copies: Copies, tokens: int) -> Floats:
    """Add the outputs of every token's copies, each times its gate weight, [tokens, ·] from [c, ·].

    Copies are added in the order of the copies, the same on every rank.
    """
    out = np.zeros((tokens, outputs.shape[1]))
    np.add.at(out, copies.token, outputs * copies.weight[:, None])
    return out


async def expert_outputs(worker: Worker, layer: int, microbatch: int, rows: Floats, slots: Ints) -> Floats:
    """Return outputs [n, h] of rows [n, h] in slots of this rank: partial sums where experts are cut by MoE TP."""
    setup, at = worker.setup, f"model.layers.{layer}.mlp"
    table = setup.tables[layer]
    names, members = [], []
    for slot in np.unique(slots).tolist():
        if slot != SHARED and table.rank_of[slot] != worker.place.ep:
            raise Fault(f"rank {worker.place.rank} got a token for slot {slot} of EP rank {table.rank_of[slot]}")
        names.append(f"{at}.shared_experts" if slot == SHARED else f"{at}.experts.{table.expert_of[slot]}")
        members.append(np.flatnonzero(slots == slot))
    await worker.works("experts", f"microbatch {microbatch}, layer {layer}")
    hidden = []
    for name, own in zip(names, members, strict=True):
        up = linear(rows[own], worker.part(f"{name}.up_proj.weight"), worker.int8)
        hidden.append(silu(linear(rows[own], worker.part(f"{name}.gate_proj.weight"), worker.int8)) * up)
    peaks = await _peaks(worker, hidden, members, (len(rows), layer, microbatch))
    out = np.zeros_like(rows)
    for number, (name, own) in enumerate(zip(names, members, strict=True)):
        part = linear(hidden[number], worker.part(f"{name}.down_proj.weight"), worker.int8, peaks[own])
        whole = not worker.is_cut(f"{name}.down_proj.weight")
        # The MoE TP group adds up: what all of its ranks hold whole must come from one of them.
        out[own] = 0.0 if whole and worker.place.moe_tp > 0 else part
    return out


async def _peaks(
    worker: Worker, hidden: Sequence[Floats], members: Sequence[Ints], where: tuple[int, int, int]
) -> Floats:
    """Return the peak of every row of the experts' hidden states over the MoE TP group; unused without INT8."""
    rows, layer, microbatch = where
    peaks = np.zeros((rows, 1))
    if not worker.int8:
        return peaks
    for states, own in zip(hidden, members, strict=True):
        peaks[own] = row_peaks(states)
    group = worker.comm("moe_tp", microbatch, f"layer {layer}, expert scales")
    return await all_reduce_max(group, peaks) if group.size > 1 else peaks


async def all_tokens_everywhere(worker: Worker, layer: int, x: Floats, routes: Routes, batch: Batch) -> Floats:
    """One attention group: every device picks its experts' rows; one all-reduce adds all up (d_DP = 1)."""
    copies = worker.setup.tables[layer].copies(routes.experts, routes.weights, np.arange(len(x)))
    mine = np.flatnonzero(copies.ep == worker.place.ep)
    own = Copies(copies.token[mine], copies.ep[mine], copies.slot[mine], copies.weight[mine])
    out = weighted(await expert_outputs(worker, layer, batch.microbatch, x[own.token], own.slot), own, len(x))
    group = worker.comm("stage", batch.microbatch, f"{batch.label}, layer {layer}, experts")
    shared = await cut_shared(worker, layer, x, group)
    return await all_reduce(group, out if shared is None else out + shared)


async def tensor_parallel(worker: Worker, layer: int, x: Floats, routes: Routes, batch: Batch) -> Floats:
    """Experts cut over all devices: gather every group's tokens, compute partial sums, scatter them back."""
    group = worker.comm("stage", batch.microbatch, f"{batch.label}, layer {layer}, experts")
    tp = worker.comm("tp", batch.microbatch, group.label)
    share = (lambda rows: rows) if worker.staged else (lambda rows: cut(rows, tp.size)[tp.index])
    parts = await all_gather(group, (share(x), share(routes.experts), share(routes.weights)))
    rows, experts, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    copies = worker.setup.tables[layer].copies(experts, weights, np.arange(len(rows)))
    outputs = await expert_outputs(worker, layer, batch.microbatch, rows[copies.token], copies.slot)
    out = weighted(outputs, copies, len(rows))
    shared = await cut_shared(worker, layer, rows, group)
    out = out if shared is None else out + shared
    ends = np.cumsum([0, *(len(part[0]) for part in parts)])
    own = await reduce_scatter(group, [out[a:b] for a, b in pairwise(ends)])
    return own if worker.staged else np.concatenate(await all_gather(tp, own))


async def exchanged(worker: Worker, layer: int, x: Floats, routes: Routes, batch: Batch) -> Floats:
    """Dispatch copies to EP ranks and combine what comes back (MixServe section III-B3 in every ratio of DP to EP)."""
    setup, lanes = worker.setup, worker.setup.lanes
    c = 0 if worker.staged else worker.place.tp
    mine = np.arange(lanes.subset(c), len(x), lanes.subsets)
    copies = setup.tables[layer].copies(
        routes.experts[mine], routes.weights[mine], turns(setup, worker.place, len(mine))
    )
    exchange = exchange_of(worker, batch.microbatch, f"{batch.label}, experts")
    outputs = await exchange.run(x[mine], copies, partial(expert_outputs, worker, layer, batch.microbatch))
    own = weighted(outputs, copies, len(mine))
    return await _regathered(worker, own, len(x), batch, f"{batch.label}, layer {layer}, all-gather")


def turns(setup: Setup, place: Place, tokens: int) -> Ints:
    """Return what rotates the sender's tokens over replicas: their place in its share of the batch, and the sender.

    Ranks that send lanes of the same tokens give them the same turn.
    """
    degrees = setup.layout.pool.degrees
    group = place.domain * degrees.attention_dp + place.dp
    sender = (
        group * degrees.attention_tp + place.tp
        if degrees.staged
        else (group * setup.lanes.subsets + setup.lanes.subset(place.tp))
    )
    return np.arange(tokens) + sender


async def _regathered(worker: Worker, own: Floats, tokens: int, batch: Batch, label: str) -> Floats:
    """Return all tokens and the whole hidden axis from what each rank of the TP group has of them."""
    setup, lanes = worker.setup, worker.setup.lanes
    if worker.staged or lanes.t == 1:
        return own
    parts = await all_gather(worker.comm("tp", batch.microbatch, label), own)
    hidden = setup.small.spec.hidden_size
    width, out = hidden // lanes.m, np.zeros((tokens, hidden))
    for c, part in enumerate(parts):
        for number, lane in enumerate(lanes.lanes(c)):
            columns = slice(lane * width, (lane + 1) * width)
            out[lanes.subset(c) :: lanes.subsets, columns] = part[:, number * width : (number + 1) * width]
    return out


def exchange_of(worker: Worker, microbatch: int, label: str) -> DirectExchange | LaneExchange:
    """Return the rank's exchange of a microbatch, made once: its buffers stay."""
    exchange = worker.exchanges.get(microbatch)
    if exchange is None:
        exchange = worker.exchanges[microbatch] = _new_exchange(worker, microbatch)
    exchange.world.label = label
    return exchange


def _new_exchange(worker: Worker, microbatch: int) -> DirectExchange | LaneExchange:
    """Return the exchange with the EP ranks; in a disaggregated instance these have it among themselves."""
    setup, layout, m = worker.setup, worker.setup.layout, worker.setup.lanes.m
    if m == 1:
        return DirectExchange(worker.comm("ep", microbatch, ""), setup.int8_messages, worker.traffic)
    world = worker.comm("experts" if layout.disaggregated else "stage", microbatch, "")
    index = {rank: number for number, rank in enumerate(world.ranks)}
    experts = [
        [index[layout.expert_rank(worker.place.pp, ep, lane)] for lane in range(m)]
        for ep in range(layout.pool.degrees.moe_ep)
    ]
    senders, unit = ([[number] * m for number in index.values()], world.index)
    if not layout.disaggregated:
        senders, unit = _attention_units(worker, index)
    return LaneExchange(
        world=world,
        inner=worker.comm("moe_tp", microbatch, ""),
        senders=senders,
        experts=experts,
        unit=unit,
        ep=worker.place.ep,
        lanes=setup.lanes,
        int8=setup.int8_messages,
        fused=True,
        traffic=worker.traffic,
    )


def _attention_units(worker: Worker, index: dict[int, int]) -> tuple[list[list[int]], int]:
    """Return who sends which lane of every part of an attention group's tokens, and the part that is this rank's."""
    layout, lanes, place = worker.setup.layout, worker.setup.lanes, worker.place
    degrees = layout.pool.degrees
    count = degrees.attention_tp if worker.staged else lanes.subsets
    units = [(dp, c) for dp in range(degrees.attention_dp) for c in range(count)]

    def sender(dp: int, c: int, lane: int) -> int:
        return index[layout.attention_rank(place.pp, 0, dp, c if worker.staged else lanes.sender(c, lane))]

    senders = [[sender(dp, c, lane) for lane in range(lanes.m)] for dp, c in units]
    return senders, units.index((place.dp, place.tp if worker.staged else lanes.subset(place.tp)))


async def disaggregated(worker: Worker, layer: int, x: Floats, routes: Routes, batch: Batch) -> Floats:
    """Experts on devices of their own, by way of trampolines; attention TP groups deal their tokens out."""
    setup, tp = worker.setup, worker.comm("tp", batch.microbatch, f"{batch.label}, layer {layer}, all-gather")
    mine = np.arange(tp.index, len(x), tp.size)
    copies = setup.tables[layer].copies(
        routes.experts[mine], routes.weights[mine], turns(setup, worker.place, len(mine)) + worker.place.tp
    )
    np.add.at(worker.traffic, copies.ep, 1)
    endpoint, channel, label = worker.endpoint, ("a2e", batch.microbatch), f"{batch.label}, layer {layer}"
    trampoline = dict(trampolines(worker, worker.place.domain))[endpoint.rank]
    handed = Handed(packed(x[mine], setup.int8_messages), copies.token, copies.ep, copies.slot)
    endpoint.send(trampoline, channel, handed, f"{label}, A2E")
    reply: Reply = await endpoint.receive(trampoline, channel, f"{label}, E2A")
    own = weighted(reply.rows, copies, len(mine))
    if tp.size == 1:
        return own
    out = np.zeros_like(x)
    for c, part in enumerate(await all_gather(tp, own)):
        out[c :: tp.size] = part
    return out


class Handed(NamedTuple):
    """What an attention rank hands its trampoline: its tokens once, and where their copies go."""

    rows: Rows
    token: Ints
    ep: Ints
    slot: Ints


def trampolines(worker: Worker, domain: int) -> list[tuple[int, int]]:
    """Return (attention rank, trampoline) of a domain."""
    layout = worker.setup.layout
    degrees = layout.pool.degrees
    experts = layout.experts_of(0)
    ranks = [
        layout.attention_rank(0, domain, dp, tp)
        for dp in range(degrees.attention_dp)
        for tp in range(degrees.attention_tp)
    ]
    return [(rank, experts[number % len(experts)]) for number, rank in enumerate(ranks)]


async def serve(worker: Worker, layer: int, domain: int, microbatch: int, label: str) -> None:
    """Take over copies as the trampoline of some of a domain, exchange them among the experts, hand outputs back."""
    endpoint, channel, hidden = worker.endpoint, ("a2e", microbatch), worker.setup.small.spec.hidden_size
    senders = [rank for rank, trampoline in trampolines(worker, domain) if trampoline == endpoint.rank]
    where = f"{label}, domain {domain}, A2E"
    handed: list[Handed] = [await endpoint.receive(rank, channel, where) for rank in senders]
    starts = np.cumsum([0, *(len(one.rows.values) for one in handed)])
    x = np.concatenate([np.zeros((0, hidden)), *(one.rows.unpacked() for one in handed)])
    nothing = np.zeros(0, dtype=np.int64)
    token = np.concatenate([nothing, *(one.token + start for one, start in zip(handed, starts, strict=False))])
    ep, slot = (np.concatenate([nothing, *(getattr(one, name) for one in handed)]) for name in ("ep", "slot"))
    exchange = exchange_of(worker, microbatch, f"{label}, domain {domain}, experts")
    compute = partial(expert_outputs, worker, layer, microbatch)
    outputs = await exchange.run(x, Copies(token, ep, slot, np.ones(len(token))), compute)
    ends = np.cumsum([0, *(len(one.token) for one in handed)])
    for rank, a, b in zip(senders, ends, ends[1:], strict=False):
        endpoint.send(rank, channel, Reply(outputs[a:b], np.arange(b - a)), f"{label}, E2A")
