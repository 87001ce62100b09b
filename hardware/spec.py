"""What a machine is: devices, scopes, planes, and how well its kernels and libraries do.

A *device* is what a rank runs on (one GPU, one Ascend die); a *chip* is what is bought.
All bandwidths are one way and per device, all values SI. Peak and efficiency are separate
fields and are never multiplied in the file.
"""

from typing import Literal

from pydantic import Field, model_validator

from podplan.sourced import LEAST_SOURCE, Kind, Sourced, Strict

Dtype = Literal["bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
ScopeName = Literal["package", "node", "supernode", "cluster"]
CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"]


class Fitted(Strict):
    """Base of a fit: what it was fitted on, with which software, and how far it is off."""

    kind: Kind
    source: str = Field(min_length=LEAST_SOURCE)
    version: str = Field(description="library or software version that was measured")
    median_residual: float | None = Field(
        default=None, description="median |fit/measured - 1| over the rows it was fitted on"
    )
    note: str | None = None


class MatmulFit(Fitted):
    """Dense or grouped matrix product of M rows, N columns, depth K.

    compute seconds = 2·M·N·K / (peak · peak_fraction) · (1 + half_rows/M) · (1 + half_depth/K)
    memory seconds  = bytes / (memory bandwidth · memory_fraction)
    seconds         = max(compute, memory) + serial_fraction · min(compute, memory) + floor_seconds

    For a grouped product M is rows *per group*. ``half_rows`` is the row count at which half of
    the peak fraction is reached, ``half_depth`` likewise for K; ``serial_fraction`` is how much of
    the shorter of compute and memory traffic the kernel fails to hide behind the longer.
    """

    peak_fraction: float = Field(gt=0, le=1)
    half_rows: float = Field(ge=0)
    half_depth: float = Field(ge=0, default=0)
    memory_fraction: float = Field(gt=0, le=1)
    serial_fraction: float = Field(ge=0, le=1, default=0)
    floor_seconds: float = Field(ge=0)
    timed_alone: bool = Field(
        default=False, description="times of the kernel alone: in a captured graph each launch adds graph_gap_seconds"
    )


class AttentionFit(Fitted):
    """Attention kernel.

    compute seconds = FLOP / (bf16 peak · peak_fraction) · (1 + half_length/L)
    with L the mean number of keys per query; memory and floor as for matrix products.
    """

    peak_fraction: float = Field(gt=0, le=1)
    half_length: float = Field(ge=0, default=0)
    memory_fraction: float = Field(gt=0, le=1)
    floor_seconds: float = Field(ge=0)


class VectorFit(Fitted):
    """Element-wise work (norms, rotary embedding, quantisation, activation): memory-bound plus a floor."""

    memory_fraction: float = Field(gt=0, le=1)
    floor_seconds: float = Field(ge=0)


class Kernels(Strict):
    """Kernel fits of a device, by family and, for matrix products, by dtype."""

    gemm: dict[Dtype, MatmulFit]
    grouped_gemm: dict[Dtype, MatmulFit]
    mla_decode: AttentionFit
    gqa_decode: AttentionFit
    prefill_attention: AttentionFit
    mla_decode_fp8: AttentionFit | None = Field(
        default=None,
        description="latents that are kept in FP8 multiplied as they are, a share of the FP8 peak; "
        "none: they are multiplied in BF16, and the fit is mla_decode",
    )
    sparse_decode: AttentionFit | None = Field(
        default=None, description="attention over keys that an indexer picked; none: mla_decode stands for it"
    )
    sparse_prefill: AttentionFit | None = None
    vector: VectorFit
    mla_prologue_floor_seconds: Sourced | None = Field(
        default=None, description="one floor for norm, projections and rotary embedding fused into one kernel"
    )


class Protocol(Strict):
    """One way in which a library can run a collective; it takes the fastest.

    seconds = latency_seconds + latency_per_rank_seconds·(n - 1) + wire_bytes / bandwidth
    with wire_bytes per device: all-reduce 2·S·(n-1)/n, all-gather, reduce-scatter and
    all-to-all S·(n-1)/n, point to point S; S is the full message (the gathered size).
    """

    name: str
    latency_seconds: float = Field(ge=0)
    latency_per_rank_seconds: float = Field(ge=0, default=0)
    bandwidth_bytes_per_second: float = Field(gt=0)


class CollectiveFit(Fitted):
    """Fit of one collective over groups that lie inside one scope."""

    op: CollectiveOp
    scope: ScopeName
    in_graph: bool = Field(description="usable only inside a captured graph (decode)")
    protocols: list[Protocol] = Field(min_length=1)


class ExchangePoint(Strict):
    """Expert exchange at one EP degree: rate of the payload beyond the fixed latency."""

    degree: int = Field(gt=0)
    latency_seconds: float = Field(ge=0)
    bandwidth_bytes_per_second: float = Field(gt=0)


class ExchangeFit(Fitted):
    """Dispatch or combine of tokens to experts, keyed by library version.

    seconds = latency(degree) + payload_bytes / bandwidth(degree), interpolated over log2(degree)
    and held constant outside the points.

    ``payload`` counts what one device sends: ``per_expert`` one copy per chosen expert,
    ``per_node`` one copy per distinct node among the chosen experts (DeepEP normal kernels).
    ``token_bytes_per_hidden`` and ``token_bytes_fixed`` give the message of one token.
    """

    direction: Literal["dispatch", "combine"]
    mode: Literal["low_latency", "normal"]
    payload: Literal["per_expert", "per_node"]
    message_bytes_per_hidden: float = Field(gt=0)
    message_bytes_fixed: float = Field(ge=0)
    points: list[ExchangePoint] = Field(min_length=1)


class Scope(Strict):
    """A nested set of devices that reach each other over one plane.

    ``topology`` mesh: every pair has its own link of ``pair_bandwidth_bytes_per_second``.
    """

    name: ScopeName
    devices: Sourced = Field(description="devices inside one such scope; 0 = unlimited")
    plane: str
    bandwidth_bytes_per_second: Sourced
    latency_seconds: Sourced
    topology: Literal["switch", "mesh"] = "switch"
    pair_bandwidth_bytes_per_second: Sourced | None = None

    @model_validator(mode="after")
    def _has_a_rate(self) -> "Scope":
        _positive("bandwidth_bytes_per_second", self.bandwidth_bytes_per_second)
        if self.devices.value < 0:
            raise ValueError(f"devices is {self.devices.value:g} and must be 0 (unlimited) or more")
        return self


def _positive(field: str, held: Sourced) -> None:
    """Raise ValueError, which pydantic reports with the path, unless a value is above 0."""
    if held.value <= 0:
        raise ValueError(f"{field} is {held.value:g} and must be above 0")


class Plane(Strict):
    """A physical network and what it is used for."""

    name: str
    use: str
    bandwidth_bytes_per_second: Sourced = Field(description="one way, per device")
    efficiency: Sourced = Field(description="share of the bandwidth that large transfers reach")
    latency_seconds: Sourced


class Streams(Strict):
    """How two microbatches share one device.

    ``attention_experts``: stream 0 attention, stream 1 gate, exchange and experts; the matrix cores
    are partitioned between them in steps of 1/``partitions`` (CloudMatrix384 section 4.2.3).
    ``compute_communication``: communication runs beside compute and takes
    ``communication_core_share`` of the cores while it runs (DeepEP normal kernels; 0 where the
    transfer engines need none).
    """

    decode: Literal["attention_experts", "compute_communication"]
    prefill: Literal["attention_experts", "compute_communication"]
    partitions: Sourced | None = None
    communication_core_share_prefill: Sourced
    communication_core_share_decode: Sourced
    communication_dilation_prefill: Sourced | None = Field(
        default=None, description="how much longer communication takes beside compute; none: 1"
    )
    communication_dilation_decode: Sourced | None = None


class Host(Strict):
    """Host-side costs per iteration and per operator."""

    graph_launch_seconds: Sourced
    eager_launch_seconds: Sourced = Field(description="host time to launch one operator without a graph")
    graph_gap_seconds: Sourced | None = Field(
        default=None, description="device time between two kernels of a captured graph; none: measured times include it"
    )


class Device(Strict):
    """One rank's machine."""

    title: str
    peak_flops_per_second: dict[Dtype, Sourced] = Field(description="dense peak per dtype")
    memory_bytes: Sourced
    memory_bandwidth_bytes_per_second: Sourced
    reserve_bytes: Sourced = Field(description="memory that the runtime and its libraries keep")
    sustained_fraction: Sourced | None = Field(
        default=None,
        description="share of short kernels' rates that hours of matrix work reach at the clock power allows",
    )

    @model_validator(mode="after")
    def _is_a_device(self) -> "Device":
        for field in ("memory_bytes", "memory_bandwidth_bytes_per_second"):
            _positive(field, getattr(self, field))
        for dtype, peak in self.peak_flops_per_second.items():
            _positive(f"peak_flops_per_second.{dtype}", peak)
        if "bf16" not in self.peak_flops_per_second:
            raise ValueError("peak_flops_per_second needs bf16, which attention runs in")
        return self


class BasedOn(Strict):
    """The entry that this one takes over what it does not state itself from; ``hardware.derive`` says how."""

    name: str = Field(min_length=1, description="catalogue name, or a path from the entry's own folder")
    why: str = Field(min_length=4, description="why the sibling's figures may stand for this machine's")
    same_device: bool = Field(default=False, description="an overlay: the sibling itself with some values anew")


class HardwareSpec(Strict):
    """A cluster type of the catalogue."""

    schema_version: Literal[1]
    name: str
    title: str
    aliases: list[str] = []
    based_on: BasedOn | None = None
    device: Device
    devices_per_chip: Sourced
    devices_per_node: Sourced
    nodes: Sourced = Field(description="size of the catalogue entry")
    sold_by_node: bool = Field(description="whether --nodes may go past the entry's size")
    scopes: list[Scope] = Field(min_length=1, description="smallest first")
    planes: list[Plane]
    kv_plane: str = Field(description="plane that carries KV from prefill to decode")
    kernels: Kernels
    collectives: list[CollectiveFit]
    exchanges: list[ExchangeFit]
    streams: Streams
    host: Host
    power_watts_per_chip: Sourced | None = Field(
        default=None, description="a chip with its share of host, network and cooling, as far as the source counts them"
    )
    chip_power_watts: Sourced | None = Field(
        default=None,
        description="the chip alone: its thermal design power, or the largest reading where none is stated",
    )
    price_usd_per_chip_hour: Sourced | None = None

    @model_validator(mode="after")
    def _planes_exist(self) -> "HardwareSpec":
        known = {plane.name for plane in self.planes}
        for used in self.planes_in_use:
            if used not in known:
                raise ValueError(f"plane {used!r} is not among planes {sorted(known)}")
        sizes = [scope.devices.value or float("inf") for scope in self.scopes]
        if sizes != sorted(sizes):
            raise ValueError("scopes must be ordered from the smallest to the largest")
        return self

    @property
    def planes_in_use(self) -> list[str]:
        """Names of the planes that carry KV caches or the groups of some scope; others are stated for the reader."""
        return list(dict.fromkeys([self.kv_plane, *(scope.plane for scope in self.scopes)]))

    def plane(self, name: str) -> Plane:
        """Return the plane called ``name``."""
        return next(plane for plane in self.planes if plane.name == name)

    def scope_of(self, degree: int) -> Scope:
        """Return the smallest scope that holds ``degree`` consecutive devices."""
        for scope in self.scopes:
            if not scope.devices.value or degree <= scope.devices.value:
                return scope
        return self.scopes[-1]
