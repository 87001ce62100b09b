"""Kernels and collectives as terms: work and bytes, and the efficiency with which a device or a link does them.

Every function of a kernel returns a ``ComputeTerm`` (``planner.manifest.terms``) of
c = (flops + idle) / rate / cores and m = bytes / bandwidth. The shape-dependent efficiency
M/(M + half_rows) of ``hardware.spec.MatmulFit`` makes time linear in M: 2·N·K·(M + half_rows)
FLOP-equivalents at the rate of a full tile; the second part is ``idle_flops``.

A collective talks over a scope with the fastest of its protocols:

seconds = min over protocols of start-up (``hardware.fits.started``) + wire bytes / bandwidth,
with the wire bytes of MixServe Eq. (1)-(3): all-reduce 2·S·(n-1)/n (a reduce-scatter and an
all-gather of the S-byte tensor), all-gather and reduce-scatter S·(n-1)/n.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, placed
from ground.errors import BadInput
from ground.identity import Kept, Same
from hardware.engines import measured_as
from hardware.fits import cards_of, carried, exchange_protocol, server, started
from hardware.formats import ACTIVATION_BYTES, ELEMENT_BYTES, product_dtype
from hardware.spec import (
    AttentionFit,
    CollectiveFit,
    CollectiveOp,
    Dtype,
    ExchangeFit,
    Fitted,
    HardwareSpec,
    MatmulFit,
    VectorFit,
)
from models.spec import MoE
from planner.costs.deployment import Deployment
from planner.engines.behaviour import behaviour
from planner.manifest.stepcost import either
from planner.manifest.terms import CommunicationTerm, ComputeTerm, Form, Number, Shape, Stage

UNMEASURED_RESIDUAL = 0.2
"""Median relative error granted to a fit that another machine lends (``hardware.loader``): assumed."""

SIBLING_RESIDUAL = 0.08
"""The same where cores of the same generation lend it, or a published range: assumed, a little above the largest
residual of the measured fits (0.063); H100 and H200 differ by 5 % in the same table."""


def residual(fit: Fitted) -> float:
    """Median relative error of a fit, or what an unmeasured one is granted."""
    if fit.median_residual is not None:
        return fit.median_residual
    lent = fit.note is not None and fit.note.startswith("of ")
    return UNMEASURED_RESIDUAL if lent else SIBLING_RESIDUAL


class Roofline(NamedTuple):
    """Kernel rates of one device; ``sustained`` is the share of them that lasting matrix work reaches.

    ``static``: activations are quantised by one scale that the checkpoint states. ``apart``: by a kernel of its own,
    though the engine can fuse it into the one before. ``norms``: how many of the norms run by themselves, 0 where the
    all-reduce before them computes them.
    """

    hardware: HardwareSpec
    sustained: float = 1.0
    static: bool = False
    apart: bool = False
    norms: Number = 1.0

    @classmethod
    def of(cls, deployment: Deployment) -> "Roofline":
        """Return the rates in a deployment: prompts keep the matrix units busy for as long as there are any.

        Kernels were timed alone, at a clock that the power limit does not leave them in a loaded server. Decode is
        bound by memory, and its attention kernel's rate was measured at the lower clock.
        """
        known = deployment.hardware.device.sustained_fraction
        lasting = deployment.phase != "decode" and known is not None
        sustained = known.value if known is not None and lasting else 1.0
        # Checkpoints that are FP8 from the start scale blocks as they go; those made FP8 afterwards state their scales.
        own, model = behaviour(deployment.engine), deployment.model
        fused = own.quantises_in_norms if own is not None else None
        apart = fused is not None and model.architecture not in fused
        strategy = deployment.strategy
        norms: Number = 1.0
        names = (model.architecture, measured_as(deployment.hardware))
        least = min(own.norms_in_sums.get(name, np.inf) for name in names) if own is not None else np.inf
        if model.hidden_size >= least:
            norms = either((strategy.attention_tp > 1) & (strategy.attention_dp == 1), 0.0, 1.0)
        return cls(deployment.hardware, sustained, model.native_dtype != "fp8", apart, norms)

    def _fit(self, dtype: Dtype, grouped: bool) -> MatmulFit:
        kernels = self.hardware.kernels
        if grouped:
            return kernels.grouped_gemm[dtype]
        return kernels.gemm_static[dtype] if self.static and dtype in kernels.gemm_static else kernels.gemm[dtype]

    def peak(self, dtype: Dtype) -> float:
        """Dense peak in FLOP/s."""
        return self.hardware.device.peak_flops_per_second[dtype].value

    @property
    def bandwidth(self) -> float:
        """Peak memory bandwidth in bytes/s."""
        return self.hardware.device.memory_bandwidth_bytes_per_second.value

    @property
    def gap_seconds(self) -> float:
        """Device time between two kernels of a captured graph, for fits of kernels timed alone."""
        gap = self.hardware.host.graph_gap_seconds
        return 0.0 if gap is None else gap.value

    def matmul(
        self,
        name: str,
        stage: Stage,
        rows: Form,
        columns: Number,
        depth: Number,
        dtype: Dtype,
        groups: Form | None = None,
    ) -> ComputeTerm:
        """Matrix product of ``rows`` (a form) by a weight of ``depth`` x ``columns`` elements.

        With ``groups`` (a form: weights touched) it is a grouped product; otherwise the weight is
        read once. bytes = weights + rows·(depth in the product's dtype + columns in bf16). Weights that
        the device does not multiply in ``dtype`` are dequantised on the way (``hardware.formats``), at the
        rates of BF16: no fit is of such kernels, so their residual is that of an unmeasured one.
        """
        product_in = product_dtype(self.hardware, dtype, grouped=groups is not None)
        fit = self._fit(product_in, groups is not None)
        weights = {"one": 1.0} if groups is None else groups
        product = 2.0 * columns * depth
        filling = (1.0 + fit.half_depth / depth) * (1.0 + fit.half_columns / columns if fit.half_columns else 1.0)
        idle = fit.half_rows + (fit.half_outputs / (columns + fit.half_columns) if fit.half_outputs else 0.0)
        moved = depth * ACTIVATION_BYTES[product_in] + 2.0 * columns
        read = combine(weights, columns * depth * ELEMENT_BYTES[dtype], rows, moved)
        return ComputeTerm(
            name=name,
            stage=stage,
            flops=scale(rows, product),
            idle_flops=scale(weights, product * idle) if fit.half_rows or fit.half_outputs else {},
            flops_per_second=self.sustained * self.peak(product_in) * fit.peak_fraction / filling,
            bytes=read,
            bytes_per_second=self.bandwidth * fit.memory_fraction,
            floor_seconds=fit.floor_seconds
            + fit.depth_seconds * depth
            + (self.gap_seconds if fit.timed_alone else 0.0),
            serial=fit.serial_fraction,
            residual=residual(fit) if product_in == dtype else max(residual(fit), UNMEASURED_RESIDUAL),
            shape=Shape(f"{'gemm' if groups is None else 'grouped_gemm'} {product_in}", rows, weights),
        )

    def attention(
        self,
        name: str,
        fit: AttentionFit,
        pairs: Form,
        flops_per_pair: Number,
        queries: Form,
        read: Form,
        head: float,
        dtype: Dtype = "bf16",
    ) -> ComputeTerm:
        """Attention over ``pairs`` of query and key, reading ``read`` bytes, its products in ``dtype``.

        ``head``: elements of a head, of a key and a value in the mean.

        (1 + half_length/L) with L = pairs/queries is pairs + half_length·queries, so it stays linear.
        """
        return ComputeTerm(
            name=name,
            stage="attention",
            flops=scale(pairs, flops_per_pair),
            idle_flops=scale(queries, fit.half_length * flops_per_pair) if fit.half_length else {},
            flops_per_second=self.sustained * self.peak(dtype) * fit.peak_fraction / (1.0 + fit.half_head / head),
            bytes=read,
            bytes_per_second=self.bandwidth * fit.memory_fraction,
            floor_seconds=fit.floor_seconds,
            serial=fit.serial_fraction,
            slow=fit.slow_fraction,
            slow_seconds=fit.slow_seconds,
            residual=residual(fit),
            shape=Shape(self._attention_family(fit), pairs, queries),
        )

    def _attention_family(self, fit: AttentionFit) -> str:
        families = ("mla_decode", "gqa_decode", "prefill_attention")
        return next((name for name in families if getattr(self.hardware.kernels, name) is fit), "other attention")

    def vector(
        self, name: str, stage: Stage, moved: Form, kernels: int = 1, pace: float = 1.0, own: VectorFit | None = None
    ) -> ComputeTerm:
        """Element-wise work: ``moved`` bytes read and written by ``kernels`` launches, ``pace`` times as fast, or as
        measured where the kernel has a fit of its ``own``.
        """
        fit, pace = (self.hardware.kernels.vector, pace) if own is None else (own, 1.0)
        return ComputeTerm(
            name=name,
            stage=stage,
            flops={},
            idle_flops={},
            flops_per_second=1.0,
            bytes=moved,
            bytes_per_second=self.bandwidth * fit.memory_fraction * pace,
            floor_seconds=fit.floor_seconds * kernels,
            launches=kernels,
            residual=residual(fit),
        )

    def norm(self, name: str, stage: Stage, rows: Form, hidden: Number) -> ComputeTerm:
        """Norm of each row: it adds the residual, and may write the sum, the result and that quantised."""
        term = self.vector(name, stage, scale(rows, hidden * (3 * 2.0 + 1.0)))
        return term._replace(floor_seconds=term.floor_seconds * self.norms)

    def quantise(self, name: str, stage: Stage, elements: Form, dtype: Dtype) -> list[ComputeTerm]:
        """The kernel that quantises BF16 activations before a product: 2 bytes read per element, and it is written.

        DeepGEMM's FP8 times exclude it (its README), and so do those of four-bit products; CANN's INT8 times include
        it; BF16, and weights that are dequantised to it, need none.
        """
        product_in = product_dtype(self.hardware, dtype)
        if product_in == "bf16":
            return []
        if self._fit(product_in, grouped=False).quantises and not (self.apart and self.static):
            return []
        return [self.vector(name, stage, scale(elements, 2.0 + ACTIVATION_BYTES[product_in]))]


def unfilled(term: ComputeTerm, fit: AttentionFit, flops_per_pair: Number, heads: Number) -> ComputeTerm:
    """Return attention of all prompts over all their keys with the cores that few queries and ``heads`` leave idle.

    (1 + half_length/L)·half_queries/(queries·heads) of pairs is half_queries/heads·(L + half_length), with the variable
    ``keys`` for L: it stays linear.
    """
    if not fit.half_queries:
        return term
    missing = fit.half_queries / heads * flops_per_pair
    return term._replace(idle_flops=combine(term.idle_flops, 1.0, {"keys": 1.0, "one": fit.half_length}, missing))


def in_some_layers(terms: Iterable[ComputeTerm], share: float) -> list[ComputeTerm]:
    """Return kernels that ``share`` of the layers run, as what they take in the mean layer.

    Seconds are linear in work and start-up taken together, so a layer that is the mean of all layers takes their mean.
    Where another stream runs beside, layers may not average out: their mean is then a lower estimate.
    """
    return [
        term._replace(
            flops=scale(term.flops, share),
            idle_flops=scale(term.idle_flops, share),
            bytes=scale(term.bytes, share),
            floor_seconds=term.floor_seconds * share,
            slow_seconds=term.slow_seconds * share,
            share=term.share * share,
        )
        for term in terms
    ]


# Every query token on an attention rank, decode and prompts alike.
TOKENS: Form = {"tokens": 1.0}


def scale(form: Form, factor: Number) -> dict[str, Number]:
    """Return the form times a number or an array."""
    return {name: value * factor for name, value in form.items()}


def combine(first: Form, by: Number, second: Form, times: Number) -> dict[str, Number]:
    """Return by·first + times·second."""
    total = scale(first, by)
    for name, value in second.items():
        total[name] = total.get(name, 0.0) + value * times
    return total


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
    over = ranks if span is None else span
    degrees = (np.asarray(each, dtype=np.float64) for each in (ranks, over))
    key = (Same(hardware), op, in_graph, *((each.shape, each.tobytes()) for each in degrees))
    protocols, worst, family = _LIBRARIES.of(key, lambda: _library(hardware, op, ranks, over, in_graph))
    shape = Shape(family, message, {"one": 1.0}, ranks)
    return CommunicationTerm(name, stage, scale(message, wire), protocols, residual=worst, shape=shape)


class _Library(NamedTuple):
    """How a library runs a collective: (latency, bytes per second) of each protocol, the fits' error and family."""

    protocols: tuple[tuple[Number, Number], ...]
    residual: float
    family: str


_LIBRARIES = Kept[_Library](most=64)
"""A deployment asks for the same collective in several places, with messages of their own."""


def _library(hardware: HardwareSpec, op: CollectiveOp, ranks: Number, span: Number, in_graph: bool) -> _Library:
    over = np.atleast_1d(span)
    spans, where = placed(over)
    fits = [collective_fit(hardware, op, int(each), in_graph) for each in spans]
    peers = np.atleast_1d(ranks) - 1
    devices, inside = (column[where] for column in np.array([server(hardware, fit) for fit in fits]).T)
    cards = cards_of(peers + 1, over, devices)
    protocols: tuple[tuple[Number, Number], ...] = tuple(
        (
            np.where(peers > 0, started(start[where], each[where], doubled[where], peers + 1, cards), 0.0),
            carried(op, rate[where], peers + 1, over, devices, inside),
        )
        for start, each, doubled, rate in _columns(fits)
    )
    if np.ndim(ranks) == 0:
        protocols = tuple((float(np.max(latency)), float(np.max(rate))) for latency, rate in protocols)
    family = f"{op} {fits[-1].scope}{' in graph' if fits[-1].in_graph else ''}"
    return _Library(protocols, max(residual(fit) for fit in fits), family)


def _columns(fits: list[CollectiveFit]) -> list[tuple[Floats, ...]]:
    """(latency, latency per rank, latency per doubling, bandwidth) of every protocol in each fit, [fits].

    Fits with fewer protocols repeat their last one, which changes no minimum.
    """
    columns = []
    for number in range(max(len(fit.protocols) for fit in fits)):
        chosen = [fit.protocols[min(number, len(fit.protocols) - 1)] for fit in fits]
        names = ("latency_seconds", "latency_per_rank_seconds", "latency_per_doubling_seconds")
        columns.append(
            tuple(np.array([getattr(each, name) for each in chosen]) for name in (*names, "bandwidth_bytes_per_second"))
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
    C(G - G/n, g) / C(G, g). Otherwise k independent choices among those that the chosen groups leave:
    m·(1 - (1 - 1/m)^k) with m = n, or n·g/G where groups divide the places.
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
    left = places * moe.groups_per_token / moe.groups if moe.groups > 1 and places % moe.groups == 0 else places
    return left * (1.0 - (1.0 - 1.0 / left) ** moe.experts_per_token)


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


def exchanged(
    hardware: HardwareSpec, fit: ExchangeFit, moe: MoE, devices: Number, dedicated_shared: bool
) -> tuple[Number, tuple[Number, Number]]:
    """Return copies of one token that a device sends, and (latency, payload bytes per second) among ``devices``.

    One copy per chosen expert, a dedicated shared expert being one further destination; DeepEP's normal kernels send
    one per distinct rank inside a server, and over servers one per distinct server, which hands it on to its ranks.
    """
    if fit.payload != "per_node":
        copies: Number = moe.experts_per_token + (1.0 if dedicated_shared else 0.0)
        return copies, exchange_protocol(hardware, fit, devices)
    over = np.greater(devices, hardware.server_devices)
    ranks, servers = distinct(moe, devices), distinct(moe, np.ceil(devices / hardware.server_devices))
    copies = either(over, servers, ranks)
    return copies, exchange_protocol(hardware, fit, devices, ranks / copies)
