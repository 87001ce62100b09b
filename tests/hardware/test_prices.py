"""The one table of prices: dated and sourced; a purchase is written off and takes electricity."""

import json
from typing import Any

import pytest

from hardware.loader import hardware_names, load_hardware, prices
from tests.shell import printed, refused

ASKED = ["qwen3-8b", "--isl", "512", "--osl", "64", "--engine", "vllm", "--shape", "disaggregated", "--json"]


def asked(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    """Return the answer to a small question."""
    return json.loads(printed(capsys, *ASKED, "--rate", "1/s", *flags))


def test_every_price_is_dated_and_of_a_machine() -> None:
    """No machine is both rented and bought; by hand: 21,354 USD over 35,040 hours and 1.46 kW at 8 cents."""
    table = prices()
    rented, bought = table.rental_usd_per_chip_hour, table.purchase_usd_per_chip
    assert not rented.keys() & bought.keys() and rented.keys() | bought.keys() <= set(hardware_names())
    assert all(each.as_of and each.note for each in (*rented.values(), *bought.values()))
    price = load_hardware("cm384").price_usd_per_chip_hour
    assert price.value == pytest.approx(21_354 / 35_040 + 1.46 * 0.08)
    assert load_hardware("cm384").price_basis == "purchase" and load_hardware("h100").price_basis == "rental"


def test_price_years_and_electricity_may_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    """30,000 USD over 3 years and 1.73 kW at 20 cents, of both chips that are in use of a node of 8."""
    told = ["--hw", "h100", "--price", "30000/3y", "--electricity", "0.2"]
    best = asked(capsys, *told, "--nodes", "1")["best"]
    assert best["chips"] == 2 and best["paid_chips"] == 8
    assert best["cost_per_hour"] == pytest.approx(8 * (30_000 / (3 * 8760) + 1.73 * 0.2))
    paid = asked(capsys, *told, "--devices", "2")["best"]
    assert paid["cost_per_hour"] == pytest.approx(best["cost_per_hour"] / 4)


@pytest.mark.parametrize(("flags", "rate"), [([], 0.08), (["--electricity", "h20=0.5"], 0.5)])
def test_electricity_is_of_what_is_bought(capsys: pytest.CaptureFixture[str], flags: list[str], rate: float) -> None:
    """By machine, and named among the assumptions where it is not given."""
    answer = asked(capsys, "--hw", "h20", "--nodes", "1", *flags)
    assert answer["best"]["cost_per_hour"] == pytest.approx(8 * (14_000 / 35_040 + 0.4 * rate))
    assert ("electricity" in answer["assumptions"]) != bool(flags)


@pytest.mark.parametrize("flags", [["--price", "30000/y"], ["--price", "/4y"], ["--electricity", "much"]])
def test_what_is_no_price_names_the_flag(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """In one sentence."""
    refused(capsys, flags[0], *ASKED, "--hw", "h100", "--nodes", "1", *flags)
