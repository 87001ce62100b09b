"""One rank at work: embedding, layers and head over the parts that its manifest gives it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ground.arrays import Floats, Ints
from ground.errors import Fault
from models.spec import GQA, MLA
from planner.manifest.layout import Place
from runtime.execute.collectives import Comm, all_gather, all_reduce, all_reduce_max, comm, direct_all_to_all
from runtime.execute.kernels import (
    Attention,
    GroupedAttention,
    LatentAttention,
    linear,
    one_hot_rows,
    rms_norm,
    row_peaks,
    silu,
)
from runtime.execute.layout import Batch
from runtime.execute.partition import Setup
from runtime.execute.reference import draft_input
from runtime.execute.transport import Endpoint


@dataclass(slots=True)
class Worker:
    """A rank of an instance; ``cache`` is [requests, positions, width] per layer, ``traffic`` [EP ranks] counts the
    copies that it sent to each, ``exchanges`` are its own by microbatch. ``compute_seconds`` per layer and kind of work
    occupy the device where there is a clock.

    Residual states are whole on every rank of a TP group; under staged SP-TP-SP a rank has its share of the tokens
    outside attention proper (CloudMatrix384 section 4.3.1).
    """

    setup: Setup
    endpoint: Endpoint
    place: Place = field(init=False)
    cache: dict[int, Floats] = field(default_factory=dict)
    exchanges: dict[int, Any] = field(default_factory=dict)
    traffic: Ints = field(init=False)
    compute_seconds: dict[str, float] = field(default_factory=dict)
    _comms: dict[Any, Comm] = field(default_factory=dict)
    _attentions: dict[int, Attention] = field(default_factory=dict)
    _parts: dict[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find this rank's place."""
        self.place = self.setup.layout.place(self.endpoint.rank)
        self.traffic = np.zeros(self.setup.layout.pool.degrees.moe_ep, dtype=np.int64)

    @property
    def staged(self) -> bool:
        """Whether attention runs SP-TP-SP."""
        return self.setup.layout.pool.degrees.staged

    @property
    def int8(self) -> bool:
        """Whether matrices and activations are INT8."""
        return self.setup.weights.int8

    def comm(self, kind: str, microbatch: int, label: str) -> Comm:
        """Return this rank's group of a kind; microbatches do not hear each other."""
        found = self._comms.get((kind, microbatch))
        if found is None:
            layout = self.setup.layout
            ranks = layout.group(kind, self.endpoint.rank)
            if kind == "stage":
                stage = self.place.pp
                ranks = tuple(layout.base + p.rank for p in layout.places if p.pp == stage)
            elif kind == "experts":
                ranks = tuple(layout.experts_of(self.place.pp))
            found = self._comms[kind, microbatch] = comm(self.endpoint, ranks, (kind, ranks[0], microbatch))
        found.label = label
        return found

    def part(self, name: str) -> Floats:
        """Return what this rank holds of a tensor; Fault for one that the rules give it nothing of."""
        made = self._parts.get(name)
        if made is None:
            made = self._parts[name] = self._made(name)
        return made

    def _made(self, name: str) -> Floats:
        partition = self.setup.partition
        if ".experts." not in name and not partition.holds(self.place, name):
            raise Fault(f"rank {self.place.rank} needs {name}, which its shard rules do not give it")
        held = partition.part(self.place, name)
        tensor, own = self.setup.weights.whole(name), slice(held.start, held.stop)
        return tensor[own] if held.axis == 0 else tensor[:, own]

    def is_cut(self, name: str) -> bool:
        """Whether this rank holds only a part of a tensor."""
        return not self.setup.partition.part(self.place, name).whole

    async def embed(self, name: str, ids: Ints, batch: Batch) -> Floats:
        """Return embeddings of ids [n]: each rank looks up its part of the vocabulary, the group adds up."""
        held = self.setup.partition.part(self.place, name)
        rows = one_hot_rows(self.part(name), ids, held.start)
        if not held.whole:
            rows = await all_reduce(self.comm("tp", batch.microbatch, f"{batch.label}, embedding"), rows)
        return rows

    def mine(self, x: Any, batch: Batch) -> Any:
        """Return this rank's share of rows that stand for the batch's tokens: all of them unless staged."""
        if not self.staged:
            return x
        a, b = batch.bounds(self.setup.layout.pool.degrees.attention_tp)[self.place.tp]
        return x[a:b]

    async def gathered(self, x: Floats, batch: Batch, what: str) -> Floats:
        """Return the rows of all the batch's tokens."""
        if not self.staged:
            return x
        return np.concatenate(await all_gather(self.comm("tp", batch.microbatch, f"{batch.label}, {what}"), x))

    async def attend(self, layer: int, x: Floats, batch: Batch) -> Floats:
        """Norm, attention and output projection of a layer; an empty batch, as all its ranks know, needs none."""
        if not batch.tokens:
            return x
        at = f"model.layers.{layer}"
        attention = self._attention(layer)
        label = f"{batch.label}, layer {layer}, attention"
        group = self.comm("tp", batch.microbatch, label)
        normed = rms_norm(x, self.part(f"{at}.input_layernorm.weight"))
        query, rows = attention.down(normed, self.mine(batch.positions, batch))
        if self.staged:
            parts = await all_gather(group, np.concatenate([query, rows], axis=1))
            query, rows = np.split(np.concatenate(parts), [query.shape[1]], axis=1)
        heads = self._attention_proper(layer, attention, query, rows, batch)
        name = f"{at}.self_attn.o_proj.weight"
        if self.staged:
            bounds = batch.bounds(group.size)
            heads = np.concatenate(await direct_all_to_all(group, [heads[a:b] for a, b in bounds]), axis=1)
        if not self.is_cut(name):
            return linear(heads, self.part(name), self.int8)
        peaks = await all_reduce_max(group, row_peaks(heads)) if self.int8 else None
        return await all_reduce(group, linear(heads, self.part(name), self.int8, peaks))

    def _attention(self, layer: int) -> Attention:
        if layer in self._attentions:
            return self._attentions[layer]
        at, spec = f"model.layers.{layer}.self_attn.", self.setup.small.spec.attention
        names = [name for name in self.setup.partition.attention_names(layer) if "o_proj" not in name]
        parts = {name.removeprefix(at): self.part(name) for name in names}
        made: Attention
        if isinstance(spec, MLA):
            heads = len(parts["kv_b_proj.weight"]) // (spec.qk_nope_head_dim + spec.v_head_dim)
            made = LatentAttention(spec, heads, parts, self.int8)
        else:
            heads = len(parts["q_proj.weight"]) // spec.head_dim
            parts, kv_heads = self._read_heads(at, spec, parts, heads)
            made = GroupedAttention(spec, heads, kv_heads, parts, self.int8)
        self._attentions[layer] = made
        return made

    def _read_heads(self, at: str, spec: GQA, parts: dict[str, Floats], heads: int) -> tuple[dict[str, Floats], int]:
        """Keep only the KV heads that this rank's query heads read, where it holds more."""
        per_kv = spec.heads // spec.kv_heads
        first = self.setup.partition.part(self.place, f"{at}q_proj.weight").start // spec.head_dim
        held = self.setup.partition.part(self.place, f"{at}k_proj.weight").start // spec.head_dim
        low, high = first // per_kv, -(-(first + heads) // per_kv)
        own = slice((low - held) * spec.head_dim, (high - held) * spec.head_dim)
        kept = {
            name: part[own] if name[:2] in ("k_", "v_") and "norm" not in name else part for name, part in parts.items()
        }
        return kept, high - low

    def _attention_proper(self, layer: int, attention: Attention, query: Floats, rows: Floats, batch: Batch) -> Floats:
        """Write the batch's rows into the cache and attend, in the form that the phase uses."""
        cache = self.cache[layer]
        where = np.repeat(batch.rows, batch.lengths)
        cache[where, batch.positions] = rows
        if not batch.decoding:
            return attention.prefill(query, rows, batch.positions, batch.lengths)
        positions = batch.positions.reshape(len(batch.rows), batch.queries)
        reached = int(positions.max(initial=0)) + 1
        return attention.decode(query, cache[batch.rows, :reached], positions)

    async def works(self, kind: str, label: str) -> None:
        """Occupy the device for one layer's work of a kind; nothing without a clock."""
        if self.compute_seconds:
            await self.endpoint.compute(self.compute_seconds[kind], f"{label}, {kind}")

    def reserve(self, requests: int, positions: int) -> None:
        """Allocate the cache of this rank's stage."""
        layers = list(self.setup.stages[self.place.pp])
        if self.place.pp == len(self.setup.stages) - 1 and self.setup.small.draft_layer is not None:
            layers.append(self.setup.small.draft_layer)
        for layer in layers:
            self.cache[layer] = np.zeros((requests, positions, self._attention(layer).width))

    async def swiglu(self, at: str, x: Floats, group: Comm | None) -> Floats:
        """Down · (silu(gate · x) · (up · x)) over this rank's part of the width; partial sums where it is cut.

        Under INT8 a cut row gets the scale of the whole row: its peak goes round ``group`` first.
        """
        hidden = silu(linear(x, self.part(f"{at}.gate_proj.weight"), self.int8))
        hidden = hidden * linear(x, self.part(f"{at}.up_proj.weight"), self.int8)
        name = f"{at}.down_proj.weight"
        peaks = None
        if self.int8 and self.is_cut(name):
            assert group is not None, "a cut feed-forward has a group that adds it up"
            peaks = await all_reduce_max(group, row_peaks(hidden))
        return linear(hidden, self.part(name), self.int8, peaks)

    async def dense(self, layer: int, x: Floats, batch: Batch) -> Floats:
        """The dense feed-forward over attention TP."""
        if not batch.tokens:
            return x
        group = self.comm("tp", batch.microbatch, f"{batch.label}, layer {layer}, dense")
        at = f"model.layers.{layer}.mlp"
        out = await self.swiglu(at, x, group)
        return await all_reduce(group, out) if self.is_cut(f"{at}.down_proj.weight") else out

    async def head(self, norm: str, table: str, x: Floats, batch: Batch) -> Floats:
        """Logits [n, V] of states [n, h]: each rank has its part of the vocabulary, the group gathers."""
        logits = rms_norm(x, self.part(norm)) @ self.part(table).T
        if not self.is_cut(table):
            return logits
        group = self.comm("tp", batch.microbatch, f"{batch.label}, LM head")
        return np.concatenate(await all_gather(group, logits), axis=1)

    async def draft_states(self, states: Floats, following: Ints, batch: Batch) -> Floats:
        """Input of the draft layer: this rank's states [·, h] beside the embeddings of the tokens that follow."""
        at = f"model.layers.{self.setup.small.draft_layer}"
        embedded = await self.embed(f"{at}.embed_tokens.weight", following, batch)
        joined = draft_input(self.setup.weights, at, self.mine(embedded, batch), states)
        return joined @ self.part(f"{at}.eh_proj.weight").T
