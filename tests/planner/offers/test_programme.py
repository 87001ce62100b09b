"""The fleet programme against trying every combination."""

import numpy as np
import pytest

from ground.errors import BadInput
from planner.offers.programme import Column, solve_by_enumeration, solve_fleet, undominated


def _columns(seed, roles, pools, count=7):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 20, (len(roles), count))
    return [
        Column(
            role=role,
            candidate=i,
            instances=1,
            devices=int(sizes[r, i]),
            rate_per_second=float(rng.uniform(0.5, 1.5) * sizes[r, i]),
            pool=pools[int(rng.integers(len(pools)))],
            cost_per_hour=float(rng.uniform(1, 2) * sizes[r, i]),
        )
        for r, role in enumerate(roles)
        for i in range(count)
    ]


@pytest.mark.parametrize("objective", ["throughput", "chips", "cost"])
@pytest.mark.parametrize("roles", [("mixed",), ("prefill", "decode")])
@pytest.mark.parametrize("pools", [("one",), ("one", "two")])
def test_programme_is_as_good_as_enumeration(objective, roles, pools):
    """Same status, value and, for throughput, fewest devices; the bound closes the gap."""
    for seed in range(6):
        question = {
            "devices": {"one": 14 + seed, "two": 9},
            "objective": objective,
            "rate": None if objective == "throughput" else 6.0,
        }
        columns = _columns(seed, roles, pools)
        solved, oracle = solve_fleet(columns, **question), solve_by_enumeration(columns, **question)
        assert solved.status == oracle.status
        if solved.status == "optimal":
            assert solved.value == pytest.approx(oracle.value)
            assert solved.bound == pytest.approx(oracle.value)
            assert solved.gap < 1e-6
            assert [c.role for c in solved.columns] == list(roles)
            if objective == "throughput":
                assert solved.devices == oracle.devices


def _column(role, devices, rate, pool="one"):
    return Column(role=role, candidate=devices, instances=devices, devices=devices, rate_per_second=rate, pool=pool)


def test_two_roles_share_one_budget():
    """12 devices: prefill 4 for 10/s and decode 8 for 9/s; neither role's own best fits beside the other."""
    columns = [
        _column("prefill", 4, 10.0),
        _column("prefill", 8, 20.0),
        _column("decode", 8, 9.0),
        _column("decode", 12, 15.0),
    ]
    solved = solve_fleet(columns, devices={"one": 12}, objective="throughput")
    assert (solved.value, solved.devices) == (9.0, 12)


def test_throughput_takes_the_fewest_devices_of_equal_rate():
    """Decode binds at 9/s, so prefill takes 2 devices for 9.5/s and not 4 for 20/s."""
    columns = [_column("prefill", 4, 20.0), _column("prefill", 2, 9.5), _column("decode", 8, 9.0)]
    solved = solve_fleet(columns, devices={"one": 12}, objective="throughput")
    assert [c.devices for c in solved.columns] == [2, 8]


def test_thousands_of_columns_are_proven():
    """6000 columns on 768 devices; the same answer for the same question."""
    sizes = np.random.default_rng(0).integers(1, 768, 3000)
    columns = [
        _column(role, int(d), float(d * (1 + 0.1 * np.sin(i))))
        for role in ("prefill", "decode")
        for i, d in enumerate(sizes)
    ]
    solved, again = (solve_fleet(columns, devices={"one": 768}, objective="throughput") for _ in range(2))
    assert solved == again
    assert solved.gap < 1e-6
    assert solved.devices <= 768


def test_undominated_keeps_what_is_smaller_or_faster():
    """Of (4, 10), (4, 9), (5, 10), (6, 11) the second and third never help; another pool is another matter."""
    columns = [_column("mixed", d, r) for d, r in ((4, 10.0), (4, 9.0), (5, 10.0), (6, 11.0))]
    columns.append(_column("mixed", 7, 1.0, "two"))
    assert [(c.devices, c.pool) for c in undominated(columns)] == [(4, "one"), (6, "one"), (7, "two")]


@pytest.mark.parametrize(
    ("columns", "rate", "words"),
    [
        ([], 1.0, "No candidate"),
        ([_column("prefill", 2, 1.0), _column("decode", 2, 3.0)], 2.0, "prefill carries at most 1"),
        ([_column("prefill", 2, 9.0), _column("decode", 99, 9.0)], 2.0, "decode needs 99 devices of one, which has 12"),
        ([_column("prefill", 7, 9.0), _column("decode", 7, 9.0)], 2.0, "nearest change: 14 devices of one"),
    ],
)
def test_infeasible_says_what_binds(columns, rate, words):
    """The message names the role, the devices or the rate; enumeration says the same."""
    for solve in (solve_fleet, solve_by_enumeration):
        solved = solve(columns, devices={"one": 12}, objective="chips", rate=rate)
        assert (solved.status, solved.columns) == ("infeasible", ())
        assert words in solved.message


def test_questions_that_cannot_be():
    """The least devices for no rate is no question; a pool needs a budget."""
    with pytest.raises(BadInput, match="--rate"):
        solve_fleet([_column("mixed", 1, 1.0)], devices={"one": 1}, objective="chips")
    with pytest.raises(BadInput, match="budget"):
        solve_fleet([_column("mixed", 1, 1.0, "two")], devices={"one": 1}, objective="throughput")
