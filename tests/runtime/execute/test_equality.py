"""Every strategy computes the unsharded model: prompts, hand-over, decoding, pairs and messages."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from planner.manifest.document import dump_manifest
from planner.manifest.schema import Manifest
from planner.strategy import Strategy
from runtime.execute.check import TOLERANCE, Report, execute
from runtime.execute.run import Settings
from tests.runtime.execute.deployments import deployed, slim
from tests.shell import answered, printed, refused

DECODE_DRAFTS = {"decode_drafts": 1}
CATALOGUE: dict[str, tuple[str, str, str | None, dict[str, Any]]] = {
    "MixServe TP+PP": ("deepseek-r1", "TP=8 [PP=4]", None, {}),
    "MixServe DP+EP, TP 8": ("qwen3-235b-a22b", "TP=8 + DP=4, EP=32", None, {}),
    "MixServe hybrid, d_DP = d_EP": ("deepseek-r1", "TP=8 + DP=4, TP=8 + EP=4", None, {}),
    "MixServe hybrid, d_DP > d_EP": ("qwen3-235b-a22b", "TP=4 + DP=8, TP=8 + EP=4", None, {}),
    "MixServe hybrid, d_DP < d_EP": ("qwen3-235b-a22b", "TP=8 + DP=4, TP=4 + EP=8", None, {}),
    "staged prefill, pure EP decode": (
        "deepseek-r1",
        "SP=4 + DP=2, EP=8",
        "DP=10, EP=10",
        {"decode_dedicated": 2, "prefill_redundant": 8, **DECODE_DRAFTS},
    ),
    "CloudMatrix EP32 and an eighth of EP320": (
        "deepseek-r1",
        "SP=4 + DP=8, EP=32",
        "DP=40, EP=40",
        {"decode_redundant": 4, "decode_dedicated": 4, **DECODE_DRAFTS},
    ),
    "two drafts, replicas, stages": (
        "deepseek-r1",
        "TP=8, TP=2 + EP=4",
        "TP=2 + DP=4, EP=8 [PP=2]",
        {"decode_drafts": 2, "decode_redundant": 16},
    ),
    "staged over all, experts cut over all": ("deepseek-r1", "SP=8, TP=8", "DP=4, TP=4", DECODE_DRAFTS),
    "staged hybrid, one group with experts by TP": ("deepseek-v3", "SP=4 + DP=2, TP=2 + EP=4", "TP=4", DECODE_DRAFTS),
    "domains": ("deepseek-r1", "SP=4 + DP=2, EP=8", "DP=4 x 3, EP=9", {"decode_dedicated": 1, **DECODE_DRAFTS}),
    "domains with TP on both sides": ("deepseek-v3", "DP=4, EP=4", "TP=2 + DP=3 x 2, TP=2 + EP=4", {}),
    "drafts after a microbatch without a prompt": ("deepseek-v3", "DP=16, EP=16", "DP=2, EP=2", DECODE_DRAFTS),
    "odd degrees that do not divide each other": (
        "qwen3-235b-a22b",
        "TP=2 + DP=3, TP=3 + EP=2",
        "DP=6, TP=2 + EP=3",
        {"decode_redundant": 1},
    ),
    "sigmoid gate without groups": ("kimi-k2", "TP=2 + DP=2, EP=4", "TP=2, EP=2", {}),
    "softmax gate with groups of one": ("deepseek-v2-lite", "TP=4, EP=4", "DP=4, EP=4", {}),
    "fewer KV heads than ranks, to another TP": ("qwen3-235b-a22b", "TP=2 + DP=2, EP=4", "TP=8, EP=8", {}),
    "dense": ("qwen3-8b", "TP=4", "TP=2 + DP=2", {}),
    "dense with biases and tied tables": ("qwen2.5-7b-instruct", "TP=2 [PP=2]", "TP=4", {}),
}


def executed(manifest: Manifest, settings: Settings) -> Report:
    """Return the report, which is here since all ranks are."""
    return execute(manifest, settings)


def assert_equal(report: Report) -> None:
    """Everything that the report claims, looked at."""
    assert report.compared.wrong == []
    assert report.compared.logit_difference <= TOLERANCE
    assert report.compared.draft_difference <= TOLERANCE
    assert report.compared.tokens >= len(report.world.prompts) * (report.world.settings.iterations + 1)
    for swept in report.swept:
        assert swept.plain.pairs == swept.plain.all_pairs == swept.quantised.pairs
        assert swept.plain.difference <= TOLERANCE
    assert report.equal


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogue_of_strategies_computes_the_same_model(name: str) -> None:
    """Same tokens, same logits, every pair of ranks, INT8 messages within their bound."""
    model, prefill, decode, fields = CATALOGUE[name]
    iterations = 1 if "eighth" in name else 2  # the large ones take most of the time
    assert_equal(executed(deployed(slim(model), prefill, decode, **fields), Settings(iterations=iterations)))


@pytest.mark.parametrize("name", ["staged prefill, pure EP decode", "domains with TP on both sides", "dense"])
def test_int8_is_the_same_model_too(name: str) -> None:
    """Scales of whole rows make INT8 exact under every cut, and early quantisation of messages costs nothing then."""
    model, prefill, decode, fields = CATALOGUE[name]
    assert_equal(executed(deployed(slim(model), prefill, decode, **fields), Settings(iterations=2, int8=True)))


@st.composite
def strategies(draw: st.DrawFn) -> Strategy:
    """A strategy of up to 12 ranks for a model of 32 experts, 64 heads and 4 KV heads."""
    tp, dp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3]))
    domains = draw(st.sampled_from([0, 0, 0, 2]))
    devices = draw(st.sampled_from([2, 4])) if domains else tp * dp
    moe_tp = draw(
        st.sampled_from([m for m in (1, 2, 3, 4) if devices % m == 0 and 32 % (devices // m) == 0] or [devices])
    )
    pp = 1 if domains else draw(st.sampled_from([1, 1, 2]))
    return Strategy(attention_tp=tp, attention_dp=dp, moe_tp=moe_tp, moe_ep=devices // moe_tp, pp=pp, domains=domains)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(prefill=strategies(), decode=strategies(), microbatches=st.sampled_from([1, 2]))
def test_any_two_strategies_hand_over_and_agree(prefill: Strategy, decode: Strategy, microbatches: int) -> None:
    """Prefill by one, decode by the other."""
    if 1536 % prefill.moe_tp or 1536 % decode.moe_tp:
        return
    manifest = deployed(slim("qwen3-235b-a22b"), prefill, decode, microbatches=microbatches)
    assert_equal(executed(manifest, Settings(iterations=1)))


def test_a_wrong_weight_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: one rank's expert with one number changed."""
    from runtime.execute.worker import Worker

    made = Worker._made

    def wrong(self: Worker, name: str) -> Any:
        part = made(self, name)
        return part + 1e-3 if self.place.rank == 5 and name.endswith("experts.21.up_proj.weight") else part

    monkeypatch.setattr(Worker, "_made", wrong)
    report = executed(deployed(slim("deepseek-v3"), "DP=8, EP=8"), Settings(iterations=1))
    assert not report.equal


def test_a_lost_cache_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a hand-over that moves one position too few."""
    from runtime.execute import run

    original = run.receive_cache

    async def short(worker: Any, moves: Any, request: int, row: int, length: int) -> None:
        await original(worker, moves, request, row, length)
        for cache in worker.cache.values():
            cache[row, length - 1] = 0

    monkeypatch.setattr(run, "receive_cache", short)
    report = executed(deployed(slim("qwen3-235b-a22b"), "TP=2, EP=2", "DP=2, EP=2"), Settings(iterations=2))
    assert report.compared.logit_difference > 1e-3 and not report.equal


def test_the_command_prints_what_was_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON, exit 0."""
    path = tmp_path / "manifest.yaml"
    path.write_text(dump_manifest(deployed(slim("deepseek-r1"), "TP=2 + DP=2, EP=4", "DP=4, EP=4", **DECODE_DRAFTS)))
    data = answered(capsys, "execute", str(path), "--iterations", "2")
    assert data["equal"] and data["wrong_tokens"] == 0
    assert data["decode_groups_with_four_lengths"] == data["decode_groups"] == 4
    assert data["largest_logit_difference"] <= data["tolerance"]
    assert np.isfinite(data["closest_expert_margin"])
    shown = printed(capsys, "execute", str(path), "--iterations", "1", "--int8")
    assert "the plan computes the same model" in shown and "too close to call" in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--iterations", "0"], "--iterations: 0 must be"), (["--seed", "-1"], "--seed: -1 must be")],
)
def test_wrong_flags_are_named(tmp_path, capsys, arguments, told):
    """Exit 2 and one sentence."""
    path = tmp_path / "manifest.yaml"
    path.write_text(dump_manifest(deployed("qwen3-8b", "TP=2")))
    refused(capsys, told, "execute", str(path), *arguments)
