"""Prepared terms give the seconds of the terms one by one, load after load."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.instances.space import groups, role_rows
from planner.manifest.prepared import prepared
from planner.manifest.stacks import stacked
from planner.manifest.stepcost import evaluate, launches, stage_sum
from planner.manifest.terms import StepCost, StepLoad, timings, variables
from tests.instances import cloudmatrix_decode, even_cost, instance
from tests.planner.manifest.test_stacks import asked

COSTS: dict[str, StepCost] = {
    "split cores": even_cost(cloudmatrix_decode()),
    "one after the other": even_cost(cloudmatrix_decode(shared_ranks=0, redundant=64)),
    "prompts on Ascend": even_cost(instance("deepseek-r1", "cm384", "prefill", "int8", attention_dp=32, moe_ep=32)),
    "measured experts": even_cost(
        instance("gpt-oss-120b", "h200", "mixed", "mxfp4", attention_tp=4, moe_tp=4, engine="vllm")
    ),
    "prompts on Hopper": even_cost(instance("deepseek-r1", "h800", "prefill", "fp8", attention_dp=32, moe_ep=32)),
}
READY = {name: prepared(cost) for name, cost in COSTS.items()}


def load_of(decode: float, chunk: float, context: float, scale: object = 1.0) -> StepLoad:
    """Return a step with or without running requests, prompts and what those have cached."""
    return StepLoad(
        decode_sequences=decode * scale,
        decode_kv_tokens=decode * 1000 * scale,
        prefill_tokens=chunk * scale,
        prefill_context_tokens=(context if chunk else 0.0) * scale,
        prefill_pairs=(chunk**2 / 2 + chunk * context) * scale,
        finishing_prompts=chunk / 4096 * scale,
        mean_tokens=(decode + chunk) * scale,
    )


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(sorted(COSTS)),
    microbatches=st.sampled_from([1, 2]),
    decode=st.one_of(st.just(0.0), st.floats(1, 300)),
    chunk=st.one_of(st.just(0.0), st.floats(1, 16_384)),
    context=st.one_of(st.just(0.0), st.floats(1, 65_536)),
)
def test_prepared_costs_are_the_costs(name, microbatches, decode, chunk, context):
    """Whatever is on the step, in any order of loads."""
    load = load_of(decode, chunk, context)
    expected, found = (evaluate(each, load, microbatches) for each in (COSTS[name], READY[name]))
    assert type(found.seconds) is float
    assert found.seconds == pytest.approx(expected.seconds, rel=1e-12)
    assert found.stream_share == expected.stream_share
    assert launches(READY[name], microbatches) == launches(COSTS[name], microbatches)


@pytest.mark.parametrize("name", sorted(COSTS))
def test_stages_on_a_share_of_the_cores(name: str):
    """Each stage alone, slowed or not, and its demand for memory."""
    values = variables(COSTS[name], load_of(9.0, 512.0, 2048.0), 1)
    expected, found = timings(COSTS[name].terms, values), READY[name].terms.timings(values)
    assert list(found) == list(expected)
    for stage in expected:
        assert found[stage].demand == pytest.approx(expected[stage].demand, rel=1e-12)
        for shares in ((1.0, 1.0), (0.25, 1.5)):
            assert stage_sum(found, (stage,), *shares) == pytest.approx(
                stage_sum(expected, (stage,), *shares), rel=1e-12
            )


def test_arrays_go_term_by_term():
    """Loads side by side give the very numbers of the terms."""
    load = load_of(9.0, 512.0, 2048.0, np.linspace(0.5, 2.0, 7))
    for name, cost in COSTS.items():
        assert (evaluate(READY[name], load, 2).seconds == evaluate(cost, load, 2).seconds).all()


def test_many_instances_cannot_be_prepared():
    """Coefficients that are arrays are refused, not read wrongly."""
    question = asked("split cores")
    group = max(
        groups(question, "decode", role_rows(question, "decode"), 0),
        key=lambda each: np.size(each.deployment.expert_ranks),
    )
    with pytest.raises(ValueError, match="stacked, not prepared"):
        prepared(stacked(even_cost(group.deployment)))
