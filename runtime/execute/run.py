"""The whole run: prompts through prefill, caches over, N decode iterations, as every rank's program."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats
from models.spec import MLA
from planner.manifest.schema import LinkMapping, Manifest
from runtime.execute.layout import Layout, dealt, spread
from runtime.execute.partition import Setup, check_coverage
from runtime.execute.passes import Prefilled, Running, Said, decode_iteration, experts_pass, prefill_pass
from runtime.execute.small import Weights, shrink
from runtime.execute.transport import Endpoint, Loop, Program
from runtime.execute.worker import Worker

Group = tuple[int, int]  # domain and DP number of an attention group
SAMPLED_GROUPS = 8
PROMPTS_OF_SAMPLED = 4
LENGTHS = (3, 8, 5, 12, 7, 10, 4, 9)  # prompt lengths in turn: any four neighbours differ


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
    order = [named, *(rank for rank in range(prefill.layout.pool.degrees.attention_tp) if rank != named)]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is run: decode iterations, seed of weights and prompts, INT8 matrices and messages."""

    iterations: int = 8
    seed: int = 0
    int8: bool = False


@dataclass(slots=True)
class World:
    """A prefill and a decode instance of a manifest side by side (one instance where the pool is mixed).

    ``prompts`` are token ids by request; ``prefill_of`` and ``decode_of`` say which attention group has a request.
    """

    prefill: Setup
    decode: Setup
    mapping: LinkMapping
    settings: Settings
    prompts: list[list[int]]
    prefill_of: list[Group]
    decode_of: list[Group]

    @property
    def mixed(self) -> bool:
        """Whether one instance does both."""
        return self.prefill is self.decode

    @property
    def instances(self) -> list[Setup]:
        """The instances, prefill first."""
        return [self.decode] if self.mixed else [self.prefill, self.decode]

    @property
    def positions(self) -> int:
        """Positions that a cache has room for: the longest prompt and all that may come out, drafts included."""
        longest = max(len(prompt) for prompt in self.prompts)
        return longest + (self.settings.iterations + 2) * (self.decode.drafts + 1)

    def requests_of(self, group: Group, where: list[Group]) -> list[int]:
        """Return the requests of a group, in the order of its cache rows."""
        return [request for request, at in enumerate(where) if at == group]

    def moves(self, request: int) -> list[Haul]:
        """Return the messages that hand a request over."""
        groups = self.prefill_of[request], self.decode_of[request]
        return list(hauls(self.prefill, self.decode, self.mapping, *groups))

    @property
    def ranks(self) -> list[int]:
        """All ranks."""
        return list(range(self.decode.layout.ranks.stop))


def build_world(manifest: Manifest, settings: Settings) -> World:
    """Return the world of a manifest's first prefill and decode instance.

    Raises BadInput: the pools do not cover the model, with rank, tensor and range.
    """
    by_role = {pool.role: pool for pool in reversed(manifest.pools)}  # the first of each
    pools = [by_role[role] for role in (("prefill", "decode") if "decode" in by_role else ("mixed", "mixed"))]
    small = shrink(manifest.model.spec, pools)
    weights = Weights(small, settings.seed, settings.int8)
    drafts = pools[1].mtp.drafts
    setups = [
        Setup(weights, Layout(pool, base), settings.int8, drafts, f"pools[{manifest.pools.index(pool)}]")
        for pool, base in zip(pools, (0, len(pools[0].rank_table.rows)), strict=True)
    ]
    if pools[0] is pools[1]:
        setups[1] = setups[0] = Setup(weights, Layout(pools[0]), settings.int8, drafts, setups[0].path)
    for setup in setups:
        check_coverage(setup.partition)
    mapping = manifest.kv_transfer.mapping if manifest.kv_transfer else LinkMapping(ratio=1.0, group_size=1.0)
    groups = [setup.layout.dp_groups() for setup in setups]
    # One for every group, four for every sampled one
    count = max(len(each) + (PROMPTS_OF_SAMPLED - 1) * min(len(each), SAMPLED_GROUPS) for each in groups)
    places = [_deal(count, each) for each in groups]
    prompts = _prompts(places[1], small.spec.vocab_size, settings.seed)
    return World(setups[0], setups[1], mapping, settings, prompts, places[0], places[1])


def _prompts(groups: list[Group], vocabulary: int, seed: int) -> list[list[int]]:
    """Draw a prompt for every request of a decode group; those of one group have different lengths."""
    rng, seen, prompts = np.random.default_rng(seed), dict.fromkeys(groups, 0), []
    for group in groups:
        turn = seen[group] + group[0] + group[1]
        seen[group] += 1
        prompts.append(rng.integers(0, vocabulary, LENGTHS[turn % len(LENGTHS)]).tolist())
    return prompts


def _deal(count: int, groups: list[Group]) -> list[Group]:
    sample = spread(len(groups), SAMPLED_GROUPS)
    return [groups[place] for place in dealt(count, len(groups), PROMPTS_OF_SAMPLED, sample)]


@dataclass(slots=True)
class Rank:
    """A rank of the world with what it keeps between phases."""

    world: World
    worker: Worker
    running: Running | None = None
    prefilled: dict[int, Prefilled] = field(default_factory=dict)

    @property
    def setup(self) -> Setup:
        """The instance that this rank belongs to."""
        return self.worker.setup

    @property
    def group(self) -> Group:
        """Its attention group."""
        return self.worker.place.domain, self.worker.place.dp

    @property
    def reports(self) -> bool:
        """Whether this rank tells what its group said: TP rank 0 of the last stage."""
        return self.worker.place.tp == 0 and self.worker.place.pp == len(self.setup.stages) - 1

    @property
    def attends(self) -> bool:
        """Whether it has attention; expert ranks of disaggregated instances have not."""
        return self.worker.place.tp >= 0

    def parts(self, prefill: bool) -> int:
        """Microbatches: as the pool says, and at least one per pipeline stage in decode."""
        pool = self.setup.layout.pool
        return pool.microbatches if prefill else max(pool.microbatches, pool.degrees.pp)

    async def begin(self) -> None:
        """Prefill and hand over, or receive; ends with requests ready to decode."""
        if self.setup is self.world.prefill:
            await self.prefill()
        if self.setup is self.world.decode and self.attends:
            await self.admit()

    async def prefill(self) -> None:
        """Run this group's prompts and send caches and first tokens."""
        world, parts = self.world, self.parts(prefill=True)
        if not self.attends:
            await experts_pass(self.worker, parts, "prefill")
            return
        requests = world.requests_of(self.group, world.prefill_of)
        self.worker.reserve(len(requests), world.positions)
        prompts = [world.prompts[request] for request in requests]
        said = await prefill_pass(self.worker, prompts, list(range(len(requests))), parts)
        for row, request in enumerate(requests):
            if not world.mixed:
                send_cache(self.worker, world.moves(request), request, row, len(prompts[row]))
            if self.reports:
                self.prefilled[request] = said[row]
                self._tell_first(request, said[row])

    def _tell_first(self, request: int, said: Prefilled) -> None:
        """Tell all ranks of a request's decode group its first token and drafts."""
        decode, group = self.world.decode, self.world.decode_of[request]
        first = np.array([said.token, *said.drafts], dtype=np.int64)
        for stage in range(len(decode.stages)):
            for tp in range(decode.layout.pool.degrees.attention_tp):
                rank = decode.layout.attention_rank(stage, *group, tp)
                self.worker.endpoint.send(rank, ("first", request), first, f"first token of request {request}")

    async def admit(self) -> None:
        """Take over this group's requests: caches, first tokens and drafts."""
        world, endpoint = self.world, self.worker.endpoint
        requests = world.requests_of(self.group, world.decode_of)
        if not world.mixed:
            self.worker.reserve(len(requests), world.positions)
        ids = np.zeros((len(requests), world.decode.drafts + 1), dtype=np.int64)
        starts = np.array([len(world.prompts[request]) for request in requests], dtype=np.int64)
        for row, request in enumerate(requests):
            if not world.mixed:
                await receive_cache(self.worker, world.moves(request), request, row, int(starts[row]))
            teller = world.prefill.layout.attention_rank(len(world.prefill.stages) - 1, *world.prefill_of[request], 0)
            ids[row] = await endpoint.receive(teller, ("first", request), f"first token of request {request}")
        self.running = Running(requests, ids, starts)

    async def iterate(self, iteration: int) -> None:
        """Run one decode iteration; ranks of a prefill instance have nothing to do."""
        if self.setup is not self.world.decode:
            return
        parts = self.parts(prefill=False)
        if not self.attends:
            await experts_pass(self.worker, parts, f"decode {iteration}")
            return
        assert self.running is not None, "requests are admitted before they are decoded"
        await decode_iteration(self.worker, self.running, parts, iteration)

    async def whole(self) -> None:
        """All of it, one after the other."""
        await self.begin()
        for iteration in range(self.world.settings.iterations):
            await self.iterate(iteration)


def make_ranks(world: World, loop: Loop, ranks: list[int] | None = None) -> dict[int, Rank]:
    """Return the ranks of a world (some of them, where a process has only those) on a loop."""
    made = {}
    for rank in world.ranks if ranks is None else ranks:
        setup = world.decode if rank in world.decode.layout.ranks else world.prefill
        made[rank] = Rank(world, Worker(setup, Endpoint(loop, rank)))
    return made


def run_ranks(loop: Loop, ranks: Mapping[int, Rank], work: Callable[[Rank], Program]) -> None:
    """Run a phase, such as ``Rank.begin``, on every rank."""
    loop.run({number: lambda _, rank=rank: work(rank) for number, rank in ranks.items()})  # type: ignore[misc]


class Heard(NamedTuple):
    """What some of the ranks heard, by request: of prompts, and after them."""

    first: dict[int, Prefilled]
    after: dict[int, Said]


def heard(ranks: Mapping[int, Rank]) -> Heard:
    """Return what the reporting ones among ``ranks`` heard."""
    first, after = dict[int, Prefilled](), dict[int, Said]()
    for rank in ranks.values():
        first |= rank.prefilled
        if rank.running is not None and rank.reports:
            after |= {request: rank.running.said.get(request, Said()) for request in rank.running.requests}
    return Heard(first, after)


def joined(world: World, told: Heard) -> dict[int, Said]:
    """Return the whole answers, the first token before those of decode."""
    answers = {}
    for request, said in told.after.items():
        first, drafts = told.first[request], dict(said.drafts)
        if first.draft_logits is not None:
            drafts[len(world.prompts[request]) + 1] = first.draft_logits
        answers[request] = Said([first.token, *said.tokens], [first.logits, *said.logits], drafts)
    return answers
