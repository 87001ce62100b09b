"""Text to SI numbers and back."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from ground import units
from ground.errors import BadInput
from ground.units import (
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    parse_count,
    parse_duration,
    parse_rate,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("2s", 2.0), ("1.5s", 1.5), ("3min", 180.0), ("100us", 1e-4), ("7 ns", 7e-9), ("2h", 7200.0)],
)
def test_durations_become_seconds(text: str, seconds: float) -> None:
    """A duration is read to the nearest float of what is written."""
    assert parse_duration(text, "--ttft") == seconds


@pytest.mark.parametrize(("text", "rate"), [("12.5/s", 12.5), ("600/min", 10.0), ("36/h", 0.01), ("3 / s", 3.0)])
def test_rates_become_events_per_second(text: str, rate: float) -> None:
    """A rate is a number over a period."""
    assert parse_rate(text, "--rate") == rate


@pytest.mark.parametrize(("text", "count"), [("4096", 4096), ("128k", 128_000), ("1.5M", 1_500_000), ("1,024", 1024)])
def test_counts_take_decimal_suffixes(text: str, count: int) -> None:
    """128k is 128 000, as in request counts, not 131 072."""
    parsed = parse_count(text, "--requests")
    assert parsed == count
    assert isinstance(parsed, int)


@pytest.mark.parametrize("parse", [parse_duration, parse_rate, parse_count])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "nan",
        "inf",
        "-3s",
        "-3/s",
        "-3",
        "5 parsecs",
        "1e400s",
        "1e19s",
        "1e308/s",
        "1e18",
        "1,5s",
        "٣s",
        "9" * 400,
    ],
)
def test_what_is_no_quantity_is_bad_input(parse: object, text: str) -> None:
    """Whatever is typed, the answer is one sentence that names the flag."""
    assert callable(parse)
    with pytest.raises(BadInput, match=r"^--flag: ") as caught:
        parse(text, "--flag")
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize(("parse", "text"), [(parse_duration, "0s"), (parse_rate, "0/s"), (parse_count, "0")])
def test_zero_is_refused_unless_it_is_allowed(parse: object, text: str) -> None:
    """A rate of zero asks nothing; a reuse of zero tokens does."""
    assert callable(parse)
    assert parse(text, "--flag", allow_zero=True) == 0
    with pytest.raises(BadInput, match="is zero"):
        parse(text, "--flag")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_duration(0.0842), "84.2 ms"),
        (format_duration(0.99996), "1 s"),
        (format_duration(1800), "30 min"),
        (format_duration(0), "0 s"),
        (format_bytes(64.42e9), "64.4 GB"),
        (format_bytes(999.6e6), "1 GB"),
        (format_rate(1943), "1.94k/s"),
        (format_rate(0.05), "3/min"),
        (format_rate(1e300), "1e+300/s"),
        (format_count(671e9), "671G"),
        (format_count(999.7), "1k"),
        (format_count(-5), "-5"),
        (format_count(math.inf), "inf"),
    ],
)
def test_rendering_keeps_three_digits(shown: str, expected: str) -> None:
    """Three significant digits with the unit that keeps them short; rounding up moves to the next unit."""
    assert shown == expected


@settings(max_examples=50, deadline=None)
@given(st.floats(min_value=1e-9, max_value=1e6))
def test_a_rendered_duration_reads_back(seconds: float) -> None:
    """Rendering rounds to three digits, half a percent at most, and its text is valid input."""
    assert parse_duration(format_duration(seconds), "--x") == pytest.approx(seconds, rel=6e-3)


def test_a_power_needs_a_unit() -> None:
    """0.7 was meant as kW by one and taken as W by all."""
    assert (units.parse_power("1.4 kW", "--power"), units.parse_power("900w", "--power")) == (1400.0, 900.0)
    for text, told in (("0.7", "has no unit"), ("0W", "zero"), ("-1kW", "negative"), ("5V", "unknown unit")):
        with pytest.raises(BadInput, match=told):
            units.parse_power(text, "--power")


def test_numbers_of_texts_are_ascii_and_finite() -> None:
    """Python reads more than a user means."""
    assert (units.number_of(" 1e3 "), units.read_index("007")) == (1000.0, 7)
    assert all(math.isnan(units.number_of(text)) for text in ("1_0", "１０", "nan", "inf", "1e999", "", "x"))
    assert all(units.read_index(text) is None for text in ("²", "٣", "-1", "1_0", "", "9" * 16))
