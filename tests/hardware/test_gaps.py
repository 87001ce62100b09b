"""What entries lack, and what is said to stand in for it."""

from dataclasses import replace

import pytest

from hardware.loader import gaps, hardware_names, load_hardware
from planner.costs.roofline import collective_fit


def test_what_is_not_stated_is_named_with_what_stands_in() -> None:
    """Of an entry robbed of a few fits, each is named, and the fit that stands in is the one that is used."""
    hw = load_hardware("h100")
    kept = [fit for fit in hw.collectives if (fit.op, fit.scope) != ("all_gather", "node") and not fit.in_graph]
    exchanges = [fit for fit in hw.exchanges if fit.mode != "normal" and fit.direction != "combine"]
    robbed = replace(hw, collectives=kept, exchanges=exchanges, price_usd_per_chip_hour=None)
    found = {gap.field: gap.instead for gap in gaps(robbed)}
    assert found == {
        "kernels.mla_decode_fp8": "MLA with a KV cache in FP8 is costed as if its products were in BF16",
        "collectives[all_gather node]": "the fit of the scope cluster stands in",
        "collectives[all_reduce node, in_graph]": "decode pays the start-up of collectives outside a captured graph",
        "exchanges[dispatch normal]": "the fit of the mode low_latency stands in",
        "exchanges[combine low_latency]": "expert parallelism is refused",
        "exchanges[combine normal]": "expert parallelism is refused",
        "price_usd_per_chip_hour": "plans state no cost, and cost cannot be the objective",
    }
    assert collective_fit(robbed, "all_gather", 8, in_graph=False).scope == "cluster"


def test_a_peak_without_fits_is_not_used() -> None:
    """An entry that states a peak and cannot multiply it says so."""
    hw = load_hardware("h100")
    kernels = replace(
        hw.kernels, grouped_gemm={name: fit for name, fit in hw.kernels.grouped_gemm.items() if name != "fp8"}
    )
    gap, _ = gaps(replace(hw, kernels=kernels))
    told = "its peak is not used; --weights takes bf16 or int8"
    assert (gap.field, gap.instead) == ("kernels.grouped_gemm.fp8", told)


@pytest.mark.parametrize("name", hardware_names())
def test_catalogue_entries_lack_no_more_than_is_known(name: str) -> None:
    """Sparse kernels of some, decode over FP8 latents but on the H20, and prices and power that nobody publishes."""
    accepted = {"kernels.sparse_decode", "kernels.sparse_prefill", "power_watts_per_chip", "price_usd_per_chip_hour"}
    accepted |= set() if name in ("h20", "h20-3e") else {"kernels.mla_decode_fp8"}
    missing = {gap.field for gap in gaps(load_hardware(name))}
    assert {field for field in missing if "in_graph" not in field} <= accepted
