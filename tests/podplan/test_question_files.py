"""Question files: what they ask, how a question's own keys replace shared ones, and one sentence for what is wrong."""

from pathlib import Path

import pytest
import yaml

from ground.errors import BadInput
from podplan.question_files import (
    asked_of,
    merged_flags,
    questions_in_place,
    read_questions,
    read_rows,
    single_question,
    typed_of,
)

TWO = {"model": "qwen3-8b", "hw": "h100", "questions": [{"name": "a", "rate": "1/s"}, {"devices": 2, "rate": "2/s"}]}


def written(folder: Path, data: object) -> Path:
    """Write data as a question file."""
    path = folder / "q.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def test_questions_share_what_stands_beside_them(tmp_path: Path) -> None:
    """Names are given or numbered; texts are what would be typed; paths are seen from the file's folder."""
    first, second = read_questions(written(tmp_path, TWO))
    assert (first.name, second.name) == ("a", "q-2")
    assert first.get("model") == "qwen3-8b" and second.get("devices") == "2" and first.get("devices") is None
    assert asked_of(first).question.rate_per_second == 1.0
    own = {"model": "mine/config.json", "hw": "/abs/h.yaml", "trace": "t.jsonl", "isl_histogram": "a=3"}
    (one,) = read_questions(written(tmp_path, {**own, "weights": {"prefill": "fp8", "decode": "bf16"}}))
    assert one.get("model") == str(tmp_path / "mine/config.json") and one.get("hw") == "/abs/h.yaml"
    assert one.get("trace") == str(tmp_path / "t.jsonl") and one.get("isl_histogram") == "a=3"
    assert one.get("weights") == "prefill=fp8,decode=bf16"
    assert read_questions(written(tmp_path, {"name": True}))[0].name == "yes"


@pytest.mark.parametrize(
    ("shared", "own", "left"),
    [
        ({"isl": "9", "isl_cv": "1", "osl": "3"}, {"isl_histogram": "h.csv"}, {"osl": "3", "isl_histogram": "h.csv"}),
        ({"isl_histogram": "h.csv"}, {"isl": "9"}, {"isl": "9"}),
        ({"trace": "t", "format": "azure", "hw": "h100"}, {"osl": "9"}, {"hw": "h100", "osl": "9"}),
        ({"isl": "9", "osl": "3"}, {"trace": "t"}, {"trace": "t"}),
        ({"rate": "1/s"}, {"job": "1M requests"}, {"job": "1M requests"}),
        ({"rate": "5/s", "isl": "512"}, {"growth": "5/s..9/s:4"}, {"isl": "512", "growth": "5/s..9/s:4"}),
        ({"nodes": "2"}, {"devices": "8"}, {"devices": "8"}),
        ({"rate": "1/s"}, {"ttft": "1s"}, {"rate": "1/s", "ttft": "1s"}),
    ],
)
def test_a_question_replaces_what_its_own_keys_contradict(shared, own, left):
    """Sizes, lengths and rates are given in one of several ways."""
    assert merged_flags(shared, own) == left


def test_rows_of_another_list(tmp_path: Path) -> None:
    """None where the file has no such list."""
    path = written(tmp_path, {"pools": [{"hw": "h100"}]})
    assert read_rows(path, "pools", ("hw",), 3) == [(f"{path}: pools[0]", {"hw": "h100"})]
    assert read_rows(path, "models", ("hw",), 3) == read_rows(written(tmp_path, [1]), "pools", ("hw",), 3) == []


def test_a_file_stands_in_place_of_a_model(tmp_path: Path) -> None:
    """One of several is picked by its name."""
    path = str(written(tmp_path, TWO))
    assert single_question({"model": path, "name": "q-2"}, "check").get("rate") == "2/s"
    assert single_question({"model": "qwen3-8b", "hw": "h100"}, "check").where == ""
    weighed = questions_in_place(
        {"model": str(written(tmp_path, {"manifest": "m.yaml"})), "confidence": "0.9"}, "check", ""
    )
    assert weighed is not None and "manifest is for plan check and is not used" in str(weighed[0].ignored)
    assert read_questions(Path(written(tmp_path, TWO)))[0].ignored is None


def test_keywords_are_typed_as_flags() -> None:
    """Units are added to plain numbers; keywords that are none are refused."""
    assert typed_of({"rate": 2, "ttft": 0.5, "model": None, "isl": 9}) == {"rate": "2/s", "ttft": "0.5s", "isl": "9"}
    with pytest.raises((BadInput, TypeError), match="modle"):
        typed_of({"modle": "x"})
