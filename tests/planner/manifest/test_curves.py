"""Kernels along measured curves: numbers, arrays, manifests; what lies within reach, against counting it."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from planner.manifest.curves import at, charged_tokens, context_within, curve_seconds, kept_tokens, pairs_within
from planner.manifest.terms import CurveTerm, timing

POINTS = (10e-6, 12e-6, 24e-6, 40e-6)
TERM = CurveTerm("x", "experts", {"routed": 0.5}, POINTS, {"routed": 1e6}, 1e15, {"hit": 1e6}, 1e12)


def test_a_curve_by_hand():
    """Its points are met, between them lies a power law, and past the last one the last doubling's increase goes on."""
    assert [at(POINTS, load) for load in (1.0, 2.0, 4.0, 8.0)] == pytest.approx(POINTS)
    assert at(POINTS, 2**0.5) == pytest.approx((10e-6 * 12e-6) ** 0.5)
    assert at(POINTS, 32.0) == pytest.approx(40e-6 + 6 * (40e-6 - 24e-6))
    assert (at(POINTS, 0.3), at(POINTS, 0.0)) == (10e-6, 0.0)


def test_arrays_are_what_numbers_are():
    """Loads, and points that differ from instance to instance."""
    loads = np.array([0.0, 0.4, 1.0, 3.0, 100.0])
    assert curve_seconds(POINTS, loads) == pytest.approx([at(POINTS, load) for load in loads])
    points = tuple(np.array([point, 2 * point]) for point in POINTS)
    expected = [[at(POINTS, load), at([2 * point for point in POINTS], load)] for load in loads]
    assert np.asarray(curve_seconds(points, loads[:, None])) == pytest.approx(np.array(expected))


def test_a_term_counts_its_load_and_its_work():
    """Six copies are three tokens on the curve; FLOP and bytes are those of the copies and experts."""
    own = timing(TERM, {"one": 1.0, "routed": 6.0, "hit": 4.0})
    assert own.seconds(cores=0.5, dilation=2.0) == pytest.approx(at(POINTS, 3.0))
    assert (own.flops, own.bytes) == (6e6, 4e6)


def causal(chunk: int, past: int) -> float:
    """Pairs of ``chunk`` queries on ``past`` cached tokens."""
    return chunk * past + chunk * (chunk + 1) / 2


@given(st.integers(1, 400), st.integers(0, 600), st.integers(1, 5), st.integers(1, 700))
def test_pairs_are_those_of_each_query(chunk: int, past: int, prompts: int, window: int) -> None:
    """Equal prompts: the closed form is the sum of min(p + j, W) over every query."""
    counted = prompts * sum(min(past + query, window) for query in range(1, chunk + 1))
    load = prompts * chunk, prompts * past, prompts * causal(chunk, past)
    assert float(pairs_within(*map(float, load), window)) == pytest.approx(counted, rel=1e-6)
    assert float(context_within(*map(float, load), window)) == pytest.approx(prompts * min(past, window), rel=1e-6)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=20), st.integers(1, 4000))
def test_kept_tokens_bound_those_of_any_mixture(lengths: list[int], window: int) -> None:
    """Requests of different lengths hold at most what equal ones of the same total would, and never more than all."""
    kept = float(kept_tokens(float(sum(lengths)), float(len(lengths)), window))
    assert sum(min(length, window) for length in lengths) <= kept + 1e-9
    assert kept <= sum(lengths)


def test_arrays_are_their_elements() -> None:
    """One formula for a step and for many."""
    tokens, context = np.array([10.0, 500.0, 0.0]), np.array([0.0, 2000.0, 0.0])
    pairs = np.array([55.0, 500 * 2000 + 500 * 501 / 2, 0.0])
    for formula in (pairs_within, context_within):
        together = formula(tokens, context, pairs, 128)
        alone = [float(formula(*map(float, load), 128)) for load in zip(tokens, context, pairs, strict=True)]
        assert np.asarray(together).tolist() == pytest.approx(alone)
        assert alone[-1] == 0.0  # a step without prompts


def test_a_cache_without_windows_or_state_is_its_tokens() -> None:
    """The tokens of a model whose layers all keep everything are charged bit for bit."""
    assert charged_tokens(1234.5, 3.0, reach=0, reach_share=0.0, sequence_tokens=0.0) == 1234.5


def test_requests_are_charged_for_windows_and_states() -> None:
    """Half of 1,000 tokens keep 128 of each of three requests; a state of ten tokens' worth comes to each request."""
    charged = charged_tokens(1000.0, 3.0, reach=128, reach_share=0.5, sequence_tokens=10.0)
    assert charged == 500 + 0.5 * 3 * 128 + 30
