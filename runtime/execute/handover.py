"""KV from prefill to decode ranks by the group mapping, and the first tokens with it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ground.arrays import Floats
from models.spec import MLA
from planner.manifest.schema import LinkMapping
from runtime.execute.partition import Setup
from runtime.execute.passes import Prefilled
from runtime.execute.transport import Endpoint
from runtime.execute.worker import Worker

Group = tuple[int, int]
"""Domain and DP number of an attention group."""


@dataclass(frozen=True, slots=True)
class Haul:
    """One message of a hand-over: layers and KV heads ``low`` to ``high`` of a request from one rank to another."""

    source: int
    target: int
    layers: tuple[int, ...]
    low: int
    high: int


def kv_heads_of(setup: Setup, tp: int) -> tuple[int, int]:
    """Return the KV heads in the cache of a TP rank; (0, 1), the latent, for MLA."""
    spec = setup.small.spec.attention
    if isinstance(spec, MLA):
        return 0, 1
    layer = setup.stages[0][0]
    place = setup.layout.place(setup.layout.attention_rank(0, 0, 0, tp))
    part = setup.partition.part(place, f"model.layers.{layer}.self_attn.q_proj.weight")
    first, per_kv = part.start // spec.head_dim, spec.heads // spec.kv_heads
    last = spec.heads if part.whole else part.stop // spec.head_dim
    return first // per_kv, -(-last // per_kv)


def cached_layers(setup: Setup, stage: int) -> tuple[int, ...]:
    """Return the layers whose cache a stage holds; the draft layer's is with the last."""
    layers = setup.stages[stage]
    draft = setup.small.draft_layer
    if stage == len(setup.stages) - 1 and setup.drafts and draft is not None:
        return (*layers, draft)
    return layers


def hauls(prefill: Setup, decode: Setup, mapping: LinkMapping, source: Group, target: Group) -> Iterator[Haul]:
    """Yield the messages that move one request's cache between two attention groups.

    A latent is whole on every prefill TP rank: the decode rank reads the one that the mapping names (CloudMatrix384
    section 4.3.3), modulo their number where decode has more. KV heads are read from the ranks that hold them, the
    mapped one where it does.
    """
    decode_tp, prefill_tp = (s.layout.pool.degrees.attention_tp for s in (decode, prefill))
    dp = target[0] * decode.layout.pool.degrees.attention_dp + target[1]
    for stage in range(len(decode.stages)):
        for tp in range(decode_tp):
            to = decode.layout.attention_rank(stage, *target, tp)
            named = mapping.prefill_tp_rank(dp, tp, decode_tp) % prefill_tp
            for rank_tp, low, high in _sources(prefill, kv_heads_of(decode, tp), named):
                for source_stage in range(len(prefill.stages)):
                    held = set(cached_layers(prefill, source_stage)) & set(cached_layers(decode, stage))
                    if held:
                        at = prefill.layout.attention_rank(source_stage, *source, rank_tp)
                        yield Haul(at, to, tuple(sorted(held)), low, high)


def _sources(prefill: Setup, wanted: tuple[int, int], named: int) -> Iterator[tuple[int, int, int]]:
    """Yield (prefill TP rank, first, last KV head) that together give the wanted heads once."""
    tp = prefill.layout.pool.degrees.attention_tp
    order = [named, *(rank for rank in range(tp) if rank != named)]
    head = wanted[0]
    while head < wanted[1]:
        for rank in order:
            low, high = kv_heads_of(prefill, rank)
            if low <= head < high:
                yield rank, head, min(high, wanted[1])
                head = min(high, wanted[1])
                break
        else:
            raise AssertionError("coverage was checked, so some rank holds every KV head")


def hauled(setup: Setup, rows: Floats, held: tuple[int, int], haul: Haul) -> Floats:
    """Return the part of cached rows [n, width], with KV heads ``held``, that a haul moves; it shares their memory."""
    spec = setup.small.spec.attention
    if isinstance(spec, MLA):
        return rows
    heads = rows.reshape(len(rows), 2, held[1] - held[0], spec.head_dim)
    return heads[:, :, haul.low - held[0] : haul.high - held[0]]


def send_cache(worker: Worker, moves: list[Haul], request: int, row: int, length: int) -> None:
    """Send this rank's part of a request's cache to every decode rank that reads it."""
    held = kv_heads_of(worker.setup, worker.place.tp)
    for haul in moves:
        if haul.source == worker.endpoint.rank:
            payload = [
                hauled(worker.setup, worker.cache[layer][row, :length], held, haul).copy() for layer in haul.layers
            ]
            worker.endpoint.send(haul.target, ("kv", request, haul.low), payload, f"KV of request {request}")


async def receive_cache(worker: Worker, moves: list[Haul], request: int, row: int, length: int) -> None:
    """Receive this rank's part of a request's cache."""
    held = kv_heads_of(worker.setup, worker.place.tp)
    for haul in moves:
        if haul.target == worker.endpoint.rank:
            channel, label = ("kv", request, haul.low), f"KV of request {request}"
            payload = await worker.endpoint.receive(haul.source, channel, label)
            for layer, values in zip(haul.layers, payload, strict=True):
                hauled(worker.setup, worker.cache[layer][row, :length], held, haul)[...] = values


def send_first(endpoint: Endpoint, targets: list[int], request: int, said: Prefilled) -> None:
    """Tell all ranks of a request's decode group its first token and drafts."""
    first = np.array([said.token, *said.drafts], dtype=np.int64)
    for rank in targets:
        endpoint.send(rank, ("first", request), first, f"first token of request {request}")
