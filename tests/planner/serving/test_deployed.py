"""Pools of a manifest as they are played: each limit, link and length where it stands in the manifest."""

from dataclasses import replace

import numpy as np
import pytest

from planner.manifest.layout import Degrees
from planner.serving.aggregated import play_aggregated
from planner.serving.decode import hand_over, play_separate, within
from planner.serving.deployed import (
    aggregated_pool,
    aggregated_served,
    in_blocks,
    play,
    separate_pools,
    step_times,
    workload_of,
)
from planner.serving.tables import LARGEST_BATCH, LARGEST_BUDGET
from planner.workload import TraceRows
from tests.manifests import cost, manifest
from tests.planner.serving.costs import stream_of

WIDE = Degrees(attention_tp=2, attention_dp=4, moe_ep=8)
PARTED = manifest(prefill=2, decode=3, prefill_degrees=WIDE, decode_drafts=1)
PREFILL, DECODE = PARTED.pools
POOLS = separate_pools(PARTED, (PREFILL, DECODE))
TRACE = TraceRows(arrival_seconds=[0.0, 0.01, 0.5], input_tokens=[512, 100, 300], output_tokens=[5, 1, 40])


def test_limits_are_those_of_the_manifest() -> None:
    """Prefill: 2,048 tokens of each of a group's two devices; decode: 8 requests and 100,000 tokens of a rank."""
    own, other = POOLS.prefill, POOLS.decode
    assert (own.ranks, own.budget_tokens, own.instances) == (4, 4096, 2)
    assert (other.ranks, other.slots, other.capacity_tokens, other.instances) == (8, 8, 100_000, 3)
    assert (other.drafts, other.acceptance) == (1, 0.7)
    routing = PARTED.routing
    assert other.policy == routing.decode and own.policy == "least_load"
    turns = PARTED.model_copy(update={"routing": routing.model_copy(update={"prefill": "round_robin"})})
    assert separate_pools(turns, (PREFILL, DECODE)).prefill.policy == "round_robin"


def test_a_transfer_takes_as_many_links_as_the_narrower_side_has() -> None:
    """Two devices hold a prompt in prefill and one in decode: one link each, and prefill sends two at once."""
    other, link = POOLS.decode, PARTED.kv_transfer
    assert link is not None and POOLS.links == 1
    assert (other.source_groups, other.source_channels, other.target_channels) == (8, 2, 1)
    assert other.latency_seconds == link.latency_seconds == 1e-4
    assert POOLS.transfer_seconds(np.array([512.0])) == pytest.approx([512 * 160 / 1e10])
    wide = manifest(degrees=WIDE)
    both = separate_pools(wide, (wide.pools[0], wide.pools[1]))
    assert (both.links, both.decode.source_channels, both.decode.target_channels) == (2, 1, 1)
    assert both.transfer_seconds(np.array([512.0])) == pytest.approx([512 * 160 / 2e10])


def test_whole_answers_are_set_aside_in_blocks() -> None:
    """Of 16 tokens."""
    assert in_blocks(DECODE, np.array([1.0, 16.0, 17.0])).tolist() == [16, 16, 32]
    assert POOLS.reserved_tokens(np.array([33.0])).tolist() == [48]


@pytest.mark.parametrize(("stated", "tokens"), [(None, 512 + 64 / 2), (2968, 2968 + 64 / 2)])
def test_iterations_are_known_best_at_the_usual_length(stated: float | None, tokens: float) -> None:
    """That of the manifest's workload, half of the answer out, or of the one stated."""
    own = workload_of(PARTED.workload)
    other = replace(own, input_tokens=replace(own.input_tokens, mean=stated)) if stated else None
    times = separate_pools(PARTED, (PREFILL, DECODE), workload=other).decode.times
    assert times.usual_kv[1] == pytest.approx(tokens / 8)
    mine = aggregated_pool(PARTED, DECODE, cost(DECODE.degrees, 2.0), other)
    assert mine.times.usual_kv[1] == pytest.approx(tokens / 8)


def test_aggregated_limits() -> None:
    """All phases stand in every pool: the decode pool as aggregated instances."""
    found = aggregated_pool(PARTED, DECODE, cost(DECODE.degrees, 2.0))
    assert (found.ranks, found.budget_tokens, found.slots, found.capacity_tokens) == (8, 2048, 8, 100_000)
    assert (found.queries, found.acceptance, found.instances, found.policy) == (2, 0.7, 3, "least_load")
    assert found.times.tokens[-1] == LARGEST_BUDGET and found.times.running[-1] == 8 * LARGEST_BATCH
    assert found.times.lengths[-1] == PARTED.model.spec.max_position == 4096
    assert found.charged is not None and found.charged(np.array([17.0])).tolist() == [32]
    assert aggregated_pool(PARTED, DECODE, times=found.times).times is found.times


def test_step_times_are_those_of_each_phase() -> None:
    """Prefill has no running requests, decode no prompts, aggregated steps both."""
    tables = {
        phase: step_times(PARTED, DECODE, phase, DECODE.step_costs[phase].to_step_cost())
        for phase in ("prefill", "decode", "mixed")
    }
    assert {phase: (each.tokens[-1], each.running[-1]) for phase, each in tables.items()} == {
        "prefill": (2048, 1),
        "decode": (2, 64),
        "mixed": (LARGEST_BUDGET, 8 * LARGEST_BATCH),
    }


def test_a_trace_goes_through_passes_links_and_iterations() -> None:
    """An answer of one token is out with the first; the others cross alone, in iterations of a lone request."""
    served, alone = play(POOLS, TRACE), float(POOLS.decode.times.alone[1, 0])
    assert served.answer_tokens.tolist() == [5, 1, 40]
    assert served.ttft_seconds.shape == (3,) and (served.ttft_seconds > 0).all()
    assert np.isnan(served.tpot_seconds).tolist() == [False, True, False]
    assert served.e2e_seconds[1] == served.ttft_seconds[1]
    after = served.e2e_seconds - served.ttft_seconds
    assert after[[0, 2]] == pytest.approx(served.tpot_seconds[[0, 2]] * [4, 39])
    assert served.end_seconds == pytest.approx(0.5 + served.e2e_seconds[2])
    crossing = np.array([512, 300]) * 160 / 1e10
    assert served.link_utilisation == pytest.approx(
        {"prefill": crossing.sum() / served.end_seconds / 16, "decode": crossing.sum() / served.end_seconds / 24}
    )
    assert served.link_wait_seconds is not None and served.link_wait_seconds.tolist() == [0, 0]
    handed = hand_over(POOLS, stream_of([0.0, 0.01, 0.5], [512, 100, 300], [5, 1, 40]))
    assert handed.sent.tolist() == [0, 2] and handed.requests is not None and handed.decoded is not None
    assert handed.requests.answer_tokens.tolist() == [4, 39]
    assert handed.requests.cached_tokens.tolist() == [512, 300]
    assert handed.requests.reserved_tokens.tolist() == [528, 352]
    assert served.busy["decode"] == pytest.approx(handed.decoded.busy_seconds / 3 / served.end_seconds)
    assert served.busy["prefill"] == pytest.approx(handed.prefilled.busy_seconds / 2 / served.end_seconds)
    assert after[2] > 39 / 2 * alone


def test_answers_of_one_token_never_reach_decode() -> None:
    """Nor do they cross any link, or have a TPOT."""
    served = play_separate(POOLS, stream_of([0.0, 1.0], [512, 100]))
    assert served.busy["decode"] == 0 and served.link_utilisation is None and served.link_wait_seconds is None
    assert served.e2e_seconds.tolist() == served.ttft_seconds.tolist()
    assert within(served.ttft_seconds, served.tpot_seconds, 1.0, 1e-9).all()


@pytest.mark.parametrize(
    ("limits", "kept"), [((None, None), [1, 1, 1]), ((2.0, None), [1, 1, 0]), ((None, 0.1), [1, 0, 1])]
)
def test_who_keeps_limits(limits: tuple[float | None, float | None], kept: list[int]) -> None:
    """At the limit still; without a TPOT none is missed."""
    ttft, tpot = np.array([2.0, 1.0, 3.0]), np.array([0.1, 0.2, np.nan])
    assert within(ttft, tpot, *limits).tolist() == [bool(each) for each in kept]


def test_aggregated_instances_serve_a_trace() -> None:
    """Busy for no longer than until the last answer is out."""
    pool = aggregated_pool(PARTED, DECODE, cost(DECODE.degrees, 2.0, 2))
    served, stream = play(pool, TRACE), stream_of([0.0, 0.01, 0.5], [512, 100, 300], [5, 1, 40])
    played = play_aggregated(pool, stream)
    assert served.ttft_seconds == pytest.approx(played.first_token_seconds - stream.arrival_seconds)
    assert served.busy["mixed"] == pytest.approx(played.busy_seconds / 3 / played.left_seconds.max())
    longer = aggregated_served(pool, replace(played, busy_seconds=1e9), stream)
    assert longer.busy["mixed"] == 1
