"""`--job`: offline requests that must end in time, or how long devices take."""

import json
from typing import Any

import pytest

import podplan
from cli import main
from ground.errors import ExitCode
from planner.checks.jobs import Job, confidence_in_time, job_seconds, last_seconds, seconds_with
from podplan.job import read_job
from podplan.options import QuestionFlags
from tests.shell import printed

SMALL: dict[str, Any] = {"hw": "h100", "nodes": 1, "isl": 1024, "osl": 256, "engine": "vllm", "shape": "disaggregated"}
LINE = ["qwen3-8b", *(word for name, value in SMALL.items() for word in (f"--{name}", str(value)))]
JOB = "1M requests in 6h"


@pytest.fixture(scope="module")
def found() -> podplan.PlanResult:
    """A job of a million requests."""
    return podplan.plan("qwen3-8b", **SMALL, job=JOB)


def test_a_job_ends_in_time_and_no_size_less_does(found: podplan.PlanResult) -> None:
    """The last request's own time is counted; a chip less takes longer, and nothing needs to wait less."""
    best, data = found.best, found.to_dict()
    assert data["job"]["requests"] == 1_000_000 and data["job"]["limit_seconds"] == 21_600
    assert 0 < last_seconds(best) < data["job"]["seconds"] <= 21_600
    assert data["job"]["seconds"] == job_seconds(best, Job(requests=1_000_000, seconds=21_600.0))
    assert data["job"]["cost_usd"] == pytest.approx(best.cost_per_hour * data["job"]["seconds"] / 3600)  # type: ignore[operator]
    fewer = {**SMALL, "nodes": None, "devices": best.devices - 1}
    assert podplan.plan("qwen3-8b", **fewer, job=JOB).best is None


def test_the_time_that_a_job_ends_in_with_its_confidence_is_the_time_asked_for(found: podplan.PlanResult) -> None:
    """Both figures are one statement; more confidence is more time, and as predicted it takes what the plan says."""
    best, untimed = found.best, Job(requests=1_000_000, seconds=None)
    assert best is not None and confidence_in_time(best, untimed) is None
    job = untimed._replace(seconds=1.08 * job_seconds(best, untimed))
    held = confidence_in_time(best, job)
    assert held is not None and seconds_with(best, job, held) == pytest.approx(job.seconds)
    assert seconds_with(best, job, 0.5) == job_seconds(best, job) < seconds_with(best, job, 0.9)


def test_given_devices_take_so_long(found: podplan.PlanResult) -> None:
    """Without a time the devices do what they can; a limit that is given holds."""
    sizes = {**SMALL, "nodes": None}
    on_all, limited = (
        podplan.plan("qwen3-8b", **sizes, devices=found.best.devices, job="1M requests", **limit).to_dict()
        for limit in ({}, {"tpot": "15ms"})
    )
    assert on_all["question"]["objective"] == "throughput" and on_all["job"]["limit_seconds"] is None
    # The largest rate has the fullest batches, in which the last request takes a little longer.
    assert on_all["job"]["seconds"] <= found.to_dict()["job"]["seconds"] * 1.002
    assert limited["job"]["seconds"] > on_all["job"]["seconds"]
    assert limited["best"]["tpot_seconds"]["p99"] <= 0.015


def test_a_short_job_waits_for_its_last_request() -> None:
    """Instances that carry the mean rate alone are late: the last request begins when all others have."""
    found = podplan.plan("qwen3-8b", **SMALL, job="2200 requests in 30s")
    even = podplan.plan("qwen3-8b", **SMALL, job="2000 requests in 30s")
    assert found.to_dict()["job"]["seconds"] <= 30
    assert min(pool.capacity_per_second for _, pool in even.best.pools()) > 2200 / 30
    assert found.best.devices > even.best.devices and found.best.requests_per_second > 2200 / 30


def test_a_job_is_printed_without_latencies_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody waits: its time, its cost, and no table of TTFT."""
    shown = printed(capsys, *LINE, "--job", JOB)
    assert "1M requests in " in shown and " of 6 h, " in shown and "while pools are full, for " in shown
    assert "TTFT, with waiting" not in shown and "--ttft" not in shown
    assert "the job ends in time with confidence " in shown and "limits hold" not in shown
    assert json.loads(printed(capsys, "check", *LINE, "--job", JOB, "--json"))["feasible"]
    assert main.main([*LINE, "--job", "1 request in 1us"]) == ExitCode.INFEASIBLE  # whose share is no limit of ours
    capsys.readouterr()
    shown = printed(capsys, "check", *LINE, "--job", "9M requests in 2h", code=ExitCode.INFEASIBLE)
    assert "end the job in" in shown and "--job " in shown and "--rate" not in shown


def test_what_ends_a_late_job_ends_it() -> None:
    """The last request's time counts in the devices that are told; the time is that without a limit, not beyond it."""
    found = podplan.plan("qwen3-8b", **SMALL, job="6k requests in 20s")
    untimed = podplan.plan("qwen3-8b", **SMALL, job="6k requests").to_dict()["job"]["seconds"]
    time, size = found.answer.changes
    assert found.best is None and time.value and size.value and f"--devices {size.value}" in found.explanation
    assert podplan.plan("qwen3-8b", **{**SMALL, "nodes": None, "devices": size.value}, job="6k requests in 20s").best
    ended = podplan.plan("qwen3-8b", **SMALL, job=time.value.strip('"')).to_dict()["job"]
    assert ended["seconds"] <= ended["limit_seconds"] <= 1.02 * untimed + 60


def test_words_of_a_job() -> None:
    """With and without the word requests and the time."""
    flags = (QuestionFlags(job=text) for text in ("1M requests in 6h", "1k in 90s", "5 requests", "20k", None))
    told = [read_job(each) for each in flags]
    read = [each and (each.requests, each.seconds) for each in told]
    assert read == [(1_000_000, 21_600.0), (1000, 90.0), (5, None), (20_000, None), None]
