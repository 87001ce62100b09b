"""Number formats as a choice: the answer is that of the best format asked alone, and the others are told."""

from dataclasses import replace

import pytest

from hardware.formats import multiplied
from hardware.loader import load_hardware
from planner.objective import ObjectiveName, preferred
from planner.plans.plan import Plan
from planner.plans.quantised import alternatives, combinations, format_text, own_formats, usual_weights
from planner.question import Formats, Question
from planner.search.answer import Answer
from planner.search.search import search
from tests.questions import small_question

BF16, FP8 = Formats(prefill="bf16", decode="bf16", kv="bf16"), Formats(prefill="fp8", decode="fp8", kv="bf16")
SMALL_CACHE = Formats(prefill="bf16", decode="bf16", kv="fp8")


def every_pair() -> tuple[Formats, ...]:
    """Return both weights of each role."""
    return combinations((["bf16", "fp8"], ["bf16", "fp8"]), ["bf16"])


def asked(*formats: Formats, **fields: object) -> Question:
    """Return a small question with formats to choose from."""
    small = small_question("qwen3-8b", "h200", 2, ttft_seconds=0.08, tpot_seconds=0.02)
    return replace(small, formats=formats, **fields)  # type: ignore[arg-type]


def rate(answer: Answer) -> float:
    """Requests per second of the plan, 0 where there is none."""
    return answer.best.requests_per_second if answer.best else 0.0


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


def figures(plans: list[Plan | None]) -> list[tuple[float, ...] | None]:
    """Return what plans do."""
    return [None if plan is None else (plan.requests_per_second, plan.devices, plan.ttft.mean) for plan in plans]


@pytest.mark.parametrize(
    ("objective", "formats"),
    [
        ("throughput", (BF16, SMALL_CACHE)),
        *((objective, every_pair()) for objective in ("throughput", "chips", "cost", "latency")),
    ],
)
def test_one_search_finds_the_best_of_all_formats(objective: ObjectiveName, formats: tuple[Formats, ...]) -> None:
    """Each alone, costed and proven on its own, comes to what the search over all tells of it; the bound is of all."""
    question = asked(*formats, objective=objective, rate_per_second=None if objective == "throughput" else 5.0)
    answer, each_alone = search(question), alternatives(question)
    alone = [search(each, beside=False).best for each in each_alone]

    assert len({own_formats(each) for each in each_alone}) == len(alone) == len(formats)
    assert figures([tried.plan for tried in answer.formats]) == figures(alone)
    best = preferred(alone, question.goal)
    assert best is not None and own_formats(answer.question) == formats[best] and not answer.question.formats
    assert own_formats(answer.best.question) == formats[best]
    assert answer.bound.gap < 1e-3


def test_roles_with_a_format_each_carry_more_than_with_either() -> None:
    """Compute binds prefill, memory decode: FP8 for the one, four bits, dequantised before products, for the other."""
    small = small_question("llama-3.1-70b", "h100", 8, lengths=(4096.0, 1024.0), ttft_seconds=2.0)
    pairs = combinations((["fp8", "int4"], ["fp8", "int4"]), ["bf16"])
    answer = search(replace(small, formats=pairs))
    carried = {(each.formats.prefill, each.formats.decode): each.plan for each in answer.formats}
    alike = [plan.requests_per_second for pair, plan in carried.items() if plan and pair[0] == pair[1]]

    assert own_formats(answer.question) == Formats(prefill="fp8", decode="int4", kv="bf16")
    assert rate(answer) > 1.02 * max(alike)
    pools = answer.best.pools() if answer.best else ()
    assert [pool.candidate.deployment.weights for _, pool in pools] == ["fp8", "int4"]


def test_formats_share_what_is_costed() -> None:
    """Four pairs cost as many candidates as the two formats of a role do, each alone."""
    answer = search(asked(*every_pair()))
    alone = [search(asked(each)) for each in (BF16, FP8)]

    assert answer.candidates_evaluated <= sum(each.candidates_evaluated for each in alone)


def test_aggregated_instances_have_one_checkpoint() -> None:
    """Alone they leave the pairs of one format; beside the other shape the cut of a mixed pair says so."""
    aggregated = search(asked(*every_pair(), shape="aggregated"))
    both = search(asked(*every_pair(), shape="auto"))

    assert [each.told for each in aggregated.formats] == ["bf16 weights, bf16 KV cache", "fp8 weights, bf16 KV cache"]
    unlike = [each for each in both.formats if each.formats.prefill != each.formats.decode]
    assert len(unlike) == 2
    assert all("one checkpoint" in " ".join(each.cut["mixed"]) for each in unlike if each.plan)


def test_pairs_of_one_checkpoint_come_first() -> None:
    """Of equal plans the first is taken; the cache is shared."""
    found = combinations((["int8", "bf16"], ["fp8", "bf16"]), ["bf16"])
    pairs = [(each.prefill, each.decode) for each in found]

    assert pairs == [("bf16", "bf16"), ("int8", "fp8"), ("int8", "bf16"), ("bf16", "fp8")]
    assert format_text(BF16) == "bf16 weights, bf16 KV cache"


def test_usual_formats_are_those_that_are_multiplied_and_the_shipped_one() -> None:
    """A four-bit checkpoint is usual where it is shipped, though its products are of BF16."""
    h100 = load_hardware("h100")

    assert usual_weights(h100, "bf16") == list(multiplied(h100))
    assert usual_weights(h100, "int4") == [*multiplied(h100), "int4"]
