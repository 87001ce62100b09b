"""A deployment at any rate, with longer service times than predicted and after losses.

If all service times of a pool are f times the predicted ones, its queue at rate R is the predicted queue at rate f·R
with a clock slowed by f. So nothing is costed again: latency(R; f) = f · latency(f·R; 1).

On a trace no queue is solved: the trace is played (``planner.serving``) with its gaps scaled to the asked mean rate,
and longer service times slow its clock in the same way. The figures of each role come from a run in which only that
role has lost instances, or is slower.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np

from planner.checks.on_trace import MOST_PLAYED, at_rate, pools_of
from planner.closed_forms.birth_death import Crowding, DecodeState
from planner.instances.aggregated import AggregatedServer, AggregatedState
from planner.instances.encoding import embedding_seconds
from planner.instances.space import Role
from planner.plans.aggregated import AggregatedPlan
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.plans.servers import deviation_of, times_with
from planner.question import Loss
from planner.serving.aggregated import AggregatedPool
from planner.serving.decode import SeparatePools, Served
from planner.serving.deployed import play
from planner.serving.latency import Latency, independent_sum
from planner.serving.played import MANY
from planner.workload import TraceRows

Left = Callable[[Mapping[Role, int]], SeparatePools | AggregatedPool]
"""Returns the pools with so many instances left of each role."""


class Lost(NamedTuple):
    """Lost instances of each role."""

    prefill: int = 0
    decode: int = 0
    mixed: int = 0
    encode: int = 0

    @property
    def counts(self) -> dict[Role, int]:
        """Lost instances, by the roles of a deployment of this shape."""
        found: dict[Role, int] = (
            {"mixed": self.mixed} if self.mixed else {"prefill": self.prefill, "decode": self.decode}
        )
        return found | {"encode": self.encode} if self.encode else found


class Standing(NamedTuple):
    """Latencies and load of a deployment, or of one of its pools, at a rate.

    A field is None beyond saturation, and for latencies that a pool does not decide.
    """

    ttft: Latency | None = None
    tpot: Latency | None = None
    line: DecodeState | None = None  # decode state, where requests that wait for decode may fill prefill memory


class At(Protocol):
    """Returns one of ``count`` instances at its rate, over ``requests``; None: as many as its queue needs."""

    def __call__(self, rate_per_second: float, count: int, requests: int | None = MANY) -> Standing: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedPool:
    """Instances of a role and their queue."""

    role: Role
    instances: int
    at: At
    deviation: float  # relative standard deviation of the predicted step times
    room_prompts: float = math.inf  # prompts whose KV a prefill instance holds
    most_per_second: float = math.inf  # of an instance, to which the search sizes instances


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """The pools of a deployment, and the instances that may be lost together, by kind of loss."""

    pools: tuple[DeployedPool, ...]
    losses: dict[Loss, tuple[Lost, ...]]
    asked_at_most: int | None = None  # evaluations that take acceptable time; None where an evaluation is quick
    planned_per_second: float | None = None
    told_requests: int | None = None  # over which it is told at the planned rate; None: as many as its queue needs

    def told(self, rate_per_second: float) -> int | None:
        """Return over how many requests it is told at a rate; None, as many as its queue needs, at other rates."""
        planned = self.planned_per_second
        return self.told_requests if planned and abs(rate_per_second / planned - 1) < 1e-9 else None


def standing(
    deployed: Deployed,
    rate_per_second: float,
    confidence: float = 0.5,
    lost: Lost | None = None,
    *,
    sized: bool = False,
    requests: int | None = MANY,
) -> Standing:
    """Return the standing at a rate whose latencies are not exceeded with a confidence.

    Confidence 0.5: service times as predicted. ``sized``: up to ``most_per_second``; ``requests``: see ``At``.
    """
    found, room = Standing(), math.inf
    encodes: list[Latency | None] = []
    for pool in deployed.pools:
        slow = times_with(confidence, pool.deviation)
        left = pool.instances - (lost.counts.get(pool.role, 0) if lost else 0)
        each = slow * rate_per_second / left if left > 0 else math.inf
        full = left <= 0 or (sized and each > pool.most_per_second * (1 + 1e-9))
        own = Standing() if full else pool.at(each, left, requests)
        if pool.role == "encode":
            encodes.append(own.ttft and own.ttft.scaled(slow))
            continue
        found = Standing(
            ttft=own.ttft.scaled(slow) if own.ttft else found.ttft,
            tpot=own.tpot.scaled(slow) if own.tpot else found.tpot,
            line=own.line.scaled(slow) if own.line else None,
        )
        if pool.room_prompts < math.inf:
            room = left * pool.room_prompts
    ttft = found.ttft
    if ttft is not None and found.line is not None:
        ttft = Crowding.before(found.line, rate_per_second, room, ttft).delayed(ttft)
    for encode in encodes:
        ttft = encode and ttft and independent_sum(encode, ttft)
    return found._replace(ttft=ttft)


def from_plan(plan: Plan) -> Deployed:
    """Return a plan as a deployment."""
    requests = plan.played.asked_requests if plan.played else None
    deployed = replace(_language(plan), planned_per_second=plan.requests_per_second, told_requests=requests)
    encode = plan.encode
    if encode is None:
        return deployed
    server, sending = encode.server(plan.question), embedding_seconds(plan.question)

    def at(rate_per_second: float, count: int, requests: int | None = MANY) -> Standing:
        found = server.ttft(rate_per_second, count)
        return Standing(ttft=found and found.later(sending))

    pool = DeployedPool(role="encode", instances=encode.instances, at=at, deviation=deviation_of(encode))
    gone = plan.lost("node")["encode"]
    losses = {kind: (*each, Lost(encode=1)) for kind, each in deployed.losses.items()}
    losses["node"] = tuple(lost._replace(encode=gone) for lost in deployed.losses["node"])  # on the nodes of others
    return replace(deployed, pools=(pool, *deployed.pools), losses=losses)


def _language(plan: Plan) -> Deployed:
    if isinstance(plan, AggregatedPlan):
        return _aggregated(plan)
    assert isinstance(plan, DisaggregatedPlan)
    prefill, decode = plan.prefill, plan.decode
    server = prefill.server(plan.question)
    decoder = plan.decoder(plan.question)
    machines = ((prefill.candidate.devices, prefill.machines), (decode.candidate.devices, decode.machines))
    shared = prefill.machines.budget == decode.machines.budget
    losses: dict[Loss, tuple[Lost, ...]] = {}
    for loss in ("instance", "node"):
        gone = plan.lost(loss)
        each = (Lost(prefill=gone["prefill"]), Lost(decode=gone["decode"]))
        # Instances of both roles may stand on one node where both are smaller than it.
        mixed = loss == "node" and shared and all(devices < part.devices_per_node for devices, part in machines)
        losses[loss] = (Lost(prefill=gone["prefill"], decode=gone["decode"]),) if mixed else each

    def prefill_at(rate_per_second: float, count: int, requests: int | None = MANY) -> Standing:
        return Standing(ttft=server.ttft(rate_per_second, count, requests))

    def decode_at(rate_per_second: float, count: int, requests: int | None = MANY) -> Standing:
        each = rate_per_second * count / prefill.instances
        state = decoder.state(rate_per_second, count, requests or server.lasting(each, prefill.instances))
        return Standing(tpot=state.tpot if state else None, line=state)

    return Deployed(
        pools=(
            DeployedPool(
                role="prefill",
                instances=prefill.instances,
                at=prefill_at,
                deviation=deviation_of(prefill),
                room_prompts=prefill.room_prompts,
                most_per_second=server.most_per_second,
            ),
            DeployedPool(
                role="decode",
                instances=decode.instances,
                at=decode_at,
                deviation=deviation_of(decode),
                most_per_second=decoder.most_per_second / decoder.question.requests_each,
            ),
        ),
        losses=losses,
    )


def _aggregated(plan: AggregatedPlan) -> Deployed:
    pool, server = plan.mixed, AggregatedServer(plan.question, plan.mixed.candidate)
    kinds: tuple[Loss, ...] = ("instance", "node")

    def at(rate_per_second: float, count: int, requests: int | None = MANY) -> Standing:
        return standing_of(server.state(rate_per_second, count, requests))

    return Deployed(
        pools=(
            DeployedPool(
                role="mixed",
                instances=pool.instances,
                at=at,
                deviation=deviation_of(pool),
                most_per_second=server.most_per_second,
            ),
        ),
        losses={loss: (Lost(mixed=plan.lost(loss)["mixed"]),) for loss in kinds},
    )


def standing_of(state: AggregatedState | None) -> Standing:
    """Return the state of aggregated instances as a standing."""
    return Standing() if state is None else Standing(ttft=state.ttft, tpot=state.tpot)


def plan_on(plan: Plan, trace: TraceRows | None) -> Deployed:
    """Return a plan as a deployment, on a trace if there is one."""
    deployed = from_plan(plan)
    return deployed if trace is None else played(deployed, lambda counts: pools_of(plan, counts), trace)


def played(deployed: Deployed, left: Left, trace: TraceRows) -> Deployed:
    """Return a deployment on a trace; ``left`` gives its pools after losses."""
    whole = {pool.role: pool.instances for pool in deployed.pools}
    known: dict[tuple[object, ...], Served] = {}
    pools = cache(lambda counts: left(dict(counts)))

    def recorded(rate: float, counts: dict[Role, int]) -> Served:
        key = (f"{rate:.12g}", *counts.values())
        if key not in known:
            known[key] = play(pools(tuple(counts.items())), at_rate(trace, rate))
        return known[key]

    def pool_on(pool: DeployedPool) -> DeployedPool:
        def at(rate_per_second: float, count: int, requests: int | None = MANY) -> Standing:
            return _standing(recorded(rate_per_second * count, whole | {pool.role: count}), pool.role)

        return replace(pool, at=at, most_per_second=math.inf)

    return replace(
        deployed,
        pools=tuple(pool_on(pool) for pool in deployed.pools),
        asked_at_most=3 * MOST_PLAYED // np.size(trace.arrival_seconds),
    )


def _standing(found: Served, role: Role) -> Standing:
    ttft = Latency.from_samples(found.ttft_seconds) if role != "decode" else None
    return Standing(ttft=ttft, tpot=Latency.from_samples(found.tpot_seconds) if role != "prefill" else None)
