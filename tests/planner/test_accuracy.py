"""Predictions against published measurements."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from planner import accuracy
from planner.accuracy import Comparison, evaluate, group, groups, load_cases, load_excluded
from planner.predict import predict
from podplan.errors import BadInput

RESULTS = evaluate()
KINDS = ("decode", "prefill", "mixed")

# |error| at most, by the start of the case's name. Sources: CloudMatrix384 (arXiv 2506.12708) Table 5 and its
# prefill comparison, xDeepServe (arXiv 2508.02520), DeepSeek's profile as read by LMSYS (2025-05-05).
LIMITS = {"cm384-d-": 0.15, "xds-": 0.15, "cm384-p": 0.20, "ds-p32-profile": 0.20, "ds-d": 0.20, "sg-": 0.25}


@pytest.mark.parametrize(
    "result",
    [result for result in RESULTS if result.case.tier == "A" and result.case.id.startswith(tuple(LIMITS))],
    ids=lambda result: f"{result.case.id}-{result.case.metric}",
)
def test_published_systems_are_met(result: Comparison) -> None:
    """Every published row of a whole system lies within its limit."""
    limit = next(limit for start, limit in LIMITS.items() if result.case.id.startswith(start))
    assert abs(result.error) <= limit


def test_means_per_kind() -> None:
    """Decode, prefill and the TPOT of mixed instances are within 15 % in the mean."""
    means = {kind: [r for r in RESULTS if accuracy.kind_of(r.case) == kind and r.case.tier == "A"] for kind in KINDS}
    assert all(group(kind, "all", results).mape <= 0.15 for kind, results in means.items())


def test_most_published_times_lie_in_the_interval() -> None:
    """An 80 % interval holds between 60 % and 97 % of the tier A rows that have one."""
    inside = [result.inside for result in RESULTS if result.case.tier == "A" and result.inside is not None]
    assert 0.60 <= sum(inside) / len(inside) <= 0.97


def test_predictions_do_not_read_the_published_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the published files out of reach every prediction is the same to the bit."""
    cases = [result.case for result in RESULTS]
    monkeypatch.setattr(accuracy, "PUBLISHED", tmp_path)
    again = [accuracy.metric_value(predict(case.configuration), case.metric) for case in cases]
    assert again == [result.predicted for result in RESULTS]


def test_published_values_do_not_reach_the_prediction() -> None:
    """Doubling a published value halves 1 + error and leaves the prediction alone."""
    case = load_cases()[0]
    plain, doubled = evaluate([case, replace(case, published=2 * case.published)])
    assert plain.predicted == doubled.predicted
    assert 1 + doubled.error == pytest.approx((1 + plain.error) / 2)


def test_every_row_names_its_source_and_what_was_taken() -> None:
    """Each case and each exclusion has a public address and a reason."""
    assert all(case.url.startswith("https://") and len(case.note) > 10 for case in load_cases())
    assert all(row.url.startswith("https://") and len(row.reason) > 10 and row.rows > 0 for row in load_excluded())


def test_table_5_is_as_printed() -> None:
    """CloudMatrix384 Table 5: TPOT 47.4, 49.4 and 24.6 ms at 112, 96 and 24 requests per chip of two devices."""
    rows = [c for c in load_cases() if c.id.startswith("cm384-d-") and c.metric == "tpot_seconds"]
    assert [row.published for row in rows] == [0.0474, 0.0494, 0.0246]
    assert [2 * row.configuration.batch for row in rows] == [112, 96, 24]


def test_groups_are_means_of_their_rows() -> None:
    """A group's mean errors are those of its rows; tier B is in none."""
    for row in groups(RESULTS):
        own = [
            result
            for result in RESULTS
            if result.case.tier == "A"
            and accuracy.kind_of(result.case) == row.kind
            and row.source in ("all", result.case.source)
        ]
        assert row.cases == len(own)
        assert row.bias == pytest.approx(math.fsum(result.error for result in own) / len(own))
        assert row.mape >= abs(row.bias) - 1e-12


def test_a_row_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The message names the file and the line."""
    text = (accuracy.PUBLISHED / "cases.csv").read_text().splitlines()
    broken = tmp_path / "cases.csv"
    broken.write_text("\n".join([text[0], text[1].replace("0.0474", "fast")]))
    with pytest.raises(BadInput, match=r"cases.csv, line 2"):
        load_cases(broken)
