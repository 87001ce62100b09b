"""What a question fixes of its instances: a filter on the search, or one configuration beside its grid."""

from functools import cache

import pytest

import podplan
from ground.errors import BadInput
from planner.plans.plan import DisaggregatedPlan
from podplan.options import QuestionFlags
from podplan.plan_data import strategy_text
from podplan.planning import PlanResult, solved
from podplan.question import Asked, of_roles, read_question

SMALL = {
    "model": "qwen3-30b-a3b", "hw": "h100", "devices": "16", "isl": "1024", "osl": "128", "ttft": "1s",
    "engine": "reference",
}  # fmt: skip


@cache
def answer(**given: str) -> PlanResult:
    """Return the answer to a small question with something given."""
    return solved(read_question(QuestionFlags(**{"shape": "disaggregated", **SMALL, **given})), beside=False)


def planned(**given: str) -> DisaggregatedPlan:
    """Return the best plan of it."""
    return answer(**given).best


def test_roles_are_told_apart_whatever_their_values_hold() -> None:
    """Commas and signs of a strategy belong to its role; without roles all is one value."""
    text = 'prefill="SP=2 + DP=16, EP=32", decode=DP=160 x 3, EP=288,mixed=TP=8 [PP=4]'
    roles = {"prefill": "SP=2 + DP=16, EP=32", "decode": "DP=160 x 3, EP=288", "mixed": "TP=8 [PP=4]"}
    assert of_roles(text, "") == roles
    assert of_roles("TP=4 + DP=8, EP=32", "") == {"": "TP=4 + DP=8, EP=32"}
    assert of_roles("decode=dedicated=32", "") == {"decode": "dedicated=32"}


def test_the_best_plan_pinned_is_itself() -> None:
    """All that a plan chose, given back, leaves one choice, which carries as much: pins filter the same search."""
    free = planned()
    first, second = free.prefill, free.decode
    again = planned(
        strategy=",".join(f"{role}={strategy_text(pool)}" for role, pool in free.pools()),
        instances=f"prefill={first.instances},decode={second.instances}",
        batch=f"decode={second.candidate.batch}",
        tokens=f"prefill={first.candidate.tokens_per_device}",
        redundant_experts=",".join(f"{role}={pool.candidate.row.redundant}" for role, pool in free.pools()),
    )
    assert again.requests_per_second == pytest.approx(free.requests_per_second, rel=3e-3)
    assert [pool.candidate.row for _, pool in again.pools()] == [pool.candidate.row for _, pool in free.pools()]


def test_what_is_given_is_what_the_plan_has_and_carries_no_more_than_the_best() -> None:
    """One role's strategy, of a degree that no grid has; how many; how much at once. The rest is searched."""
    free = planned()
    odd = planned(strategy="decode=DP=6, EP=6", redundant_experts="decode=4", batch="decode=24", tokens="prefill=2048")
    assert strategy_text(odd.decode) == "DP=6, EP=6"
    assert (odd.decode.candidate.row.redundant, odd.decode.candidate.batch) == (4, 24)
    assert odd.prefill.candidate.tokens_per_device == 2048 and odd.decode.instances == 1
    two = planned(instances="prefill=2,decode=1")
    assert (two.prefill.instances, two.decode.instances) == (2, 1)
    assert max(odd.requests_per_second, two.requests_per_second) <= free.requests_per_second * 1.003


def test_a_layout_that_no_engine_runs_is_planned_with_the_reference_runtime() -> None:
    """Unless an engine is named; what nothing runs is refused as before."""

    def asked(**given: str) -> Asked:
        return read_question(QuestionFlags(model="deepseek-r1", hw="cm384", **given))

    staged = "prefill=SP=2 + DP=16, EP=32"
    found = asked(strategy=staged)
    assert found.question.engine == "reference" and not found.question.engines
    for given in ({"engine": "sglang", "strategy": staged}, {"strategy": "prefill=SP=3 + DP=16, EP=48"}):
        with pytest.raises(BadInput, match="--strategy prefill"):
            asked(**given)


def test_a_given_batch_costs_what_predict_says() -> None:
    """The step of the plan's full batch and that of ``predict`` are one figure; so are those of a full pass."""
    text, kv = "DP=8, EP=8", "1088"  # of a running request: the prompt and half of the answer
    plan = planned(strategy=f"prefill={text},decode={text}", batch="decode=32", tokens="prefill=2048")
    common = {"hw": "h100", "strategy": text}
    step = podplan.predict(SMALL["model"], phase="decode", batch=32, kv_len=kv, **common)
    parts = plan.prefill.candidate.microbatches
    one = podplan.predict(SMALL["model"], phase="prefill", tokens=2048, isl=1024, microbatches=parts, **common)
    assert plan.decode.prediction.iteration_seconds == pytest.approx(step.prediction.iteration_seconds, rel=1e-9)
    assert plan.prefill.candidate.pass_seconds == pytest.approx(one.prediction.iteration_seconds, rel=1e-6)


def test_what_gives_no_plan_tells_what_would() -> None:
    """A batch that no memory holds binds, and the one of the best plan is named; it is a plan when it is asked for."""
    strategy = "prefill=DP=8, EP=8,decode=DP=8, EP=8"
    found = answer(strategy=strategy, batch="decode=4000")
    assert found.best is None and found.binding_limit == "memory"
    assert found.explanation.startswith("--batch decode=4000: no decode instance that may be holds as many")
    nearest = found.explanation.rpartition("--batch ")[2]
    assert planned(strategy=strategy, batch=nearest).requests_per_second > 0


def test_what_is_predicted_is_planned() -> None:
    """The instance is the predicted one, its step too, and of the other role there is what it needs."""
    text = "DP=8, EP=8"
    step = podplan.predict(SMALL["model"], hw="h100", phase="decode", strategy=text, batch=32, kv_len=1088)
    best = step.plan().best
    assert isinstance(best, DisaggregatedPlan) and (best.decode.instances, best.decode.candidate.batch) == (1, 32)
    assert strategy_text(best.decode) == text
    assert best.decode.prediction.iteration_seconds == pytest.approx(step.prediction.iteration_seconds, rel=1e-9)


def test_no_instance_is_larger_than_a_failure_domain_may_be() -> None:
    """Neither of a plan nor of a strategy that is given; and the bound never carries more."""
    free, bound = planned(), planned(max_instance_devices="2")
    assert max(pool.candidate.devices for _, pool in bound.pools()) <= 2
    assert bound.requests_per_second <= free.requests_per_second * (1 + 1e-9)
    with pytest.raises(BadInput, match="takes 4 devices and --max-instance-devices allows 2"):
        answer(strategy="decode=DP=4, EP=4", max_instance_devices="2")
