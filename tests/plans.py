"""Plans that the search finds for small questions, each searched once per run of the tests."""

from functools import cache

from hardware.loader import load_hardware
from models.loader import load_model
from planner.manifest.schema import Manifest
from planner.plans.assemble import assemble
from planner.plans.plan import Plan
from planner.question import Machines, Question
from planner.search.search import search
from planner.workload import Lengths, Workload


@cache
def small_plan(
    model: str = "qwen3-30b-a3b",
    hardware: str = "cm384",
    devices: int = 32,
    drafts: int = 0,
    weights: str = "int8",
    output_tokens: float = 128.0,
    input_squared_cv: float = 0.0,
) -> Plan:
    """Return the plan with the largest rate on a few devices."""
    spec = load_hardware(hardware)
    machines = Machines(hardware=spec, devices=devices, weights=weights, budget=hardware)  # type: ignore[arg-type]
    question = Question(
        model=load_model(model),
        prefill=machines,
        decode=machines,
        workload=Workload(
            input_tokens=Lengths(mean=1024, squared_cv=input_squared_cv), output_tokens=Lengths(mean=output_tokens)
        ),
        ttft_seconds=1.0,
        tpot_seconds=0.05,
        drafts=(drafts,),
        shape="disaggregated",
    )
    return search(question, beside=False).best


@cache
def small_manifest(**question: object) -> Manifest:
    """Return the manifest of that plan."""
    return assemble(small_plan(**question), {"model": "small"})  # type: ignore[arg-type]
