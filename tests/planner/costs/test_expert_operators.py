"""Experts whose sizes no kernel was measured with."""

from dataclasses import replace

import numpy as np
import pytest

from hardware import engines
from hardware.engines import with_engine
from hardware.loader import load_hardware
from planner.costs.expert_operators import curve_of, expert_terms, measured_experts, products, routed_terms
from planner.costs.roofline import Roofline
from planner.manifest.terms import timing
from planner.strategy import parse_strategy
from scripts.fit_held_out import experts, residuals, without
from tests.instances import instance


@pytest.mark.parametrize(
    ("machine", "engine", "weights"),
    [("h200", "vllm", "fp8"), ("b200", "vllm", "nvfp4"), ("a100", "sglang", "bf16"), ("b200", "trtllm", "fp8")],
)
def test_left_out_curves_are_met_by_those_of_other_sizes(machine: str, engine: str, weights: str):
    """Better than by the nearest alone or a roofline, and without bias at thousands of tokens."""
    like, nearest, roofline = [], [], []
    for key, line in list(engines._lines(machine).items()):
        if key[:2] != (engine, weights):
            continue
        known = engines._curves(engine, line)
        own = experts(known.shape, machine, engine, weights)
        found, measured = without(machine, own, lambda other, key=key: other == key), np.array(known.seconds(1, 1))
        assert found.shape != known.shape
        like.append(np.log(np.array(curve_of(own, found, 1)) / measured))
        nearest.append(np.log(np.array(curve_of(own, found._replace(alike=()), 1)) / measured))
        tokens = 2.0 ** np.arange(measured.size)
        chosen, count = known.shape[2:]
        values = {"one": 1.0, "routed": tokens * chosen, "hit": count * (1 - (1 - chosen / count) ** tokens)}
        terms = products(Roofline.of(own), known.shape, 1, own.weights, {"routed": 1.0})
        roofline.append(np.log(sum(timing(term, values).seconds() for term in terms) / measured))
    assert len(like) > 9
    assert np.mean(np.abs(like)) < np.mean(np.abs(nearest))
    assert np.median(np.abs(like)) < 0.75 * np.median(np.abs(roofline))
    assert abs(np.median(np.array(like)[:, 12:])) < 0.1


def test_residuals_are_those_of_curves_left_out():
    """`python -m scripts.fit_held_out --write` brings the file up to date; here of the engine with fewest curves."""
    assert {case: engines.held_out("trtllm@1.3.0", case) for case in ("alike", "lent", "lent alike")} == {
        case: off for case, (_, off) in residuals("trtllm").items()
    }
    deployment = experts((5120, 1536, 8, 160), "h200", "vllm", "fp8")
    (term,) = routed_terms(deployment)
    assert term.residual == engines.held_out("vllm", "alike")


def test_degrees_of_many_instances_at_once():
    """Arrays of degrees give the columns that each of them gives."""
    own = experts((5120, 1536, 8, 160), "h200", "vllm", "fp8")
    found = measured_experts(own)
    assert found.shape != (5120, 1536, 8, 160)
    tp = np.array([1.0, 4.0])
    both = replace(own, strategy=own.strategy._replace(moe_tp=tp))  # type: ignore[arg-type]
    columns = [curve_of(replace(own, strategy=own.strategy._replace(moe_tp=each)), found, 1.0) for each in (1, 4)]
    assert np.array(curve_of(both, found, np.ones(2))) == pytest.approx(np.array(columns).T)


def test_experts_spread_over_ranks_where_they_were_measured_cut():
    """The curve of as many ways cut, and beyond those measured one that goes on falling."""
    own = experts((4096, 1536, 8, 128), "h100", "trtllm", "fp8")
    found = measured_experts(own)
    assert max(found.expert) == 4
    four, eight = (np.array(curve_of(own, found, float(ranks))) for ranks in (4, 8))
    assert four == pytest.approx(np.exp(found.tensor[4]))
    assert np.all(eight < four) and np.all(eight > four / 2.5)


def test_another_product_over_ranks_is_the_engines_own():
    """FP8 experts are cut by Triton under vLLM and spread by CUTLASS: 4,096 tokens, even 364 us at EP 8, times skew."""
    found = measured_experts(experts((4096, 1536, 8, 128), "h200", "vllm", "fp8"))
    assert "triton" in found.kernel and "cutlass" in found.kernel
    assert found.seconds(1, 8)[12] == pytest.approx(364e-6 * 1.115, rel=0.02)


@pytest.mark.parametrize("machine", ["l40s", "rtx-pro-6000"])
def test_experts_that_a_cache_held_while_timed_are_read_from_memory(machine: str):
    """Up to four tokens hit 29 of 128 experts, 273 MB: as far as a cache holds them no time is below what they take."""
    (term, *_) = routed_terms(experts((2048, 768, 8, 128), machine, "sglang", "bf16"))
    hit = 128 * (1 - (1 - 8 / 128) ** np.array([1.0, 2.0]))
    assert np.all(np.array(term.seconds[:2]) > 0.995 * hit * 3 * 2048 * 768 * 2.0 / term.bytes_per_second)


def test_a_borrower_routes_within_the_kernel_that_it_is_lent():
    """vLLM finds out in other kernels which experts a rank has, so EP takes it longer than TP; not TensorRT-LLM."""
    machine, shape = load_hardware("h200"), (2880, 2880, 4, 128)
    own, lent = (engines.expert_curves(machine, engine, "mxfp4", shape) for engine in ("vllm", "trtllm"))
    assert own.seconds(1, 8)[0] > 1.5 * own.seconds(8, 1)[0] == 1.5 * lent.seconds(8, 1)[0]
    assert lent.seconds(1, 8) == lent.seconds(8, 1)


@pytest.mark.parametrize(
    ("engine", "layout", "fused"), [("sglang", "TP=8", 1), ("sglang", "TP=8, EP=8", 0), ("vllm", "TP=8", 0)]
)
def test_the_shared_expert_starts_with_the_routed_ones_where_one_kernel_computes_both(engine, layout, fused):
    """SGLang's Triton kernel does, unless experts are spread over ranks."""
    own = instance("deepseek-r1", "h200", "decode", "fp8", strategy=parse_strategy(layout), engine=engine)
    own = replace(own, hardware=with_engine(own.hardware, engine))
    shared = [term for term in expert_terms(own) if term.stage == "shared"]
    assert shared and all((term.floor_seconds == 0) == fused for term in shared)  # type: ignore[union-attr]
