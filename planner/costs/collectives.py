"""Communication operators as terms: who talks over which scope, with which protocols.

seconds = min over protocols of latency + latency_per_rank·(n - 1) + wire bytes / bandwidth,
with the wire bytes of MixServe Eq. (1)-(3): all-reduce 2·S·(n-1)/n (a reduce-scatter and an
all-gather of the S-byte tensor), all-gather and reduce-scatter S·(n-1)/n.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ground.arrays import placed
from ground.errors import BadInput
from hardware.formats import ACTIVATION_BYTES
from hardware.spec import CollectiveFit, CollectiveOp, Dtype, ExchangeFit, HardwareSpec
from models.spec import MoE
from planner.costs.deployment import Deployment
from planner.costs.roofline import residual, scale
from planner.manifest.terms import CommunicationTerm, Form, Number, Shape, Stage


def grouped(
    deployment: Deployment, op: CollectiveOp, ranks: Number, message: Form, name: str, stage: Stage
) -> CommunicationTerm:
    """Return a deployment's collective over ``ranks`` consecutive devices of ``message`` bytes in full."""
    hardware, graph = deployment.hardware, deployment.in_graph
    return collective(hardware, op, ranks, message, name=name, stage=stage, in_graph=graph)


def collective(
    hardware: HardwareSpec,
    op: CollectiveOp,
    ranks: Number,
    message: Form,
    *,
    name: str,
    stage: Stage,
    in_graph: bool,
    span: Number | None = None,
) -> CommunicationTerm:
    """Return a collective over ``ranks`` devices of ``message`` bytes in full; they spread over ``span``, or stand
    beside each other.

    Raises BadInput where the hardware has no fit of that collective.
    """
    share = (ranks - 1) / ranks
    wire: Number = {"all_reduce": 2 * share, "point_to_point": 1.0}.get(op, share)
    spans, where = placed(np.atleast_1d(ranks if span is None else span))
    fits = [collective_fit(hardware, op, int(each), in_graph) for each in spans]
    worst = max(residual(fit) for fit in fits)
    peers = np.atleast_1d(ranks) - 1
    protocols: tuple[tuple[Number, Number], ...] = tuple(
        (np.where(peers > 0, start[where] + each[where] * peers, 0.0), rate[where])
        for start, each, rate in _columns(fits)
    )
    if np.ndim(ranks) == 0:
        protocols = tuple((float(np.max(latency)), float(np.max(rate))) for latency, rate in protocols)
    family = f"{op} {fits[-1].scope}{' in graph' if fits[-1].in_graph else ''}"
    shape = Shape(family, message, {"one": 1.0}, ranks)
    return CommunicationTerm(name, stage, scale(message, wire), protocols, residual=worst, shape=shape)


def _columns(fits: list[CollectiveFit]) -> list[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]:
    """(latency, latency per rank, bandwidth) of every protocol in each fit, [fits].

    Fits with fewer protocols repeat their last one, which changes no minimum.
    """
    columns = []
    for number in range(max(len(fit.protocols) for fit in fits)):
        chosen = [fit.protocols[min(number, len(fit.protocols) - 1)] for fit in fits]
        columns.append(
            (
                np.array([p.latency_seconds for p in chosen]),
                np.array([p.latency_per_rank_seconds for p in chosen]),
                np.array([p.bandwidth_bytes_per_second for p in chosen]),
            )
        )
    return columns


def collective_fit(hardware: HardwareSpec, op: CollectiveOp, ranks: int, in_graph: bool) -> CollectiveFit:
    """Return the fit for the smallest scope that holds the group; in a graph its own where there is one.

    One that was measured with just as many devices comes before one of all.
    """
    order = [scope.name for scope in hardware.scopes]
    wanted = order.index(hardware.scope_of(ranks).name)
    stated = (fit for fit in hardware.collectives if fit.op == op and fit.ranks in (None, ranks))
    fits = [fit for fit in stated if in_graph or not fit.in_graph]
    if not fits:
        raise BadInput(f"hardware {hardware.name}: collectives has no fit of {op}; add one per scope")

    def distance(fit: CollectiveFit) -> tuple[bool, int, bool, bool]:
        gap = order.index(fit.scope) - wanted
        return gap < 0, abs(gap), not fit.in_graph, fit.ranks is None

    return min(fits, key=distance)


def exchange_fit(hardware: HardwareSpec, direction: str, mode: str) -> ExchangeFit:
    """Return the dispatch or combine fit of a mode; the other mode's where only that was measured."""
    fits = [fit for fit in hardware.exchanges if fit.direction == direction]
    if not fits:
        raise BadInput(f"hardware {hardware.name}: exchanges has no {direction} fit, which expert parallelism needs")
    return min(fits, key=lambda fit: fit.mode != mode)


def distinct(moe: MoE, places: Number) -> Number:
    """Expected number of distinct places (nodes or ranks) among the experts of one token, uniform routing.

    Group-limited routing (DeepSeek-V3 section 2.1.2) chooses g of G groups; with the groups spread
    evenly over at most G places one is missed if none of its groups is chosen,
    C(G - G/n, g) / C(G, g). Otherwise k independent choices: n·(1 - (1 - 1/n)^k).
    """
    if isinstance(places, np.ndarray):
        counts, where = placed(places)
        return np.array([distinct(moe, count) for count in counts.tolist()])[where]
    if places <= 1:
        return 1.0
    if moe.groups > 1 and moe.groups % places == 0:
        own = moe.groups // int(places)
        missed = math.comb(moe.groups - own, moe.groups_per_token) / math.comb(moe.groups, moe.groups_per_token)
        return places * (1.0 - missed)
    return places * (1.0 - (1.0 - 1.0 / places) ** moe.experts_per_token)


def message_bytes(fit: ExchangeFit, hidden: int, activations: Dtype) -> float:
    """Bytes of one token copy: the library's quantised format, or BF16 where the experts compute in BF16.

    DeepSeek-V3 section 3.4.1: dispatch in FP8 because the experts multiply in FP8; combine in BF16. Tokens for
    NVFP4 products are dispatched in NVFP4 (TensorRT-LLM tech blog 18), those for MXFP4 weights in FP8.
    """
    if activations == "bf16":
        return 2.0 * hidden
    if activations == "nvfp4" and fit.direction == "dispatch":
        return ACTIVATION_BYTES["nvfp4"] * hidden
    return fit.message_bytes_per_hidden * hidden + fit.message_bytes_fixed


def exchange_copies(fit: ExchangeFit, moe: MoE, nodes: Number, dedicated_shared: bool) -> Number:
    """Copies of one token that a device sends: one per chosen expert, or one per distinct node.

    DeepEP's normal kernels send one copy per node. A dedicated shared expert is one further destination.
    """
    if fit.payload != "per_node":
        return moe.experts_per_token + (1.0 if dedicated_shared else 0.0)
    return distinct(moe, nodes)
