"""Encode instances as the search sees them: their step cost, memory, and part of the limit."""

import pytest

from hardware.loader import load_hardware
from models.loader import load_model
from models.parameters import Encoding, Seen, pictures_of
from planner.balance.imbalance import Balance
from planner.costs.cache import model_cache
from planner.costs.deployment import Deployment
from planner.costs.latency import balanced_cost
from planner.costs.memory import memory, tower_weight_bytes
from planner.instances.encoding import SHARES, apart, before, behind, embedding_seconds, ways_to_encode
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from planner.plans.quantised import alternatives
from planner.question import Encode, Machines, Question
from planner.workload import Lengths, Workload
from tests.instances import instance

MODEL = load_model("qwen2.5-vl-7b-instruct")
H800 = load_hardware("h800")


def question(encode: Encode = "separate", engine: str = "reference") -> Question:
    """Return a question on 8 H800 whose requests have 512 tokens of text and two pictures of 1280 x 720."""
    pictures = pictures_of(MODEL.vision, 2, 1280, 720)
    machines = Machines(hardware=H800, devices=8, weights="bf16", budget="h800")
    workload = Workload(
        input_tokens=Lengths(mean=512.0 + pictures.tokens), output_tokens=Lengths(mean=64.0), pictures=pictures
    )
    return Question(
        model=MODEL,
        prefill=machines,
        decode=machines,
        workload=workload,
        ttft_seconds=2.0,
        tpot_seconds=0.05,
        engine=engine,
        encode=encode,
    )


def deployment(encoding: Encoding, prompt_tokens: float) -> Deployment:
    """Return one H800 that takes prompts with the two pictures."""
    seen = Seen(pictures=question().workload.pictures, prompt_tokens=prompt_tokens, encoding=encoding)
    return instance(MODEL.name, H800.name, "prefill", "bf16", seen=seen)


def seconds(own: Deployment, tokens: float) -> float:
    """Return the seconds of a pass with one prompt of so many tokens."""
    load = StepLoad(
        prefill_tokens=tokens, prefill_pairs=tokens * (tokens + 1) / 2, mean_tokens=tokens, finishing_prompts=1.0
    )
    return float(evaluate(balanced_cost(own, Balance(kind="perfect")), load).seconds)


def test_both_stages_take_what_one_took() -> None:
    """An encode pass and the prefill pass behind it together take the seconds of the pass that did both."""
    prompt = question().workload.input_tokens.mean
    pictures = question().workload.pictures
    fused, rest = (seconds(deployment(encoding, prompt), prompt) for encoding in ("fused", "apart"))
    encode = seconds(deployment("alone", float(pictures.tokens)), float(pictures.tokens))
    assert 0.01 < encode < fused
    # Each has a step of the host of its own.
    host = balanced_cost(deployment("fused", prompt), Balance(kind="perfect")).host_seconds
    assert rest + encode == pytest.approx(fused + host, rel=1e-6)


def test_an_encode_instance_holds_the_encoder_and_embeddings_alone() -> None:
    """Its weights are the tower's, its cache two bytes for each of the hidden size: not a thirtieth of a KV token."""
    own = deployment("alone", 2392.0)
    held = memory(own, kv_tokens=2392.0, sequences=1.0, tokens=2392.0)
    assert held.weights == tower_weight_bytes(own)
    assert held.kv_cache == 2392.0 * 2 * MODEL.hidden_size
    assert model_cache(own).token_bytes < model_cache(deployment("fused", 2904.0)).token_bytes
    # Instances behind it load the encoder, as vLLM's consumers do, and never run it.
    behind_it = memory(deployment("apart", 2904.0), kv_tokens=2904.0, sequences=1.0, tokens=2904.0)
    fused = memory(deployment("fused", 2904.0), kv_tokens=2904.0, sequences=1.0, tokens=2904.0)
    assert behind_it.weights == fused.weights
    assert behind_it.activations < fused.activations


@pytest.mark.parametrize("share", SHARES)
def test_the_parts_of_the_limit_add_up(share: float) -> None:
    """Limits of encode, transfer and what follows make TTFT; requests that may be late add up to those of 100 - p."""
    asked = apart(question(), share)
    encode, rest = before(asked), behind(asked)
    assert encode.ttft_seconds + embedding_seconds(asked) + rest.ttft_seconds == pytest.approx(asked.ttft_seconds)
    assert (100 - encode.percentile) + (100 - rest.percentile) == pytest.approx(100 - asked.percentile)
    assert behind(question()) == question()


def test_engines_that_have_no_encode_instances_leave_the_fused_way() -> None:
    """``separate`` leaves an engine without them nothing, with the rule's source, and ``auto`` the fused way."""
    assert ways_to_encode(question("separate"), "disaggregated").shares == SHARES
    assert ways_to_encode(question("fused"), "aggregated").shares == (0.0,)
    found = ways_to_encode(question("separate", "xllm@0.9.0"), "disaggregated")
    assert found.shares == ()
    assert found.broken.rule == "encode-pools"
    assert found.broken.source
    # vLLM has them before aggregated instances alone.
    assert ways_to_encode(question("separate", "vllm@0.33.0"), "aggregated").shares == SHARES
    assert ways_to_encode(question("separate", "vllm@0.33.0"), "disaggregated").shares == ()
    assert [each.encode for each in alternatives(question("auto"))] == ["fused", "separate"]
    assert [each.encode for each in alternatives(question("auto", "xllm@0.9.0"))] == ["fused"]
