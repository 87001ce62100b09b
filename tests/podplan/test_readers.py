"""Readers of flags: what they return, and that every refusal names the flag and what would be right."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hardware.loader import load_hardware
from models.loader import load_model
from planner.engines.loader import Needs, load_engine
from podplan import readers as own
from podplan.readers import spaced

R1, DENSE, H100, CM384 = (
    load_model("deepseek-r1"),
    load_model("qwen3-8b"),
    load_hardware("h100"),
    load_hardware("cm384"),
)
NVIDIA, BOTH = Needs([H100], "qwen3"), Needs([H100, CM384], "qwen3")
RIGHT: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = [
    (own.read_engines, ("Reference", NVIDIA), ("reference",)),
    (own.read_engines, ("reference@1", NVIDIA), ("reference",)),
    (own.read_engines, ("any", BOTH), ("reference",)),
    (own.read_engines, (" VLLM ", NVIDIA), (f"vllm@{load_engine('vllm').versions.pinned}",)),
    (own.read_choice, (None, "--graphs", ("on", "off"), "on"), "on"),
    (own.read_choice, (" OFF", "--graphs", ("on", "off"), "on"), "off"),
    (own.read_weights, (None, R1, H100), "fp8"),
    (own.read_weights, ("BF16 ", R1, H100), "bf16"),
    (own.read_redundant, (None, DENSE), None),
    (own.read_redundant, ("auto", DENSE), None),
    (own.read_redundant, ("0", DENSE), 0),
    (own.read_redundant, ("32", R1), 32),
    (own.read_shared, (None, DENSE), "auto"),
    (own.read_shared, ("Local", DENSE), "local"),
    (own.read_shared, ("dedicated=32", R1), 32),
    (own.read_drafts, (None, DENSE), 0),
    (own.read_drafts, ("1", R1), 1),
    (own.read_microbatches, (None, DENSE), None),
    (own.read_microbatches, ("AUTO", DENSE), None),
    (own.read_microbatches, ("1", DENSE), 1),
    (own.read_microbatches, (" 2 ", R1), 2),
    (own.read_tokens, (None, "--isl", 7), 7),
    (own.read_tokens, ("1000000000", "--isl", 7), 10**9),
    (own.read_beams, (None,), 1),
    (own.read_beams, ("1024",), 1024),
    (own.undrafted, (None,), 0),
    (own.undrafted, ("0..0",), 0),
    (own.read_fraction, (None, "--prefix-reuse", 0.25), 0.25),
    (own.read_fraction, ("100%", "--prefix-reuse", 0.0), 1.0),
    (own.read_confidence, (None,), None),
    (own.read_confidence, ("0.999",), 0.999),
    (own.read_headroom, (None,), 0.0),
    (own.read_headroom, ("400%",), 4.0),
    (own.read_utilisation, (None,), own.DEFAULT_UTILISATION),
    (own.read_utilisation, ("1%",), 0.01),
    (own.read_survive, (None,), None),
    (own.read_survive, ("node",), "node"),
    (own.read_limit, ("1us", "--ttft"), 1e-6),
    (own.read_percentile, ("P99",), 99.0),
    (own.read_acceptance, (None,), 0.7),
    (own.read_acceptance, ("0.9/50%",), (0.9, 0.5)),
    (own.read_host, (None, None), own.Host(True, 0.0)),
    (own.read_host, ("off", "10s"), own.Host(False, 10.0)),
    (own.read_weight_choices, (None, R1, CM384), ["int8"]),
    (own.read_weight_choices, ("auto", DENSE, H100), ["bf16", "fp8", "int8"]),
    (own.read_weight_choices, ("fp8,bf16", DENSE, H100), ["fp8", "bf16"]),
    (own.read_caches, (None,), ["bf16"]),
    (own.read_caches, ("FP8",), ["fp8"]),
    (own.read_caches, ("auto",), ["bf16", "fp8", "int8"]),
    (own.is_any, (" Any",), True),
    (own.weights_of, (None, "prefill"), None),
    (own.weights_of, ("fp8", "decode"), "fp8"),
    (own.weights_of, ("prefill=fp8,bf16, decode='int8'", "prefill"), "fp8,bf16"),
    (own.weights_of, ("prefill=fp8,bf16, decode='int8'", "decode"), "int8"),
    (own.read_pictures, (None, "deepseek-r1", None, None), None),
]


@pytest.mark.parametrize(("reader", "given", "value"), RIGHT)
def test_what_is_right_is_read(reader: Callable[..., Any], given: tuple[Any, ...], value: Any) -> None:
    """Defaults, ends of ranges, either case and spaces around."""
    assert reader(*given) == value


def test_a_fraction_below_one_stops_short_of_it() -> None:
    """A share that must leave something is refused at one."""
    assert own.read_fraction("99%", "--prefix-reuse", 0.0, below_one=True) == 0.99


def test_a_value_may_hold_signs_of_equality() -> None:
    """A batch of roles keeps its own names; a model beside may draft where the model does not."""
    assert own.by_role("prefill=a=1,b=2,decode=c=3", "--batch", signs=True) == {"prefill": "a=1,b=2", "decode": "c=3"}
    assert own.by_role("a=1,b=2", "--batch", signs=True) == {"": "a=1,b=2"}
    assert own.read_drafts("3", DENSE, beside=True) == 3


def test_balance_rests_on_what_is_stated(tmp_path: Path) -> None:
    """Experts are as measured unless a law or a file of loads says otherwise."""
    measured, stated = own.read_balance(None, None, R1), own.read_balance(None, "power-law=0.5", R1)
    assert (measured.kind, measured.distribution) != (stated.kind, stated.distribution)
    assert own.read_balance("1", None, DENSE).factor == 1
    path = tmp_path / "loads.json"
    path.write_text(json.dumps([[1.0, 2.0, 3.0, 4.0]] * 2), encoding="utf-8")
    assert own.read_balance(None, str(path), R1).distribution != stated.distribution


def test_ends_and_spacing() -> None:
    """Even steps, or even factors; both ends are points."""
    assert spaced(20, 100, 5, logarithmic=False) == [20, 40, 60, 80, 100]
    assert spaced(1, 16, 5, logarithmic=True) == [1, 2, 4, 8, 16]
    assert spaced(9, 3, 3, logarithmic=False) == [9, 6, 3]
