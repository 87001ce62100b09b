"""Small capacity questions, each answered once per run of the tests."""

from functools import cache
from typing import Any

from hardware.loader import load_hardware
from hardware.spec import Dtype
from models.loader import load_model
from planner.costs.deployment import default_weights
from planner.plans.plan import Plan
from planner.question import Machines, Question
from planner.search.answer import Answer
from planner.search.changes.refusal import answered
from planner.search.fleet import Fleet
from planner.search.search import search
from planner.search.solve import Choice, choose, plan_of
from planner.search.ways import Rows, gather_fleet
from planner.workload import Lengths, Workload


def machines(model: str, hardware: str, devices: int, weights: Dtype | None = None) -> Machines:
    """Return so many devices of the catalogue's hardware, with the model's default weights unless others are given."""
    spec = load_hardware(hardware)
    weights = weights or default_weights(spec, load_model(model))
    return Machines(hardware=spec, devices=devices, weights=weights, budget=f"{hardware} pool")


@cache
def small_question(
    model: str = "qwen3-30b-a3b",
    hardware: str = "h100",
    devices: int = 16,
    decode: tuple[str, int] | None = None,
    lengths: tuple[float, float] = (1024.0, 128.0),
    squared_cv: float = 0.0,
    weights: Dtype | None = None,
    **fields: Any,
) -> Question:
    """Return a question on a few devices; ``decode`` is (hardware, devices) where that role has its own."""
    prefill = machines(model, hardware, devices, weights)
    prompt, answer = lengths
    return Question(
        model=load_model(model),
        prefill=prefill,
        decode=machines(model, *decode) if decode else prefill,
        workload=Workload(
            input_tokens=Lengths(mean=prompt, squared_cv=squared_cv),
            output_tokens=Lengths(mean=answer, squared_cv=squared_cv),
        ),
        **{"ttft_seconds": 1.0, "tpot_seconds": 0.05, "shape": "disaggregated"} | fields,
    )


@cache
def small_answer(**asked: Any) -> Answer:
    """Return the answer to that question."""
    return answered(small_question(**asked))


@cache
def best_of(**asked: Any) -> Plan | None:
    """Return the best plan alone, without what stands beside it in an answer."""
    return search(small_question(**asked), beside=False).best


def rate_of(**asked: Any) -> float:
    """Requests per second of the best plan, 0 where there is none."""
    best = best_of(**asked)
    return best.requests_per_second if best else 0.0


def plan_over(question: Question, rows: Rows) -> Plan | None:
    """Return the plan with the largest rate over given rows; None where none keeps the limits."""
    choice = choose(gather_fleet(Fleet.of(question), rows=rows), rows=rows)
    return plan_of(*choice.chosen[0], choice.carried) if isinstance(choice, Choice) else None
