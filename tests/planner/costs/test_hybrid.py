"""Experts spread by EP over groups of devices that cut each by TP: what crosses, and what overlaps."""

from dataclasses import replace

import numpy as np
import pytest

from hardware.loader import load_hardware
from models.loader import load_model
from planner.costs.deployment import Deployment
from planner.costs.expert_operators import (
    crossing_share,
    duplicates,
    exchange_term,
    exchange_terms,
    gathered_terms,
    hybrid_terms,
)
from planner.costs.predict import Configuration, Prediction, predict
from planner.costs.roofline import distinct
from planner.engines.behaviour import host_costs
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import CommunicationTerm, CurveTerm, StepLoad, protocol_seconds, timing
from planner.strategy import Strategy, parse_strategy
from tests.instances import even_cost, instance

HYBRID = {"attention_tp": 8, "attention_dp": 4, "moe_tp": 8, "moe_ep": 4}
SPREAD = {"attention_tp": 8, "attention_dp": 4, "moe_ep": 32}


def hybrid(engine: str | None = None, **changes: int) -> Deployment:
    """Return DeepSeek-R1's prefill on four nodes of 910B."""
    return instance("deepseek-r1", "910b", "prefill", "int8", engine=engine, **(HYBRID | changes))


def test_a_token_crosses_once_to_each_rank_of_several_devices():
    """R1 on four nodes: 3.14 of them among its 8 experts; one device per rank gets a copy per expert."""
    own = hybrid()
    assert crossing_share(own) * 8 == pytest.approx(distinct(own.moe, 4)) == pytest.approx(22 / 7, rel=1e-3)
    assert crossing_share(instance("deepseek-r1", "910b", "prefill", "int8", **SPREAD)) == 1.0


def test_fused_rounds_take_what_the_longer_takes_and_one_of_the_other():
    """Max + min / 4 of the two."""
    fused = {term.name: term for term in exchange_terms(hybrid())}
    assert list(fused) == ["dispatch", "combine"]
    values = {"one": 1.0, "routed": 4096.0}
    for name, within in zip(("dispatch", "combine"), hybrid_terms(hybrid()), strict=True):
        between = exchange_term(hybrid(), name)
        times = [protocol_seconds(term, term.bytes["routed"] * 4096.0) for term in (between, within)]
        assert isinstance(fused[name], CurveTerm)
        assert timing(fused[name], values).seconds() == pytest.approx(max(times) + min(times) / 4, rel=1e-6)


@pytest.mark.parametrize(
    ("engine", "phase", "degrees", "gathers"),
    [
        ("sglang", "prefill", {"attention_dp": 8, "moe_tp": 2, "moe_ep": 4}, True),
        ("sglang", "prefill", {"attention_dp": 8, "moe_ep": 8}, False),
        ("vllm", "mixed", {"attention_dp": 8, "moe_ep": 8}, True),
        ("vllm", "decode", {"attention_dp": 8, "moe_ep": 8}, False),
        ("trtllm", "decode", {"attention_tp": 8, "moe_tp": 2, "moe_ep": 4}, False),  # all hold all tokens
    ],
)
def test_engines_without_an_exchange_gather_the_tokens_of_all_ranks(engine, phase, degrees, gathers):
    """Over every device of the experts: 8 ranks' tokens in BF16, whatever their experts."""
    own = instance("deepseek-r1", "gb200", phase, "fp8", engine=engine, **degrees)
    terms = {term.name: term for term in exchange_terms(own)}
    assert own.gathers == gathers == ("experts_all_gather" in terms)
    if gathers:
        whole = terms["experts_all_gather"]
        assert isinstance(whole, CommunicationTerm) and whole.bytes == {"mean": 7 / 8 * 8 * 7168 * 2.0}


@pytest.mark.parametrize(("engine", "machine"), [("vllm-ascend", "910c"), ("sglang", "910b"), ("mindie", "910b")])
@pytest.mark.parametrize(("ep", "tokens"), [(32, 256.0), (32, 512.0), (8, 1.0)])
def test_many_tokens_are_gathered_on_ascend_a2(engine: str, machine: str, ep: int, tokens: float):
    """Under vLLM-Ascend and MindIE MC2 takes 256 tokens of a device from EP 16 on; of more, every device gets all."""
    own = instance("deepseek-r1", machine, "mixed", "int8", engine=engine, attention_dp=ep, moe_ep=ep)
    exchanged = [exchange_term(own, "dispatch"), exchange_term(own, "combine")]
    terms = exchange_terms(own)
    if engine != "mindie":
        assert terms == exchanged
        return
    values = {"one": 1.0, "mean": tokens, "fair": tokens * 8, "routed": tokens * 8}
    chosen = exchanged if (ep, tokens) == (32, 256.0) else gathered_terms(own)
    seconds = [timing(term, values).seconds() for term in chosen]
    assert [timing(term, values).seconds() for term in terms] == pytest.approx(seconds, rel=1e-6)
    assert ep == 8 or (seconds[0] > 8 * 256 * 7168 * 2 / 25e9) == (tokens > 256)


def test_hybrids_beat_pipelines_of_tensor_parallelism_on_slow_networks():
    """MixServe, Fig. 10: R1 on 910B; 2.67 times published, kernels that are not eager leave 2."""
    load = StepLoad(prefill_tokens=4096.0, prefill_pairs=4096.0 * 1024, finishing_prompts=2.0, mean_tokens=4096.0)
    whole = StepLoad(prefill_tokens=16384.0, prefill_pairs=16384.0 * 1024, finishing_prompts=8.0, mean_tokens=16384.0)
    pipeline = instance("deepseek-r1", "910b", "prefill", "int8", attention_tp=8, moe_tp=8, pp=4)
    ours = evaluate(even_cost(hybrid()), load).seconds
    assert evaluate(even_cost(pipeline), whole).seconds > 1.5 * ours


def test_engines_sent_every_token_from_every_device():
    """vLLM until September 2025; since then, and where all devices hold all tokens, each goes once."""
    old, new = (
        instance("deepseek-r1", "h800", "prefill", "fp8", engine=name, **SPREAD) for name in ("vllm@0.10", "vllm")
    )
    assert (duplicates(old), duplicates(new)) == (8, 1.0)
    sent = [exchange_term(own, "combine").bytes["routed"] for own in (old, new)]
    assert sent[0] == pytest.approx(8 * sent[1])
    load = StepLoad(prefill_tokens=2048.0, prefill_pairs=2e6, finishing_prompts=1.0, mean_tokens=2048.0)
    assert np.asarray(evaluate(even_cost(old), load).seconds) > 1.5 * np.asarray(evaluate(even_cost(new), load).seconds)


def test_ranks_of_several_devices_exchange_by_the_all_to_all_of_one_device_each():
    """20 us and 1 us a peer, twice to dispatch, which tells how many come; 3/4 crosses at 20 GB/s."""
    for phase, arranged in (("prefill", 0.0), ("decode", 3.7e-6)):
        own = instance("deepseek-r1", "910b", phase, "int8", **HYBRID)
        (dispatched,) = exchange_term(own, "dispatch").protocols
        (combined,) = exchange_term(own, "combine").protocols
        assert combined == pytest.approx((20e-6 + 3 * 1e-6 + arranged, 20e9 / 0.75))
        assert dispatched == pytest.approx((2 * 23e-6 + arranged, combined[1]))
    both = replace(
        own, strategy=Strategy(attention_tp=8, attention_dp=4, moe_tp=np.array([8, 1]), moe_ep=np.array([4, 32]))
    )
    ((latencies, _),) = exchange_term(both, "dispatch").protocols
    assert latencies.tolist() == pytest.approx([49.7e-6, 60.5e-6])
    ((inside, _),) = exchange_term(instance("deepseek-r1", "cm384", "decode", "int8", **HYBRID), "dispatch").protocols
    assert inside == pytest.approx(60.5e-6)


@pytest.mark.parametrize(
    ("machine", "engine", "nodes"), [("910b", "vllm-ascend", 4), ("h20", "vllm", 2)], ids=lambda each: str(each)
)
def test_mixserve_is_ahead_of_the_engines_that_gather(machine: str, engine: str, nodes: int):
    """Arxiv 2601.08800: TTFT 1.08 to 3.80, ITL 1.03 to 1.66 times; here over DP+EP at its batch of 16, ITL on 910B.

    On H20, whose gathers use the cards of all devices, TTFT is only 1.03 and 1.06 times the hybrid's.
    """

    def run(strategy: str, engine: str) -> Prediction:
        asked = Configuration(
            model=load_model("qwen3-235b-a22b"),
            hardware=load_hardware(machine),
            strategy=parse_strategy(strategy, moe=True),
            weights="bf16",
            phase="mixed",
            prompt_tokens=220,
            output_tokens=200,
            concurrency=16,
            host=host_costs(engine),
        )
        return predict(asked)

    ours, least = run(f"TP=8 + DP={nodes}, TP=8 + EP={nodes}", "reference"), 1.08 if machine == "910b" else 1.03
    for strategy in (f"TP=8 + DP={nodes}, EP={8 * nodes}", f"TP=4 + DP={2 * nodes}, EP={8 * nodes}"):
        theirs = run(strategy, engine)
        assert theirs.ttft_seconds is not None and theirs.ttft_seconds > least * ours.ttft_seconds
        assert (theirs.tpot_seconds > 1.03 * ours.tpot_seconds) == (machine == "910b")
