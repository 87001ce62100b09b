"""Compute terms against the catalogue's reference formulas on the same shape."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ground.errors import BadInput
from hardware import fits
from hardware.loader import hardware_names, load_hardware
from hardware.spec import HardwareSpec, MatmulFit
from models.loader import load_model
from models.spec import MoE
from planner.costs.roofline import (
    SIBLING_RESIDUAL,
    UNMEASURED_RESIDUAL,
    Roofline,
    collective,
    collective_fit,
    distinct,
    exchange_fit,
    exchanged,
    message_bytes,
    residual,
)
from planner.manifest.terms import communication_seconds, timing
from tests.instances import instance

SHAPE = st.integers(1, 40_000)
MACHINE = st.sampled_from(hardware_names())
OPS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"]


def gap(hardware: HardwareSpec, fit: MatmulFit) -> float:
    """What a kernel that was timed alone takes more in a captured graph."""
    return Roofline(hardware).gap_seconds if fit.timed_alone else 0.0


@settings(max_examples=40, deadline=None)
@given(machine=MACHINE, rows=SHAPE, columns=SHAPE, depth=SHAPE, number=st.integers(0, 9))
def test_dense_product_is_the_fit(machine: str, rows: int, columns: int, depth: int, number: int):
    """A dense product takes what hardware.fits.matmul_seconds says, for every machine and dtype."""
    hardware = load_hardware(machine)
    dtypes = sorted(set(hardware.kernels.gemm) & set(fits.INPUT_BYTES))
    dtype = dtypes[number % len(dtypes)]
    term = Roofline(hardware).matmul("x", "dense", {"tokens": 1.0}, columns, float(depth), dtype)
    expected = fits.matmul_seconds(
        hardware.device, dtype, hardware.kernels.gemm[dtype], fits.Product(1, rows, columns, depth)
    )
    seconds = timing(term, {"one": 1.0, "tokens": float(rows)}).seconds()
    assert seconds == pytest.approx(float(expected) + gap(hardware, hardware.kernels.gemm[dtype]), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(machine=MACHINE, groups=st.integers(1, 256), rows=SHAPE, columns=SHAPE, number=st.integers(0, 9))
def test_grouped_product_is_the_fit(machine: str, groups: int, rows: int, columns: int, number: int):
    """A grouped product of G experts with M rows each takes what hardware.fits.matmul_seconds says."""
    hardware = load_hardware(machine)
    dtypes = sorted(set(hardware.kernels.grouped_gemm) & set(fits.INPUT_BYTES))
    dtype, depth = dtypes[number % len(dtypes)], 7168
    term = Roofline(hardware).matmul("x", "experts", {"routed": 1.0}, columns, float(depth), dtype, groups={"hit": 1.0})
    expected = fits.matmul_seconds(
        hardware.device, dtype, hardware.kernels.grouped_gemm[dtype], fits.Product(groups, rows, columns, depth)
    )
    values = {"one": 1.0, "routed": float(groups * rows), "hit": float(groups)}
    expected = float(expected) + gap(hardware, hardware.kernels.grouped_gemm[dtype])
    assert timing(term, values).seconds() == pytest.approx(expected, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    machine=MACHINE,
    family=st.sampled_from(["mla_decode", "gqa_decode", "prefill_attention"]),
    queries=st.integers(1, 20_000),
    keys=st.integers(1, 200_000),
    moved=st.integers(0, 10**11),
    head=st.sampled_from([64.0, 128.0, 256.0]),
)
def test_attention_is_the_fit(machine: str, family: str, queries: int, keys: int, moved: int, head: float):
    """Attention over queries·keys pairs takes what hardware.fits.attention_seconds says of that mean length."""
    hardware = load_hardware(machine)
    fit = getattr(hardware.kernels, family)
    fit = replace(fit, half_head=50.0)
    term = Roofline(hardware).attention("x", fit, {"pairs": 1.0}, 640.0, {"chunk": 1.0}, {"one": float(moved)}, head)
    expected = fits.attention_seconds(hardware.device, fit, 640.0 * queries * keys, float(moved), float(keys), head)
    values = {"one": 1.0, "pairs": float(queries * keys), "chunk": float(queries)}
    assert timing(term, values).seconds() == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("machine", hardware_names())
def test_element_wise_work_is_memory_bound(machine: str):
    """Two kernels over S bytes: S / (bandwidth · fraction) and two start-ups."""
    hardware = load_hardware(machine)
    fit, bandwidth = hardware.kernels.vector, hardware.device.memory_bandwidth_bytes_per_second.value
    term = Roofline(hardware).vector("x", "dense", {"tokens": 7e4}, kernels=2)
    seconds = timing(term, {"tokens": 1000.0}).seconds()
    assert seconds == pytest.approx(7e7 / (bandwidth * fit.memory_fraction) + 2 * fit.floor_seconds)
    assert term.launches == 2


def test_gemm_of_cloudmatrix_section_5_5():
    """CloudMatrix384 section 5.5: 4 groups of 7168 x 4096 x 4096 at 597 INT8 TFLOPS take 1.611 ms."""
    hardware = load_hardware("cm384")
    term = Roofline(hardware).matmul("x", "experts", {"routed": 1.0}, 4096, 4096.0, "int8", groups={"hit": 1.0})
    seconds = timing(term, {"routed": 4 * 7168.0, "hit": 4.0}).seconds()
    assert seconds == pytest.approx(2 * 4 * 7168 * 4096 * 4096 / 597e12, rel=0.05)


def test_kernel_without_rows_is_not_launched():
    """A product of no rows costs neither its start-up nor its weights."""
    term = Roofline(load_hardware("h800")).matmul("x", "dense", {"chunk": 1.0}, 4096, 4096.0, "fp8")
    assert timing(term, {"one": 1.0, "chunk": 0.0}).seconds() == 0.0


def test_unmeasured_fit_is_granted_an_error():
    """A fit without a residual of its own counts with an assumed one, larger where another machine lends it."""
    assert residual(load_hardware("h800").kernels.vector) == SIBLING_RESIDUAL
    lent = [fit for fit in load_hardware("b200").collectives if (fit.note or "").startswith("of h200")]
    assert lent and {residual(fit) for fit in lent} == {UNMEASURED_RESIDUAL}


def test_prefill_runs_at_the_clock_that_power_leaves():
    """H800: 865 of 990 TFLOPS under lasting matrix work; decode and machines without that figure keep the rates."""
    rates = {
        phase: Roofline.of(instance("qwen3-32b", "h800", phase, "fp8")).sustained for phase in ("prefill", "decode")
    }
    assert rates == {"prefill": 0.874, "decode": 1.0}
    assert Roofline.of(instance("qwen3-32b", "h20", "prefill", "fp8")).sustained == 1.0


@settings(max_examples=40, deadline=None)
@given(
    machine=st.sampled_from(["cm384", "910b", "h800", "h200"]),
    op=st.sampled_from(OPS),
    ranks=st.sampled_from([2, 4, 8, 16, 32, 64]),
    message=st.integers(1, 10**9),
    in_graph=st.booleans(),
)
def test_collective_is_the_fit(machine: str, op: str, ranks: int, message: int, in_graph: bool):
    """A collective takes what hardware.fits.collective_seconds says of its fit, protocol by protocol."""
    hardware = load_hardware(machine)
    term = collective(hardware, op, ranks, {"tokens": 1.0}, name="x", stage="attention", in_graph=in_graph)
    expected = fits.collective_seconds(
        hardware, collective_fit(hardware, op, ranks, in_graph), float(message), float(ranks)
    )
    assert communication_seconds(term, {"tokens": float(message)}) == pytest.approx(float(expected), rel=1e-9)


def test_table_7_of_cloudmatrix():
    """CloudMatrix384 Table 7, 128 tokens per rank at EP256: dispatch 152 us, combine 149 us."""
    hardware, moe = load_hardware("cm384"), load_model("deepseek-r1").moe
    for direction, measured in (("dispatch", 152e-6), ("combine", 149e-6)):
        fit = exchange_fit(hardware, direction, "low_latency")
        copies, (latency, rate) = exchanged(hardware, fit, moe, 256, False)
        payload = 128 * copies * message_bytes(fit, 7168, "int8")
        assert latency + payload / rate == fits.exchange_seconds(hardware, fit, payload, 256)
        assert fits.exchange_seconds(hardware, fit, payload, 256) == pytest.approx(measured, rel=0.02)


def test_messages_of_one_token():
    """CloudMatrix384 section 4.2.1: dispatch 7168 + 512 B, combine 14336 B; BF16 experts get BF16 both ways."""
    hardware = load_hardware("cm384")
    dispatch, combine = (exchange_fit(hardware, way, "low_latency") for way in ("dispatch", "combine"))
    assert message_bytes(dispatch, 7168, "int8") == 7168 + 512
    assert message_bytes(combine, 7168, "int8") == 14336
    assert message_bytes(dispatch, 4096, "bf16") == message_bytes(combine, 4096, "bf16") == 8192


def test_nodes_reached_by_group_limited_routing():
    """DeepSeek-V3 section 2.1.2, 4 of 8 groups over 4 nodes: 4·(1 - C(6,4)/C(8,4)) = 22/7 nodes; over 8 nodes 4."""
    moe = load_model("deepseek-r1").moe
    assert distinct(moe, 1) == 1.0
    assert distinct(moe, 4) == pytest.approx(22 / 7)
    assert distinct(moe, 8) == pytest.approx(4.0)
    assert distinct(moe, 16) == pytest.approx(8 * (1 - (7 / 8) ** 8))


def test_nodes_reached_match_sampled_routing():
    """Eight independent choices over five nodes reach 5·(1 - 0.8^8) of them; sampled 20,000 times."""
    moe = MoE(experts=100, experts_per_token=8, intermediate_size=8)
    chosen = np.random.default_rng(1).integers(0, 5, (20_000, 8))
    sampled = np.mean([len(set(row)) for row in chosen.tolist()])
    assert distinct(moe, 5) == pytest.approx(sampled, rel=0.01)


def test_copies_of_a_token():
    """One copy per expert, one more for a dedicated shared expert; DeepEP's normal kernels one per rank or server."""
    hardware, moe = load_hardware("h800"), load_model("deepseek-r1").moe
    low, normal = (exchange_fit(hardware, "dispatch", mode) for mode in ("low_latency", "normal"))
    assert [exchanged(hardware, low, moe, 32, shared)[0] for shared in (False, True)] == [8, 9]
    copies, (latency, rate) = exchanged(hardware, normal, moe, np.array([8, 32]), False)
    assert np.asarray(copies) == pytest.approx(np.array([4.0, 22 / 7]))
    alone = np.array([exchanged(hardware, normal, moe, degree, False)[1] for degree in (8, 32)])
    found = np.array([latency, rate]).T
    assert found == pytest.approx(alone)


def test_missing_fits_name_the_field():
    """Hardware without a fit of the collective or exchange is refused by its name."""
    bare = replace(load_hardware("h800"), collectives=[], exchanges=[])
    with pytest.raises(BadInput, match="h800: collectives has no fit of all_reduce"):
        collective_fit(bare, "all_reduce", 8, True)
    with pytest.raises(BadInput, match="h800: exchanges has no dispatch fit"):
        exchange_fit(bare, "dispatch", "normal")
