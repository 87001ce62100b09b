"""`--offline` of a plan: work beside online requests, sized with them and played with them."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import podplan
from planner.plans.day import over_the_day
from planner.workload import Lengths, Offline, Workload, reserved_kv_tokens, running_kv_tokens
from podplan.day import read_rate_profile
from tests.shell import refused

SMALL: dict[str, Any] = {
    "hw": "910b", "nodes": 4, "isl": 1155, "osl": 211, "ttft": "1s", "engine": "reference", "shape": "disaggregated",
}  # fmt: skip


@cache
def planned(**flags: Any) -> podplan.PlanResult:
    """Return the answer to the small question with further flags."""
    return podplan.plan("qwen3-8b", **{**SMALL, **flags})


@pytest.mark.parametrize("text", ["30/s", "5/s,8192+256", "8/s,512+2048"])
def test_work_that_is_planned_is_done_and_online_requests_stay_in_time(text: str) -> None:
    """Played with the manifest alone: offline requests at their rate, those online within both limits."""
    found = planned(rate="60/s", offline=text)
    best, run = found.best, found.simulate(requests=6000)
    assert best.requests_per_second == pytest.approx(60)
    offline = run.measured.offline
    assert offline["completed"] == offline["requests"]
    assert run.measured.slo_attainment >= 0.99
    assert best.ttft.mean == pytest.approx(run.measured.ttft_seconds.mean, rel=0.15)
    # Offline answers that run when the window begins are not there yet, so long ones fall short of their rate.
    residence = 0.05 * best.question.offline.output_tokens  # type: ignore[union-attr]
    share = 1 - residence / (offline["requests"] / best.offline_per_second)
    assert share < 0.8 or best.tpot.mean == pytest.approx(run.measured.tpot_seconds.mean, rel=0.08)
    assert offline["output_tokens_per_second"] >= 0.97 * share * best.offline_output_tokens_per_second


def test_sessions_have_offline_requests_beside_them() -> None:
    """Turns that follow answers stay within both limits, more chips carry both, and all that is planned is answered."""
    asked = {"rate": "20/s", "isl": 512, "osl": 128, "sessions": "turns=3,think=5s"}
    found, alone = planned(**asked, offline="20/s,1155+211"), planned(**asked)
    run = found.simulate(requests=2000)
    assert found.best.devices > alone.best.devices
    assert run.measured.offline["completed"] == run.measured.offline["requests"] > 1000
    assert run.measured.slo_attainment >= 0.99


def test_offline_requests_take_what_the_others_leave() -> None:
    """Between the plan without them and that of a stream of both; hardly any take hardly anything."""
    alone, few, some, both = (
        planned(**flags).best
        for flags in ({"rate": "60/s"}, {"rate": "60/s", "offline": "0.01/s"}, {"rate": "60/s", "offline": "30/s"},
                      {"rate": "90/s"})
    )  # fmt: skip
    assert [pool.capacity_per_second for _, pool in few.pools()] == pytest.approx(
        [pool.capacity_per_second for _, pool in alone.pools()], rel=0.015
    )
    assert few.devices == alone.devices < some.devices < both.devices


def test_the_nearest_rate_carries_offline_work_as_typed() -> None:
    """Both rates fall alike, and asked as told they are carried."""
    answer = planned(nodes=None, devices=11, rate="60/s", offline="30/s").answer
    (change,) = (each for each in answer.changes if each.direction == "rate")
    rate, _, offline = (change.value or "").split(" ")
    assert offline.endswith(",1155+211")
    assert planned(nodes=None, devices=11, rate=rate, offline=offline).feasible


def test_offline_requests_keep_their_rate_over_a_day_and_over_months() -> None:
    """At a third of the online peak they are as many: pools are loaded by both, and a month's plan is of its rate."""
    best = planned(rate_profile="0:00=20/s,8:00=60/s", offline="30/s").best
    whole, months = planned(rate="60/s", offline="30/s").best, planned(growth="20/s..60/s:2", offline="30/s").months
    night, peak = over_the_day(best, read_rate_profile("0:00=20/s,8:00=60/s"))
    assert peak.plan is best and best.devices == whole.devices == months[1].plan.devices
    assert night.plan.offline_per_second == months[0].plan.offline_per_second == pytest.approx(30)
    for role, pool in best.pools():
        seen = dict(night.plan.pools())[role]
        assert seen.utilisation == pytest.approx(pool.utilisation * (20 + 30) / (60 + 30), rel=0.03)
        assert pool.instances / 3 < night.needed[role] <= pool.instances
    assert months[0].plan.devices == planned(rate="20/s", offline="30/s").best.devices


def test_a_trace_tells_online_requests_beside_offline_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its lengths and rate are planned with as those of a stream; played, both kinds are answered in time."""
    stamps = np.cumsum(np.random.default_rng(1).exponential(1 / 60.0, 1500))
    log = tmp_path / "log.jsonl"
    row = '{{"timestamp": {:.3f}, "input_length": 1155, "output_length": 211}}'
    log.write_text("\n".join(row.format(1000 * at) for at in stamps))
    flags = {key: value for key, value in SMALL.items() if key not in ("isl", "osl")}
    found = podplan.plan("qwen3-8b", **flags, trace=str(log), rate="60/s", offline="30/s,1155+211")
    stream = planned(rate="60/s", offline="30/s")
    assert found.best.offline_per_second == pytest.approx(30.0)
    assert found.best.chips == pytest.approx(stream.best.chips, rel=0.15)
    run = podplan.simulate(found.manifest(), trace=str(log))
    assert run.measured.slo_attainment > 0.99
    assert run.measured.offline["completed"] == run.measured.offline["requests"] > 500
    refused(capsys, "--prefix-routing", "qwen3-8b", "--hw", "910b", "--trace", str(log), "--offline", "3/s",
            "--prefix-routing", "least_load")  # fmt: skip


def test_moments_of_both_are_those_of_requests_drawn_together() -> None:
    """Three online requests and one offline one in turn, their lengths drawn: KV by the same sums."""
    random = np.random.default_rng(1)
    prompts, answers = random.lognormal(7, 0.5, 300_000), random.lognormal(5, 0.3, 300_000)
    online = Workload(
        input_tokens=Lengths(mean=float(prompts.mean()), squared_cv=float(prompts.var() / prompts.mean() ** 2)),
        output_tokens=Lengths(mean=float(answers.mean()), squared_cv=float(answers.var() / answers.mean() ** 2)),
    )
    found = Offline(per_request=1 / 3, input_tokens=8000, output_tokens=900).beside(online)
    prompts, answers = np.append(prompts, np.full(100_000, 8000.0)), np.append(answers, np.full(100_000, 900.0))
    assert found.input_tokens.second_moment == pytest.approx((prompts**2).mean())
    assert found.output_tokens.second_moment == pytest.approx((answers**2).mean())
    # Requests in decode are those drawn by their answers, each at a uniform point of its own.
    weights = answers / answers.sum()
    assert running_kv_tokens(found).mean_tokens == pytest.approx(weights @ (prompts + answers / 2), rel=0.005)
    assert reserved_kv_tokens(found).mean_tokens == pytest.approx(weights @ (prompts + answers), rel=0.005)
    alike = Offline(per_request=2.0, input_tokens=100, output_tokens=10).beside(
        Workload(input_tokens=Lengths(mean=100), output_tokens=Lengths(mean=10))
    )
    assert not alike.input_tokens.squared_cv and not alike.output_tokens.squared_cv
    assert (alike.input_tokens.mean, alike.output_tokens.mean) == pytest.approx((100, 10))
