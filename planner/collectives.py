"""Communication operators as terms: who talks over which scope, with which protocols.

seconds = min over protocols of latency + latency_per_rank·(n - 1) + wire bytes / bandwidth,
with the wire bytes of MixServe Eq. (1)-(3): all-reduce 2·S·(n-1)/n (a reduce-scatter and an
all-gather of the S-byte tensor), all-gather and reduce-scatter S·(n-1)/n.
"""

import math

from hardware.spec import CollectiveFit, CollectiveOp, ExchangeFit, HardwareSpec
from models.spec import MoE
from planner.manifest.terms import CommunicationTerm, Form, Stage
from planner.roofline import residual, scale
from podplan.errors import BadInput


def collective(
    hardware: HardwareSpec, op: CollectiveOp, ranks: int, message: Form, *, name: str, stage: Stage, in_graph: bool
) -> CommunicationTerm:
    """Return a collective over ``ranks`` consecutive devices of ``message`` bytes in full.

    Raises BadInput where the hardware has no fit of that collective.
    """
    fit = collective_fit(hardware, op, ranks, in_graph)
    share = (ranks - 1) / ranks
    wire = {"all_reduce": 2 * share, "point_to_point": 1.0}.get(op, share)
    protocols = tuple(
        (p.latency_seconds + p.latency_per_rank_seconds * (ranks - 1), p.bandwidth_bytes_per_second)
        for p in fit.protocols
    )
    return CommunicationTerm(name, stage, scale(message, wire), protocols, residual=residual(fit))


def collective_fit(hardware: HardwareSpec, op: CollectiveOp, ranks: int, in_graph: bool) -> CollectiveFit:
    """Return the fit for the smallest scope that holds the group; in a graph its own where there is one."""
    order = [scope.name for scope in hardware.scopes]
    wanted = order.index(hardware.scope_of(ranks).name)
    fits = [fit for fit in hardware.collectives if fit.op == op and (in_graph or not fit.in_graph)]
    if not fits:
        raise BadInput(f"hardware {hardware.name}: collectives has no fit of {op}; add one per scope")

    def distance(fit: CollectiveFit) -> tuple[bool, int, bool]:
        gap = order.index(fit.scope) - wanted
        return gap < 0, abs(gap), not fit.in_graph

    return min(fits, key=distance)


def exchange_fit(hardware: HardwareSpec, direction: str, mode: str) -> ExchangeFit:
    """Return the dispatch or combine fit of a mode; the other mode's where only that was measured."""
    fits = [fit for fit in hardware.exchanges if fit.direction == direction]
    if not fits:
        raise BadInput(f"hardware {hardware.name}: exchanges has no {direction} fit, which expert parallelism needs")
    return min(fits, key=lambda fit: fit.mode != mode)


def exchange_protocol(fit: ExchangeFit, degree: int) -> tuple[float, float]:
    """Return (latency in seconds, payload bytes per second) at an EP degree.

    Linear interpolation over log2(degree) between the measured degrees, constant outside them.
    """
    points = sorted(fit.points, key=lambda point: point.degree)
    position = math.log2(degree)
    below = [p for p in points if p.degree <= degree] or points[:1]
    above = [p for p in points if p.degree >= degree] or points[-1:]
    low, high = below[-1], above[0]
    span = math.log2(high.degree) - math.log2(low.degree)
    weight = (position - math.log2(low.degree)) / span if span > 0 else 0.0
    return (
        low.latency_seconds + weight * (high.latency_seconds - low.latency_seconds),
        low.bandwidth_bytes_per_second + weight * (high.bandwidth_bytes_per_second - low.bandwidth_bytes_per_second),
    )


def distinct(moe: MoE, places: int) -> float:
    """Expected number of distinct places (nodes or ranks) among the experts of one token, uniform routing.

    Group-limited routing (DeepSeek-V3 section 2.1.2) chooses g of G groups; with the groups spread
    evenly over at most G places one is missed if none of its groups is chosen,
    C(G - G/n, g) / C(G, g). Otherwise k independent choices: n·(1 - (1 - 1/n)^k).
    """
    if places <= 1:
        return 1.0
    if moe.groups > 1 and moe.groups % places == 0:
        own = moe.groups // places
        missed = math.comb(moe.groups - own, moe.groups_per_token) / math.comb(moe.groups, moe.groups_per_token)
        return places * (1.0 - missed)
    return places * (1.0 - (1.0 - 1.0 / places) ** moe.experts_per_token)


def exchange_copies(fit: ExchangeFit, moe: MoE, ranks: int, nodes: int, dedicated_shared: bool) -> float:
    """Copies of one token that a device sends: one per chosen expert, or one per distinct place.

    DeepEP's normal kernels send one copy per node, inside one node one per rank. A dedicated
    shared expert is one further destination.
    """
    if fit.payload == "per_node":
        return distinct(moe, nodes) if nodes > 1 else distinct(moe, ranks)
    return moe.experts_per_token + (1.0 if dedicated_shared else 0.0)
