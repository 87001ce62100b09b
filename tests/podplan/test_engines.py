"""Which engine runs a plan where none is named, how sure a plan is, and that it passes its own check."""

import pytest

import podplan
from podplan.planning import PlanResult

SMALL = {"hw": "h100", "devices": 2, "shape": "disaggregated", "isl": 1024, "osl": 64}


@pytest.fixture(scope="module")
def found() -> PlanResult:
    """Return the answer where the engine is left open."""
    return podplan.plan("qwen3-8b", **SMALL)


def test_the_best_engine_is_taken_and_every_one_is_told(found: PlanResult) -> None:
    """The plan is that of the engine that carries most; each is as good as where it is asked for by name."""
    data = found.to_dict()
    table = data["engines"]
    engines = [row for row in table if row["engine"] != "reference"]
    assert {row["engine"].partition("@")[0] for row in engines} == {"vllm", "sglang", "trtllm"}
    assert table[-1]["engine"] == "reference" and not table[-1]["cuts"]
    rates = [row["requests_per_second"] for row in engines]
    assert rates == sorted(rates, reverse=True) and rates[0] == data["best"]["requests_per_second"]
    assert data["best"]["engine"] == engines[0]["engine"] == data["question"]["engine"]
    assert f"{found.manifest().engine.id}@{found.manifest().engine.version}" == data["best"]["engine"]
    last = podplan.plan("qwen3-8b", **SMALL, engine=engines[-1]["engine"].partition("@")[0])
    assert last.best.requests_per_second == rates[-1]


@pytest.mark.parametrize("more", [{"confidence": 0.9}, {"headroom": "10%"}])
def test_what_is_asked_of_a_plan_holds(found: PlanResult, more: dict[str, object]) -> None:
    """A surer plan carries less, its own pools hold with the confidence, and check comes to the same."""
    engine = {} if "confidence" in more else {"engine": found.best.question.engine}
    surer = podplan.plan("qwen3-8b", **SMALL, **more, **engine)
    assert surer.best.requests_per_second < found.best.requests_per_second
    if "confidence" in more:
        told = str(surer.to_dict()["assumptions"]["engine"])
        assert told.startswith(surer.best.question.engine) and surer.asked.question.engine == surer.best.question.engine
        assert (surer.sureness.held or 0.0) >= 0.89
        assert surer.sureness.rate_per_second == pytest.approx(surer.best.requests_per_second, rel=0.02)
    alone = SMALL | more | {"engine": surer.best.question.engine}
    assert podplan.check("qwen3-8b", **alone, rate=surer.best.requests_per_second).feasible


def test_a_utilisation_that_binds_is_named() -> None:
    """Where TTFT leaves room the most utilisation binds, and more of it carries as much more."""
    loose = {**SMALL, "ttft": "20s", "engine": "reference"}
    one, more = (podplan.plan("qwen3-8b", **loose, max_utilisation=share).best for share in (0.5, 0.6))
    assert more.requests_per_second == pytest.approx(1.2 * one.requests_per_second, rel=0.02)
    assert one.binding_limit in ("devices, prefill utilisation", "devices, decode tpot", "devices, decode memory")
    assert podplan.plan("qwen3-8b", **loose).to_dict()["assumptions"]["max_utilisation"] == 0.98


def test_layouts_of_an_engine_are_told_by_the_shape_that_is_planned() -> None:
    """Those of aggregated instances where only these are planned, else those of prefill and decode."""
    named = {**SMALL, "engine": "vllm", "rate": "1/s"}
    for shape, roles in (("aggregated", {"mixed"}), ("disaggregated", {"prefill", "decode"})):
        found = podplan.plan("qwen3-8b", **{**named, "shape": shape}).to_dict()["assumptions"]["engine_layouts"]
        assert found.keys() == roles and all("layouts kept" in told for told in found.values())


def test_a_refusal_is_told_of_an_engine_that_holds_the_model() -> None:
    """Of engines some of which hold a model in no layout, the refusal is one that does, and its change is of use."""
    asked = {"hw": "910c", "devices": 64, "isl": 4096, "osl": 64, "shape": "disaggregated"}
    refused = podplan.plan("kimi-k2", **asked, ttft="1ms")
    assert refused.binding_limit == "ttft"
    told = refused.answer.explanation.partition("nearest change: --ttft ")[2]
    assert podplan.plan("kimi-k2", **asked, ttft=told).best is not None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_that_was_never_measured_on_a_machine_says_so(engine: str) -> None:
    """On AMD: what stands in for its times is assumed, and the interval is that of kernels that nobody measured."""
    asked = {"phase": "decode", "strategy": "TP=1", "batch": 32, "engine": engine}
    amd, measured = (podplan.predict("qwen3-8b", hw=hw, **asked).to_dict() for hw in ("mi325x", "h200"))
    assert f"none of {engine} measured on mi325x" in amd["assumptions"]["engine_times"]
    assert "engine_times" not in measured["assumptions"]
    wide, narrow = ((each["interval"]["high"] / each["tpot_seconds"] - 1) for each in (amd, measured))
    assert wide > 1.5 * narrow
    wide_ep = {"phase": "prefill", "strategy": "DP=8, EP=8", "tokens": 4096, "engine": engine}
    steps = {
        hw: podplan.predict("deepseek-r1", hw=hw, **wide_ep).to_dict()["microbatches"] for hw in ("mi325x", "h200")
    }
    assert steps == {"mi325x": 1, "h200": 2}  # without an all-to-all nothing overlaps
    planned = podplan.plan("qwen3-8b", **SMALL | {"hw": "mi300x"}, engine=engine).to_dict()
    assert f"none of {engine} measured on mi300x" in planned["assumptions"]["engine_times"]
