"""`--rate-profile`: how a day is read, and what its windows see of the plan."""

from pathlib import Path

import pytest

from ground.errors import BadInput
from planner.plans.day import mean_rate, over_the_day, peak_rate
from podplan.day import read_rate_profile
from tests.plans import small_plan
from tests.shell import answered, printed

SMALL = ["qwen3-30b-a3b", "--engine", "reference", "--hw", "h800", "--nodes", "2", "--shape", "disaggregated"]
DAY = "0:00=5/s,08:30=40/s,18:00=0"


def test_a_day_is_read_from_a_list_and_from_a_file(tmp_path: Path) -> None:
    """Windows end where the next begins, the last at the first of the next day; columns may stand either way round."""
    path = tmp_path / "day.csv"
    path.write_text("rate,time\n5,0:00\n\n40/s,08:30\n0,18:00\n", encoding="utf-8")
    day = read_rate_profile(DAY)
    assert read_rate_profile(str(path)) == day
    assert [window.length_seconds / 3600 for window in day] == [8.5, 9.5, 6.0]
    assert peak_rate(day) == 40
    assert mean_rate(day) == pytest.approx((8.5 * 5 + 9.5 * 40) / 24)


def test_every_window_sees_the_plan_at_its_own_rate() -> None:
    """At the planned rate a window sees the plan itself; with less to do both pools are less busy and no slower."""
    plan = small_plan()
    rate = plan.requests_per_second
    day = read_rate_profile(f"0:00={rate / 4:.9g}/s,6:00={rate!r}/s,20:00=0")
    night, peak, nothing = over_the_day(plan, day)
    assert peak.plan is plan
    assert nothing.plan is None and set(nothing.needed.values()) == {0}
    assert peak.needed == {role: pool.instances for role, pool in plan.pools()}
    assert all(1 <= count <= peak.needed[role] for role, count in night.needed.items())
    assert night.plan.prefill.utilisation == pytest.approx(plan.prefill.utilisation / 4)
    assert night.plan.decode.utilisation < plan.decode.utilisation
    assert night.plan.ttft.at(99) < plan.ttft.at(99)
    assert night.plan.tpot.mean < plan.tpot.mean


def test_a_plan_is_sized_for_the_worst_window(capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is that of the largest rate, and the answer tells what the other windows see."""
    found = answered(capsys, *SMALL, "--rate-profile", DAY)
    alone = answered(capsys, *SMALL, "--rate", "40/s")
    assert found["best"] == alone["best"]
    assert alone["day"] is None
    assert found["question"]["rate_profile"] == {"00:00": 5, "08:30": 40, "18:00": 0}
    low, peak, none = found["day"]["windows"]
    assert (low["from"], low["to"], none["to"]) == ("00:00", "08:30", "00:00")
    assert peak["ttft_seconds"] == found["best"]["ttft_seconds"]
    assert low["share_of_peak"] == 0.125 and low["instances_needed"]["prefill"] >= 1
    assert low["decode_utilisation"] < peak["decode_utilisation"]
    assert none["ttft_seconds"] is None


def test_the_text_names_the_worst_window(capsys: pytest.CaptureFixture[str]) -> None:
    """A row per window, and the one that the plan is sized for."""
    shown = printed(capsys, *SMALL, "--rate-profile", DAY)
    assert "Sized for the worst window, 08:30–18:00 with 40/s; the mean over the day is 17.6/s, 44% of it." in shown
    assert "18:00–00:00" in shown and "prefill needed" in shown and "device-hours" in shown


def test_a_day_has_so_many_windows() -> None:
    """One of every four minutes is too fine."""
    day = ",".join(f"{minute // 60}:{minute % 60:02d}=1" for minute in range(0, 1440, 4))
    with pytest.raises(BadInput, match=r"--rate-profile: .* more than the 288"):
        read_rate_profile(day)
