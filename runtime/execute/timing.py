"""How long the collectives of a plan take on the virtual clock, at the sizes that the plan has."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ground.arrays import Floats, Ints
from planner.manifest.schema import Manifest, Pool
from runtime.execute import collectives as c
from runtime.execute.clock import Clock, Machine, Sized, Way, Wire
from runtime.execute.collectives import Comm, comm
from runtime.execute.exchange import LaneExchange
from runtime.execute.layout import Copies, Lanes
from runtime.execute.transport import Endpoint, Loop

Body = Callable[[Comm], Awaitable[Any]]
MOST_PAIRWISE = 128  # ranks up to which pairwise rounds are timed; beyond, the direct exchange that deployments use
SKEW_SIGMA = 0.51  # log-normal spread of expert loads, four domains mixed (github.com/deepseek-ai/ESFT expert scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What one collective took.

    ``message_bytes`` is what one rank has of it (reduce: the whole tensor; exchange: all that it sends); ``line`` is
    the slowest link in the group, ``inner`` the slowest inside a node of ``per_node`` ranks of it. ``note`` says what
    about the traffic or the links a closed form does not know. Of a hybrid, ``message_bytes`` are the hidden states of
    one node (bsh) and ``copies`` the experts per token.
    """

    operation: str
    where: str
    ranks: int
    per_node: int
    message_bytes: float
    seconds: float
    line: Way
    inner: Way
    note: str = ""
    copies: int = 1


def run_timed(machine: Machine, groups: Sequence[Sequence[int]], body: Body, wire: Wire) -> float:
    """Run ``body`` in every group at once and return when the last rank has ended."""
    loop = Loop(Clock(machine, wire))

    def program_of(ranks: Sequence[int]) -> Callable[[Endpoint], Any]:
        async def program(endpoint: Endpoint) -> float:
            await body(comm(endpoint, ranks, ("timed", ranks[0])))
            return endpoint.now

        return program

    return float(max(loop.run({rank: program_of(ranks) for ranks in groups for rank in ranks}).values()))


@dataclass(slots=True)
class PoolTimes:
    """Times the collectives of one pool's instance."""

    manifest: Manifest
    pool: Pool

    @property
    def machine(self) -> Machine:
        """The links of the pool's first instance, at unit efficiency."""
        return machine_of(self.manifest, self.pool)

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch of an attention group at the planned batch."""
        limits, parts = self.pool.limits, self.pool.microbatches
        if self.pool.role == "decode":
            return -(-limits.requests_per_dp_rank // parts) * (1 + self.pool.mtp.drafts)
        return -(-limits.tokens_per_device * self.pool.degrees.attention_tp // parts)

    @property
    def hidden_bytes(self) -> float:
        """Bytes of a token's hidden state in BF16."""
        return 2.0 * self.manifest.model.spec.hidden_size

    def timings(self) -> list[Timing]:
        """Return every collective of the pool that has more than one rank."""
        rows = [*self._reductions(), *self._exchanges()]
        nodes = self._whole_nodes()
        if nodes and self.manifest.model.spec.moe is not None:
            rows += self._hybrids(*nodes)
        return rows

    def _groups(self, kind: str) -> list[list[int]]:
        return [list(group) for rule in self.pool.groups if rule.kind == kind for group in rule.groups()]

    def _timing(
        self, operation: str, where: str, group: Sequence[int], size: float, seconds: float, note: str = ""
    ) -> Timing:
        ranks, machine, per_node = len(group), self.machine, sum(self._node(r) == self._node(group[0]) for r in group)
        mixed = f"{per_node} of {ranks} ranks share a node; the form has only the link between nodes"
        return Timing(
            operation=operation,
            where=where,
            ranks=ranks,
            per_node=per_node,
            message_bytes=size,
            seconds=seconds,
            line=machine(group[0], group[-1]),
            inner=machine(group[0], group[max(per_node - 1, 1)]),
            note=note or (mixed if 1 < per_node < ranks else ""),
        )

    def _node(self, rank: int) -> int:
        per_node = int(self.machine.hardware.devices_per_node.value)
        return self.machine.device_of[rank] // per_node

    def _reductions(self) -> list[Timing]:
        """Attention TP's all-reduce, by ring and at once."""
        rows = []
        size = self.tokens * self.hidden_bytes
        for kind, where in (("tp", "attention TP"), ("moe_tp", "experts TP")):
            groups = self._groups(kind)
            if not groups:
                continue
            n = len(groups[0])
            bodies: list[tuple[str, Body]] = [
                ("ring reduce-scatter", lambda g: c.ring_reduce_scatter(g, [np.zeros(1)] * g.size)),
                ("ring all-gather", lambda g: c.ring_all_gather(g, np.zeros(1))),
                ("ring all-reduce", lambda g: c.ring_all_reduce(g, np.zeros(g.size))),
                ("all-reduce", lambda g: c.all_reduce(g, np.zeros(g.size))),
            ]
            wire = Wire(float_bytes=size / n)
            rows += [
                self._timing(name, where, groups[0], size, run_timed(self.machine, groups, body, wire))
                for name, body in bodies
            ]
        return rows

    def _exchanges(self) -> list[Timing]:
        """Dispatch over the EP groups, uniform and with loads as they come; pairwise rounds where ranks are few."""
        groups, moe = self._groups("ep"), self.manifest.model.spec.moe
        if not groups or moe is None:
            return []
        n = len(groups[0])
        degrees = self.pool.degrees
        # A rank sends its lane of its share of its group's tokens, once per chosen expert.
        share = self.tokens / degrees.attention_tp if not degrees.domains else self.tokens
        size = share * moe.experts_per_token * self.hidden_bytes
        wire = Wire(float_bytes=size / n)
        rows = [
            self._timing("direct all-to-all", "EP", groups[0], size, run_timed(self.machine, groups, uniform, wire))
        ]
        if n * len(groups) <= MOST_PAIRWISE:
            seconds = run_timed(self.machine, groups, pairwise, wire)
            rows.append(self._timing("pairwise all-to-all", "EP", groups[0], size, seconds))
        return [*rows, *self._uneven(groups, size)]

    def _uneven(self, groups: list[list[int]], size: float) -> list[Timing]:
        """The direct exchange where the closed form's assumptions fail: skew, contention for ports, shared NICs."""
        n, first = len(groups[0]), groups[0]
        mapping, moe = self.pool.expert_map, self.manifest.model.spec.moe
        assert mapping is not None and moe is not None, "only EP pools exchange"
        slots = np.array(mapping.placements[0].slots, dtype=np.int64)
        loads = np.random.default_rng(0).lognormal(0.0, SKEW_SIGMA, moe.experts)
        per_slot = (loads / np.bincount(slots, minlength=moe.experts))[slots]
        shares: Floats = np.zeros(n)  # of the copies that each EP rank gets under drawn loads and the manifest's map
        shares[mapping.expert_ranks] = per_slot.reshape(len(mapping.expert_ranks), -1).sum(axis=1) / loads.sum()
        if mapping.shared_expert_ranks:
            shares[mapping.shared_expert_ranks] = 1.0 / moe.experts_per_token / len(mapping.shared_expert_ranks)
        shares /= shares.sum()
        skewed: Body = lambda g: c.direct_all_to_all(g, [Sized(size * share) for share in shares])  # noqa: E731
        note = f"the busiest EP rank gets {shares.max() * n:.2f} times the mean, and its port serves one at a time"
        wire = Wire(float_bytes=size / n)
        seconds = run_timed(self.machine, groups, skewed, wire)
        rows = [self._timing("direct all-to-all", "EP, skewed", first, size, seconds, note)]
        if n > MOST_PAIRWISE:
            return rows
        seconds = run_timed(self.machine, groups, in_one_order, wire)
        note = "all senders begin with the same receiver, whose port serves one at a time"
        rows.append(self._timing("direct all-to-all", "EP, all in one order", first, size, seconds, note))
        line = self.machine(first[0], first[-1])
        if self._node(first[0]) != self._node(first[-1]):
            seconds = run_timed(replace(self.machine, sharing={line.plane: 2}), groups, uniform, wire)
            note = f"two devices share a NIC of {line.plane} with one device's bandwidth"
            rows.append(self._timing("direct all-to-all", "EP, two devices a NIC", first, size, seconds, note))
        return rows

    def _whole_nodes(self) -> tuple[int, int] | None:
        """Return (nodes, devices of each) where a stage fills at least two nodes and is not disaggregated."""
        per_node = int(self.machine.hardware.devices_per_node.value)
        stage = self.pool.degrees.devices // self.pool.degrees.pp
        if self.pool.degrees.domains or stage % per_node or stage < 2 * per_node or stage > MOST_PAIRWISE:
            return None
        if any(self._node(rank) - self._node(0) != rank // per_node for rank in range(stage)):
            return None
        return stage // per_node, per_node

    def _hybrids(self, n: int, m: int) -> list[Timing]:
        """MixServe's hybrid over whole nodes, fused and synchronous, beside pure EP (Eq. (12) and (13))."""
        moe = self.manifest.model.spec.moe
        assert moe is not None, "a dense model has no hybrid"
        ranks, k = list(range(n * m)), moe.experts_per_token
        bsh = self.tokens * max(m // self.pool.degrees.attention_tp, 1) * self.hidden_bytes
        times = {
            f"{name} {half}": hybrid_seconds(self.machine, n, m, bsh * k / n, bsh, half == "combine", fused)
            for fused, name in ((True, "fused"), (False, "synchronous"))
            for half in ("dispatch", "combine")
        }
        times |= self._equations(n, m, bsh, k, times["fused dispatch"] + times["fused combine"])
        where = f"{n} nodes of {m}"
        return [
            replace(self._timing(name, where, ranks, bsh, seconds, " "), copies=k) for name, seconds in times.items()
        ]

    def _equations(self, n: int, m: int, bsh: float, k: int, fused_seconds: float) -> dict[str, float]:
        """Eq. (12) and (13) as printed, and what pure EP takes when TP ranks drop their duplicates."""
        ranks = list(range(n * m))
        nodes = [ranks[node * m : node * m + m] for node in range(n)]
        lanes = [ranks[lane::m] for lane in range(m)]
        reduce: Body = lambda g: c.all_reduce(g, np.zeros(g.size))  # noqa: E731
        gather: Body = lambda g: c.all_gather(g, np.zeros(1))  # noqa: E731
        reduced = run_timed(self.machine, nodes, reduce, Wire(float_bytes=bsh / m))
        pure = reduced + 2 * run_timed(self.machine, lanes, pairwise, Wire(float_bytes=bsh * k / n))
        gathered = run_timed(self.machine, nodes, gather, Wire(float_bytes=bsh * k / m))
        mixed = reduced + gathered + 2 * run_timed(self.machine, lanes, pairwise, Wire(float_bytes=bsh * k / m / n))
        dropped = reduced + 2 * run_timed(self.machine, [ranks], pairwise, Wire(float_bytes=bsh * k / m / (n * m)))
        return {
            "pure EP as Eq. (12)": pure,
            "hybrid as Eq. (13)": mixed,
            "hybrid, fused": reduced + fused_seconds,
            "pure EP, duplicates dropped": dropped,
        }


async def uniform(group: Comm) -> None:
    """A direct all-to-all of equal parts."""
    await c.direct_all_to_all(group, [np.zeros(1)] * group.size)


async def pairwise(group: Comm) -> None:
    """The same in rounds."""
    await c.pairwise_all_to_all(group, [np.zeros(1)] * group.size)


async def in_one_order(group: Comm) -> None:
    """A direct all-to-all in which every rank sends to rank 0 first: what the turn in the others avoids."""
    for to in range(group.size):
        if to != group.index:
            group.send(to, np.zeros(1))
    for source in range(group.size):
        if source != group.index:
            await group.receive(source)


def machine_of(manifest: Manifest, pool: Pool) -> Machine:
    """Return the links of a pool's first instance: rank r on the device that its row and instance say."""
    hardware, instance = manifest.clusters[pool.hardware].spec, pool.instances[0]
    per_node = int(hardware.devices_per_node.value)
    stand = (instance.where(place, per_node) for place in pool.rank_table.places)
    return Machine(hardware, [node * per_node + device for node, device in stand])


def hybrid_seconds(
    machine: Machine, n: int, m: int, node_bytes: float, bsh: float, combine: bool, fused: bool
) -> float:
    """Return the time of the hybrid dispatch or combine over n nodes of m devices under uniform traffic.

    ``node_bytes`` are what one node sends to one other (bshk/n), over its m devices; the final all-gather of ``bsh``
    belongs to combine.
    """
    ranks, lanes = list(range(n * m)), Lanes(m, m)
    nodes = [ranks[node * m : node * m + m] for node in range(n)]
    marks: dict[int, list[float]] = {rank: [] for rank in ranks}
    loop = Loop(Clock(machine, Wire(float_bytes=node_bytes / m)))

    async def program(endpoint: Endpoint) -> None:
        node = endpoint.rank // m
        inner = comm(endpoint, nodes[node], ("node", node))
        exchange = LaneExchange(
            world=comm(endpoint, ranks, "world"),
            inner=inner,
            senders=nodes,
            experts=nodes,
            unit=node,
            ep=node,
            lanes=lanes,
            int8=False,
            fused=fused,
            traffic=np.zeros(n, dtype=np.int64),
        )
        copies = Copies(np.zeros(n, dtype=np.int64), np.arange(n), np.zeros(n, dtype=np.int64), np.ones(n))

        async def compute(rows: Floats, _: Ints) -> Floats:
            marks[endpoint.rank].append(endpoint.now)
            return rows

        await exchange.run(np.zeros((1, m)), copies, compute)
        await c.all_gather(inner, Sized(bsh / m))
        marks[endpoint.rank].append(endpoint.now)

    loop.run(dict.fromkeys(ranks, program))
    dispatched = max(mark[0] for mark in marks.values())
    return max(mark[1] for mark in marks.values()) - dispatched if combine else dispatched
