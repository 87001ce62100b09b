"""What engines add and how they schedule, by version."""

from planner.engines.behaviour import behaviour, behaviour_names, behaviour_values


def test_versions_and_names():
    """A version outside all ranges, or that is no number, is the newest; other engines have none."""
    assert behaviour("vllm") is not None
    assert behaviour("vllm@0.15.1") == behaviour("vllm@gpt-oss-dev") == behaviour("vllm")
    assert behaviour(None) is None and behaviour("mindie") is None
    assert set(behaviour_names()) == {"trtllm", "sglang", "vllm", "vllm-ascend"}
    older, newer = behaviour("trtllm@1.0.0rc3"), behaviour("trtllm@1.1.0rc2.post2")
    assert newer == behaviour("trtllm")
    assert not older.prompt_moe_layer_seconds and set(newer.prompt_moe_layer_seconds) >= {"h100", "h200", "a100"}
    assert older.expert_start_up_seconds == newer.expert_start_up_seconds


def test_what_is_fitted_says_on_what():
    """Constants that no operator gives come from the released runs alone."""
    values = [value for name in behaviour_names() for _, value in behaviour_values(name)]
    assert any(value.kind == "fitted" for value in values)
    for value in values:
        assert value.kind != "fitted" or (value.source == "engine_runs.csv" and value.note)
