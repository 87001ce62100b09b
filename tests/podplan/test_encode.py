"""`--encode` from the API and the command line: the answer, its refusals, and files that start what was planned."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import podplan
from cli.main import main
from podplan.planning import PlanResult

ASKED: dict[str, Any] = {"hw": "h800", "nodes": 1, "isl": 512, "images": "2@1280x720", "osl": 64, "rate": "20/s"}
ASKED |= {"engine": "sglang", "encode": "separate"}


@cache
def answer(shape: str, engine: str = "sglang") -> PlanResult:
    """Return the plan with encode instances, by shape."""
    return podplan.plan("qwen2.5-vl-7b-instruct", **(ASKED | {"shape": shape, "engine": engine}))


def deployed(folder: Path, found: PlanResult, engine: str, kind: str, code: int = 0) -> str:
    """Return the files of a plan as one text; what deploying them ends with is ``code``."""
    found.save(folder / "plan")
    platform = ["bare"] if kind == "bare" else ["kubernetes", "--kind", kind]
    words = ["deploy", str(folder / "plan" / "manifest.yaml"), "--engine", engine, "--platform", *platform]
    assert main([*words, "--out", str(folder / "files")]) == code
    return "\n".join(path.read_text() for path in sorted((folder / "files").rglob("*")) if path.is_file())


@pytest.mark.parametrize("shape", ["disaggregated", "aggregated"])
def test_the_answer_tells_the_encode_pool(shape: str) -> None:
    """Its pool stands first, with what a pass takes, what it holds, and how long requests are there."""
    told = answer(shape).to_dict()
    best = told["best"]
    encode = best["pools"][0]
    assert (encode["role"], encode["weights"]) == ("encode", "bf16")
    assert encode["tokens_per_device"] == encode["requests_per_pass"] * 2392
    assert encode["memory_bytes_per_device"]["weights"] < 1.5e9
    assert best["devices"] == sum(pool["devices"] for pool in best["pools"])
    assert 0 < best["encode_seconds"]["mean"] < best["ttft_seconds"]["mean"]
    assert told["question"]["encode"] == "separate"


def test_a_limit_that_encode_passes_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty pictures on one device take longer than half of the limit: the refusal says which stage is late."""
    words = ["qwen2.5-vl-7b-instruct", "--hw", "h800", "--nodes", "1", "--images", "20@1280x720", "--ttft", "300ms"]
    words += ["--encode", "separate", "--engine", "reference", "--shape", "disaggregated"]
    assert main(words) == 3
    assert "an encode instance" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["bare", "lws", "statefulset"])
@pytest.mark.parametrize("shape", ["disaggregated", "aggregated"])
def test_sglang_starts_encoders_and_tells_the_others_of_them(shape: str, kind: str, tmp_path: Path) -> None:
    """Files are read back against the manifest; what encodes does so alone, what prefills knows every address."""
    text = deployed(tmp_path, answer(shape), "sglang", kind)
    pools = answer(shape).to_dict()["best"]["pools"]
    assert text.count("--encoder-only") == text.count("--language-only") == 1
    urls = text.partition("--encoder-urls ")[2].partition("--")[0]
    assert urls.count("http://") == pools[0]["instances"]


@pytest.mark.parametrize("kind", ["bare", "lws", "statefulset"])
def test_vllm_has_a_proxy_before_encoders_and_aggregated_instances(kind: str, tmp_path: Path) -> None:
    """Its router knows every instance of both roles, and where each of the second listens for embeddings."""
    text = deployed(tmp_path, answer("aggregated", "vllm"), "vllm", kind)
    assert "ec_producer" in text and "ec_consumer" in text
    encode, mixed = (pool["instances"] for pool in answer("aggregated", "vllm").to_dict()["best"]["pools"])
    router = text.partition("disagg_epd_proxy.py")[2].partition("\n\n")[0]
    told = router.partition("--encode-servers-urls")[2].partition("--")[0]
    assert told.count("http://") == encode
    assert router.count("tcp://") == mixed


def test_any_engine_is_one_that_has_them() -> None:
    """Engines without encode instances are no choice where these alone are asked for."""
    found = podplan.plan("qwen2.5-vl-7b-instruct", **(ASKED | {"shape": "disaggregated", "engine": "any"}))
    assert found.to_dict()["best"]["engine"].startswith("sglang")


@pytest.mark.parametrize(("shape", "engine"), [("aggregated", "trtllm"), ("disaggregated", "vllm")])
def test_other_engines_refuse_the_manifest(shape, engine, tmp_path, capsys):
    """By the rule that cuts them in a search, with exit code 3."""
    deployed(tmp_path, answer(shape), engine, "bare", code=3)
    assert "encode-pools" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --encoder-only --tp-size 1",
        """vllm serve Qwen/Qwen3-8B --ec-transfer-config '{"ec_connector":"X","ec_role":"ec_producer"}'""",
    ],
)
def test_what_encodes_alone_is_not_imported_as_what_answers(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An encoder's command line is known for one, and refused."""
    assert main(["import", words, "--hw", "h800"]) == 2
    assert "encode" in capsys.readouterr().err


def test_auto_tells_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    """What pictures encoded in steps with prompts come to stands beside what encode instances do."""
    found = podplan.plan(
        "qwen2.5-vl-7b-instruct",
        **(ASKED | {"encode": "auto", "shape": "disaggregated", "engine": "reference", "rate": None}),
    )
    told = {each["encode"]: each["requests_per_second"] for each in found.to_dict()["formats"]}
    assert set(told) == {"fused", "separate"}
    best = found.best
    assert best.requests_per_second == max(told.values())
    assert (best.encode is not None) == (told["separate"] > told["fused"])
