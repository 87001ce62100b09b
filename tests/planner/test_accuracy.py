"""Predictions against published measurements."""

import csv
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

import pytest

from ground.errors import BadInput
from planner import accuracy
from planner.accuracy import Comparison, evaluate, group, groups, load_cases, load_excluded, load_operators

RESULTS = evaluate()

# |error| at most, by the start of the case's name. Sources: CloudMatrix384 (arXiv 2506.12708) Table 5 and its
# prefill comparison, xDeepServe (arXiv 2508.02520), DeepSeek's profile as read by LMSYS (2025-05-05).
LIMITS = {"cm384-d-": 0.10, "xds-": 0.05, "cm384-p": 0.15, "ds-p32-profile": 0.10, "ds-d": 0.10, "sg-": 0.16}
MEASUREMENTS = Path(__file__).parents[3] / "shared" / "data" / "published" / "measurements.csv"


@pytest.mark.parametrize(
    "result",
    [result for result in RESULTS if result.case.tier == "A" and result.case.id.startswith(tuple(LIMITS))],
    ids=lambda result: f"{result.case.id}-{result.case.metric}",
)
def test_published_systems_are_met(result: Comparison) -> None:
    """Every published row of a whole system lies within its limit."""
    limit = next(limit for start, limit in LIMITS.items() if result.case.id.startswith(start))
    assert abs(result.error) <= limit


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
    """CloudMatrix384 Table 5: 47.4, 49.4, 24.6 and (from its rate) 14.9 ms at 112, 96, 24 and 8 requests per chip."""
    rows = [c for c in load_cases() if c.id.startswith("cm384-d-") and c.metric == "tpot_seconds"]
    assert [row.published for row in rows] == [0.0474, 0.0494, 0.0246, 0.01487]
    assert [2 * row.configuration.batch for row in rows] == [112, 96, 24, 8]


def test_decode_prefill_and_loops_are_as_near_as_they_are_to_be() -> None:
    """Decode of DeepSeek-class models within 8 % in the mean per source, SGLang's on H20 12; prefill within 10 %.

    TPOT of dense and GQA-MoE models in closed loops within 12 %, the median TTFT of loops of 8 requests and more
    within 25 %.
    """
    table = {(row.kind, row.source): row for row in groups(RESULTS)}
    assert all(table["decode", source].mape <= 0.08 for source in ("CloudMatrix384", "xDeepServe", "DeepSeek"))
    assert table["decode", "SGLang"].mape <= 0.12
    assert table["prefill", "all"].mape <= 0.10
    assert table["mixed", "AIConfigurator"].mape <= 0.12
    loaded = [r for r in RESULTS if accuracy.kind_of(r.case) == "mixed ttft" and r.case.configuration.concurrency >= 8]
    assert group("mixed ttft", "all", loaded).median <= 0.25


def test_what_was_held_out_is_no_part_of_the_means_it_is_compared_with() -> None:
    """Rows sought when the model was finished: decode within 20 % and prefill within 15 % in the mean, told apart."""
    table = {(row.kind, row.source): row for row in groups(RESULTS)}
    assert table["decode, held out", "all"].mape <= 0.20
    assert table["prefill, held out", "all"].mape <= 0.15
    apart = [result for result in RESULTS if result.case.tier != "H"]
    assert [row for row in groups(RESULTS) if not row.kind.endswith("held out")] == groups(apart)


@pytest.mark.parametrize("kinds", [("decode", "prefill"), ("mixed",), ("mixed ttft",)], ids=" ".join)
def test_intervals_hold_what_they_say(kinds: tuple[str, ...]) -> None:
    """Intervals at 80 % hold between 70 and 95 % of values: of service times, and of closed loops.

    Values that were held out until the model was finished count with those that it was made beside. The latter alone
    are held too often (decode 27 of 27, of the others 2 of 7), so their own share says little about the next ones.
    """
    known = [r.inside for r in RESULTS if accuracy.kind_of(r.case) in kinds and r.case.tier in ("A", "H")]
    assert 0.70 <= sum(map(bool, known)) / len(known) <= 0.95


def test_intervals_are_narrow_enough_to_plan_with() -> None:
    """Half the median width: at most 10 % of decode's TPOT, 13 % of prefill."""
    for kind, limit in (("decode", 0.10), ("prefill", 0.13)):
        own = [r for r in RESULTS if accuracy.kind_of(r.case) == kind and r.case.tier == "A"]
        widths = [(r.high - r.low) / 2 / r.predicted for r in own]
        assert median(widths) <= limit


def test_large_misses_say_what_is_behind_them() -> None:
    """Every value of tier A that is off by more than 15 % has a believed cause beside it."""
    assert [r.case.id for r in RESULTS if abs(r.error) > 0.15 and not r.case.cause] == []


def test_ranks_share_the_places_of_equal_values() -> None:
    """As scipy.stats.rankdata counts, from 0; a group in perfect order correlates by 1."""
    assert accuracy.ranks([5.0, 1.0, 5.0, 7.0]) == [1.5, 0.0, 1.5, 3.0]
    rows = [replace(RESULTS[0], case=replace(RESULTS[0].case, published=p), predicted=p**2) for p in (1.0, 2.0, 3.0)]
    assert accuracy.rank_correlation(rows) == pytest.approx(1.0)
    assert accuracy.rank_correlation(rows[:2]) is None


@pytest.mark.skipif(not MEASUREMENTS.exists(), reason="needs the collection of measurements")
def test_every_published_row_is_accounted_for() -> None:
    """Each row of the collection is compared, excluded with a reason, or an operator with its use: exactly once."""
    with MEASUREMENTS.open(encoding="utf-8", newline="") as lines:
        names = [row["id"] for row in csv.DictReader(lines)]
    compared = {case.row for case in load_cases() if case.row}
    rest = [(row.ids, row.rows) for row in (*load_excluded(), *load_operators()) if row.ids]
    for name in names:
        held = sum(any(fnmatchcase(name, pattern) for pattern in ids) for ids, _ in rest)
        assert held + (name in compared) == 1, name
    for ids, count in rest:
        assert count == sum(any(fnmatchcase(name, pattern) for pattern in ids) for name in names), ids


def test_a_row_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The message names the file and the line."""
    text = (accuracy.PUBLISHED / "cases.csv").read_text().splitlines()
    broken = tmp_path / "cases.csv"
    broken.write_text("\n".join([text[0], text[1].replace("0.0474", "fast")]))
    with pytest.raises(BadInput, match=r"cases.csv, line 2"):
        load_cases(broken)
