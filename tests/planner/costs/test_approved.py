"""Predictions of random configurations are those that were approved: a change of the cost model is seen where it acts.

Other tests hold what is right; this one holds that nothing moves unseen. `python -m tests.planner.costs.test_approved`
writes the table anew where a change is meant, and CHANGELOG.md then says why predictions change.
"""

import csv
import json
import random
from collections import Counter
from math import isclose
from pathlib import Path
from typing import Any

import pytest

import podplan
from ground.errors import BadInput
from hardware.loader import hardware_names, load_hardware
from models.loader import model_names
from planner.engines.loader import accelerator_of

FILE = Path(__file__).with_name("approved.csv")
COUNT, CLOSE = 500, 1e-8
QUANTITIES = ("count", "seconds", "exposed_seconds", "flops", "bytes", "message_bytes")
MEMORY = ("weights", "kv_cache", "activations", "buffers", "reserve")
ENGINES = {"ascend": ("vllm-ascend", "mindie", "xllm", "sglang"), "nvidia": ("vllm", "sglang", "trtllm")}
Flags = dict[str, Any]


def _layout(chance: random.Random) -> str:
    """Return a random strategy: dense, experts over EP or TP, staged, in a pipeline, or attention and experts apart."""
    tp, dp = 2 ** chance.randrange(4), 2 ** chance.randrange(6)
    layouts = [f"TP={tp}", f"TP={tp}", f"TP={tp} + DP={dp}, EP={tp * dp}", f"DP={dp}, EP={dp}", f"TP={tp} [PP=2]"]
    layouts += [f"TP={tp} + DP={dp}, TP={tp} + EP={dp}", f"SP={tp} + DP={dp}, EP={tp * dp}", "DP=320, EP=320"]
    layouts += [f"DP={dp} x 3, EP=288", f"TP={tp} + DP={dp}, EP={tp * dp} [PP=4]", "TP=4 + DP=72, EP=288"]
    return chance.choice(layouts)


def drawn(chance: random.Random) -> Flags:
    """Return a random configuration, which need not be possible."""
    hw, strategy = chance.choice(hardware_names()), _layout(chance)
    engines = ENGINES.get(accelerator_of(load_hardware(hw)) or "", ("vllm", "sglang"))
    flags: Flags = {"model": chance.choice(model_names()), "hw": hw, "phase": chance.choice(["decode", "prefill"])}
    flags |= {"engine": chance.choice([*engines, "reference"]), "strategy": strategy}
    extra = [
        {"microbatches": 2},
        {"kv_dtype": "fp8"},
        {"weights": chance.choice(["bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4"])},
    ]
    extra += [
        {"expert_balance": "perfect"},
        {"redundant_experts": 16},
        {"shared_experts": chance.choice(["auto", "dedicated=32"])},
    ]
    if chance.random() < 0.05:
        flags |= {"phase": "mixed", "concurrency": chance.choice([1, 16, 100]), "isl": 1000, "osl": 100}
    elif flags["phase"] == "decode":
        flags |= {"batch": chance.choice([1, 7, 32, 150]), "kv_len": chance.choice([200, 3000, 20_000])}
        extra += [{"mtp": 1}, {"mtp": 2, "mtp_acceptance": "0.8/0.4"}, {"graphs": "off"}, {"host_jitter": "1ms"}]
        extra += [{"beams": 4}]
    else:
        flags |= {"tokens": chance.choice([500, 4096, 30_000]), "isl": chance.choice([100, 1500, 9000])}
        extra += [
            {"prefix_reuse": 0.5},
            {"prefix_reuse": 0.3, "cache_plane": chance.choice(["ub", "nvlink"])},
            {"images": "2@1280x720"},
        ]
    for one in chance.sample(extra, chance.choice([0, 0, 1, 1, 2, 3])):
        flags |= one
    return flags


def figures(flags: Flags) -> list[float | str]:
    """Return a step's seconds, the interval, rates, sums over its operators, bytes of a device, and what else is told.

    Raises:
        BadInput: no such configuration can be.
    """
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


def approve() -> None:
    """Write figures of so many possible random configurations."""
    chance, rows = random.Random(1), list[list[Any]]()
    while len(rows) < COUNT:
        flags = drawn(chance)
        try:
            rows.append(
                [json.dumps(flags), *(each if isinstance(each, str) else f"{each:.10g}" for each in figures(flags))]
            )
        except BadInput:
            continue
    with FILE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


with FILE.open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.reader(file))


@pytest.mark.parametrize("part", range(10))
def test_predictions_are_those_approved(part: int) -> None:
    """Every figure of every configuration, up to rounding."""
    for asked, *approved in ROWS[part::10]:
        for own, known in zip(figures(json.loads(asked)), approved, strict=True):
            alike = own == known if isinstance(own, str) else isclose(own, float(known), rel_tol=CLOSE, abs_tol=1e-15)
            assert alike, (asked, own, known)


if __name__ == "__main__":
    approve()
