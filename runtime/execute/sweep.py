"""A MoE layer with forced routes, so that every rank sends something to every EP rank, and with INT8 messages.

What prompts and decoding route by themselves leaves pairs of ranks out where there are hundreds; here each sender's
tokens are routed so that, with the rotation over replicas that the run uses, every EP rank gets some of them.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from ground.arrays import Floats, Ints
from runtime.execute.kernels import INT8_LARGEST, Routes, row_peaks, silu
from runtime.execute.layout import ExpertTable, prompts_batch
from runtime.execute.moe import moe, serve, turns
from runtime.execute.partition import Setup
from runtime.execute.reference import experts as unsharded_experts
from runtime.execute.small import Weights
from runtime.execute.transport import Endpoint, Loop
from runtime.execute.worker import Worker

SILU_SLOPE = 1.0999  # the largest slope of x·sigmoid(x), at x = 2.4
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep of one instance found.

    ``pairs`` of ``all_pairs`` (sender, EP rank) had traffic; ``difference`` is the largest from the unsharded layer;
    ``bound_used`` the largest error of INT8 messages over its bound (at most 1 where the bound holds), None where
    messages were not quantised.
    """

    pairs: int
    all_pairs: int
    tokens: int
    difference: float
    bound_used: float | None


def exchanges(setup: Setup) -> bool:
    """Whether copies travel between EP ranks in an instance."""
    degrees = setup.layout.pool.degrees
    if setup.small.spec.moe is None:
        return False
    return bool(degrees.domains) or (degrees.moe_ep > 1 and (degrees.attention_dp > 1 or degrees.staged))


def sweep(setup: Setup, loop: Loop, int8: bool) -> Swept:
    """Run one MoE layer of every stage with forced routes on all ranks of an instance, and compare."""
    setup = Setup(setup.weights, setup.layout, int8, setup.drafts, setup.path)
    workers = {rank: Worker(setup, Endpoint(loop, rank)) for rank in setup.layout.ranks}
    known: dict[tuple[int, int, int], tuple[Ints, int]] = {}
    cases = {rank: _Case(worker, known) for rank, worker in workers.items()}
    longest = _tokens_needed(cases)
    own = loop.local(setup.layout.ranks)
    outputs = loop.run({rank: partial(cases[rank].run, longest) for rank in own})
    attends = {rank: workers[rank] for rank in own if workers[rank].place.tp >= 0}
    pairs = sum(int((worker.traffic > 0).sum()) for worker in attends.values())
    compared = [rank for rank in attends if cases[rank].compares]
    difference, used = _compared(
        [cases[rank] for rank in compared], longest, [outputs[rank] for rank in compared], int8
    )
    tokens = sum(len(outputs[rank]) for rank in compared)
    all_pairs = len(attends) * setup.layout.pool.degrees.moe_ep
    return Swept(pairs, all_pairs, tokens, difference, used if int8 and not setup.weights.int8 else None)


def merged(parts: list[Swept]) -> Swept:
    """Return what several processes saw of one sweep, together."""
    used = [part.bound_used for part in parts if part.bound_used is not None]
    return Swept(
        sum(part.pairs for part in parts),
        sum(part.all_pairs for part in parts),
        sum(part.tokens for part in parts),
        max(part.difference for part in parts),
        max(used) if used else None,
    )


@dataclass(slots=True)
class _Case:
    """One rank's part in the sweep; ``known`` keeps choices of experts that many senders share."""

    worker: Worker
    known: dict[tuple[int, int, int], tuple[Ints, int]]

    @property
    def layer(self) -> int | None:
        """The first MoE layer of the rank's stage, None where it has none."""
        setup = self.worker.setup
        layers = setup.stages[self.worker.place.pp] if not setup.layout.disaggregated else setup.small.layers
        return next((layer for layer in layers if not setup.small.is_dense(layer)), None)

    @property
    def whole(self) -> bool:
        """Whether each rank of an attention group sends whole rows of tokens of its own."""
        return self.worker.staged or self.worker.setup.layout.disaggregated

    @property
    def senders(self) -> int:
        """Ranks of an attention group that send tokens of their own."""
        setup = self.worker.setup
        return setup.layout.pool.degrees.attention_tp if self.whole else setup.lanes.subsets

    @property
    def sender(self) -> int:
        """Which of them this rank is."""
        tp = self.worker.place.tp
        return tp if self.whole else self.worker.setup.lanes.subset(tp)

    @property
    def compares(self) -> bool:
        """Whether this rank's output is looked at: every rank where staged, else one of its group."""
        return self.layer is not None and (self.worker.staged or self.worker.place.tp == 0)

    def turn(self, sender: int, tokens: int) -> Ints:
        """Return what rotates the tokens of a sender of this rank's group."""
        place, lanes = self.worker.place, self.worker.setup.lanes
        tp = sender if self.whole else lanes.sender(sender, 0)
        own = turns(self.worker.setup, place._replace(tp=tp), tokens)
        return own + (tp if self.worker.setup.layout.disaggregated else 0)

    def routes(self, each: int) -> Routes:
        """Return forced routes of the tokens that this rank holds: ``each`` per sender, dealt as the exchange deals."""
        setup, layer = self.worker.setup, self.layer
        assert layer is not None, "stages without experts are not swept"
        k = setup.small.moe.experts_per_token
        chosen = [self.covering(sender, each)[0] for sender in self.held]
        experts = np.stack(chosen, axis=1).reshape(len(chosen) * each, k)
        rng = np.random.default_rng([setup.weights.seed, self.worker.place.dp, self.worker.place.domain + 1])
        drawn = rng.uniform(0.5, 1.5, experts.shape)
        weights = drawn / drawn.sum(axis=1, keepdims=True)
        return Routes(experts=experts, weights=weights, margin=np.ones(len(experts)))

    def covering(self, sender: int, tokens: int) -> tuple[Ints, int]:
        """Return ``covering`` for a sender's tokens; turns that differ by a common multiple choose alike."""
        layer = self.layer
        assert layer is not None, "stages without experts are not swept"
        table, turn = self.worker.setup.tables[layer], self.turn(sender, tokens)
        key = (layer, int(turn[0]) % int(np.lcm.reduce(table.counts)), tokens)
        if key not in self.known:
            self.known[key] = covering(table, turn, self.worker.setup.small.moe.experts_per_token)
        return self.known[key]

    @property
    def held(self) -> list[int]:
        """Return the senders whose tokens this rank holds: its own where staged, else all of the group."""
        return [self.sender] if self.worker.staged else list(range(self.senders))

    def states(self, tokens: int) -> Floats:
        """Return the layer's input, equal on all ranks of a TP group."""
        place, setup = self.worker.place, self.worker.setup
        own = place.tp if self.worker.staged else 0
        rng = np.random.default_rng([setup.weights.seed, place.pp, place.domain + 1, place.dp, own])
        return rng.standard_normal((tokens, setup.small.spec.hidden_size))

    async def run(self, each: int, _: Endpoint) -> Floats:
        """Run the layer with forced routes, or serve those who do; nothing in a stage without experts."""
        worker, layer = self.worker, self.layer
        if layer is None:
            return np.zeros((0, 0))
        if worker.place.tp >= 0:
            routes = self.routes(each)
            batch = prompts_batch([[0] * (each * self.senders)], [0], 0, "sweep")  # its length and label count alone
            return await moe(worker, layer, self.states(len(routes.experts)), batch, routes)
        for domain in range(worker.setup.layout.domains):
            await serve(worker, layer, domain, 0, f"sweep, layer {layer}")
        return np.zeros((0, 0))


def _tokens_needed(cases: dict[int, _Case]) -> int:
    """Return how many tokens per sender reach every EP rank from all of them."""
    needed = 1
    for case in cases.values():
        if case.compares and case.layer is not None:
            setup = case.worker.setup
            most = 4 * setup.layout.pool.degrees.moe_ep + len(setup.tables[case.layer].shared_ranks)
            for sender in case.held:
                needed = max(needed, case.covering(sender, most)[1])
    return needed


def covering(table: ExpertTable, turn: Ints, k: int) -> tuple[Ints, int]:
    """Return experts [n, k] for tokens of these turns that reach every EP rank early, and how many tokens that takes.

    A token reaches the replica of an expert that its turn names; experts of a token differ.
    """
    experts_there = len(table.counts)
    number = {
        slot: place
        for row, count in zip(table.replicas.tolist(), table.counts.tolist(), strict=True)
        for place, slot in enumerate(row[:count])
    }
    on_rank: dict[int, list[tuple[int, int, int]]] = {}
    for slot, place in number.items():
        expert = int(table.expert_of[slot])
        on_rank.setdefault(int(table.rank_of[slot]), []).append((expert, place, int(table.counts[expert])))
    experts = (np.arange(len(turn))[:, None] + np.arange(k)) % experts_there
    needed = len(table.shared_ranks)
    for token, now in enumerate(turn.tolist()):
        if not on_rank:
            break
        chosen: list[int] = []
        for rank in list(on_rank):
            if len(chosen) == k:
                break
            hit = next((e for e, place, count in on_rank[rank] if now % count == place and e not in chosen), None)
            if hit is not None:
                chosen.append(hit)
                del on_rank[rank]
                needed = max(needed, token + 1)
        spare = token
        while len(chosen) < k:
            if spare % experts_there not in chosen:
                chosen.append(spare % experts_there)
            spare += 1
        experts[token] = chosen
    return experts, needed


def _compared(cases: list[_Case], each: int, outputs: list[Floats], int8: bool) -> tuple[float, float]:
    """Return the largest difference from the unsharded layer, and the largest error over its bound; all of a layer at
    once, for the unsharded layer goes expert by expert.
    """
    difference, used = 0.0, 0.0
    for layer in {case.layer for case in cases if case.layer is not None}:
        own = [number for number, case in enumerate(cases) if case.layer == layer]
        parts = [cases[number].routes(each) for number in own]
        routes = Routes(
            experts=np.concatenate([part.experts for part in parts]),
            weights=np.concatenate([part.weights for part in parts]),
            margin=np.concatenate([part.margin for part in parts]),
        )
        x = np.concatenate([cases[n].states(len(part.experts)) for n, part in zip(own, parts, strict=True)])
        worker = cases[own[0]].worker
        weights = worker.setup.weights
        error = np.abs(np.concatenate([outputs[n] for n in own]) - unsharded_experts(weights, layer, x, routes))
        difference = max(difference, float(error.max()))
        if int8 and not weights.int8:
            used = max(used, float((error / message_error_bound(weights, layer, x, routes, worker)).max()))
    return difference, used


def message_error_bound(weights: Weights, layer: int, x: Floats, routes: Routes, worker: Worker) -> Floats:
    """Largest error [T, h] that INT8 messages with a scale per token can cause in a MoE layer, element by element.

    A row is off by at most e = peak/254 everywhere, so gate and up projections by a = |W1|·e and c = |W3|·e; the
    slope of SiLU is at most 1.1, so their product is off by at most |silu(g)|·c + 1.1·a·(|u| + c), and the output by
    |W2| times that, weighted by the gate (derived). A dedicated shared expert adds its own.
    """
    moe_spec, at = weights.small.moe, f"model.layers.{layer}.mlp"
    off = row_peaks(x) / (2 * INT8_LARGEST)
    bound = np.full(x.shape, ROUNDING)
    for expert in np.unique(routes.experts):
        tokens, choice = np.nonzero(routes.experts == expert)
        share = routes.weights[tokens, choice][:, None]
        bound[tokens] += share * _expert_bound(weights, f"{at}.experts.{expert}", x[tokens], off[tokens])
    mapping = worker.setup.layout.pool.expert_map
    if moe_spec.shared_experts and mapping and mapping.shared_expert_ranks:
        bound += _expert_bound(weights, f"{at}.shared_experts", x, off)
    return bound


def _expert_bound(weights: Weights, at: str, x: Floats, off: Floats) -> Floats:
    gate, up, down = (weights.whole(f"{at}.{name}_proj.weight") for name in ("gate", "up", "down"))
    g, u = x @ gate.T, x @ up.T
    a, c = off * np.abs(gate).sum(axis=1), off * np.abs(up).sum(axis=1)
    return (np.abs(silu(g)) * c + SILU_SLOPE * a * (np.abs(u) + c)) @ np.abs(down).T
