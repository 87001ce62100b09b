"""`--growth`: what to buy when, built on the search for sizes."""

import pytest

import podplan
from cli import main
from ground.errors import ExitCode
from podplan.traffic import read_growth

SMALL = {"hw": "h100", "nodes": 2, "isl": 1024, "osl": 256, "shape": "disaggregated", "engine": "vllm"}
LINE = ["qwen3-8b", *(word for name, value in SMALL.items() for word in (f"--{name}", str(value)))]
GROWTH = "25/s..220/s:4"


def test_every_month_has_the_smallest_plan_and_keeps_what_is_there() -> None:
    """A month's chips are those of its rate alone; nodes never leave, and their months are what is paid."""
    found = podplan.plan("qwen3-8b", **SMALL, growth=GROWTH)
    told = found.to_dict()
    data, months, rates = told["growth"], told["growth"]["months"], [25, 90, 155, 220]
    assert [month["requests_per_second"] for month in months] == rates == told["question"]["growth_requests_per_second"]
    assert months[-1]["chips"] == told["best"]["chips"]
    alone = podplan.plan("qwen3-8b", **SMALL, rate="90/s").best
    assert months[1]["chips"] == alone.chips
    held = 0
    for month in months:
        held += month["nodes_to_add"]
        assert month["nodes"] == held and month["nodes_to_add"] >= 0
    assert held == found.best.nodes  # type: ignore[union-attr]
    assert data["cost_usd"] == pytest.approx(sum(month["nodes"] * 8 * 1.3 * 730 for month in months))


def test_what_survives_a_loss_is_bought_by_the_node() -> None:
    """Spares are dear where each takes a node more: months have the nodes that the objective cost has."""
    flags = SMALL | {"nodes": 6, "survive": "node"}
    months = podplan.plan("qwen3-8b", **flags, growth="25/s..200/s:2").months
    for month in months:
        cheapest = podplan.plan("qwen3-8b", **flags, rate=month.requests_per_second, objective="cost").best
        fewest = podplan.plan("qwen3-8b", **flags, rate=month.requests_per_second).best
        assert sum(month.nodes.values()) == cheapest.nodes <= fewest.nodes
    assert months[-1].plan.nodes < fewest.nodes


def test_the_table_of_months_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each, and one sentence of when to buy."""
    assert main.main([*LINE, "--growth", GROWTH]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "nodes to add" in shown and "for the first month; then" in shown and "All 4 months cost" in shown


def test_rates_may_grow_by_equal_factors_and_fall() -> None:
    """What is there stays where the rate falls."""
    assert read_growth("10/s..1000/s:3:log") == (10, 100, 1000)
    assert read_growth("600/min..5/s:2") == (10, 5)
