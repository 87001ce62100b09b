"""The catalogue's fits against the operator measurements that they rest on."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hardware import fits
from hardware.calibrate import errors
from hardware.loader import hardware_names, load_hardware
from hardware.measurements import read_measurements
from hardware.spec import CollectiveFit, CollectiveOp, ExchangeFit, ExchangePoint, HardwareSpec, MatmulFit
from planner.costs.roofline import collective_fit

WORST_MEDIAN = 0.15
MATMUL = MatmulFit(
    kind="assumed", source="test", version="1", peak_fraction=0.7, half_rows=100, half_depth=400,
    memory_fraction=0.8, serial_fraction=0.3, floor_seconds=3e-6,
)  # fmt: skip
EXCHANGE = ExchangeFit(
    kind="assumed", source="test", version="1", direction="dispatch", mode="low_latency", payload="per_expert",
    message_bytes_per_hidden=1, message_bytes_fixed=224,
    points=[
        ExchangePoint(degree=8, latency_seconds=1e-5, bandwidth_bytes_per_second=3e11),
        ExchangePoint(degree=64, latency_seconds=3e-5, bandwidth_bytes_per_second=5e10),
    ],
)  # fmt: skip
DEVICE = load_hardware("h800").device
SIZES = st.integers(1, 20_000)
FOUR_NODES_GB = [0.65, 1.27, 2.35, 4.06, 6.99, 12.47, 20.79, 31.63, 50.61, 71.80]
RINGS = st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"])


def stated(hw: HardwareSpec) -> dict[str, float]:
    """Return the median residual that the entry states for each fit, by the residual table's kernel names."""
    named = {f"gemm {dtype}": fit.median_residual for dtype, fit in hw.kernels.gemm.items()}
    named |= {f"grouped_gemm {dtype}": fit.median_residual for dtype, fit in hw.kernels.grouped_gemm.items()}
    for family in ("mla_decode", "gqa_decode", "prefill_attention", "vector"):
        named[family] = getattr(hw.kernels, family).median_residual
    for collective in hw.collectives:
        suffix = " in graph" if collective.in_graph else ""
        named[f"{collective.op} {collective.scope}{suffix}"] = collective.median_residual
    named |= {f"{fit.direction} {fit.mode}": fit.median_residual for fit in hw.exchanges}
    return {name: value for name, value in named.items() if value is not None}


@cache
def medians(name: str) -> dict[str, float]:
    """Return the median |fitted/measured - 1| of each kernel of an entry over the packaged measurements."""
    rows = read_measurements(sorted(fits.CALIBRATION.glob("*.csv")), name)
    found = errors(load_hardware(name), rows)
    return {family: float(np.median(np.abs(own))) for family, own in found.items()}


@pytest.mark.parametrize("name", hardware_names())
def test_stated_residuals_are_those_of_the_measurements(name: str) -> None:
    """Recomputing every calibration row gives the median residuals that the entry states, and no others; all small."""
    found = medians(name)
    assert found == pytest.approx(stated(load_hardware(name)), abs=0.02)
    assert {kernel: value for kernel, value in found.items() if value >= WORST_MEDIAN} == {}


def test_every_calibration_row_is_used() -> None:
    """A measurement that no entry uses would not belong in the package."""
    names = set(hardware_names())
    for path in fits.CALIBRATION.glob("*.csv"):
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        assert header.split(",")[:2] == ["device", "used_by"]
        assert all(set(line.split(",")[1].split()) <= names for line in lines)


@pytest.mark.parametrize(
    ("machine", "dtype", "product", "published", "off"),
    [
        ("h800", "fp8", fits.Product(1, 4096, 7168, 16384), 1426e12, 0.1),
        ("cm384", "int8", fits.Product(4, 7168, 4096, 8192), 622e12, 0.05),
    ],
    ids=["DeepGEMM", "CloudMatrix384"],
)
def test_products_reach_what_was_published(machine, dtype, product, published, off):
    """FLOP/s of a dense product in FP8 (DeepGEMM README, March 2025), and of a grouped one in INT8 (arXiv 2506.12708,
    section 5.5).
    """
    hw = load_hardware(machine)
    known = hw.kernels.gemm if product.groups == 1 else hw.kernels.grouped_gemm
    seconds = fits.matmul_seconds(hw.device, dtype, known[dtype], product)
    assert product.flops() / seconds == pytest.approx(published, rel=off)


@pytest.mark.parametrize(("degree", "direction", "published"), [(8, "dispatch", 116e-6), (256, "combine", 149e-6)])
def test_cloudmatrix_exchange_of_128_tokens(degree: int, direction: str, published: float) -> None:
    """Dispatch and combine of 128 tokens, top 8, hidden 7168 (arXiv 2506.12708, Table 7)."""
    hw = load_hardware("cm384")
    fit = next(fit for fit in hw.exchanges if (fit.direction, fit.mode) == (direction, "low_latency"))
    payload = 128 * 8 * (7168 * fit.message_bytes_per_hidden + fit.message_bytes_fixed)
    assert fits.exchange_seconds(hw, fit, payload, degree) == pytest.approx(published, rel=0.01)


def test_moved_bytes_are_those_of_deepgemm() -> None:
    """64x2112x7168 in fp8 at 206 TFLOPS moves 1688 GB/s (DeepGEMM README)."""
    product = fits.Product(1, 64, 2112, 7168)
    assert product.moved_bytes("fp8") / (product.flops() / 206e12) == pytest.approx(1688e9, rel=0.005)


@pytest.mark.parametrize(("op", "sent"), [("all_reduce", 1400), ("all_gather", 700), ("point_to_point", 800)])
def test_wire_bytes_follow_the_bus_bandwidth_factors(op: CollectiveOp, sent: float) -> None:
    """Of eight ranks and 800 bytes."""
    assert fits.wire_bytes(op, 800, 8) == sent


@settings(max_examples=30, deadline=None)
@given(SIZES, SIZES, SIZES)
def test_more_rows_never_take_less_time(rows: int, columns: int, depth: int) -> None:
    """A product with one row more is not faster, and none beats its floor."""
    shapes = fits.Product(1.0, np.array([rows, rows + 1.0]), float(columns), float(depth))
    small, large = np.asarray(fits.matmul_seconds(DEVICE, "bf16", MATMUL, shapes))
    assert MATMUL.floor_seconds <= small <= large


def test_exchange_interpolates_and_holds_its_ends() -> None:
    """Constant outside the points; between them linear in log2(degree): EP16 lies a third of the way from 8 to 64."""
    assert fits.exchange_seconds(load_hardware("h800"), EXCHANGE, 0.0, 4) == pytest.approx(1e-5)
    assert fits.exchange_seconds(load_hardware("h800"), EXCHANGE, 0.0, 512) == pytest.approx(3e-5)
    assert fits.exchange_seconds(load_hardware("h800"), EXCHANGE, 0.0, 16) == pytest.approx(1e-5 + 2e-5 / 3)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=5))
def test_arrays_give_what_scalars_give(shapes: list[tuple[int, int, int]]) -> None:
    """One call on arrays equals a loop over its elements."""
    rows, columns, depth = (np.array(axis, dtype=float) for axis in zip(*shapes, strict=True))
    together = fits.matmul_seconds(DEVICE, "fp8", MATMUL, fits.Product(1.0, rows, columns, depth))
    apart = [fits.matmul_seconds(DEVICE, "fp8", MATMUL, fits.Product(1.0, *map(float, shape))) for shape in shapes]
    assert np.allclose(np.asarray(together), np.asarray(apart))


@pytest.mark.parametrize("name", hardware_names())
def test_in_graph_never_slower_than_outside(name: str) -> None:
    """A captured graph may use every protocol that is there without one."""
    hw = load_hardware(name)
    sizes = np.logspace(2, 9, 30)
    for captured in (fit for fit in hw.collectives if fit.in_graph):
        eager = next(
            fit
            for fit in hw.collectives
            if (fit.op, fit.scope, fit.ranks, fit.in_graph) == (captured.op, captured.scope, captured.ranks, False)
        )
        inside, outside = (np.asarray(fits.collective_seconds(hw, fit, sizes, 8)) for fit in (captured, eager))
        assert (inside <= outside).all()


FOUR_NODES_GB += [142.90, 197.77, 260.50, 283.23, 309.91, 365.99, 371.26, 374.66, 376.14, 376.71]


def over_servers(name: str, op: CollectiveOp) -> tuple[HardwareSpec, CollectiveFit]:
    """Return a machine and its collective over servers."""
    hw = load_hardware(name)
    return hw, next(fit for fit in hw.collectives if (fit.op, fit.scope) == (op, "cluster"))


def test_all_reduce_over_four_nodes_is_as_measured() -> None:
    """Bus bandwidth over 32 B200, 32 KiB to 16 GiB (stas00/ml-engineering, network/benchmarks/README.md)."""
    hw, fit = over_servers("b200", "all_reduce")
    sizes = 2.0 ** np.arange(15, 35)
    measured = fits.wire_bytes("all_reduce", sizes, 32) / (np.array(FOUR_NODES_GB) * 1e9)
    errors = np.abs(fits.collective_seconds(hw, fit, sizes, 32) / measured - 1)
    assert errors.max() < 0.25
    assert np.median(errors) < 0.07


@pytest.mark.parametrize(("name", "ranks", "measured", "off"), [("h20", 16, 46e-6, 0.02), ("b200", 32, 92e-6, 0.02)])
def test_trees_start_up_by_the_chain_in_a_server_and_doublings_of_servers(name, ranks, measured, off):
    """16 H20 (NVIDIA/nccl issue 1244) and 32 B200 as measured; twice the servers take the same more each time."""
    hw, fit = over_servers(name, "all_reduce")
    times = [float(fits.collective_seconds(hw, fit, 1.0, ranks * 2**power)) for power in range(4)]
    assert times[0] == pytest.approx(measured, rel=off)
    assert np.diff(times) == pytest.approx(fit.protocols[0].latency_per_doubling_seconds)


@pytest.mark.parametrize(("mode", "off", "bound_inside"), [("low_latency", 0.02, 0.02), ("normal", 0.03, 0.13)])
def test_deepep_over_servers_is_as_published(mode: str, off: float, bound_inside: float) -> None:
    """Times of DeepEP's README on H800 with a card of 400 Gbit/s: EP16 of normal kernels has no rate of its own, and is
    bound by NVLink.
    """
    hw = load_hardware("h800")
    for row in read_measurements([fits.CALIBRATION / "exchanges.csv"], "h800"):
        if row.words["mode"] == mode:
            fit = next(each for each in hw.exchanges if (each.direction, each.mode) == (row.what, mode))
            degree, allowed = row.shape["degree"], bound_inside if row.shape["degree"] == 16 else off
            seconds = fits.exchange_seconds(hw, fit, row.shape["payload_bytes"], degree)
            assert seconds == pytest.approx(row.seconds, rel=allowed)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(hardware_names()), st.integers(2, 600))
def test_cards_carry_no_more_than_they_can(name: str, degree: int) -> None:
    """What leaves a server goes through cards at most at their nominal rate, in every catalogue entry."""
    hw = load_hardware(name)
    for fit in hw.exchanges:
        rate = fits.exchange_protocol(hw, fit, degree)[1]
        leaving = max(1 - hw.server_devices / degree, 0.0)
        assert rate * leaving <= hw.scopes[-1].bandwidth_bytes_per_second.value * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["h100", "b300", "mi300x"]), st.integers(2, 9), st.integers(1, 8))
def test_an_all_to_all_passes_cards_with_what_leaves(name: str, servers: int, cards: int) -> None:
    """Of n - 1 parts n - c leave by the rank's own card, and c - 1 stay; with one rank a server all leave."""
    hw, fit = over_servers(name, "all_to_all")
    devices, inside = fits.server(hw, fit)
    (rate,) = (each.bandwidth_bytes_per_second for each in fit.protocols)
    ranks = servers * cards
    reached = float(fits.carried("all_to_all", rate, ranks, servers * devices, devices, inside))
    assert reached == pytest.approx((ranks - 1) / max((ranks - cards) / rate, (cards - 1) / inside))
    assert rate <= reached * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["h100", "b300", "a100", "l40s", "mi300x"]), RINGS, st.integers(2, 8), st.integers(1, 64))
def test_a_ring_uses_the_cards_of_its_devices(name: str, op: CollectiveOp, servers: int, cards: int) -> None:
    """One card a server carries its own rate, several together, up to what a server carries inside."""
    hw, fit = over_servers(name, op)
    devices, inside = fits.server(hw, fit)
    cards = min(cards, int(devices))
    for rate in (each.bandwidth_bytes_per_second for each in fit.protocols):
        alone, pooled, faster = (
            float(fits.carried(op, own, servers * c, servers * devices, devices, inside))
            for own, c in ((rate, 1), (rate, cards), (rate * 1.1, cards))
        )
        assert alone == rate
        assert pooled == pytest.approx(min(cards * rate, inside) if cards > 1 else rate)
        assert faster >= pooled


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["h100", "910b"]), RINGS, st.floats(1e3, 1e10))
def test_collectives_over_servers_grow_smoothly_with_the_message(name: str, op: CollectiveOp, size: float) -> None:
    """A per cent more to send takes up to a per cent longer, and no less time."""
    hw, fit = over_servers(name, op)
    small, large = np.asarray(fits.collective_seconds(hw, fit, np.array([size, size * 1.01]), 16))
    assert small <= large <= small * 1.0101


def test_cards_of_a_host_without_nvlink_share_its_bus():
    """An L40S host sums 34 MB over two, four and eight cards in 1.7, 9.8 and 38.9 ms (AIConfigurator, NCCL 2.27.3)."""
    hw = load_hardware("l40s")
    for ranks, measured in ((2, 1.69e-3), (4, 9.84e-3), (8, 38.9e-3)):
        fit = collective_fit(hw, "all_reduce", ranks, in_graph=False)
        assert fits.collective_seconds(hw, fit, 33.55e6, ranks) == pytest.approx(measured, rel=0.1)
    over = collective_fit(hw, "all_reduce", 16, in_graph=True)
    assert fits.collective_seconds(hw, over, 33.55e6, 16) > 38.9e-3


@pytest.mark.parametrize(("name", "ranks"), [("l40s", 2), ("l40s", 4), ("l40s", 8), ("rtx-pro-6000", 8)])
def test_exchanges_inside_a_host_without_nvlink_are_its_all_to_all(name: str, ranks: int) -> None:
    """They took an H100's NVLink rate by the ratio of the links, 15 times what eight L40S reach together."""
    hw = load_hardware(name)
    (protocol,) = collective_fit(hw, "all_to_all", ranks, in_graph=False).protocols
    for fit in hw.exchanges:
        _, rate = fits.exchange_protocol(hw, fit, ranks)
        assert rate == pytest.approx(protocol.bandwidth_bytes_per_second * ranks / (ranks - 1), rel=0.01)
