"""The text format of metrics: sums over labels, histograms, differences, and lines that are none."""

import math
from dataclasses import replace

import pytest

from ground.errors import BadInput
from ground.prometheus import parse_scrape

TEXT = """# HELP vllm:x Anything, {even="this"} 1
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0"} 4
vllm:time_to_first_token_seconds_bucket{le="2.0",engine="0"} 8
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 8
vllm:time_to_first_token_seconds_sum{engine="0"} 8
vllm:time_to_first_token_seconds_count{engine="0"} 8
vllm:request_success_total{finished_reason="stop"} 7 1395066363000
vllm:request_success_total{finished_reason="length, or {so}"} 1

nothing_yet NaN
"""


def test_labels_are_summed_and_buckets_kept() -> None:
    """Counters add up over labels; a histogram has mean, percentiles inside buckets and a spread."""
    found = parse_scrape(TEXT, "text")
    histogram = found.histogram("vllm:time_to_first_token_seconds")
    assert found.values["vllm:request_success_total"] == 8
    assert "nothing_yet" not in found.values
    assert (histogram.mean, histogram.at(50), histogram.at(75)) == (1.0, 1.0, 1.5)
    assert histogram.squared_cv == pytest.approx(0.25)  # half at 0.5, half at 1.5
    assert found.histogram("vllm:y") is None


def test_differences_and_restarts() -> None:
    """What was counted since; a counter that fell began anew."""
    later = parse_scrape(TEXT.replace('stop"} 7', 'stop"} 17'), "text")
    since = later - parse_scrape(TEXT, "text")
    assert since.values["vllm:request_success_total"] == 10
    assert (parse_scrape(TEXT, "text") - later).values["vllm:request_success_total"] == 8
    assert (later + later).values["vllm:request_success_total"] == 36


def test_beyond_the_last_edge_nothing_is_known() -> None:
    """A percentile in the open bucket is None."""
    text = 'a_bucket{le="1"} 1\na_bucket{le="+Inf"} 10\na_sum 50\na_count 10\n'
    histogram = parse_scrape(text, "text").histogram("a")
    assert histogram.at(99) is None
    assert not math.isnan(histogram.squared_cv)
    assert histogram.at(10) == 1.0 and replace(histogram, count=11).at(100) is None
    assert replace(histogram, count=1).squared_cv == replace(histogram, buckets=()).squared_cv == 0.0


@pytest.mark.parametrize("line", ["name", "1name 2", "name{a=1 2", "name two", "<html>"])
def test_what_is_no_sample_is_named(line: str) -> None:
    """The file and the line."""
    with pytest.raises(BadInput, match=r"x\.prom:1: "):
        parse_scrape(line, "x.prom")
