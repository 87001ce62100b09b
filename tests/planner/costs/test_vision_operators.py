"""The encoder of pictures within a step: by hand, by its limits, and through a search."""

import dataclasses

import pytest

import podplan
from models.loader import load_model
from models.parameters import Seen, pictures_of
from planner.balance.imbalance import Balance
from planner.costs.deployment import Deployment
from planner.costs.latency import balanced_cost, encoder_term
from planner.costs.memory import weight_bytes
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad, timing, variables
from tests.instances import instance

MODEL = load_model("qwen2.5-vl-7b-instruct")
PERFECT = Balance(kind="perfect")


def deployment(*, pictures: int = 1, tp: int = 1, phase: str = "prefill") -> Deployment:
    """Return a deployment on H800 whose prompts of 1,024 tokens of text see pictures of 1280 x 720."""
    found = pictures_of(MODEL.vision, pictures, 1280, 720) if pictures else None
    seen = found and Seen(pictures=found, prompt_tokens=1024.0 + found.tokens)
    own = instance(MODEL.name, "h800", "prefill", "bf16", attention_tp=tp, seen=seen)
    return dataclasses.replace(own, phase=phase)  # type: ignore[arg-type]


def seconds(own: Deployment, tokens: float) -> float:
    """Return the seconds of a pass with so many tokens on each rank."""
    load = StepLoad(prefill_tokens=tokens, prefill_pairs=tokens * 512, mean_tokens=tokens, finishing_prompts=1.0)
    return float(evaluate(balanced_cost(own, PERFECT), load).seconds)


def test_the_encoder_is_what_pictures_add() -> None:
    """A pass with pictures takes the encoder's seconds longer than one of as many tokens of text."""
    seen, tokens = deployment(), 4096.0
    cost = balanced_cost(seen, PERFECT)
    values = variables(cost, StepLoad(prefill_tokens=tokens, mean_tokens=tokens), 1)
    alone = timing(encoder_term(seen, seen.seen), values).seconds()
    added = seconds(seen, tokens) - seconds(deployment(pictures=0), tokens)
    assert added == pytest.approx(alone, rel=1e-6)
    # No quicker than its products at the machine's peak, no slower than at a fifth of it.
    work = 2 * seen.seen.pictures.tower.parameters * tokens * seen.seen.patches_per_token
    assert work / 989e12 < alone < work / (0.2 * 989e12)


def test_the_sizes_are_those_of_the_published_encoder() -> None:
    """Qwen2.5-VL's tower has 0.6 B parameters in its layers (arXiv 2502.13923, table 1, with its projector 675 M)."""
    assert MODEL.vision.parameters == pytest.approx(0.63e9, rel=0.01)


def test_devices_of_a_group_share_pictures_but_not_one_picture() -> None:
    """Eight pictures over TP=8 take as long as one on one device; one picture is no quicker over eight devices."""
    many, one = deployment(pictures=8, tp=8), deployment(pictures=1, tp=1)
    assert many.seen is not None
    patches = one.seen.pictures.patches

    def encoding(own: Deployment, count: float) -> float:
        tokens = count / own.seen.patches_per_token
        values = variables(balanced_cost(own, PERFECT), StepLoad(prefill_tokens=tokens, mean_tokens=tokens), 1)
        return float(timing(encoder_term(own, own.seen), values).seconds())

    assert encoding(many, 8.0 * patches) == pytest.approx(encoding(one, patches), rel=1e-6)
    assert encoding(many, patches) == pytest.approx(encoding(one, patches), rel=1e-6)


def test_decode_sees_no_pictures_but_holds_the_encoder() -> None:
    """A decode step has no such term; its devices hold the weights all the same."""
    own = deployment(phase="decode")
    assert all(term.name != "vision_encoder" for term in balanced_cost(own, PERFECT).head_terms)
    text = weight_bytes(deployment(pictures=0, phase="decode"))
    assert weight_bytes(own) - text == pytest.approx(2 * 0.676e9, rel=0.02)


def test_a_plan_for_pictures_carries_them_to_its_manifest() -> None:
    """Pictures cost more than text of as many tokens; the manifest states them, and its cost has the encoder."""
    asked = {"model": "qwen2.5-vl-7b-instruct", "hw": "h800", "nodes": "1", "osl": "256", "ttft": "4s"}
    asked |= {"shape": "disaggregated", "engine": "vllm"}
    seen = podplan.plan(**asked, isl="512", images="2@1280x720")
    text = podplan.plan(**asked, isl=str(512 + 2 * 1196))
    assert 0.5 < seen.best.requests_per_second / text.best.requests_per_second < 0.95
    manifest = seen.manifest()
    assert manifest.workload.picture_tokens == 2 * 1196
    assert any(term.name == "vision_encoder" for term in manifest.pools[0].step_costs["prefill"].head_terms)
