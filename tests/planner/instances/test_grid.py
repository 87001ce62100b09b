"""The default grid: instance sizes, what it holds, what it leaves out."""

import pytest

from models.loader import load_model
from models.spec import ModelSpec
from planner.instances.grid import Role, device_counts, smallest_redundancy, strategy_grid
from planner.strategy import Strategy, check_strategy, format_strategy, parse_strategy

DEEPSEEK, QWEN, DENSE = (load_model(name) for name in ("deepseek-r1", "qwen3-235b-a22b", "qwen3-32b"))


def test_counts_are_powers_of_two_and_whole_nodes() -> None:
    """Below a node powers of two, above it every node."""
    assert device_counts(32, 8) == [1, 2, 4, 8, 16, 24, 32]
    assert device_counts(12, 8) == [1, 2, 4, 8]
    assert device_counts(1, 8) == [1]
    assert device_counts(128, 48, 32) == [1, 2, 4, 8, 16, 32, 48, 64, 96, 128]


def test_a_supernode_offers_the_papers_sizes() -> None:
    """CloudMatrix384 decodes on 320 dies, xDeepServe on 288, DeepSeek on 144."""
    counts = device_counts(768, 16, 32)
    assert {144, 288, 320, 768} <= set(counts) and len(counts) == 48 + 4


@pytest.mark.parametrize(
    ("experts", "ranks", "extra"),
    [(256, 32, 0), (256, 144, 32), (256, 288, 32), (256, 320, 64), (256, 512, 256), (256, 513, None), (128, 24, 16)],
)
def test_smallest_redundancy_of_the_papers(experts: int, ranks: int, extra: int | None) -> None:
    """DeepSeek-V3 section 3.4 and CloudMatrix384 section 4: 32 spare experts on 144 or 288 ranks."""
    assert smallest_redundancy(experts, ranks) == extra


@pytest.mark.parametrize("text", ["DP=144, EP=144", "DP=288, EP=288", "DP=320, EP=320"])
def test_the_published_decode_strategies_are_in_the_grid(text: str) -> None:
    """Degrees that are no powers of two."""
    strategy = parse_strategy(text)
    assert strategy in strategy_grid(DEEPSEEK, [strategy.devices], 16, role="decode").strategies


@pytest.mark.parametrize(
    "text",
    [
        "TP=8 [PP=4]",
        "TP=8 + DP=4, EP=32",
        "TP=4 + DP=8, EP=32",
        "TP=8 + DP=4, TP=8 + EP=4",
        "TP=4 + DP=8, TP=8 + EP=4",
        "TP=8 + DP=4, TP=4 + EP=8",
    ],
)
@pytest.mark.parametrize("spec", [DEEPSEEK, QWEN], ids=["deepseek-r1", "qwen3-235b"])
def test_mixserves_own_baselines_are_in_the_grid(spec: ModelSpec, text: str) -> None:
    """MixServe section IV: three baselines, its own choice and the two of the DP/EP balance."""
    assert parse_strategy(text) in strategy_grid(spec, [32], 8, role="mixed").strategies


def test_staged_attention_is_for_prefill_of_latent_attention() -> None:
    """CloudMatrix384's prefill strategy is tried in prefill only, and never with grouped queries."""
    staged = parse_strategy("SP=4 + DP=8, EP=32")
    assert staged in strategy_grid(DEEPSEEK, [32], 16, role="prefill").strategies
    assert not any(s.staged for s in strategy_grid(DEEPSEEK, [32], 16, role="decode").strategies)
    assert not any(s.staged for s in strategy_grid(QWEN, [32], 16, role="prefill").strategies)


@pytest.mark.parametrize("role", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("spec", [DEEPSEEK, QWEN, DENSE], ids=["deepseek-r1", "qwen3-235b", "dense"])
def test_every_strategy_is_possible_and_there_are_a_few_dozen(spec: ModelSpec, role: Role) -> None:
    """Whatever the grid offers passes the checks that the user's own strategies pass, once each."""
    counts = [1, 8, 32, 144, 256]
    found = strategy_grid(spec, counts, 16, role=role).strategies
    assert len(set(found)) == len(found) and found == strategy_grid(spec, counts, 16, role=role).strategies
    for strategy in found:
        check_strategy(strategy, spec)
        text = format_strategy(strategy, moe=spec.moe is not None)
        assert parse_strategy(text, moe=spec.moe is not None) == strategy
    assert all(1 <= sum(s.devices == count for s in found) <= 64 for count in counts)


def test_a_dense_model_mirrors_its_attention() -> None:
    """TP x DP x PP of eight devices: ten shapes."""
    found = strategy_grid(DENSE, [8], 8, role="mixed").strategies
    assert all((s.moe_tp, s.moe_ep) == (s.attention_tp, s.attention_dp) for s in found)
    assert len(found) == 4 + 3 + 2 + 1


def test_pure_tensor_parallelism_may_leave_the_node() -> None:
    """Two nodes of eight as one TP=16 group, but no half of it across nodes."""
    found = strategy_grid(DEEPSEEK, [16, 32], 8, role="mixed").strategies
    assert parse_strategy("TP=16") in found
    assert all(s.attention_tp <= 8 for s in found if s.devices_per_stage != 16)


def test_what_is_cut_is_counted_by_rule() -> None:
    """A search can say what it did not try."""
    grid = strategy_grid(DEEPSEEK, [32, 768], 16, role="prefill")
    assert grid.cut["more than one spare slot per expert"] > 0
    assert grid.cut["expert TP more than a factor of two from attention TP"] > 0
    assert Strategy(attention_dp=768, moe_ep=768) not in grid.strategies
