"""Ranks and groups of one instance, as the manifest's rank table and group rules say."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.manifest.layout import Place
from planner.manifest.schema import Pool


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
