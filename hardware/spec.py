"""A machine: devices, scopes, planes, and the efficiency of its kernels and libraries.

A *device* is what a rank runs on (one GPU, one Ascend die); a *chip* is what is bought.
All bandwidths are one way and per device, all values SI. Peak and efficiency are separate
fields and are never multiplied in the file.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from ground.records import Kind, Limits, Name, Source, Sourced, Stated, described

Number = float | NDArray[np.float64]
Dtype = Literal["bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
ScopeName = Literal["package", "node", "supernode", "cluster"]
Positive = Annotated[float, Limits(gt=0)]
NotNegative = Annotated[float, Limits(ge=0)]
Fraction = Annotated[float, Limits(gt=0, le=1)]
CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted(Stated):
    """Base of a fit: what it was fitted on, with which software, and how far it is off."""

    kind: Kind
    source: Source
    version: str = described("library or software version that was measured")
    median_residual: float | None = described("median |fit/measured - 1| over the rows it was fitted on", default=None)
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulFit(Fitted):
    """Dense or grouped matrix product of M rows, N columns, depth K.

    compute seconds = 2·M·N·K / (peak · peak_fraction) · (1 + half_depth/K)
                      · ((1 + half_rows/M) · (1 + half_columns/N) + half_outputs/(M·N))
    memory seconds  = bytes / (memory bandwidth · memory_fraction)
    seconds         = max(compute, memory) + serial_fraction · min(compute, memory) + floor_seconds
                      + depth_seconds · K

    For a grouped product M is rows *per group*. ``half_rows`` is the row count at which half of
    the peak fraction is reached, ``half_depth`` and ``half_columns`` likewise for K and N; ``half_outputs`` is the size
    M·N of the product at which it is, for few tiles leave cores idle; ``serial_fraction`` is how
    much of the shorter of compute and memory traffic the kernel fails to hide behind the longer. ``depth_seconds``
    is what a tile waits for each element of its depth, which it takes one after another.
    """

    peak_fraction: Fraction
    half_rows: NotNegative
    half_depth: NotNegative = 0
    half_columns: NotNegative = 0
    half_outputs: NotNegative = 0
    memory_fraction: Fraction
    serial_fraction: Annotated[float, Limits(ge=0, le=1)] = 0
    floor_seconds: NotNegative
    depth_seconds: NotNegative = 0
    timed_alone: bool = described(
        "times of the kernel alone: in a captured graph each launch adds graph_gap_seconds", default=False
    )
    quantises: bool = described(
        "activations are quantised in these times, or in the kernel before, and cost nothing more", default=False
    )
    takes_int4: bool = described("weights of INT4 are widened to this product's format on the way", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFit(Fitted):
    """Attention kernel.

    compute seconds = FLOP / (bf16 peak · peak_fraction)
                      · (1 + half_length/L) · (1 + half_head/d) · (1 + half_queries/Q)
    with L the mean number of keys per query, d the elements of a head, for the exponential of a pair of query and key
    takes as long however narrow the head (arXiv 2407.08608, section 3.1), and Q queries times heads of prompts: few
    tiles of them leave cores idle. Memory, serial fraction and floor as for
    matrix products. A kernel of windows can handle a share ``beyond_fraction`` of the keys outside them for nothing.
    Latents are read once for all heads, but for 17 to 32 in two tiles of heads, of which the second reads a share
    ``again_fraction`` of them from memory again. Until enough is under way the memory is read slower: by a share
    ``slow_fraction`` of its seconds, ``slow_seconds`` in all.
    """

    peak_fraction: Fraction
    half_length: NotNegative = 0
    half_head: NotNegative = 0
    half_queries: NotNegative = 0
    beyond_fraction: Annotated[float, Limits(ge=0, le=1)] = 0
    again_fraction: Annotated[float, Limits(ge=0, le=1)] = 0
    slow_fraction: NotNegative = 0
    slow_seconds: NotNegative = 0
    memory_fraction: Fraction
    serial_fraction: Annotated[float, Limits(ge=0, le=1)] = 0
    floor_seconds: NotNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseFit(AttentionFit):
    """Attention of prompts over the keys that an indexer picked, and what a query takes to pick them.

    The kernel multiplies ``tile_heads`` at least. A share ``padded_fraction`` of the keys that a query has fewer than
    the indexer picks is multiplied all the same. ``memory_fraction`` may exceed 1, for neighbouring queries pick the
    same keys, which the second finds in a cache. A query that has more keys than are picked takes ``choice_seconds``
    beside the reading of its scores.
    """

    memory_fraction: Positive
    tile_heads: Positive = 1
    padded_fraction: Annotated[float, Limits(ge=0, le=1)] = 0
    choice_seconds: NotNegative = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorFit(Fitted):
    """Element-wise work (norms, rotary embedding, quantisation, activation): memory-bound plus a floor."""

    memory_fraction: Fraction
    floor_seconds: NotNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFit(Fitted):
    """Linear attention of prompts, in chunks that hand their state on.

    seconds = FLOP / (bf16 peak · peak_fraction) + token_seconds · tokens + floor: chunks of a prompt wait for each
    other, however few heads a device has.
    """

    peak_fraction: Fraction
    token_seconds: NotNegative
    floor_seconds: NotNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class SortFit(Fitted):
    """Choice of an indexer's keys by a full sort on vector units, while the matrix units make the scores.

    seconds = elements that are sorted and merged / (bf16 peak · elements_per_flop) + floor
    """

    elements_per_flop: Positive
    floor_seconds: NotNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels(Stated):
    """Kernel fits of a device, by family and, for matrix products, by dtype."""

    gemm: dict[Dtype, MatmulFit]
    grouped_gemm: dict[Dtype, MatmulFit]
    mla_decode: AttentionFit
    gqa_decode: AttentionFit
    prefill_attention: AttentionFit
    mla_decode_fp8: AttentionFit | None = described(
        "latents that are kept in FP8 multiplied as they are, a share of the FP8 peak; "
        "none: they are multiplied in BF16, and the fit is mla_decode",
        default=None,
    )
    sparse_decode: AttentionFit | None = described(
        "attention over keys that an indexer picked; none: mla_decode stands for it", default=None
    )
    sparse_prefill: SparseFit | None = None
    sparse_prefill_fp8: SparseFit | None = described(
        "the same with latents kept in FP8; none: sparse_prefill", default=None
    )
    index_sort: SortFit | None = described(
        "an indexer's keys are sorted in full; none: chosen in two passes", default=None
    )
    gemm_static: dict[Dtype, MatmulFit] = described(
        "products of checkpoints whose activations have one scale that is known beforehand; none: gemm",
        default_factory=dict,
    )
    gqa_decode_fp8: AttentionFit | None = described("keys and values kept in FP8; none: gqa_decode", default=None)
    prefill_attention_fp8: AttentionFit | None = described(
        "the same of prompts, a share of the FP8 peak; none: prefill_attention", default=None
    )
    attention_by_head: dict[str, AttentionFit] = described(
        "attention of heads of one size, and of layers that see a window: name of the kernel and elements, as in "
        "'window_gqa_decode_fp8 64'; none: the kernel of all heads",
        default_factory=dict,
    )
    mla_prefill: AttentionFit | None = described("prompts of MLA, unabsorbed; none: prefill_attention", default=None)
    vector: VectorFit
    recurrence: VectorFit | None = described(
        "step of a recurrent state; none: element-wise work at the pace measured on an H20", default=None
    )
    convolution: VectorFit | None = described("short convolution before it; none: likewise", default=None)
    chunkwise: ChunkFit | None = described(
        "linear attention of prompts; none: prefill_attention over the keys of a chunk", default=None
    )
    mla_prologue_floor_seconds: Sourced | None = described(
        "one floor for norm, projections and rotary embedding fused into one kernel", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol(Stated):
    """One way in which a library can run a collective; it takes the fastest.

    seconds = latency_seconds + latency_per_rank_seconds·(n - 1) + wire_bytes / bandwidth; a tree over servers
    chains the c ranks of each, so (c - 1), + latency_per_doubling_seconds·log2(servers) (NCCL, src/graph/tuning.cc);
    with wire_bytes per device: all-reduce 2·S·(n-1)/n, all-gather, reduce-scatter and
    all-to-all S·(n-1)/n, point to point S; S is the full message (the gathered size).
    """

    name: str
    latency_seconds: NotNegative
    latency_per_rank_seconds: NotNegative = 0
    latency_per_doubling_seconds: NotNegative = 0
    bandwidth_bytes_per_second: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFit(Fitted):
    """Fit of one collective over groups that lie inside one scope."""

    op: CollectiveOp
    scope: ScopeName
    in_graph: bool = described("usable only inside a captured graph (decode)")
    ranks: int | None = described("holds for groups of so many devices alone; none: for all", default=None)
    per_card: bool = described(
        "rates are of one network card: a ring over servers uses those of all its devices in a server, up to the rate "
        "inside one, and an all-to-all its own for what leaves the server",
        default=False,
    )
    protocols: Annotated[list[Protocol], Limits(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePoint(Stated):
    """Expert exchange at one EP degree: rate of the payload beyond the fixed latency; over servers, of the part of it
    that leaves one through a device's network card.
    """

    degree: Annotated[int, Limits(gt=0)]
    latency_seconds: NotNegative
    bandwidth_bytes_per_second: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFit(Fitted):
    """Dispatch or combine of tokens to experts, keyed by library version.

    seconds = latency(degree) + payload_bytes / bandwidth(degree), interpolated over log2(degree) and held constant
    outside the points; ``hardware.fits.exchange_protocol`` says what servers make of it.

    ``payload`` counts what one device sends: ``per_expert`` one copy per chosen expert, ``per_node`` one per distinct
    server among them, which hands it on to its ranks, and inside one one per distinct rank (DeepEP normal kernels).
    ``token_bytes_per_hidden`` and ``token_bytes_fixed`` give the message of one token.
    """

    direction: Literal["dispatch", "combine"]
    mode: Literal["low_latency", "normal"]
    payload: Literal["per_expert", "per_node"]
    message_bytes_per_hidden: Positive
    message_bytes_fixed: NotNegative
    points: Annotated[list[ExchangePoint], Limits(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope(Stated):
    """A nested set of devices that reach each other over one plane.

    ``topology`` mesh: every pair has its own link of ``pair_bandwidth_bytes_per_second``.
    """

    name: ScopeName
    devices: Sourced = described("devices inside one such scope; 0 = unlimited")
    plane: str
    bandwidth_bytes_per_second: Sourced
    latency_seconds: Sourced
    topology: Literal["switch", "mesh"] = "switch"
    pair_bandwidth_bytes_per_second: Sourced | None = None

    def __post_init__(self) -> None:
        _positive("bandwidth_bytes_per_second", self.bandwidth_bytes_per_second)
        if self.devices.value < 0:
            raise ValueError(f"devices is {self.devices.value:g} and must be 0 (unlimited) or more")


def _positive(field: str, held: Sourced) -> None:
    """Raise ValueError, which pydantic reports with the path, unless a value is above 0."""
    if held.value <= 0:
        raise ValueError(f"{field} is {held.value:g} and must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane(Stated):
    """A physical network and what it is used for."""

    name: str
    use: str
    bandwidth_bytes_per_second: Sourced = described("one way, per device")
    efficiency: Sourced = described("share of the bandwidth that large transfers reach")
    latency_seconds: Sourced

    @property
    def reached_bytes_per_second(self) -> float:
        """Bytes per second per device, one way, that large transfers reach."""
        return self.bandwidth_bytes_per_second.value * self.efficiency.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams(Stated):
    """Shares of one device for two overlapping microbatches.

    ``attention_experts``: stream 0 attention, stream 1 gate, exchange and experts; the matrix cores
    are partitioned between them in steps of 1/``partitions`` (CloudMatrix384 section 4.2.3).
    ``compute_communication``: communication runs beside compute and takes
    ``communication_core_share`` of the cores while it runs, or all of them for that share of its time (0 where
    transfer engines need none).
    """

    decode: Literal["attention_experts", "compute_communication"]
    prefill: Literal["attention_experts", "compute_communication"]
    partitions: Sourced | None = None
    communication_core_share_prefill: Sourced
    communication_core_share_decode: Sourced
    communication_dilation_prefill: Sourced | None = described(
        "how much longer communication takes beside compute; none: 1", default=None
    )
    communication_dilation_decode: Sourced | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Stated):
    """Host-side costs per iteration and per operator."""

    graph_launch_seconds: Sourced
    eager_launch_seconds: Sourced = described("host time to launch one operator without a graph")
    memory_bytes_per_second: Sourced | None = described(
        "of a node's memory, what each of its devices gets over a plane while all read; none: the plane's own",
        default=None,
    )
    graph_gap_seconds: Sourced | None = described(
        "device time between two kernels of a captured graph; none: measured times include it", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(Stated):
    """One rank's machine."""

    title: str
    peak_flops_per_second: dict[Dtype, Sourced] = described("dense peak per dtype")
    memory_bytes: Sourced
    memory_bandwidth_bytes_per_second: Sourced
    reserve_bytes: Sourced = described("memory that the runtime and its libraries keep")
    sustained_fraction: Sourced | None = described(
        "share of short kernels' rates that hours of matrix work reach at the clock power allows", default=None
    )

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "memory_bandwidth_bytes_per_second"):
            _positive(name, getattr(self, name))
        for dtype, peak in self.peak_flops_per_second.items():
            _positive(f"peak_flops_per_second.{dtype}", peak)
        if "bf16" not in self.peak_flops_per_second:
            raise ValueError("peak_flops_per_second needs bf16, which attention runs in")


@dataclass(frozen=True, slots=True, kw_only=True)
class BasedOn(Stated):
    """The entry that this one takes over what it does not state itself from; ``hardware.loader`` says how."""

    name: Annotated[str, Limits(min_length=1)] = described("catalogue name, or a path from the entry's own folder")
    why: Annotated[str, Limits(min_length=4)] = described("why the sibling's figures may stand for this machine's")
    same_device: bool = described("an overlay: the sibling itself with some values anew", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec(Stated):
    """A cluster type of the catalogue."""

    schema_version: Literal[1]
    name: Name
    title: str
    aliases: list[str] = field(default_factory=list)
    based_on: BasedOn | None = None
    device: Device
    devices_per_chip: Sourced
    devices_per_node: Sourced
    nodes: Sourced = described("size of the catalogue entry")
    sold_by_node: bool = described("whether --nodes may go past the entry's size")
    scopes: Annotated[list[Scope], Limits(min_length=1)] = described("smallest first")
    planes: list[Plane]
    kv_plane: str = described("plane that carries KV from prefill to decode")
    kernels: Kernels
    collectives: list[CollectiveFit]
    exchanges: list[ExchangeFit]
    streams: Streams
    host: Host
    power_watts_per_chip: Sourced | None = described(
        "a chip with its share of host, network and cooling, as far as the source counts them", default=None
    )
    chip_power_watts: Sourced | None = described(
        "the chip alone: its thermal design power, or the largest reading where none is stated", default=None
    )
    price_usd_per_chip_hour: Sourced | None = None
    price_basis: str | None = described(
        "of the price: a rental, or a purchase that is written off, with electricity and without building or margin",
        default=None,
    )

    def __post_init__(self) -> None:
        known = {plane.name for plane in self.planes}
        for used in self.planes_in_use:
            if used not in known:
                raise ValueError(f"plane {used!r} is not among planes {sorted(known)}")
        sizes = [scope.devices.value or float("inf") for scope in self.scopes]
        if sizes != sorted(sizes):
            raise ValueError("scopes must be ordered from the smallest to the largest")
        for name, part in (("devices_per_chip", 1), ("devices_per_node", self.devices_per_chip.value), ("nodes", 1)):
            count = getattr(self, name).value
            if count < 1 or count % part:
                raise ValueError(f"{name} is {count:g} and must be {part:g} or a multiple of it")

    @property
    def planes_in_use(self) -> list[str]:
        """Names of the planes that carry KV caches or the groups of some scope; others are stated for the reader."""
        return list(dict.fromkeys([self.kv_plane, *(scope.plane for scope in self.scopes)]))

    def plane(self, name: str) -> Plane:
        """Return the plane called ``name``."""
        return next(plane for plane in self.planes if plane.name == name)

    @property
    def server_devices(self) -> float:
        """Devices of the largest scope inside which nothing passes a network card: a server, or a supernode."""
        return self.scopes[-2].devices.value if len(self.scopes) > 1 and self.scopes[-1].name == "cluster" else math.inf

    def scope_of(self, degree: int) -> Scope:
        """Return the smallest scope that holds ``degree`` consecutive devices."""
        for scope in self.scopes:
            if not scope.devices.value or degree <= scope.devices.value:
                return scope
        return self.scopes[-1]
