"""From a running map to a better one: renumbered ranks, few moves, traffic between nodes."""

import itertools

import numpy as np

from planner.manifest.loads import check_expert_map, imbalance, rank_loads
from planner.placement.arranged import leaving_share, pay_for_leaving, trade_off_bound
from planner.placement.methods import place
from planner.placement.migrate import few_moves, moves, renumbered
from planner.placement.problem import Problem
from tests.expert_loads import every_map, power_law


def drifted(layers, experts, seed=1):
    """Loads, and what they were when the running map was made."""
    loads = power_law(layers, experts, 0.8)
    before = loads * np.exp(0.3 * np.random.default_rng(seed).standard_normal(loads.shape))
    return loads, before


def test_renumbering_saves_most_loads():
    """Against all 24 orders of four ranks; within nodes only where there are nodes."""
    loads, before = drifted(4, 12)
    problem = Problem(loads=loads, ranks=4, redundant=4)
    current, target = place(Problem(loads=before, ranks=4, redundant=4)).slots, place(problem).slots
    found = moves(current, renumbered(current, target, problem), 4).sum(axis=1)
    ranks = target.reshape(4, 4, -1)
    every = [
        moves(current, ranks[:, list(order)].reshape(4, -1), 4).sum(axis=1)
        for order in itertools.permutations(range(4))
    ]
    assert (found == np.min(every, axis=0)).all()
    on_nodes = renumbered(current, target, Problem(loads=loads, ranks=4, redundant=4, nodes=2))
    for half in (slice(0, 8), slice(8, 16)):
        assert (np.sort(on_nodes[:, half], axis=1) == np.sort(target[:, half], axis=1)).all()


def test_few_moves_gain_much():
    """A tenth of the loads of a new map takes half of the excess; every step is a valid map and no worse."""
    loads, before = drifted(1, 128)
    problem = Problem(loads=loads, ranks=16, redundant=16)
    current = place(Problem(loads=before, ranks=16, redundant=16)).slots
    target = place(problem).slots
    whole = int(moves(current, renumbered(current, target, problem), 16)[0].sum())
    maps = np.array(few_moves(loads[0], current[0], 16, whole))
    check_expert_map(maps, 128, 16)
    reached = imbalance(rank_loads(np.tile(loads, (len(maps), 1)), maps, 16)).tolist()
    assert reached == sorted(reached, reverse=True)
    few = few_moves(loads[0], current[0], 16, whole // 10)
    assert moves(current, few[-1][None], 16).sum() <= whole // 10
    assert reached[len(few) - 1] - 1 <= (reached[0] - 1) / 2
    assert len(few_moves(loads[0], current[0], 16, 0)) == 1


def test_few_moves_never_beats_the_best_map_with_as_many():
    """Six experts on three ranks, by enumeration of all maps within two loads; mostly it is the best."""
    rng = np.random.default_rng(2)
    maps, best = every_map(6, 3, 3), 0
    for _ in range(30):
        loads = rng.lognormal(0, 1, 6)
        current = np.array([0, 1, 2, 3, 4, 5, 0, 1, 2])
        orders = [maps.reshape(-1, 3, 3)[:, list(o)].reshape(-1, 9) for o in itertools.permutations(range(3))]
        near = np.concatenate(
            [rows[moves(np.tile(current, (len(rows), 1)), rows, 3).sum(axis=1) <= 2] for rows in orders]
        )
        optimum = imbalance(rank_loads(np.tile(loads, (len(near), 1)), near, 3)).min()
        reached = imbalance(rank_loads(loads[None], few_moves(loads, current, 3, 2)[-1][None], 3))[0]
        assert reached >= optimum * (1 - 1e-9)
        best += reached <= optimum * 1.0001
    assert best >= 10


def test_leaving_is_paid_for_by_its_weight():
    """More weight, fewer tokens away from home; none of it beats the programme's bound; free leaving is balanced."""
    problem = Problem(loads=power_law(2, 64, 1.0), ranks=8, redundant=8, nodes=2, groups=4, keep_groups=True)
    shares = []
    for weight in (0.0, 0.5, 20.0):
        slots = pay_for_leaving(problem, weight)
        check_expert_map(slots, 64, 8)
        reached, share = imbalance(rank_loads(problem.loads, slots, 8)), leaving_share(problem, slots)
        assert (reached + weight * share >= trade_off_bound(problem, weight) * (1 - 1e-9)).all()
        shares.append(share.mean())
    assert shares == sorted(shares, reverse=True) and shares[-1] == 0
    assert leaving_share(problem, place(problem).slots).max() == 0
