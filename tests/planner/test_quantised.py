"""Number formats as a choice: the answer is that of the best format asked alone, and the others are told."""

from dataclasses import replace
from itertools import product

import pytest

from hardware.formats import multiplied
from hardware.loader import load_hardware
from planner.quantised import combinations, format_text, in_formats, own_formats, usual_weights
from planner.question import Formats, Question
from planner.search import Answer, search
from tests.questions import small_question

BF16, FP8 = Formats(prefill="bf16", decode="bf16", kv="bf16"), Formats(prefill="fp8", decode="fp8", kv="bf16")
SMALL_CACHE = Formats(prefill="bf16", decode="bf16", kv="fp8")


def asked(*formats: Formats, **fields: object) -> Question:
    """Return a small question with formats to choose from."""
    small = small_question("qwen3-8b", "h200", 2, ttft_seconds=0.08, tpot_seconds=0.02)
    return replace(small, formats=formats, **fields)  # type: ignore[arg-type]


def rate(answer: Answer) -> float:
    """Requests per second of the plan, 0 where there is none."""
    return answer.best.requests_per_second if answer.best else 0.0


def test_the_best_format_is_chosen_and_every_other_told() -> None:
    """Each alone carries what it is told to; the best of them is the answer, the bound that of all."""
    formats = (BF16, SMALL_CACHE)
    answer = search(asked(*formats))
    alone = [rate(search(each)) for each in in_formats(asked(*formats))]

    assert rate(answer) == max(alone) and alone.index(max(alone)) != 0
    assert [tried.plan.requests_per_second if tried.plan else 0.0 for tried in answer.formats] == alone
    assert own_formats(answer.question) == formats[alone.index(max(alone))] and not answer.question.formats
    assert answer.best is not None and own_formats(answer.best.question) == own_formats(answer.question)
    assert answer.bound is not None and answer.bound.value == pytest.approx(max(alone)) and answer.bound.gap < 1e-6


@pytest.mark.parametrize("objective", ["cost", "latency"])
def test_objectives_with_a_rate_choose_by_their_own_measure(objective: str) -> None:
    """Least price, least time from arrival to the last token."""
    answer = search(asked(BF16, FP8, rate_per_second=4.0, objective=objective))
    plans = [tried.plan for tried in answer.formats]

    assert answer.best is not None and all(plans)
    measures = {
        "cost": [plan.cost_per_million_tokens for plan in plans if plan],
        "latency": [plan.e2e_mean_seconds for plan in plans if plan],
    }[objective]
    best = {
        "cost": answer.best.cost_per_million_tokens,
        "latency": answer.best.e2e_mean_seconds,
    }[objective]
    assert best == min(measures)  # type: ignore[type-var]


def test_formats_that_do_not_fit_are_told_with_what_binds() -> None:
    """A 32-billion model on two devices of 64 GB: in BF16 an instance takes both, in INT8 there is one of each role."""
    machines = replace(small_question("qwen3-32b", "910b", 2).decode, devices=2)
    question = replace(small_question("qwen3-32b", "910b", 2), prefill=machines, decode=machines)
    formats = [Formats(prefill=dtype, decode=dtype, kv="bf16") for dtype in ("bf16", "int8")]  # type: ignore[arg-type]
    answer = search(replace(question, formats=tuple(formats)))

    assert answer.best is not None and answer.formats[0].plan is None and answer.formats[0].binding_limit == "devices"
    assert own_formats(answer.question) == formats[1]


def test_engines_cut_formats_that_they_do_not_run() -> None:
    """xLLM has no FP8 cache on Ascend: every layout is cut by that rule, and the other format is planned."""
    question = replace(small_question("qwen3-8b", "910b", 8), engine="xllm@0.9.0")
    formats = (Formats(prefill="bf16", decode="bf16", kv="fp8"), Formats(prefill="bf16", decode="bf16", kv="bf16"))
    answer = search(replace(question, formats=formats))

    assert answer.formats[0].plan is None and answer.formats[1].plan is not None
    assert answer.formats[0].cut["decode"]["xllm@0.9.0: kv-dtype"] > 0
    cut = search(replace(question, formats=(Formats(prefill="int4", decode="int4", kv="bf16"), formats[1])))
    assert cut.formats[0].cut["prefill"]["xllm@0.9.0: weights"] > 0


def test_roles_differ_only_on_machines_that_differ() -> None:
    """One kind of machine has one checkpoint; two kinds may have one each; the cache is shared."""
    h200, ascend = load_hardware("h200"), load_hardware("910b")

    same = combinations((h200, h200), (["bf16", "fp8"], ["bf16", "fp8"]), ["bf16", "fp8"])
    apart = combinations((ascend, h200), (["int8", "bf16"], ["fp8", "bf16"]), ["bf16"])

    assert {(each.prefill, each.decode, each.kv) for each in same} == {
        (dtype, dtype, kv) for dtype, kv in product(("bf16", "fp8"), repeat=2)
    }
    assert len(apart) == 4 and {each.kv for each in apart} == {"bf16"}
    assert format_text(BF16) == "bf16 weights, bf16 KV cache"


def test_usual_formats_are_those_that_are_multiplied_and_the_shipped_one() -> None:
    """A four-bit checkpoint is usual where it is shipped, though its products are of BF16."""
    h100 = load_hardware("h100")

    assert usual_weights(h100, "bf16") == list(multiplied(h100))
    assert usual_weights(h100, "int4") == [*multiplied(h100), "int4"]
