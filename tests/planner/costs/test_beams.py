"""Beam search: every beam takes a token of a step, the prompt's KV is read for all of them at once."""

import pytest

import podplan
from planner.workload import Lengths, Workload, reserved_kv_tokens


def step(**given: object) -> dict[str, dict[str, float]]:
    """Return the operators of a decode step of Qwen3-8B on one 910B, by name."""
    asked = {"batch": 4, "kv_len": 4096, **given}
    found = podplan.predict("qwen3-8b", hw="910b", phase="decode", strategy="TP=1", **asked).to_dict()
    return {row["name"]: row for row in found["operators"]} | {"step": {"seconds": found["iteration_seconds"]}}


def test_beams_take_tokens_and_share_the_prompt() -> None:
    """Products are of as many rows as requests would be; attention computes as much and reads the KV once."""
    one, beams, requests = step(), step(beams=16), step(batch=64)
    for name in ("qkv_proj", "dense_down", "lm_head", "attention"):
        assert beams[name]["flops"] == pytest.approx(requests[name]["flops"]) == pytest.approx(16 * one[name]["flops"])
    assert beams["attention"]["bytes"] < 1.1 * one["attention"]["bytes"] < requests["attention"]["bytes"] / 10
    assert {"item_mask", "beam_select"} <= beams.keys() - one.keys()
    assert one["step"]["seconds"] < beams["step"]["seconds"] < requests["step"]["seconds"]
    assert step(beams=1) == one


def test_memory_is_kept_for_every_beam_of_an_answer() -> None:
    """A prompt once, an answer for each beam."""
    for beams in (1, 128):
        asked = Workload(input_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=4), beams=beams)
        assert reserved_kv_tokens(asked).mean_tokens == 1000 + 4 * beams


def test_a_recommender_is_planned_and_plays_as_planned() -> None:
    """128 beams of three items after prompts of 1,000 tokens (xLLM section 4.5): fewer requests than without."""
    asked = {"hw": "910b", "engine": "xllm", "devices": 4, "isl": 1000, "osl": 4, "ttft": 0.5, "tpot": 0.1}
    plan, single = (podplan.plan("qwen3-8b", shape="disaggregated", beams=n, **asked) for n in (128, 1))
    assert plan.best.requests_per_second < 0.8 * single.best.requests_per_second
    pools = plan.manifest().pools
    assert [pool.mtp.beams for pool in pools] == [1, 128]
    played = plan.simulate(requests=500).to_dict()
    assert played["e2e_seconds"]["mean"] == pytest.approx(plan.best.e2e_mean_seconds, rel=0.15)
