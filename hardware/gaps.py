"""Missing fields of a machine's entry, and the values that replace them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from hardware.formats import multiplied
from hardware.spec import CollectiveOp, HardwareSpec


@dataclass(frozen=True, slots=True)
class Gap:
    """A field that is not stated, and what is done without it."""

    field: str
    instead: str


def gaps(spec: HardwareSpec) -> list[Gap]:
    """Return what the entry lacks, in the order of its schema. What the schema requires cannot be lacking."""
    return [*_kernel_gaps(spec), *_collective_gaps(spec), *_exchange_gaps(spec), *_cost_gaps(spec)]


def _kernel_gaps(spec: HardwareSpec) -> Iterator[Gap]:
    usable = multiplied(spec)
    for dtype in spec.device.peak_flops_per_second:
        for family in ("gemm", "grouped_gemm"):
            if dtype not in getattr(spec.kernels, family):
                yield Gap(f"kernels.{family}.{dtype}", f"its peak is not used; --weights takes {' or '.join(usable)}")
    for name in ("sparse_decode", "sparse_prefill"):
        if getattr(spec.kernels, name) is None:
            yield Gap(f"kernels.{name}", "models with sparse attention (DSA) are costed with the fit of mla_decode")
    if "fp8" in spec.device.peak_flops_per_second and spec.kernels.mla_decode_fp8 is None:
        yield Gap("kernels.mla_decode_fp8", "MLA with a KV cache in FP8 is costed as if its products were in BF16")


def _collective_gaps(spec: HardwareSpec) -> Iterator[Gap]:
    order = [scope.name for scope in spec.scopes]
    for op in get_args(CollectiveOp):
        stated = {fit.scope for fit in spec.collectives if fit.op == op and not fit.in_graph}
        for position, scope in enumerate(order):
            if scope in stated:
                continue
            wider = [name for name in order[position + 1 :] if name in stated]
            narrower = [name for name in reversed(order[:position]) if name in stated]
            other = [*wider, *narrower]
            instead = f"the fit of the scope {other[0]} stands in" if other else "strategies that need it are refused"
            yield Gap(f"collectives[{op} {scope}]", instead)
    if not any(fit.in_graph for fit in spec.collectives):
        instead = "decode pays the start-up of collectives outside a captured graph"
        yield Gap(f"collectives[all_reduce {order[0]}, in_graph]", instead)


def _exchange_gaps(spec: HardwareSpec) -> Iterator[Gap]:
    stated = {(fit.direction, fit.mode) for fit in spec.exchanges}
    modes = {"low_latency": "normal", "normal": "low_latency"}
    for direction in ("dispatch", "combine"):
        for mode, other in modes.items():
            if (direction, mode) not in stated:
                known = (direction, other) in stated
                instead = f"the fit of the mode {other} stands in" if known else "expert parallelism is refused"
                yield Gap(f"exchanges[{direction} {mode}]", instead)


def _cost_gaps(spec: HardwareSpec) -> Iterator[Gap]:
    if spec.power_watts_per_chip is None:
        instead = "plans state the power of the chips alone" if spec.chip_power_watts else "plans state no power"
        yield Gap("power_watts_per_chip", instead)
    if spec.price_usd_per_chip_hour is None:
        yield Gap("price_usd_per_chip_hour", "plans state no cost, and cost cannot be the objective")
