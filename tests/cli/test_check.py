"""`plan check`: verdicts for scripts and question files."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from cli.check import spares_text
from cli.main import main
from ground.errors import ExitCode
from ground.files import read_yaml
from planner.checks.check import check_deployed
from planner.checks.deployed import from_plan
from planner.serving.capacity import Limits
from tests.plans import small_plan
from tests.shell import answered, printed, refused

SMALL = ["qwen3-30b-a3b", "--engine", "reference", "--hw", "h800", "--nodes", "1", "--shape", "disaggregated"]
FILE = """
model: qwen3-8b
hw: h800
devices: 2
engine: reference
shape: disaggregated
questions:
  - {name: little, rate: 1/s}
  - {name: much, rate: 200/s}
"""


def test_flags_ask_one_question(capsys: pytest.CaptureFixture[str]) -> None:
    """The keys that scripts read, and limits that hold with room."""
    data = answered(capsys, "check", *SMALL, "--rate", "2/s", "--confidence", "0.9")
    (one,) = data["questions"]
    assert data["feasible"] is one["feasible"] is True
    assert {margin["name"] for margin in one["margins"]} == {"ttft", "tpot", "rate"}
    assert all(margin["holds"] and margin["margin"] > 0 for margin in one["margins"])
    assert one["confidence"] == 0.9
    assert one["held_confidence"] > 0.9
    assert one["best"]["requests_per_second"] > 2


def test_a_file_asks_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row and a test case for each; one that fails makes the exit code 3 and a failure with its reason."""
    path, report = tmp_path / "q.yaml", tmp_path / "report.xml"
    path.write_text(FILE, encoding="utf-8")
    assert main(["check", str(path), "--junit", str(report)]) == ExitCode.INFEASIBLE
    written = report.read_bytes()
    assert main(["check", str(path), "--junit", str(report), "--force"]) == ExitCode.INFEASIBLE
    assert report.read_bytes() == written  # no times: two runs give the same bytes
    shown = capsys.readouterr().out
    assert "much: no (devices): 2 devices carry" in shown
    root = ElementTree.parse(report).getroot()
    assert root.attrib["failures"] == "1"
    cases = {case.attrib["name"]: case for case in root.iter("testcase")}
    assert cases["little"].find("failure") is None
    failure = cases["much"].find("failure")
    assert "nearest" in failure.attrib["message"]
    refused(capsys, "give --force to replace it", "check", str(path), "--junit", str(report))


def test_a_manifest_is_weighed(planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fixed deployment at its own rate and limits holds, at a hundred times its rate it does not."""
    question = tmp_path / "q.yaml"
    question.write_text("manifest: manifest.yaml\nsurvive: instance\n", encoding="utf-8")
    kept = answered(capsys, "check", "--manifest", planned, "--rate", "1/s")["questions"][0]
    assert kept["feasible"] is True and kept["question"]["rate_per_second"] == 1
    lost = answered(capsys, "check", str(question), code=ExitCode.INFEASIBLE)["questions"][0]
    assert lost["after_loss"]["feasible"] is False
    data = answered(capsys, "check", "--manifest", planned, "--rate", "50000/s", code=ExitCode.INFEASIBLE)
    assert data["questions"][0]["margins"][0]["value_seconds"] is None


def test_a_manifest_keeps_its_histograms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A deployment is weighed on the lengths that it was planned for; those that are given take their place."""
    rows = tmp_path / "rows.csv"
    rows.write_text("tokens,weight\n200,50\n1000,30\n6000,20\n", encoding="utf-8")
    asked = ["qwen3-8b", "--engine", "reference", "--hw", "h100", "--devices", "4", "--rate", "10/s"]
    asked += ["--shape", "disaggregated", "--strategy", "TP=1", "--out", str(tmp_path)]
    planned = answered(capsys, *asked, "--isl-histogram", str(rows))["best"]["ttft_seconds"]["p99"]

    def weighed(*flags: str) -> float:
        found = answered(capsys, "check", "--manifest", str(tmp_path / "manifest.yaml"), *flags)
        return float(found["questions"][0]["margins"][0]["value_seconds"])

    assert weighed() == pytest.approx(planned, rel=1e-3)
    assert weighed("--isl-histogram", str(rows), "--prefix-reuse", "0") == pytest.approx(planned, rel=1e-3)
    assert weighed("--prefix-reuse", "0.5") < 0.9 * planned
    assert weighed("--isl", "1600") > 1.4 * planned  # as widely spread, log-normal
    assert weighed("--isl", "1600", "--isl-cv", "0") < 0.5 * planned


def test_windows_of_a_day_stand_beside_the_worst(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a searched plan and of a manifest: the limits hold in every window where they hold in the worst; JUnit too."""
    profile, folder = "0:00=2/s,8:00=12/s,20:00=0", tmp_path / "plan"
    size = ["qwen3-8b", "--engine", "reference", "--hw", "h100", "--nodes", "1", "--isl", "512", "--osl", "64"]
    size += ["--shape", "disaggregated"]
    assert main([*size, "--rate", "12/s", "--out", str(folder)]) == ExitCode.DONE
    capsys.readouterr()
    for number, each in enumerate([size, ["--manifest", str(folder / "manifest.yaml")]]):
        path = tmp_path / f"{number}.xml"
        main(["check", *each, "--rate-profile", profile, "--survive", "instance", "--junit", str(path), "--json"])
        (question,) = json.loads(capsys.readouterr().out)["questions"]
        night, day, evening = question["day"]["windows"]
        assert (night["requests_per_second"], day["requests_per_second"]) == (2, 12)
        assert day["margins"] == [margin for margin in question["margins"] if margin["name"] != "rate"]
        assert evening["margins"] == []
        for quiet, busy in zip(night["margins"], day["margins"], strict=True):
            assert quiet["margin"] >= busy["margin"]
        text = path.read_text(encoding="utf-8")
        assert "00:00–08:00 ttft: " in text and "gone, ttft: " in text


def test_a_trace_is_weighed_on_its_own_requests(planned, tmp_path, capsys):
    """The table says so, for instances of either shape; a manifest is weighed alike."""
    path = tmp_path / "azure.csv"
    stamps = (f"2023-11-16 18:17:{second:02d}.97996{part}" for second in range(59) for part in "19")
    rows = (f"{stamp},{300 + 20 * number},44\n" for number, stamp in enumerate(stamps))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    pair = ["qwen3-8b", "--engine", "reference", "--hw", "h100", "--devices", "2", "--shape"]
    for asked in ([*pair, "disaggregated"], [*pair, "aggregated"], ["--manifest", planned]):
        (one,) = answered(capsys, "check", *asked, "--trace", str(path))["questions"]
        assert one["basis"] == "the requests of the trace themselves, played at the rate"
    assert main(["check", "--manifest", planned, "--trace", str(path)]) == ExitCode.DONE
    assert "figures are of the requests of the trace themselves" in " ".join(capsys.readouterr().out.split())
    (one,) = answered(capsys, "check", *pair, "disaggregated", "--rate", "2/s")["questions"]
    assert one["basis"] == "stationary queues"


def test_spares_are_of_stationary_queues() -> None:
    """Instances that those do not need may be needed by a trace's own requests: nothing is said of them there."""
    plan = small_plan()
    rate = 0.4 * plan.requests_per_second
    verdict = check_deployed(from_plan(plan), Limits.of(plan.question), rate, loss="instance")
    assert "prefill" in spares_text(plan, verdict) and not spares_text(plan, replace(verdict, played=True))


def test_github_is_told_what_fails(tmp_path, monkeypatch, capsys):
    """An annotation at the file for each question that fails, on stderr, and the table in the step's summary."""
    path, summary = tmp_path / "q.yaml", tmp_path / "summary.md"
    path.write_text(FILE.replace("much", "'much, 100%'"), encoding="utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(["check", str(path), "--json"]) == ExitCode.INFEASIBLE
    shown = capsys.readouterr()
    (told,) = shown.err.splitlines()
    assert told.startswith(f"::error title=plan check%3A much%2C 100%25,file={path}::devices: 2 devices carry")
    assert json.loads(shown.out)["feasible"] is False
    assert "| little | yes |" in summary.read_text() and r"| much, 100% | no |" in summary.read_text()
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    refused(capsys, "--summary", "check", str(path), "--summary", str(tmp_path))


def test_the_schema_knows_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    """The examples keep it; a mistyped key, a bare number for a time and a strange word do not."""
    schema = json.loads(printed(capsys, "check", "--schema"))
    check_schema = jsonschema.Draft202012Validator(schema)
    for example in sorted((Path(__file__).parents[2] / "examples" / "questions").glob("*.yaml")):
        check_schema.validate(read_yaml(example))
    assert check_schema.is_valid({"model": "qwen3-8b", "hw": "h100", "prefix_reuse": 0.5, "rate": "5/s"})
    assert check_schema.is_valid({"isl-cv": 1, "survive": "node", "questions": [{"name": "a", "devices": 2}]})
    for wrong in ({"modl": "x"}, {"tpot": 50}, {"tpot": "50 miles"}, {"objective": "speed"}, {"questions": []}):
        assert not check_schema.is_valid(wrong), wrong


def test_what_would_survive_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the rate is carried, but not after a loss, the nearest size is one that outlives it."""
    line = ["qwen3-8b", "--hw", "h100", "--engine", "vllm", "--shape", "disaggregated", "--rate", "5/s"]
    assert main(["check", *line, "--devices", "2", "--survive", "instance"]) == ExitCode.INFEASIBLE
    told = capsys.readouterr().out.partition("nearest change")[2].partition("--devices ")[2].split(";")[0]
    assert int(told) > 2 and main(["check", *line, "--devices", told, "--survive", "instance"]) == ExitCode.DONE


def test_a_manifest_that_is_too_small_says_what_it_carries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for at that rate it holds, with a confidence too; after the loss of its only instances it carries none."""
    line = ["qwen3-8b", "--hw", "h100", "--engine", "vllm", "--shape", "disaggregated", "--devices", "2"]
    assert main([*line, "--rate", "1/s", "--out", str(tmp_path)]) == ExitCode.DONE
    check = ["check", "--manifest", str(tmp_path / "manifest.yaml"), "--confidence", "0.8", "--rate"]
    capsys.readouterr()
    told = printed(capsys, *check, "500/s", code=ExitCode.INFEASIBLE).partition("it carries ")[2].split()[0].rstrip(".")
    assert main([*check, told]) == ExitCode.DONE
    capsys.readouterr()
    (less,) = answered(capsys, *check, told, "--headroom", "25%", code=ExitCode.INFEASIBLE)["questions"]
    assert less["rate_per_second"] == float(told.split("/")[0]) and "25% headroom" in less["basis"]
    assert less["margins"][-1]["value_per_second"] == pytest.approx(less["rate_per_second"] / 1.25, rel=0.002)
    assert main([*check, "1/s", "--survive", "instance"]) == ExitCode.INFEASIBLE
    assert "it carries no rate" in " ".join(capsys.readouterr().out.split())
