"""Operators outside the shapes that their fits were measured at are named."""

from dataclasses import replace

import pytest

from hardware.domains import MARGIN, domains
from planner.costs.extrapolation import extrapolated
from planner.costs.latency import decode_load
from planner.costs.predict import predict
from tests.instances import cloudmatrix_decode, even_cost, instance
from tests.planner.search.test_ablations import DECODE


def test_domains_are_those_of_the_packaged_measurements() -> None:
    """DeepGEMM's dense rows on H800 are 64 to 4,096; NCCL's on H100 are of 8 ranks; lent machines have none."""
    rows = domains("h800")["gemm fp8"]
    assert (rows.quantity, rows.low, rows.high) == ("rows per group", 64, 4096)
    assert rows.outside(64 / MARGIN, 1) is None and rows.outside(64 / MARGIN / 1.01, 1)
    reduced = domains("h100")["all_reduce node"]
    assert (reduced.least_ranks, reduced.most_ranks) == (8, 8)
    assert reduced.outside(reduced.high, 4) is None
    assert reduced.outside(reduced.high, 2) == ("ranks", 2, reduced.least_ranks, reduced.most_ranks)
    assert domains("mi300x") == {}


def test_an_operator_outside_is_named_with_the_range() -> None:
    """One request a GPU: FP8 products of a single row, where 64 to 4,096 were measured."""
    deployment = instance("qwen3-32b", "h800", "decode", "fp8")
    cost = even_cost(deployment)
    alone = {row.operator: row for row in extrapolated("h800", cost, decode_load(deployment, 1.0, 4096.0), 1)}
    assert (alone["qkv_proj"].value, alone["qkv_proj"].low, alone["qkv_proj"].high) == (1, 64, 4096)
    many = {row.operator for row in extrapolated("h800", cost, decode_load(deployment, 512.0, 4096.0), 1)}
    assert "qkv_proj" not in many


@pytest.mark.parametrize("microbatches", [1, 2])
def test_rows_are_those_of_one_microbatch(microbatches: int) -> None:
    """Two microbatches halve the rows of a product."""
    deployment = cloudmatrix_decode()
    cost = even_cost(deployment)
    found = extrapolated("cm384", cost, decode_load(deployment, 1e5, 4096.0), microbatches)
    rows = next(row for row in found if row.operator == "o_proj")
    assert rows.value == pytest.approx(2e5 / microbatches)


def test_a_prediction_carries_what_is_outside() -> None:
    """CloudMatrix384 at its published batch is inside; a sixtieth of it is not."""
    assert "o_proj" not in {row.operator for row in predict(DECODE).extrapolated}
    assert predict(replace(DECODE, batch=30_000.0)).extrapolated
