"""Compute operators as terms: FLOP, bytes, and the efficiency with which a device does them.

Every function returns a ``ComputeTerm`` whose seconds are max(c, m) + serial·min(c, m) + floor with
c = (flops + idle) / rate / cores and m = bytes / bandwidth. The shape-dependent efficiency
M/(M + half_rows) of ``hardware.spec.MatmulFit`` makes time linear in M: 2·N·K·(M + half_rows)
FLOP-equivalents at the rate of a full tile; the second part is ``idle_flops``.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hardware.formats import ACTIVATION_BYTES, ELEMENT_BYTES, product_dtype
from hardware.spec import AttentionFit, Dtype, Fitted, HardwareSpec, MatmulFit
from planner.costs.deployment import Deployment
from planner.engines.behaviour import behaviour
from planner.manifest.terms import ComputeTerm, Form, Number, Shape, Stage

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
    though the engine can fuse it into the one before.
    """

    hardware: HardwareSpec
    sustained: float = 1.0
    static: bool = False
    apart: bool = False

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
        return cls(deployment.hardware, sustained, model.native_dtype != "fp8", apart)

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
        wide = 1.0 + fit.memory_half_columns / columns if fit.memory_half_columns else 1.0
        moved = depth * ACTIVATION_BYTES[product_in] + 2.0 * columns
        read = combine(weights, columns * depth * ELEMENT_BYTES[dtype], rows, moved)
        return ComputeTerm(
            name=name,
            stage=stage,
            flops=scale(rows, product),
            idle_flops=scale(weights, product * fit.half_rows) if fit.half_rows else {},
            flops_per_second=self.sustained * self.peak(product_in) * fit.peak_fraction / filling,
            bytes=read,
            bytes_per_second=self.bandwidth * fit.memory_fraction / wide,
            floor_seconds=fit.floor_seconds + (self.gap_seconds if fit.timed_alone else 0.0),
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
        dtype: Dtype = "bf16",
    ) -> ComputeTerm:
        """Attention over ``pairs`` of query and key, reading ``read`` bytes, its products in ``dtype``.

        (1 + half_length/L) with L = pairs/queries is pairs + half_length·queries, so it stays linear.
        """
        return ComputeTerm(
            name=name,
            stage="attention",
            flops=scale(pairs, flops_per_pair),
            idle_flops=scale(queries, fit.half_length * flops_per_pair) if fit.half_length else {},
            flops_per_second=self.sustained * self.peak(dtype) * fit.peak_fraction,
            bytes=read,
            bytes_per_second=self.bandwidth * fit.memory_fraction,
            floor_seconds=fit.floor_seconds,
            serial=fit.serial_fraction,
            residual=residual(fit),
            shape=Shape(self._attention_family(fit), pairs, queries),
        )

    def _attention_family(self, fit: AttentionFit) -> str:
        families = ("mla_decode", "gqa_decode", "prefill_attention")
        return next((name for name in families if getattr(self.hardware.kernels, name) is fit), "other attention")

    def vector(self, name: str, stage: Stage, moved: Form, kernels: int = 1, pace: float = 1.0) -> ComputeTerm:
        """Element-wise work: ``moved`` bytes read and written by ``kernels`` launches, ``pace`` times as fast."""
        fit = self.hardware.kernels.vector
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
