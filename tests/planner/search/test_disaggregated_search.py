"""Decode with attention and experts on devices of their own, from the grid to the manifest (xDeepServe section 5.2)."""

from dataclasses import replace
from functools import cache

import pytest

from ground.yamldata import parse_yaml
from models.loader import load_model
from planner.instances.candidates import Count
from planner.instances.grid import Grid, strategy_grid
from planner.instances.operating import DecodeServer
from planner.instances.space import Row, role_space
from planner.manifest.document import dump_manifest, parse_manifest
from planner.manifest.schema import Manifest
from planner.offers.decode_offers import decode_offers
from planner.plans.assemble import assemble
from planner.plans.expectation import expect
from planner.plans.plan import Plan
from planner.plans.recorded import expect_alone
from planner.search.search import search
from planner.serving.deployed import workload_of
from planner.strategy import check_strategy, format_strategy, parse_strategy
from runtime.simulate.run import simulate
from runtime.simulate.workload import closed_loop
from tests.questions import plan_over, small_question


def grid(model: str, role: str = "decode", devices: int = 768, step: int | None = 32) -> Grid:
    """Return the grid of one instance size."""
    return strategy_grid(load_model(model), [devices], 16, role=role, apart_step=step)  # type: ignore[arg-type]


def test_the_published_superpod_is_in_the_grid() -> None:
    """xDeepServe section 7.1: three domains of 160 dies beside 288; for decode of experts on a supernode alone."""
    published = parse_strategy("DP=160 x 3, EP=288")
    assert published in grid("deepseek-r1").strategies
    others = (grid("deepseek-r1", "prefill"), grid("deepseek-r1", step=None), grid("qwen3-32b"))
    assert not any(strategy.domains for other in others for strategy in other.strategies)


@pytest.mark.parametrize("model", ["deepseek-r1", "qwen3-235b-a22b", "kimi-k2"])
def test_every_shape_fits_the_model_and_fills_the_instance(model: str) -> None:
    """All devices are used, the model divides, and the notation reads back what it prints."""
    found = [strategy for strategy in grid(model).strategies if strategy.domains]
    assert found
    for strategy in found:
        check_strategy(strategy, load_model(model))
        assert strategy.devices == 768
        assert parse_strategy(format_strategy(strategy)) == strategy


def test_experts_that_do_not_fit_their_devices_are_no_instance() -> None:
    """Kimi-K2 in BF16 on 32 expert devices: 12 slots of 60 layers are 63 GB on each; in INT8 they hold them."""
    strategy = parse_strategy("DP=64 x 1, EP=32")
    for weights, expected in (("bf16", 0), ("int8", 1)):
        question = small_question("kimi-k2", "cm384", 96)
        machines = replace(question.decode, weights=weights)  # type: ignore[arg-type]
        asked = replace(question, decode=machines, tpot_seconds=1.0)
        assert len(decode_offers(asked, [Row(strategy, 0, 0)], Count(), 0.0)) == expected


def test_only_engines_that_set_attention_apart_are_offered_it() -> None:
    """Every shape with domains is cut by a rule of the engine that has none, and counted."""
    question = replace(small_question("deepseek-r1", "cm384", 128), engine="vllm-ascend@0.23.0")
    space = role_space(question, "decode")
    assert not any(row.strategy.domains for row in space.rows)
    assert space.cut["vllm-ascend@0.23.0: domains"] > 0


@cache
def planned() -> Plan:
    """Return the plan of one prefill instance and one decode instance of two domains."""
    question = small_question("qwen3-30b-a3b", "cm384", 128)
    rows = {
        "prefill": [Row(parse_strategy("DP=32, EP=32"), 0, 0)],
        "decode": [Row(parse_strategy("DP=32 x 2, EP=32"), 0, 0)],
    }
    return plan_over(question, rows)  # type: ignore[arg-type]


@cache
def manifest() -> Manifest:
    """Return the plan's manifest, written and read back."""
    text = dump_manifest(assemble(planned(), {"model": "qwen3-30b-a3b"}))
    return parse_manifest(parse_yaml(text, "m.yaml"), "m.yaml")


def test_all_domains_hold_requests() -> None:
    """64 DP groups in two domains of 32 run a batch each, and the prediction of the plan's batch agrees."""
    decode = planned().decode
    server = DecodeServer(decode.question, decode.candidate, 0.0)
    assert server.queue.most_requests == 64 * decode.candidate.batch
    assert decode.prediction.iteration_seconds == pytest.approx(decode.candidate.iteration_seconds, rel=0.05)
    assert decode.prediction.expert_memory is not None and decode.prediction.fits


def test_the_manifest_carries_the_domains() -> None:
    """Ranks of every domain and of the experts stand on 96 devices; the manifest alone predicts what the plan did."""
    pool = next(pool for pool in manifest().pools if pool.role == "decode")
    assert pool.degrees.domains == 2 and pool.devices_per_instance == 96 and len(pool.rank_table.rows) == 96
    assert pool.step_costs["decode"].rule == "disaggregated"
    assert manifest().kv_transfer is not None and manifest().kv_transfer.mapping.group_size == 64  # type: ignore[union-attr]
    rate, figures = manifest().workload.requests_per_second, manifest().predicted
    again = expect(manifest(), workload_of(manifest().workload), rate * (1 - 1e-9)).prediction
    assert again.tpot_seconds.mean == pytest.approx(figures.tpot_seconds.mean, rel=1e-3)


def test_one_request_at_a_time_is_simulated_as_expected() -> None:
    """A single request loads the experts once, not once per domain."""
    result = simulate(manifest(), closed_loop(manifest().workload, 1, 2))
    expected = expect_alone(manifest(), workload_of(manifest().workload)).prediction
    assert result.tpot_seconds.mean == pytest.approx(expected.tpot_seconds.mean, rel=1e-9)


def test_a_search_takes_it_where_it_carries_most() -> None:
    """Kimi-K2 of short contexts at 60 ms on CM384: two domains share experts that each colocated rank waits for.

    Without domains the same search carries less.
    """
    question = small_question("kimi-k2", "cm384", 768, lengths=(1024.0, 1024.0), ttft_seconds=2.0, tpot_seconds=0.06)
    best = search(question, beside=False).best
    assert best.decode.candidate.row.strategy.domains
    rows = {role: role_space(question, role).rows for role in ("prefill", "decode")}  # type: ignore[arg-type]
    rows["decode"] = [row for row in rows["decode"] if not row.strategy.domains]
    other = plan_over(question, rows)  # type: ignore[arg-type]
    assert other.requests_per_second < best.requests_per_second
