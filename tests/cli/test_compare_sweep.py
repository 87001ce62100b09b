"""`plan compare` and `plan sweep`: rows, files, and one sentence for each bad input."""

import csv
from importlib.util import find_spec
from pathlib import Path

import pytest

from cli.main import main
from ground.errors import ExitCode
from tests.shell import answered, printed, refused

SMALL = ["qwen3-8b", "--engine", "reference", "--hw", "h100", "--devices", "2", "--shape", "disaggregated"]


def test_models_and_machines_are_crossed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each pair; a model that does not fit stays, without a plan; the CSV holds the same figures."""
    path = tmp_path / "c.csv"
    arguments = ["compare", "qwen3-8b,llama-3.1-70b", "--engine", "reference", "--hw", "h100,h200", "--devices", "2"]
    arguments += ["--shape", "disaggregated", "--csv", str(path)]
    rows = answered(capsys, *arguments)["rows"]
    assert [(row["model"], row["hardware"]) for row in rows] == [
        (model, machine) for model in ("qwen3-8b", "llama-3.1-70b") for machine in ("h100", "h200")
    ]
    assert rows[0]["feasible"] is True
    assert rows[2]["feasible"] is False
    written = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert float(written[0]["requests_per_second"]) == rows[0]["requests_per_second"]
    assert written[2]["requests_per_second"] == ""
    refused(capsys, "give --force to replace it", *arguments)


def test_a_front_is_several_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """--front: the best plan first, then those that trade it."""
    rows = answered(
        capsys, "compare", "qwen3-8b", "--hw", "h100", "--devices", "4", "--front", "--shape", "disaggregated"
    )["rows"]
    assert len(rows) > 1
    assert all(row["feasible"] for row in rows)


def test_a_sweep_has_a_row_for_every_point(capsys: pytest.CaptureFixture[str]) -> None:
    """Two flags make a grid; a looser TPOT never carries less, and a point without a plan stays."""
    rows = answered(capsys, "sweep", *SMALL, "--over", "tpot=1ms..61ms:3", "--over", "osl=64,128")["rows"]
    assert [(row["tpot"], row["osl"]) for row in rows] == [
        (t, n) for t in ("1ms", "31ms", "61ms") for n in ("64", "128")
    ]
    assert [row["feasible"] for row in rows[:2]] == [False, False]
    assert rows[4]["requests_per_second"] >= rows[2]["requests_per_second"] * (1 - 1e-6)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is an extra")
def test_plots_are_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PNG and SVG, written whole, the same bytes each time."""
    paths = [tmp_path / name for name in ("a.png", "a.svg", "b.svg")]
    for path in paths:
        assert main(["sweep", *SMALL, "--over", "osl=64,128", "--plot", str(path)]) == ExitCode.DONE
    one, two, again = (path.read_bytes() for path in paths)
    assert one.startswith(b"\x89PNG") and two.startswith(b"<?xml") and two == again


def test_a_missing_matplotlib_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence with what to install, before any search."""
    monkeypatch.setattr("cli.plots.find_spec", lambda name: None)
    refused(capsys, "pip install 'podplan[plot]'", "sweep", *SMALL, "--over", "osl=64,128", "--plot", "a.svg")


def test_prices_of_different_things_rank_nothing(tmp_path, monkeypatch, capsys):
    """A rental beside a purchase is said and not drawn; prices of one kind, given by machine, are."""
    monkeypatch.setattr("cli.plots.find_spec", lambda name: object())  # the refusal comes before anything is drawn
    asked = ["compare", "qwen3-8b", "--hw", "h100,h20", "--devices", "2", "--engine", "reference"]
    asked += ["--shape", "disaggregated"]
    assert main(asked) == ExitCode.DONE
    assert "h100 rental, h20 purchase" in capsys.readouterr().out
    drawn = ["--measure", "cost", "--plot", str(tmp_path / "cost.svg")]
    refused(capsys, "Prices are of different things", *asked, *drawn)
    shown = printed(capsys, *asked, "--price", "h100=2,h20=1.5")
    assert "different things" not in shown and "2 USD a chip and hour of h100" in shown
    refused(capsys, "--price: 'h1oo=2' is not", *asked, "--price", "h1oo=2")
