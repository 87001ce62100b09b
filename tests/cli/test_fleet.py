"""`plan fleet`: several models on one cluster, from a file."""

import json
from pathlib import Path

import pytest

from cli.main import main
from ground.errors import ExitCode
from planner.manifest.document import read_manifest
from tests.shell import answered, printed, refused

FILE = """
hw: h100
nodes: 1
models:
  - {name: small, model: qwen3-8b, rate: 2/s, isl: 4k, osl: 64}
  - {name: large, model: qwen3-32b, rate: 1/s, isl: 4k, osl: 64}
"""
POOLS = """
pools:
  - {hw: h100, nodes: 1, price: 2}
  - {hw: h20, nodes: 1, name: old, power: 700W}
models:
  - {name: small one, model: qwen3-8b, rate: 4/s, isl: 4k, osl: 64}
  - {name: large, model: qwen3-32b, rate: 2/s, isl: 4k, osl: 64, hw: "prefill=h100,decode=old"}
"""
SHAPES = """
hw: h200
nodes: 1
survive: instance
models:
  - {name: auto, model: qwen3-8b, rate: 3/s, isl: 512, osl: 64}
  - {name: apart, model: qwen3-8b, rate: 3/s, isl: 512, osl: 64, shape: disaggregated}
  - {name: both, model: qwen3-32b, rate: 1/s, isl: 512, osl: 64, shape: aggregated}
"""


def _written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text("engine: reference\n" + "shape: disaggregated\n" * ("shape" not in text) + text, encoding="utf-8")
    return str(path)


def test_every_model_has_a_plan_on_the_shared_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan for each at its rate, together within the node; the CSV has a row for each."""
    path, table = _written(tmp_path, FILE), tmp_path / "fleet.csv"
    data = answered(capsys, "fleet", path, "--csv", str(table))
    assert [model["best"]["requests_per_second"] for model in data["models"]] == [2, 1]
    assert sum(model["best"]["devices"] for model in data["models"]) == data["devices_used"]["h100"] <= 8
    assert data["bound"]["gap"] <= 1e-6
    assert len(table.read_text(encoding="utf-8").splitlines()) == 3


def test_a_fleet_is_paid_by_the_nodes_on_which_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The least cost shares a node; the fewest chips stand on one for each model where there are two, and pay both."""
    text = FILE.replace("nodes: 1", "nodes: 2\nobjective: GOAL")
    for goal, paid in (("cost", "1 node, 10.4 USD"), ("chips", "2 nodes, 20.8 USD")):  # 1.3 USD for each of eight
        shown = " ".join(printed(capsys, "fleet", _written(tmp_path, text.replace("GOAL", goal))).split())
        assert f"of 16 h100 on {paid} an hour" in shown and ("Models share nodes" in shown) == (goal == "cost")


def test_a_model_of_a_fleet_has_encode_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both ways to encode stand in one proven programme, and a manifest of the answer is played with its pictures."""
    asked = "model: qwen2.5-vl-7b-instruct, rate: 4/s, isl: 512, osl: 128, images: 1@640x640, encode: WAY, name: seen"
    text = f"hw: h800\ndevices: 4\nmodels:\n  - {{{asked}}}\n"
    found = {}
    for way in ("fused", "separate", "auto"):
        path = _written(tmp_path, f"objective: throughput\n{text.replace('WAY', way)}")
        out = tmp_path / way
        found[way] = answered(capsys, "fleet", path, "--out", str(out))
        assert found[way]["bound"]["gap"] <= 1e-6
    value = {way: data["bound"]["value"] for way, data in found.items()}
    assert value["auto"] == pytest.approx(max(value["fused"], value["separate"]))
    (seen,) = found["separate"]["models"]
    assert seen["best"]["pools"][0]["role"] == "encode"
    run = answered(capsys, "simulate", str(tmp_path / "separate" / "seen" / "manifest.yaml"), "--requests", "200")
    assert run["utilisation"]["encode"] > 0


def test_models_that_switch_take_turns_on_the_same_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two nodes serve two models whose peaks alternate, which need three at once; each window has its manifests."""
    text = """
hw: h100
nodes: 2
switch: yes
models:
  - {name: chat, model: qwen3-8b, isl: 2k, osl: 256, rate_profile: "8:00=120/s,20:00=0/s"}
  - {name: docs, model: qwen3-32b, isl: 2k, osl: 256, rate_profile: "8:00=0/s,20:00=10/s"}
"""
    path, out = _written(tmp_path, text), tmp_path / "out"
    found = answered(capsys, "fleet", path, "--out", str(out))
    assert [(row["scenario"], row["model"]) for row in found["scenarios"]] == [
        ("08:00", "qwen3-8b"),
        ("20:00", "qwen3-32b"),
    ]
    for row, window in zip(found["scenarios"], ("01-08-00", "02-20-00"), strict=True):
        manifest = read_manifest(out / f"{window}-{row['model']}.yaml")
        assert manifest.workload.requests_per_second == row["requests_per_second"]
        assert (
            sum(pool.chips_per_instance * len(pool.instances) for pool in manifest.pools) == row["policy_chips"] <= 16
        )
    assert found["policy"]["chip_hours"] >= 12 * sum(row["policy_chips"] for row in found["scenarios"])
    assert all(late["seconds"] > 60.0 for late in found["late_starts"])
    refused(capsys, "switch", "fleet", _written(tmp_path, text.replace("switch: yes", "switch: maybe")))
    refused(capsys, "switch", "fleet", _written(tmp_path, text + "objective: throughput\n"))
    refused(capsys, "--csv", "fleet", path, "--csv", str(tmp_path / "table.csv"))


def test_models_stand_on_pools_and_their_manifests_beside_each_other(tmp_path, capsys):
    """Named pools hold; manifests read back, overlap nowhere and survive a lost node; files are not replaced."""
    path, out = _written(tmp_path, POOLS), tmp_path / "out"
    data = answered(capsys, "fleet", path, "--survive", "instance", "--out", str(out))

    small, large = data["models"]
    assert large["pools"] == {"prefill": "h100", "decode": "old"}
    assert all(model["after_loss"]["feasible"] for model in (small, large))
    assert small["best"]["power_watts"] > 0 and data["devices"] == {"h100": 8, "old": 8}
    taken: set[tuple[str, int]] = set()
    for name in ("small-one", "large"):
        manifest = read_manifest(out / name / "manifest.yaml")
        for pool in manifest.pools:
            for instance in pool.instances:
                first = instance.nodes[0] * 8 + instance.first_device
                mine = {(pool.hardware, first + number) for number in range(pool.devices_per_instance)}
                assert not mine & taken
                taken |= mine
    assert len(taken) == sum(data["devices_used"].values())
    refused(capsys, "give --force", "fleet", path, "--out", str(out))


def test_models_state_their_shape_and_aggregated_ones_have_manifests(tmp_path, capsys):
    """As asked, or the shape with fewer chips; JSON, table and manifest tell, and the loss is survived by either."""
    path, out = _written(tmp_path, SHAPES), tmp_path / "out"
    data = answered(capsys, "fleet", path, "--out", str(out))

    either, apart, both = data["models"]
    assert either["pools"] == both["pools"] == {"mixed": "h200"}
    assert apart["pools"] == {"prefill": "h200", "decode": "h200"}
    assert either["best"]["devices"] < apart["best"]["devices"]
    assert all(model["after_loss"]["feasible"] for model in (either, apart, both))
    assert any("aggregated instances of auto" in each["what"] for each in data["bound"]["pruned"])
    assert [pool.role for pool in read_manifest(out / "both" / "manifest.yaml").pools] == ["mixed"]
    heads = printed(capsys, "fleet", path).splitlines()[0].split()
    assert heads == ["model", "nodes", "chips", "prefill", "decode", "mixed"]


def test_aggregated_instances_of_a_model_with_two_pools_stand_on_either(tmp_path, capsys):
    """As `plan --shape aggregated` does: on one of the pools that the roles name."""
    path = _written(tmp_path, POOLS.replace('decode=old"', 'decode=old", shape: aggregated'))
    assert answered(capsys, "fleet", path)["models"][1]["pools"] in ({"mixed": "h100"}, {"mixed": "old"})


def test_headroom_leaves_a_model_on_the_machines_that_it_took(tmp_path, capsys):
    """Prefill and decode of a model may stand on different machines of its pools, with headroom as without."""
    text = """
pools: [{hw: h100, nodes: 1, name: new}, {hw: l40s, nodes: 1, price: 1.2, power: 300W}]
models:
  - {name: a, model: qwen3-8b, rate: 2/s, isl: 4k, osl: 64}
  - {name: b, model: qwen3-8b, hw: new, rate: 1/s, isl: 4k, osl: 64}
"""
    used = [
        answered(capsys, "fleet", _written(tmp_path, text), "--objective", "throughput", *more)["devices_used"]
        for more in ([], ["--headroom", "10%"])
    ]
    assert used[0] == used[1] and used[0]["l40s"] > 0


def test_confidence_takes_more_or_as_many_chips_and_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every limit holds with the asked confidence; what is asked as predicted needs no more chips."""
    path = _written(tmp_path, FILE.replace("2/s", "10/s").replace("1/s", "2/s"))
    bare, sure = answered(capsys, "fleet", path), answered(capsys, "fleet", path, "--confidence", "0.95")

    assert sum(bare["devices_used"].values()) <= sum(sure["devices_used"].values())
    assert [model["best"]["requests_per_second"] for model in sure["models"]] == [10, 2]
    assert all(model["held_confidence"] >= 0.94 for model in sure["models"])


def test_growth_is_common_and_a_refusal_names_changes_that_hold(tmp_path, capsys):
    """The largest multiple of all rates fits when asked for; a little more is refused, with nodes that carry it."""
    grown = answered(capsys, "fleet", _written(tmp_path, FILE), "--objective", "throughput")
    factor = float(grown["growth"])
    rates = [model["best"]["requests_per_second"] for model in grown["models"]]
    assert rates == pytest.approx([2 * factor, factor])
    # Each paid for the node that both stand on.
    assert sum(model["best"]["cost_per_hour"] for model in grown["models"]) == pytest.approx(grown["cost_per_hour"])

    over = FILE.replace("rate: 1/s", f"rate: {1.05 * factor:.4f}/s").replace("rate: 2/s", f"rate: {2.1 * factor:.4f}/s")
    data = answered(capsys, "fleet", _written(tmp_path, over), code=3)
    assert data["binding_limit"] == "devices of h100"
    told = {change["direction"]: change["told"] for change in data["changes"]}
    assert told["nodes"].startswith("2 nodes of h100 instead of 1")
    assert told["rate"].startswith("0.9")
    assert main(["fleet", _written(tmp_path, over.replace("nodes: 1", "nodes: 2"))]) == ExitCode.DONE


def test_models_that_share_no_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two models on one node do not fit where each wants whole ones, and the answer says what would."""
    path = _written(tmp_path, FILE.replace("nodes: 1", "nodes: 1\nshare_nodes: no"))
    assert main(["fleet", path]) == ExitCode.INFEASIBLE
    told = capsys.readouterr().err
    assert "models that share nodes" in told and "2 nodes of h100" in told

    path = _written(tmp_path, FILE.replace("nodes: 1", "nodes: 2\nshare_nodes: no"))
    first, second = (set(model["nodes"]["h100"]) for model in answered(capsys, "fleet", path)["models"])
    assert not first & second


def test_models_that_are_called_alike_are_all_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names that one file system, or one solver, would take for one; and those of the summary's own files."""
    names = ["a b", "a-b", "fleet.json", "../x"]
    rows = [f"  - {{name: '{name}', model: qwen3-8b, rate: 1/s, isl: 4k, osl: 64}}\n" for name in names]
    path = _written(tmp_path, "hw: h100\nnodes: 1\nmodels:\n" + "".join(rows))
    assert main(["fleet", path, "--out", str(tmp_path / "out"), "--json"]) == ExitCode.DONE
    assert [model["name"] for model in json.loads(capsys.readouterr().out)["models"]] == names
    found = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file()}
    folders = ("a-b", "a-b-2", "fleet.json-2", "x")
    assert found == {"fleet.csv", "fleet.json", *(f"{folder}/manifest.yaml" for folder in folders)}
