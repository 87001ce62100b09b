"""Ranks, groups and expert slots of one instance, as the manifest's rank table, group rules and expert map say.

The tokens of one microbatch of an attention group, as all its ranks know them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ground.arrays import Floats, Ints
from planner.manifest.layout import ExpertMap, Place
from planner.manifest.schema import Pool
from runtime.execute.collectives import parts_of

SHARED = -1  # the slot number of a dedicated shared expert


@dataclass(slots=True)
class Layout:
    """One instance of a pool in a world of ranks: its rank r is world rank ``base + r``."""

    pool: Pool
    base: int = 0
    places: list[Place] = field(init=False)
    _groups: dict[str, dict[int, tuple[int, ...]]] = field(init=False)
    _attention: dict[tuple[int, int, int, int], int] = field(init=False)
    _expert: dict[tuple[int, int, int], int] = field(init=False)

    def __post_init__(self) -> None:
        """Index the table and the groups."""
        self.places = self.pool.rank_table.places
        self._groups = {}
        for rule in self.pool.groups:
            members = self._groups.setdefault(rule.kind, {})
            for group in rule.groups():
                ranks = tuple(self.base + rank for rank in group)
                members |= dict.fromkeys(ranks, ranks)
        self._attention = {(p.pp, p.domain, p.dp, p.tp): self.base + p.rank for p in self.places if p.tp >= 0}
        self._expert = {(p.pp, p.ep, p.moe_tp): self.base + p.rank for p in self.places if p.ep >= 0}

    @property
    def ranks(self) -> range:
        """World ranks of the instance."""
        return range(self.base, self.base + len(self.places))

    @property
    def domains(self) -> int:
        """Attention domains; 1 where attention and experts share their devices."""
        return max(self.pool.degrees.domains, 1)

    @property
    def disaggregated(self) -> bool:
        """Whether experts have devices of their own."""
        return self.pool.degrees.domains > 0

    def place(self, world_rank: int) -> Place:
        """Return the coordinates of a world rank of this instance."""
        return self.places[world_rank - self.base]

    def group(self, kind: str, world_rank: int) -> tuple[int, ...]:
        """Return the world ranks of the rank's group of a kind: itself alone where the manifest has none."""
        return self._groups.get(kind, {}).get(world_rank, (world_rank,))

    def attention_rank(self, stage: int, domain: int, dp: int, tp: int) -> int:
        """Return the world rank with these attention coordinates."""
        return self._attention[stage, domain, dp, tp]

    def expert_rank(self, stage: int, ep: int, moe_tp: int = 0) -> int:
        """Return the world rank with these expert coordinates."""
        return self._expert[stage, ep, moe_tp]

    def experts_of(self, stage: int) -> list[int]:
        """Return the world ranks that hold experts of a stage, by EP rank, then MoE TP."""
        degrees = self.pool.degrees
        pairs = [(ep, inner) for ep in range(degrees.moe_ep) for inner in range(degrees.moe_tp)]
        return [self._expert[stage, *pair] for pair in pairs]

    def dp_groups(self) -> list[tuple[int, int]]:
        """Return (domain, dp) of every attention group of a stage."""
        return [(domain, dp) for domain in range(self.domains) for dp in range(self.pool.degrees.attention_dp)]


@dataclass(frozen=True, slots=True)
class Lanes:
    """Which rank of an attention group sends which tokens and which part of the hidden axis (MixServe section III-C).

    Device j of an EP rank receives part j of m of the hidden axis, a *lane*. An attention group of t ranks holds
    its tokens t times: duplicates are dropped by giving each rank one lane of every t/m-th token where m divides t,
    all tokens of m/t lanes where t divides m, and lane j to rank j mod t elsewhere.
    """

    t: int
    m: int

    @property
    def subsets(self) -> int:
        """Parts into which a group's tokens are dealt."""
        return self.t // self.m if self.t % self.m == 0 else 1

    def subset(self, c: int) -> int:
        """Return which tokens rank c of the group sends: those whose place mod ``subsets`` is this."""
        return c // self.m if self.t % self.m == 0 else 0

    def lanes(self, c: int) -> list[int]:
        """Return the lanes that rank c sends."""
        if self.t % self.m == 0:
            return [c % self.m]
        return [lane for lane in range(self.m) if lane % self.t == c]

    def sender(self, subset: int, lane: int) -> int:
        """Return the rank of the group that sends a lane of a subset of the tokens."""
        return subset * self.m + lane if self.t % self.m == 0 else lane % self.t


def spread(total: int, count: int) -> list[int]:
    """Return ``count`` numbers below ``total``, evenly spread; all of them where there are no more."""
    chosen = min(count, total)
    return [number * total // chosen for number in range(chosen)]


def dealt(items: int, places: int, most: int, sample: Sequence[int]) -> list[int]:
    """Return the place of every item: one for each place, then the sampled ones up to ``most``, then in turn."""
    order = list(range(places)) + [place for _ in range(most - 1) for place in sample]
    return [order[item] if item < len(order) else item % places for item in range(items)]


@dataclass(frozen=True, slots=True)
class Copies:
    """Token copies to send: token (row of the sender's tokens), EP rank, slot and gate weight, all [c]."""

    token: Ints
    ep: Ints
    slot: Ints
    weight: Floats


@dataclass(slots=True)
class ExpertTable:
    """The slots of one layer.

    ``expert_of`` [slots] is the logical expert, ``rank_of`` [slots] its EP rank; ``replicas`` [E, most] lists the
    slots of an expert, ``counts`` [E] says how many there are.
    """

    expert_of: Ints
    rank_of: Ints
    shared_ranks: Ints
    counts: Ints = field(init=False)
    replicas: Ints = field(init=False)

    def __post_init__(self) -> None:
        """Index slots by expert."""
        self.counts = np.bincount(self.expert_of)
        self.replicas = np.zeros((len(self.counts), int(self.counts.max())), dtype=np.int64)
        seen = np.zeros(len(self.counts), dtype=np.int64)
        for slot, expert in enumerate(self.expert_of.tolist()):
            self.replicas[expert, seen[expert]] = slot
            seen[expert] += 1

    def copies(self, experts: Ints, weights: Floats, turn: Ints) -> Copies:
        """Return where k experts per token [T, k] are, and the dedicated shared expert's copy beside them.

        ``turn`` [T] rotates: replica turn mod (number of replicas), so that tokens at different places of a batch
        use different replicas without any exchange (xDeepServe section 4.5).
        """
        tokens, k = experts.shape
        slot = self.replicas[experts, turn[:, None] % self.counts[experts]]
        ep = self.rank_of[slot]
        token = np.repeat(np.arange(tokens), k)
        if not len(self.shared_ranks):
            return Copies(token, ep.ravel(), slot.ravel(), weights.ravel())
        shared = self.shared_ranks[turn % len(self.shared_ranks)]
        return Copies(
            np.concatenate([token, np.arange(tokens)]),
            np.concatenate([ep.ravel(), shared]),
            np.concatenate([slot.ravel(), np.full(tokens, SHARED)]),
            np.concatenate([weights.ravel(), np.ones(tokens)]),
        )


def expert_tables(mapping: ExpertMap, layers: list[int]) -> dict[int, ExpertTable]:
    """Return the table of every layer asked for; a layer that the map leaves out (a draft layer) lies as the last."""
    ranks = np.array(mapping.expert_ranks, dtype=np.int64)
    shared = np.array(mapping.shared_expert_ranks, dtype=np.int64)
    by_layer = {layer: entry for entry in mapping.placements for layer in entry.layers}
    tables = {}
    for layer in layers:
        slots = np.array(by_layer.get(layer, by_layer[max(by_layer)]).slots, dtype=np.int64)
        tables[layer] = ExpertTable(slots, np.repeat(ranks, len(slots) // len(ranks)), shared)
    return tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """``ids`` and ``positions`` [T]; ``rows`` [R] are the requests' rows in the cache.

    ``lengths`` are the prompts' in prefill; in decode every request has ``queries`` tokens.
    ``microbatch`` numbers it, ``label`` names pass and microbatch in errors and on the timeline.
    """

    ids: Ints
    positions: Ints
    rows: Ints
    lengths: tuple[int, ...]
    decoding: bool
    microbatch: int
    label: str

    @property
    def tokens(self) -> int:
        """Tokens in the batch."""
        return len(self.ids)

    @property
    def queries(self) -> int:
        """Tokens of each request in decode."""
        return self.lengths[0] if self.lengths else 1

    @property
    def last(self) -> Ints:
        """Rows of the tokens that stand last in their requests."""
        return np.cumsum(self.lengths, dtype=np.int64) - 1

    def bounds(self, ranks: int) -> list[tuple[int, int]]:
        """Return which tokens each rank of a staged group has: the packed sequence in equal parts."""
        return parts_of(self.tokens, ranks)


def prompts_batch(prompts: Sequence[Sequence[int]], rows: Sequence[int], microbatch: int, label: str) -> Batch:
    """Return prompts one behind the other."""
    lengths = tuple(len(prompt) for prompt in prompts)
    ids = [token for prompt in prompts for token in prompt]
    positions = [position for length in lengths for position in range(length)]
    return Batch(
        ids=np.array(ids, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        rows=np.array(rows, dtype=np.int64),
        lengths=lengths,
        decoding=False,
        microbatch=microbatch,
        label=label,
    )


def decode_batch(ids: Ints, starts: Ints, rows: Sequence[int], microbatch: int, label: str) -> Batch:
    """Return running requests with ids [R, q] from positions ``starts`` [R] on."""
    requests, queries = ids.shape
    return Batch(
        ids=ids.ravel(),
        positions=(starts[:, None] + np.arange(queries)).ravel(),
        rows=np.array(rows, dtype=np.int64),
        lengths=(queries,) * requests,
        decoding=True,
        microbatch=microbatch,
        label=label,
    )
