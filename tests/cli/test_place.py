"""`plan place`."""

import json

import numpy as np
import pytest

from cli.main import main
from planner.manifest.loads import check_expert_map, imbalance, rank_loads
from tests.expert_loads import power_law


@pytest.fixture
def loads(tmp_path):
    """Three layers of 32 experts as CSV."""
    path = tmp_path / "loads.csv"
    np.savetxt(path, power_law(3, 32, 0.8), fmt="%d", delimiter=",")
    return path


def test_the_json_has_the_fixed_keys(loads, capsys):
    """Keys as the command line promises; the map has the imbalance that is told."""
    assert main(["place", str(loads), "--devices", "8", "--nodes", "2", "--redundant-experts", "8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    slots = np.array(answer["placement"]["physical_to_logical"])
    check_expert_map(slots, 32, 8)
    reached = imbalance(rank_loads(power_law(3, 32, 0.8), slots, 8))
    assert answer["layers"] == 3 and slots.shape == (3, 40)
    assert answer["imbalance"] == pytest.approx({"mean": reached.mean(), "max": reached.max()})
    assert answer["lower_bound"]["mean"] <= answer["imbalance"]["mean"]
    assert answer["gap"] == pytest.approx(1 - answer["lower_bound"]["mean"] / answer["imbalance"]["mean"])
    assert answer["proven_optimal_layers"] >= 0 and answer["seconds"] > 0


def test_the_table_sets_baselines_beside_the_placement(loads, capsys):
    """What engines start from, EPLB, the placement and the bound."""
    assert main(["place", str(loads), "--devices", "8", "--slots-per-device", "5"]) == 0
    out = capsys.readouterr().out
    assert "40 slots, 5 per device, 8 redundant" in out
    for row in ("as engines start", "EPLB", "podplan (joint)", "lower bound"):
        assert row in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--devices", "0"], "--devices"),
        (["--devices", "8", "--nodes", "3"], "--nodes 3 must divide the 8 devices"),
        (["--devices", "8", "--redundant-experts", "3"], "0 or 8 would do"),
        (["--devices", "8", "--redundant-experts", "300"], "between 0 and 224"),
        (["--devices", "8", "--slots-per-device", "3"], "from 4, where 32 experts fit, to 32"),
        (["--devices", "8", "--slots-per-device", "5", "--redundant-experts", "8"], "leave one of them out"),
        (["--devices", "8", "--groups", "3"], "--groups 3 must divide the 32 experts"),
        (["--devices", "8", "--nodes", "2", "--keep-groups"], "--keep-groups: 1 groups"),
        (["--devices", "8", "--method", "jiont"], "did you mean joint"),
        (["--devices", "100000"], "--devices"),
    ],
)
def test_what_does_not_fit_is_one_sentence(loads, capsys, flags, message):
    """Exit 2, nothing on stdout, the flag named."""
    assert main(["place", str(loads), *flags]) == 2
    said = capsys.readouterr()
    assert message in said.err and len(said.err.splitlines()) == 1 and not said.out
