"""`plan place`."""

import json

import numpy as np
import pytest

from cli.main import main
from planner.manifest.loads import check_expert_map, imbalance, rank_loads
from tests.expert_loads import power_law
from tests.shell import answered, printed, refused


@pytest.fixture
def loads(tmp_path):
    """Three layers of 32 experts as CSV."""
    path = tmp_path / "loads.csv"
    np.savetxt(path, power_law(3, 32, 0.8), fmt="%d", delimiter=",")
    return path


def test_the_json_has_the_fixed_keys(loads, capsys):
    """Keys as the command line promises; the map has the imbalance that is told."""
    answer = answered(capsys, "place", str(loads), "--devices", "8", "--nodes", "2", "--redundant-experts", "8")
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
    out = printed(capsys, "place", str(loads), "--devices", "8", "--slots-per-device", "5")
    assert "40 slots, 5 per device, 8 redundant" in out
    for row in ("as engines start", "EPLB", "podplan (joint)", "lower bound"):
        assert row in out


def test_files_of_every_engine_are_written_once(loads, tmp_path, capsys):
    """--out writes all formats and the answer, and refuses to replace them without --force."""
    out = tmp_path / "out"
    command = ["place", str(loads), "--devices", "8", "--redundant-experts", "8", "--out", str(out)]
    assert main(command) == 0
    assert "give --model" in capsys.readouterr().out
    names = {"sglang.json", "vllm_ascend.json", "tensorrt_llm.yaml", "eplb.json", "expert_map.yaml", "placement.json"}
    assert {path.name for path in out.iterdir()} == names
    kept = json.loads((out / "placement.json").read_text())["placement"]["physical_to_logical"]
    assert json.loads((out / "sglang.json").read_text()) == {"physical_to_logical_map": kept}
    refused(capsys, "--force", *command)
    assert main([*command, "--force"]) == 0


def test_the_model_says_how_many_dense_layers_come_first(tmp_path, capsys):
    """DeepSeek-R1: 58 rows of loads make 61 rows for SGLang, and keys 3 to 60 for TensorRT-LLM."""
    path, out = tmp_path / "loads.npy", tmp_path / "out"
    np.save(path, power_law(58, 256, 0.6))
    flags = ["--devices", "256", "--model", "deepseek-r1", "--out", str(out)]
    assert main(["place", str(path), *flags, "--method", "trivial"]) == 0
    assert len(json.loads((out / "sglang.json").read_text())["physical_to_logical_map"]) == 61
    assert "\n  3: [" in (out / "tensorrt_llm.yaml").read_text()
    np.save(path, power_law(4, 256, 0.6))
    refused(capsys, "has 58 layers of 256 experts, the loads 4 of 256", "place", str(path), *flags, "--force")


def test_slices_are_held_out(tmp_path, capsys):
    """Time slices are the default objective where there are some; half of them judge the method."""
    path = tmp_path / "loads.npy"
    np.save(path, np.stack([power_law(2, 16, 0.8, seed) for seed in range(4)], axis=2))
    answer = answered(capsys, "place", str(path), "--devices", "4", "--redundant-experts", "4")
    assert answer["objective"] == "slices"
    assert answer["held_out"]["split"] == "alternate"
    answer = answered(capsys, "place", str(path), "--devices", "4", "--objective", "mean")
    assert answer["objective"] == "mean" and answer["held_out"] is None


def test_the_planner_chooses_the_redundancy_and_gives_a_verdict(tmp_path, capsys):
    """--redundant-experts auto with a machine: the curve, the choice, the verdict and the experts' seconds."""
    path = tmp_path / "loads.npy"
    np.save(path, power_law(58, 256, 0.8))
    command = ["place", str(path), "--devices", "32", "--method", "water-filling", "--json"]
    machine = ["--model", "deepseek-r1", "--hw", "h800", "--batch", "32"]
    answer = json.loads(printed(capsys, *command, *machine, "--redundant-experts", "auto"))
    assert [row["redundant"] for row in answer["redundancy"]] == [0, 32, 64, 96, 128]
    assert answer["redundant_experts"] == 32
    assert answer["verdict"]["worth_it"] is True and answer["verdict"]["saves"] > 0.02
    assert answer["expert_seconds"]["placement"]["mean"] > 0


def test_a_running_map_is_changed_within_a_limit(loads, tmp_path, capsys):
    """--current reads any written format; --max-moves holds on every layer."""
    out = tmp_path / "out"
    place = ["place", str(loads), "--devices", "8", "--redundant-experts", "8"]
    assert main([*place, "--method", "trivial", "--out", str(out)]) == 0
    for name in ("sglang.json", "vllm_ascend.json", "tensorrt_llm.yaml", "eplb.json", "expert_map.yaml"):
        capsys.readouterr()
        answer = answered(capsys, *place, "--current", str(out / name), "--max-moves", "3")
        assert max(answer["migration"]["experts_to_load"]) <= 3
        assert answer["imbalance"]["mean"] < answer["migration"]["current_imbalance"]["mean"]
    refused(capsys, "eplb.json", *place[:2], "--devices", "4", "--current", str(out / "eplb.json"))


def test_traffic_between_nodes_has_a_price(loads, capsys):
    """The share that leaves, and the bound on the sum, are in the answer."""
    place = ["place", str(loads), "--devices", "8", "--nodes", "2", "--redundant-experts", "8"]
    answer = answered(capsys, *place, "--groups", "4", "--traffic-weight", "0.5")
    total = answer["imbalance"]["mean"] + 0.5 * answer["traffic"]["leaving_share"]["mean"]
    assert total >= answer["traffic"]["objective_bound"]["mean"] * (1 - 1e-9)


def test_plots_are_an_extra(loads, tmp_path, capsys, monkeypatch):
    """Two pictures with matplotlib; without it one sentence that says what to install."""
    place = ["place", str(loads), "--devices", "8", "--redundant-experts", "8", "--method", "water-filling", "--curve"]
    with monkeypatch.context() as patched:
        patched.setattr("cli.plots.find_spec", lambda name: None)
        assert main([*place, "--plot", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert "podplan[plot]" in capsys.readouterr().err
    assert not (tmp_path / "none").exists() and not (tmp_path / "out").exists()
    pytest.importorskip("matplotlib")
    assert main([*place, "--plot", str(tmp_path / "plots")]) == 0
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"device_loads.svg", "redundancy.svg"}
