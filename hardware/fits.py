"""Evaluate the fits of a catalogue entry on measured shapes.

This is the reference form of the formulas that ``hardware.spec`` states: seconds from a shape.
All functions accept floats or NumPy arrays and broadcast.

The measurements stand in ``calibration/*.csv``, one per row. ``used_by`` names the catalogue entries whose fits
rest on the row; ``derived_from`` says what was published where that is not a time (a rate, a share of the peak;
a rate without a shape stands as the work of one second). A ``feed_forward`` row is a gate and up product
followed by a down product, ``columns`` the intermediate and ``depth`` the hidden size.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from hardware.spec import (
    AttentionFit,
    CollectiveFit,
    CollectiveOp,
    Device,
    Dtype,
    ExchangeFit,
    ExchangePoint,
    HardwareSpec,
    MatmulFit,
    Number,
)

CALIBRATION = Path(__file__).parent / "calibration"
INPUT_BYTES: dict[Dtype, float] = {"bf16": 2, "fp8": 1, "int8": 1, "nvfp4": 0.5625}
OUTPUT_BYTES = 2  # every measured kernel writes bf16


class Product(NamedTuple):
    """Shape of a dense (``groups`` 1) or grouped matrix product; ``rows`` is per group."""

    groups: Number
    rows: Number
    columns: Number
    depth: Number

    def flops(self) -> Number:
        """Return the operations 2·G·M·N·K."""
        return 2.0 * self.groups * self.rows * self.columns * self.depth

    def moved_bytes(self, dtype: Dtype) -> Number:
        """Return inputs, weights and bf16 output, each once: G·(M·K + K·N)·b + 2·G·M·N."""
        inputs = (self.rows * self.depth + self.depth * self.columns) * INPUT_BYTES[dtype]
        return self.groups * (inputs + self.rows * self.columns * OUTPUT_BYTES)


def matmul_seconds(device: Device, dtype: Dtype, fit: MatmulFit, product: Product) -> Number:
    """Return the seconds of a matrix product.

    compute = 2·G·M·N·K / (peak·f) · (1 + half_depth/K) · filling,
    filling = (1 + half_rows/M) · (1 + half_columns/N) + half_outputs/(M·N), memory = bytes / (bandwidth·g);
    max(compute, memory) + serial_fraction · min(compute, memory) + floor + depth_seconds · K

    Source: roofline with saturation terms of ``hardware.spec.MatmulFit``, derived here.
    """
    peak = device.peak_flops_per_second[dtype].value * fit.peak_fraction
    filling = (1.0 + fit.half_rows / product.rows) * (1.0 + fit.half_columns / product.columns)
    filling = (filling + fit.half_outputs / (product.rows * product.columns)) * (1.0 + fit.half_depth / product.depth)
    bandwidth = device.memory_bandwidth_bytes_per_second.value * fit.memory_fraction
    compute = product.flops() / peak * filling
    memory = product.moved_bytes(dtype) / bandwidth
    exposed = fit.serial_fraction * np.minimum(compute, memory)
    started = fit.floor_seconds + fit.depth_seconds * product.depth
    return np.maximum(compute, memory) + exposed + started


def feed_forward_seconds(device: Device, dtype: Dtype, fit: MatmulFit, product: Product) -> Number:
    """Return the seconds of a gated feed-forward block: gate and up in one product, then down.

    ``product.columns`` is the intermediate size, ``product.depth`` the hidden size.
    """
    intermediate, hidden = product.columns, product.depth
    gate_up = Product(product.groups, product.rows, 2 * intermediate, hidden)
    down = Product(product.groups, product.rows, hidden, intermediate)
    return matmul_seconds(device, dtype, fit, gate_up) + matmul_seconds(device, dtype, fit, down)


def attention_seconds(
    device: Device,
    fit: AttentionFit,
    flops: Number,
    moved_bytes: Number,
    mean_keys: Number,
    head: Number = np.inf,
    rows: Number = np.inf,
) -> Number:
    """Return the seconds of an attention kernel.

    compute = FLOP / (bf16 peak·f) · (1 + half_length/L) · (1 + half_head/d) · (1 + half_queries/Q),
    memory = bytes / (bandwidth·g), L = ``mean_keys`` per query, d = elements of a ``head``, Q = ``rows``, queries
    times heads;
    max(compute, memory) + serial_fraction · min(compute, memory) + min(slow_fraction · memory, slow_seconds) + floor
    """
    peak = device.peak_flops_per_second["bf16"].value * fit.peak_fraction
    bandwidth = device.memory_bandwidth_bytes_per_second.value * fit.memory_fraction
    filling = (1.0 + fit.half_length / mean_keys) * (1.0 + fit.half_head / head) * (1.0 + fit.half_queries / rows)
    compute, memory = flops / peak * filling, moved_bytes / bandwidth
    exposed = fit.serial_fraction * np.minimum(compute, memory)
    started = fit.floor_seconds + np.minimum(fit.slow_fraction * memory, fit.slow_seconds)
    return np.maximum(compute, memory) + exposed + started


def wire_bytes(op: CollectiveOp, message_bytes: Number, ranks: Number) -> Number:
    """Return the bytes that each device sends for a message of S bytes.

    All-reduce 2·S·(n-1)/n; all-gather, reduce-scatter, all-to-all S·(n-1)/n; point to point S.

    Source: nccl-tests, doc/PERFORMANCE.md (bus bandwidth factors).
    """
    if op == "point_to_point":
        return message_bytes
    share = message_bytes * (ranks - 1.0) / ranks
    return 2.0 * share if op == "all_reduce" else share


def server(hw: HardwareSpec, fit: CollectiveFit) -> tuple[float, float]:
    """Return the devices of a server whose network cards a fit pools, and the bytes per second inside one; 1 where the
    fit is not per card.
    """
    order = [scope.name for scope in hw.scopes]
    if not fit.per_card or order.index(fit.scope) == 0:
        return 1.0, np.inf
    inner = hw.scopes[order.index(fit.scope) - 1]
    own = (fit.op, inner.name, False, None)
    alike = (each for each in hw.collectives if (each.op, each.scope, each.in_graph, each.ranks) == own)
    inside = (protocol.bandwidth_bytes_per_second for each in alike for protocol in each.protocols)
    return inner.devices.value, max(inside, default=np.inf)


def cards_of(ranks: Number, span: Number, devices: Number) -> Number:
    """Return the ranks in each server of so many ``devices``, of ``ranks`` that spread over ``span``."""
    return np.maximum(ranks / np.ceil(span / devices), 1.0)


def started(latency: Number, per_rank: Number, per_doubling: Number, ranks: Number, cards: Number) -> Number:
    """Return the start-up of a protocol (``hardware.spec.Protocol``) among ``ranks``, ``cards`` of them in a server.

    A rank in a chain adds 1.6 to 2.5 us inside H100 and B200 servers (NCCL 2.29.2, two to eight ranks); a doubling of
    servers 30 us over two of H20 (NVIDIA/nccl issue 1244) and 33 us over four of B200 (stas00/ml-engineering).
    """
    chained = np.where(np.greater(per_doubling, 0), cards, ranks) - 1.0
    return latency + per_rank * chained + per_doubling * np.log2(np.maximum(ranks / cards, 1.0))


def carried(op: CollectiveOp, rate: Number, ranks: Number, span: Number, devices: Number, inside: Number) -> Number:
    """Return the bytes per second that each of ``ranks`` devices over ``span`` sends, from the rate of one card.

    A ring over servers of so many ``devices`` leaves each through the cards of its c ranks there, c·rate together, and
    passes through it, at most at the rate ``inside``; where c is 1, nothing passes through. NCCL's rings do: all-reduce
    over four servers of eight B200 reaches 377 GB/s over cards of 50 (stas00/ml-engineering, network/benchmarks). In an
    all-to-all n - c of a rank's n - 1 parts leave through its card while c - 1 stay.
    """
    cards = cards_of(ranks, span, devices)
    if op == "all_to_all":
        peers = np.maximum(ranks - 1.0, 1.0)
        return peers / np.maximum(np.maximum(ranks - cards, 1.0) / rate, (cards - 1.0) / inside)
    return np.where(cards > 1.0, np.minimum(rate * cards, inside), rate)


def collective_seconds(hw: HardwareSpec, fit: CollectiveFit, message_bytes: Number, ranks: Number) -> Number:
    """Return the seconds of a machine's collective over consecutive devices: the fastest of its protocols.

    Start-up + bytes/bandwidth of each.
    """
    sent_bytes = wire_bytes(fit.op, message_bytes, ranks)
    place = server(hw, fit)
    times = [
        started(
            protocol.latency_seconds,
            protocol.latency_per_rank_seconds,
            protocol.latency_per_doubling_seconds,
            ranks,
            cards_of(ranks, ranks, place[0]),
        )
        + sent_bytes / carried(fit.op, protocol.bandwidth_bytes_per_second, ranks, ranks, *place)
        for protocol in fit.protocols
    ]
    return np.asarray(np.broadcast_arrays(*times)).min(axis=0)


def exchange_protocol(
    hw: HardwareSpec, fit: ExchangeFit, degree: Number, forwarded: Number = 1.0
) -> tuple[Number, Number]:
    """Return (latency in seconds, payload bytes per second) of an exchange among ``degree`` devices.

    Over servers of s devices 1 - s/degree of the payload leaves through a device's card. What stays goes beside it at
    the rate of s devices; with one copy per server, ``forwarded`` copies of each go on to ranks inside. DeepEP's normal
    kernels at EP8 to EP64 on H800 are met within 8 %: EP16 is bound by NVLink, EP32 and EP64 by cards at 44 GB/s.
    """
    size = hw.server_devices
    points = sorted(fit.points, key=lambda point: point.degree)
    inside, across = ([each for each in points if (each.degree > size) == beyond] for beyond in (False, True))

    def at(places: Number, known: list[ExchangePoint], what: str) -> Number:
        held = [getattr(each, what) for each in known]
        return np.interp(np.log2(places), np.log2([each.degree for each in known]), held)

    rate = "bandwidth_bytes_per_second"
    within = at(np.minimum(degree, size), inside, rate) if inside else _reached(hw, -2)
    card = at(degree, across, rate) if across else _reached(hw, -1)
    leaving = np.maximum(1.0 - size / degree, 0.0)
    staying = np.where(leaving > 0, forwarded, 1.0) if fit.payload == "per_node" else 1.0 - leaving
    latency, reached = at(degree, points, "latency_seconds"), 1.0 / np.maximum(staying / within, leaving / card)
    return (latency, reached) if np.ndim(degree) else (float(latency), float(reached))


def _reached(hw: HardwareSpec, place: int) -> float:
    return hw.plane(hw.scopes[place].plane).reached_bytes_per_second


def exchange_seconds(hw: HardwareSpec, fit: ExchangeFit, payload_bytes: Number, degree: Number) -> Number:
    """Return latency + payload/bandwidth of tokens with eight experts each, any of all, as exchanges are measured."""
    servers = np.maximum(degree / hw.server_devices, 1.0)
    ranks, servers = (each * (1.0 - (1.0 - 1.0 / each) ** 8) for each in (degree, servers))
    latency, bandwidth = exchange_protocol(hw, fit, degree, ranks / servers)
    return latency + payload_bytes / bandwidth
