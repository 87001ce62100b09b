"""What engines add and how they schedule, by version."""

import podplan
from planner.engines.behaviour import behaviour, behaviour_names, behaviour_values


def test_versions_and_names():
    """A version outside all ranges, or that is no number, is the newest; other engines have none."""
    assert behaviour("vllm@0.33.0") == behaviour("vllm@gpt-oss-dev") == behaviour("vllm@2026-11-01")
    assert behaviour("vllm@0.15.1") == behaviour("vllm@2025-10-29") != behaviour("vllm@2025-10-01")
    assert behaviour(None) is None and behaviour("mindie") is None
    older, newer = behaviour("trtllm@1.0.0rc3"), behaviour("trtllm@1.1.0rc2.post2")
    assert newer == behaviour("trtllm")
    assert not older.prompt_moe_layer_seconds and set(newer.prompt_moe_layer_seconds) >= {"h100", "h200", "a100"}
    assert older.expert_start_up_seconds == newer.expert_start_up_seconds


def test_norms_of_sums_start_nothing_and_caches_are_written_apart():
    """vLLM on two H200: from 0.17 on the all-reduce computes norms, and a kernel of its own writes keys and values."""
    told = {"hw": "h200", "phase": "decode", "strategy": "TP=2", "batch": 4}
    engines = ("vllm@0.16.0", "vllm@0.17.0", "sglang")
    steps = [podplan.predict("llama-3.1-70b", engine=engine, **told).prediction.operators for engine in engines]
    norms, caches = ([sum(o.seconds for o in step if part in o.name) for step in steps] for part in ("_norm", "rope"))
    assert norms[1] < 0.1 * norms[0]
    assert caches[0] == caches[1] > 1.5 * caches[2]


def test_what_is_fitted_says_on_what():
    """Constants that no operator gives come from the released runs alone."""
    values = [value for name in behaviour_names() for _, value in behaviour_values(name)]
    assert any(value.kind == "fitted" for value in values)
    for value in values:
        assert value.kind != "fitted" or (value.source == "engine_runs.csv" and value.note)
