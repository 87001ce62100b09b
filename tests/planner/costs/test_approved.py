"""Predictions of 500 configurations, once drawn, are those approved: a change of the cost model is seen where it acts.

Other tests hold what is right; this one holds that nothing moves unseen. `python -m tests.planner.costs.test_approved`
writes the table anew where a change is meant, and CHANGELOG.md then says why predictions change.
"""

import csv
import json
from collections import Counter
from math import isclose
from pathlib import Path
from typing import Any

import pytest

import podplan

FILE = Path(__file__).with_name("approved.csv")
CLOSE = 1e-8
QUANTITIES = ("count", "seconds", "exposed_seconds", "flops", "bytes", "message_bytes")
MEMORY = ("weights", "kv_cache", "activations", "buffers", "reserve")
Flags = dict[str, Any]


def figures(flags: Flags) -> list[float | str]:
    """Return a step's seconds, the interval, rates, sums over operators, bytes of a device, and what else is told."""
    found = podplan.predict(**flags).to_dict()
    interval, operators = found["interval"] or {"low": 0.0, "high": 0.0}, found["operators"]
    latencies = [found[key] or 0.0 for key in ("tpot_seconds", "ttft_seconds") if key in found]
    sums = [sum(operator[key] for operator in operators) for key in QUANTITIES]
    memory = [found["memory_bytes_per_device"][key] for key in MEMORY]
    told = [found["bottleneck"], str(dict(Counter(operator["bound"] for operator in operators)))]
    told += [f"{found[key]}" for key in ("fits", "devices", "microbatches", "redundant_experts", "shared_experts")]
    told += [" ".join(f"{each['operator']}.{each['quantity']}" for each in found["extrapolated"])]
    rate = found["tokens_per_second_per_chip"]
    return [found["iteration_seconds"], interval["low"], interval["high"], rate, *latencies, *sums, *memory, *told]


with FILE.open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.reader(file))


def approve() -> None:
    """Write the figures of the same configurations anew."""
    rows = [
        [asked, *(each if isinstance(each, str) else f"{each:.10g}" for each in figures(json.loads(asked)))]
        for asked, *_ in ROWS
    ]
    with FILE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


@pytest.mark.parametrize("part", range(10))
def test_predictions_are_those_approved(part: int) -> None:
    """Every figure of every configuration, up to rounding."""
    for asked, *approved in ROWS[part::10]:
        for own, known in zip(figures(json.loads(asked)), approved, strict=True):
            alike = own == known if isinstance(own, str) else isclose(own, float(known), rel_tol=CLOSE, abs_tol=1e-15)
            assert alike, (asked, own, known)


if __name__ == "__main__":
    approve()
