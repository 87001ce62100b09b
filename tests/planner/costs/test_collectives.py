"""Communication terms against the catalogue's reference formulas, message formats and copies per token."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ground.errors import BadInput
from hardware import fits
from hardware.loader import load_hardware
from models.loader import load_model
from models.spec import MoE
from planner.costs.collectives import (
    collective,
    collective_fit,
    distinct,
    exchange_copies,
    exchange_fit,
    message_bytes,
)
from planner.manifest.terms import communication_seconds

OPS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"]


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
    expected = fits.collective_seconds(collective_fit(hardware, op, ranks, in_graph), float(message), float(ranks))
    assert communication_seconds(term, {"tokens": float(message)}) == pytest.approx(float(expected), rel=1e-9)


def test_collectives_of_many_sizes_at_once():
    """An array of group sizes, one of them a single device, is the loop over them; one device costs nothing."""
    hardware, sizes = load_hardware("cm384"), np.array([1, 2, 8, 16, 32, 64])
    together = collective(hardware, "all_reduce", sizes, {"one": 1e6}, name="x", stage="attention", in_graph=True)
    seconds = communication_seconds(together, {"one": 1.0})
    alone = [
        communication_seconds(
            collective(hardware, "all_reduce", int(n), {"one": 1e6}, name="x", stage="attention", in_graph=True),
            {"one": 1.0},
        )
        for n in sizes[1:]
    ]
    assert np.asarray(seconds)[1:] == pytest.approx(np.array(alone), rel=1e-12)
    assert np.asarray(seconds)[0] == 0.0


def test_table_7_of_cloudmatrix():
    """CloudMatrix384 Table 7, 128 tokens per rank at EP256: dispatch 152 us, combine 149 us."""
    hardware, moe = load_hardware("cm384"), load_model("deepseek-r1").moe
    for direction, measured in (("dispatch", 152e-6), ("combine", 149e-6)):
        fit = exchange_fit(hardware, direction, "low_latency")
        payload = 128 * exchange_copies(fit, moe, 16, False) * message_bytes(fit, 7168, "int8")
        assert fits.exchange_seconds(fit, payload, 256) == pytest.approx(measured, rel=0.02)


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


def test_nodes_reached_match_sampled_routing():
    """Eight independent choices over five nodes reach 5·(1 - 0.8^8) of them; sampled 20,000 times."""
    moe = MoE(experts=100, experts_per_token=8, intermediate_size=8)
    chosen = np.random.default_rng(1).integers(0, 5, (20_000, 8))
    sampled = np.mean([len(set(row)) for row in chosen.tolist()])
    assert distinct(moe, 5) == pytest.approx(sampled, rel=0.01)


def test_copies_of_a_token():
    """One copy per expert, one more for a dedicated shared expert; DeepEP's normal kernels one per node."""
    moe = load_model("deepseek-r1").moe
    low = exchange_fit(load_hardware("h800"), "dispatch", "low_latency")
    normal = exchange_fit(load_hardware("h800"), "dispatch", "normal")
    assert (exchange_copies(low, moe, 4, False), exchange_copies(low, moe, 4, True)) == (8, 9)
    assert np.asarray(exchange_copies(normal, moe, np.array([1, 4]), False)) == pytest.approx(np.array([1.0, 22 / 7]))


def test_missing_fits_name_the_field():
    """Hardware without a fit of the collective or exchange is refused by its name."""
    bare = replace(load_hardware("h800"), collectives=[], exchanges=[])
    with pytest.raises(BadInput, match="h800: collectives has no fit of all_reduce"):
        collective_fit(bare, "all_reduce", 8, True)
    with pytest.raises(BadInput, match="h800: exchanges has no dispatch fit"):
        exchange_fit(bare, "dispatch", "normal")
