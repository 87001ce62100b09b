"""Attention and experts on devices of their own: A2E and E2A by way of trampolines (xDeepServe sections 3.2, 5.2).

As many expert ranks as there are attention ranks in a domain receive first and pass copies on to the others; outputs
come back the same way. An attention rank so has one peer instead of every expert rank.
"""

from typing import NamedTuple

import numpy as np

from runtime.execute.batch import Batch
from runtime.execute.exchange import Reply, Rows
from runtime.execute.kernels import Array, Indices
from runtime.execute.placement import Copies
from runtime.execute.worker import Worker


class Handed(NamedTuple):
    """What an attention rank hands its trampoline: its tokens once, and where their copies go."""

    rows: Rows
    token: Indices
    ep: Indices
    slot: Indices


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


async def to_experts_and_back(worker: Worker, rows: Rows, copies: Copies, batch: Batch, label: str) -> Array:
    """Hand this rank's copies to its trampoline and return their outputs [c, h]."""
    endpoint, channel = worker.endpoint, ("a2e", batch.microbatch)
    trampoline = dict(trampolines(worker, worker.place.domain))[endpoint.rank]
    endpoint.send(trampoline, channel, Handed(rows, copies.token, copies.ep, copies.slot), f"{label}, A2E")
    reply: Reply = await endpoint.receive(trampoline, channel, f"{label}, E2A")
    return reply.rows


class Taken(NamedTuple):
    """What a trampoline has from its attention ranks: their token rows one behind the other, and all their copies."""

    senders: list[int]
    counts: list[int]
    x: Array
    copies: Copies


async def taken_over(worker: Worker, domain: int, microbatch: int, label: str) -> Taken:
    """Receive from the attention ranks of a domain that use this expert rank as trampoline."""
    endpoint = worker.endpoint
    senders = [rank for rank, trampoline in trampolines(worker, domain) if trampoline == endpoint.rank]
    handed: list[Handed] = [await endpoint.receive(rank, ("a2e", microbatch), f"{label}, A2E") for rank in senders]
    starts = np.cumsum([0, *(len(one.rows.values) for one in handed)])
    hidden = worker.setup.small.spec.hidden_size
    x = np.concatenate([np.zeros((0, hidden)), *(one.rows.unpacked() for one in handed)])
    nothing = np.zeros(0, dtype=np.int64)
    token = np.concatenate([nothing, *(one.token + start for one, start in zip(handed, starts, strict=False))])
    copies = Copies(
        token,
        np.concatenate([nothing, *(one.ep for one in handed)]),
        np.concatenate([nothing, *(one.slot for one in handed)]),
        np.ones(len(token)),
    )
    return Taken(senders, [len(one.token) for one in handed], x, copies)


def handed_back(worker: Worker, taken: Taken, outputs: Array, microbatch: int, label: str) -> None:
    """Send every attention rank the outputs of its copies."""
    ends = np.cumsum([0, *taken.counts])
    for rank, a, b in zip(taken.senders, ends, ends[1:], strict=False):
        reply = Reply(outputs[a:b], np.arange(b - a))
        worker.endpoint.send(rank, ("a2e", microbatch), reply, f"{label}, E2A")
