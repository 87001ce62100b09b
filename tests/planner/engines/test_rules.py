"""What each engine refuses, each rule with the constraint that it comes from (versions in the profiles)."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from planner.engines.loader import engine_names, load_engine
from planner.engines.nearest import describe, nearest_reachable
from planner.engines.rules import Setup, broken_pair, broken_rule, expert_mode
from planner.strategy import Strategy, parse_strategy

HYBRID = "TP=2 + DP=32, TP=2 + EP=32"
"""64 devices as EP32 x TP2: vLLM flattens TP over DP (fused_moe/config.py), the others have a grid."""


def deepseek(strategy: str | Strategy, **fields: object) -> Setup:
    """Return a decode instance of a model with 256 experts on nodes of 16 devices."""
    given: dict[str, object] = {
        "strategy": parse_strategy(strategy) if isinstance(strategy, str) else strategy,
        "role": "decode",
        "devices_per_node": 16,
        "experts": 256,
        "architecture": "deepseek_v3",
        "latent": True,
    }
    return Setup(**given | fields)  # type: ignore[arg-type]


def rule(engine: str, strategy: str | Strategy, **fields: object) -> str | None:
    """Return the name of the rule that an engine says is broken."""
    broken = broken_rule(load_engine(engine), deepseek(strategy, **fields))
    return broken.rule if broken else None


def test_the_hybrid_runs_without_an_all_to_all() -> None:
    """SGLang's all-to-all back ends force EP to the stage; xLLM's degree 2 and EPLB need EP = world size."""
    for engine in ("sglang", "xllm", "mindie"):
        mode = expert_mode(load_engine(engine), deepseek(HYBRID))
        assert mode.exchange == "all_gather"
        full = expert_mode(load_engine(engine), deepseek("DP=64, EP=64"))
        assert full.exchange == "all_to_all"
    for engine, kind in (("sglang", "nvidia"), ("sglang", "ascend"), ("vllm", "nvidia")):
        mode = expert_mode(load_engine(engine), deepseek("DP=64, EP=64", accelerator=kind))
        assert mode.exchange == "all_to_all"
    for engine in ("vllm", "sglang", "trtllm"):
        cards = expert_mode(
            load_engine(engine), deepseek("DP=8, EP=8", accelerator="nvidia", pcie=True, role="prefill")
        )
        assert cards.exchange == "all_gather"
    other = expert_mode(load_engine("sglang"), deepseek("DP=64, EP=64", architecture="gpt_oss"))
    assert other.exchange == "all_gather"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_facts_of_one_kind_of_devices_hold_there_alone(engine: str) -> None:
    """AMD's images have no DeepEP, so experts gather, prompts take any EP, and nothing overlaps; nor is there NVFP4."""
    for role in ("prefill", "decode", "mixed"):
        mode = expert_mode(load_engine(engine), deepseek("DP=64, EP=64", accelerator="amd", role=role))
        assert mode.exchange == "all_gather"
    odd = {"role": "prefill", "devices_per_node": 8, "experts": 384}
    for kind, broken in (("nvidia", "exchange-ranks"), ("amd", None)):
        assert rule(engine, "DP=48, EP=48", accelerator=kind, **odd) == broken
        assert rule(engine, "DP=64, EP=64", accelerator=kind, microbatches=2) == (
            "microbatches-mode" if kind == "amd" else None
        )
        assert rule(engine, "DP=64, EP=64", accelerator=kind, weights="mxfp4") is None
        assert rule(engine, "DP=64, EP=64", accelerator=kind, weights="nvfp4") == ("weights" if kind == "amd" else None)
    found = broken_rule(load_engine(engine), deepseek("DP=64, EP=64", accelerator="amd", weights="nvfp4"))
    assert "on AMD devices, not nvfp4" in found.sentence


@pytest.mark.parametrize("engine", [name for name in engine_names() if name != "reference"])
@pytest.mark.parametrize(
    ("strategy", "fields", "expected"),
    [
        ("DP=160 x 3, EP=288", {"redundant": 32}, "domains"),
        ("SP=4 + DP=8, EP=32", {"role": "prefill"}, "staged-attention"),
        ("DP=320, EP=320", {"dedicated": 32, "redundant": 32}, "dedicated-shared-experts"),
    ],
)
def test_what_only_the_reference_runs(engine: str, strategy: str, fields: dict[str, object], expected: str) -> None:
    """CloudMatrix-Infer's and xDeepServe's own forms are in no open engine."""
    assert rule(engine, strategy, **fields) == expected
    assert rule("reference", strategy, **fields) is None


@pytest.mark.parametrize(
    ("engine", "strategy", "fields", "expected"),
    [
        ("vllm", HYBRID, {}, "expert-grid"),
        ("vllm-ascend", HYBRID, {}, "expert-grid"),
        ("sglang", HYBRID, {}, None),
        ("xllm", HYBRID, {}, None),
        ("xllm", HYBRID, {"redundant": 32}, "redundancy-mode"),
        ("mindie", HYBRID, {}, None),
        ("reference", HYBRID, {}, None),
        ("xllm", "DP=8 [PP=2]", {}, "pipeline"),
        ("mindie", "DP=8 [PP=2]", {}, "pipeline"),
        ("sglang", "DP=8, EP=8 [PP=2]", {"drafts": 1}, "pipeline-drafts"),
        ("sglang", "DP=8, EP=8 [PP=2]", {"drafts": 1, "role": "prefill"}, None),
        ("xllm", "TP=32 + DP=2, EP=64", {}, "tensor-scope"),
        ("xllm", "TP=32, EP=32", {}, None),
        ("vllm", "TP=32 + DP=2, EP=64", {}, "rank-in-node"),
        ("vllm", "TP=32, EP=32", {}, None),
        ("sglang", "TP=32 + DP=2, EP=64", {}, None),
        ("sglang", "DP=24, EP=24", {"redundant": 8}, "whole-nodes"),
        ("vllm-ascend", "DP=16, EP=16", {"kv_dtype": "int8"}, "kv-dtype"),
        ("mindie", "DP=16, EP=16", {"kv_dtype": "int8"}, None),
        ("vllm", "DP=16, EP=16", {"architecture": "deepseek_v4"}, "kv-dtype"),
        ("vllm", "DP=16, EP=16", {"architecture": "deepseek_v4", "kv_dtype": "fp8"}, None),
        ("sglang", "DP=16, EP=16", {"architecture": "deepseek_v4"}, None),
        ("vllm", "TP=16, EP=16", {"microbatches": 2}, "microbatches-dp"),
        ("sglang", "DP=48, EP=48", {"redundant": 32, "role": "prefill"}, "exchange-ranks"),
        ("sglang", "DP=48, EP=48", {"redundant": 32}, None),
        ("vllm", "DP=48, EP=48", {"redundant": 32, "role": "prefill"}, "exchange-ranks"),
        ("vllm", "DP=32, EP=32", {"role": "prefill"}, None),
        ("vllm", "DP=8, EP=8", {"role": "prefill", "devices_per_node": 4}, "exchange-node"),
        ("sglang", "DP=8, EP=8", {"devices_per_node": 4}, None),
        ("xllm", "DP=48, EP=48", {"redundant": 32}, "power-of-two"),
        ("vllm", "DP=48, EP=48", {"redundant": 32}, None),
        ("vllm", "DP=64, EP=64", {"redundant": 32}, "redundancy-divides"),
        ("vllm", "DP=64, EP=64", {"redundant": 64, "architecture": "gpt_oss"}, "redundancy-model"),
        ("trtllm", "DP=8, EP=8", {"redundant": 8, "blackwell": True, "scaled_columns": 2048}, "redundancy-blocks"),
        ("trtllm", "DP=8, EP=8", {"redundant": 8, "scaled_columns": 2048}, None),
        ("trtllm", "DP=8, EP=8", {"redundant": 8, "blackwell": True}, None),
        ("vllm", "TP=8", {"scaled_columns": 1536, "architecture": "minimax_m2"}, "expert-blocks"),
        ("sglang", "TP=4", {"scaled_columns": 1536, "architecture": "minimax_m2"}, None),
        ("sglang", "DP=64, EP=64", {"microbatches": 2, "architecture": "glm4_moe"}, "microbatches-model"),
        ("sglang", "DP=64, EP=64", {"drafts": 1, "architecture": "minimax_m2"}, "drafts-model"),
        ("xllm", "DP=64, EP=64", {"redundant": 64}, None),
        ("vllm-ascend", "TP=8 + DP=2, TP=16", {"redundant": 16}, "redundancy-mode"),
        ("vllm", "DP=320, EP=320", {}, "experts-divide"),
        ("vllm", "DP=320, EP=320", {"redundant": 64}, None),
        ("vllm", "DP=48, EP=48", {}, None),
        ("sglang", "DP=48, EP=48", {}, "experts-divide"),
        ("vllm", "DP=64, EP=64", {"microbatches": 2}, None),
        ("vllm", "DP=64, EP=64", {"microbatches": 2, "role": "mixed"}, "microbatches"),
        ("vllm", "TP=8 + DP=2, TP=16", {"microbatches": 2}, "microbatches-mode"),
        ("vllm-ascend", "DP=64, EP=64", {"microbatches": 2}, "microbatches"),
        ("xllm", "DP=64, EP=64", {"microbatches": 2}, "microbatches"),
        ("mindie", "DP=64, EP=64", {"microbatches": 2, "role": "prefill"}, None),
        ("mindie", "DP=64, EP=64", {"drafts": 3}, "drafts"),
        ("mindie", "DP=320, EP=320", {"redundant": 64, "devices_per_node": 16}, None),
        ("mindie", "DP=384, EP=384", {"redundant": 128, "devices_per_node": 16}, "most-nodes"),
        ("mindie", "DP=256, EP=256", {"role": "prefill"}, "most-nodes"),
        ("mindie", "DP=8, EP=8", {"architecture": "qwen3_moe", "experts": 128}, "expert-model"),
    ],
)
def test_each_rule_of_the_reference_table(engine, strategy, fields, expected):
    """One row per constraint of the engines' sources."""
    assert rule(engine, strategy, **fields) == expected


def test_a_refusal_is_a_sentence_with_a_source() -> None:
    """The sentence says what would be right."""
    broken = broken_rule(load_engine("vllm"), deepseek(HYBRID))
    assert "EP=64" in broken.sentence and "TP=64" in broken.sentence
    assert broken.source.startswith("wheel: ")


SMALL, LARGE = deepseek("TP=2 + DP=8, EP=16"), deepseek("TP=8 + DP=2, EP=16")
WHOLE = {"latent": False}


@pytest.mark.parametrize(
    ("engine", "prefill", "decode", "expected"),
    [
        ("vllm-ascend", SMALL, LARGE, None),
        ("vllm-ascend", replace(SMALL, **WHOLE), replace(LARGE, **WHOLE), "pair-tensor"),
        ("vllm-ascend", replace(LARGE, **WHOLE), replace(SMALL, **WHOLE), None),
        ("vllm", replace(SMALL, **WHOLE), replace(LARGE, **WHOLE), None),
        ("vllm", SMALL, replace(LARGE, kv_dtype="fp8"), "pair-kv-dtype"),
        ("mindie", replace(SMALL, instances=17), LARGE, "pair-instances"),
    ],
)
def test_prefill_and_decode_must_agree(engine: str, prefill: Setup, decode: Setup, expected: str | None) -> None:
    """Ascend's connector needs P.tp % D.tp == 0 unless attention is latent; KV types must be the same everywhere."""
    broken = broken_pair(load_engine(engine), prefill, decode)
    assert (broken and broken.rule) == expected


def test_the_nearest_strategy_keeps_what_it_can() -> None:
    """vLLM's nearest to the hybrid keeps attention and spreads experts over all devices."""
    near = nearest_reachable(load_engine("vllm"), deepseek(HYBRID))
    assert describe(near).startswith("'TP=2 + DP=32, EP=64'")
    kept = deepseek("DP=64, EP=64")
    assert nearest_reachable(load_engine("vllm"), kept) is kept


@given(
    engine=st.sampled_from(engine_names()),
    devices=st.sampled_from([8, 16, 32, 48, 64, 144]),
    cut=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    redundant=st.integers(0, 64),
    microbatches=st.sampled_from([1, 2]),
)
def test_the_nearest_is_reachable_on_the_same_devices(engine, devices, cut, redundant, microbatches):
    """Whatever is asked, the answer breaks no rule and has the devices that were asked for."""
    tp, moe_tp = (1 << exponent for exponent in cut)
    strategy = Strategy(attention_tp=tp, attention_dp=devices // tp, moe_tp=moe_tp, moe_ep=devices // moe_tp)
    asked = deepseek(strategy, redundant=redundant, microbatches=microbatches)
    near = nearest_reachable(load_engine(engine), asked)
    if near is not None:
        assert broken_rule(load_engine(engine), near) is None
        assert near.strategy.devices == devices
    else:  # 48 and 144 devices are no powers of two, which xLLM asks for
        assert engine == "xllm" and devices in (48, 144)
