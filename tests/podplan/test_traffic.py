"""Lengths of requests: means, CVs, distributions and histograms, on every question and on manifests."""

from pathlib import Path
from typing import Any

import pytest

from cli import main
from ground.errors import BadInput, ExitCode
from models.loader import load_model
from planner.manifest.document import read_manifest
from planner.manifest.schema import ManifestWorkload, PromptKinds
from planner.plans.expectation import expect
from planner.search.changes.nearest import scaled_prompts
from planner.serving.deployed import workload_of
from planner.serving.streams import prompts_of
from planner.workload import Workload
from podplan.offered import read_offered
from podplan.options import QuestionFlags, SimulateFlags, flags_of
from podplan.traffic import read_traffic
from runtime.simulate.workload import open_loop
from tests.manifests import manifest
from tests.shell import answered

MODEL = load_model("qwen3-30b-a3b")
SMALL = ["qwen3-30b-a3b", "--engine", "reference", "--hw", "h800", "--nodes", "1", "--shape", "disaggregated"]
HISTOGRAM = "tokens,weight\n8000,1\n500,3\n100,0\n"


def _workload(**flags: str) -> Workload:
    return read_traffic(QuestionFlags(**flags), MODEL, lambda trace: trace).workload


def _file(folder: Path, text: str) -> str:
    path = folder / "lengths.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_histogram_gives_moments_and_kinds(tmp_path: Path) -> None:
    """500 three times of four and 8000 once: mean 2375, and prompts of both lengths; of outputs the moments."""
    file = _file(tmp_path, HISTOGRAM)
    workload = _workload(isl_histogram=file, osl_histogram=file)
    assert workload.input_tokens == workload.output_tokens
    assert workload.input_tokens.mean == 2375
    assert workload.input_tokens.squared_cv == pytest.approx((0.75 * 1875**2 + 0.25 * 5625**2) / 2375**2)
    assert workload.prompts == ((500, 0, 0.75), (8000, 0, 0.25))
    reused = prompts_of(_workload(isl_histogram=file, prefix_reuse="0.4"))
    assert float(reused.reused @ reused.weights) == pytest.approx(0.4 * 2375)


def test_lengths_are_told_as_they_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    """Answers are log-normal whatever prompts are."""
    found = answered(capsys, *SMALL, "--isl-cv", "1", "--osl-cv", "0.5", "--isl-distribution", "gamma", "--ttft", "9s")
    assert found["assumptions"]["lengths"] == "prompts by mean and CV, gamma; outputs by mean and CV, lognormal"


def test_a_plan_is_made_for_a_histogram(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One length with all the weight plans as that length; a spread of the same mean serves less."""

    def planned(*flags: str) -> dict[str, Any]:
        return answered(capsys, *SMALL, "--osl", "256", "--ttft", "1s", *flags)

    rate = planned("--isl", "2375")["best"]["requests_per_second"]
    single = planned("--isl-histogram", _file(tmp_path, "tokens,weight\n2375,7\n"))
    assert single["best"]["requests_per_second"] == pytest.approx(rate, rel=0.02)
    assert "isl" not in single["assumptions"]
    assert single["assumptions"]["lengths"].startswith("prompts as in ")
    spread = planned("--isl-histogram", _file(tmp_path, HISTOGRAM))
    assert spread["best"]["requests_per_second"] < rate


def test_no_file_is_no_histogram() -> None:
    """An empty name is told by the flag, not as the folder that it would be."""
    with pytest.raises(BadInput, match="--osl-histogram: give a CSV file"):
        _workload(osl_histogram="")


def test_the_nearest_length_shortens_the_prompts_too(tmp_path: Path) -> None:
    """Kinds of prompts shrink with their mean, and hold a token at least."""
    workload = _workload(isl_histogram=_file(tmp_path, "tokens,weight\n1,1\n1000,1\n"))
    assert scaled_prompts(workload, 0.5) == ((1, 0, 0.5), (500, 0, 0.5))
    assert (
        scaled_prompts(Workload(input_tokens=workload.input_tokens, output_tokens=workload.output_tokens), 0.5) is None
    )


def test_a_manifest_carries_the_histograms_that_it_was_planned_for(tmp_path, capsys):
    """Simulate draws prompts and answers of those lengths only, and sets the plan's own figures beside them."""
    inputs, outputs = (tmp_path / name for name in ("in.csv", "out.csv"))
    inputs.write_text(HISTOGRAM, encoding="utf-8")
    outputs.write_text("tokens,weight\n16,1\n48,1\n", encoding="utf-8")
    out = tmp_path / "plan"
    files = ["--isl-histogram", str(inputs), "--osl-histogram", str(outputs)]
    assert main.main([*SMALL, *files, "--rate", "20/s", "--out", str(out)]) == ExitCode.DONE
    manifest = read_manifest(out / "manifest.yaml")
    drawn = open_loop(manifest.workload, 10.0, 4000)
    assert set(drawn.input_tokens) == {500, 8000}
    assert set(drawn.output_tokens) == {16, 48}
    assert (drawn.input_tokens == 8000).mean() == pytest.approx(0.25, abs=0.03)
    found = expect(manifest, workload_of(manifest.workload), 20.0)
    assert found.basis == "the plan's own figures"
    again = expect(manifest, workload_of(manifest.workload), 20.0001).prediction
    assert again.ttft_seconds.p99 == pytest.approx(found.prediction.ttft_seconds.p99, rel=0.01)  # type: ignore[union-attr]
    capsys.readouterr()


def test_reused_prompts_of_kinds_are_drawn_together() -> None:
    """A manifest with kinds of prompts reuses of each what its kind says, at most all but one token."""
    kinds = PromptKinds(tokens=[100.0, 2000.0], reused=[0.0, 2000.0], weights=[1.0, 3.0])
    workload = ManifestWorkload(input_tokens=1525, output_tokens=5, prefix_reuse=0.5, prompt_kinds=kinds)
    drawn = open_loop(workload, 1.0, 1000)
    assert set(zip(drawn.input_tokens.tolist(), drawn.reused_tokens.tolist(), strict=True)) == {(100, 0), (2000, 1999)}


def test_requests_end_at_the_context_of_the_model() -> None:
    """Of lengths that vary widely some would be longer; a plan's own end there, too."""
    made = manifest(workload={"input_tokens": 1500, "output_tokens": 800, "input_cv2": 4.0, "output_cv2": 4.0})
    offered = read_offered(flags_of(SimulateFlags, {"concurrency": "8", "requests": "3k"}), made, 0)
    (part,) = offered.requests()
    assert (part.input_tokens + part.output_tokens).max() == made.model.spec.max_position
    assert part.output_tokens.min() >= 1 and (part.reused_tokens < part.input_tokens).all()
