"""`plan accuracy`."""

from pathlib import Path

import pytest

from cli.main import main
from tests.shell import answered, printed


def test_json_counts_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Cases by falling |error| within their tier, groups, and what is left out."""
    data = answered(capsys, "accuracy")
    compared = [abs(case["relative_error"]) for case in data["cases"] if case["tier"] == "A"]
    assert compared == sorted(compared, reverse=True)
    assert data["overall"]["cases"] == len(compared)
    assert data["excluded_rows"] == sum(row["rows"] for row in data["excluded"])


def test_a_limit_that_is_passed_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    """The table is still printed; the message has the mean, the limit and the largest miss."""
    assert main(["accuracy", "--kind", "decode", "--max-mape", "0.1%"]) == 3
    shown = capsys.readouterr()
    assert "cm384-d-50-4k" in shown.out
    assert "--max-mape" in shown.err
    assert main(["accuracy", "--kind", "decode", "--max-mape", "20"]) == 0


def test_the_page_in_docs_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/accuracy.md is generated; a change of the cost model has to renew it."""
    assert main(["accuracy", "--markdown"]) == 0
    page = Path(__file__).parents[2] / "docs" / "accuracy.md"
    if not page.exists():
        pytest.skip("docs are not beside the tests")
    assert page.read_text(encoding="utf-8") == capsys.readouterr().out


def test_components_have_a_table_and_json_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Parts of a step beside what was published of them."""
    assert "stream of attention" in printed(capsys, "accuracy", "--components")
    data = answered(capsys, "accuracy", "--components")
    assert {"xds-d288", "cm384-d-50-4k", "ds-d128-profile"} == {part["case"] for part in data["components"]}
    assert 0 < data["median_absolute_relative_error"] < 0.15
