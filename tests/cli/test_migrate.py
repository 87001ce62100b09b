"""`plan migrate`, and what plays and writes its steps."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

from cli.main import main
from deploy.staged import _routed
from ground.errors import ExitCode
from planner.manifest.document import dump_manifest, read_manifest
from planner.manifest.migration import read_migration
from planner.plans.assemble import assemble
from tests.changes import tight
from tests.deploy.cases import made as made_of
from tests.deploy.plans import deployed
from tests.planner.plans.test_encode import best
from tests.shell import answered, printed, refused


@pytest.fixture
def both(tmp_path: Path) -> tuple[str, str]:
    """Two manifests as files."""
    for name, made in (("old", tight(4, 2)), ("new", tight(2, 4))):
        (tmp_path / f"{name}.yaml").write_text(dump_manifest(made))
    return str(tmp_path / "old.yaml"), str(tmp_path / "new.yaml")


def test_steps_are_found_written_and_played(both, tmp_path, capsys):
    """The JSON says steps and bound, the folder holds every stage, and the simulator keeps what was promised."""
    out = tmp_path / "change"
    found = answered(capsys, "migrate", *both, "--rate", "15/s", "--startup", "1s", "--out", str(out))
    assert found["bound"]["proven"]
    assert found["kept_instances"] == 4
    assert found["promise"]["below_seconds"] == 0
    stages = [step["stage"] for step in found["steps"]]
    assert sorted(path.name for path in out.iterdir()) == ["migration.yaml", "stage-00.yaml", *stages]
    assert len(read_manifest(out / stages[-1]).pools) == 2
    change = str(out / "migration.yaml")
    refused(capsys, "begin at another manifest", "simulate", both[1], "--migration", change)
    run = answered(capsys, "simulate", both[0], "--migration", change, "--rate", "15/s", "--requests", "400")
    assert run["migration"]["kept_promise"]
    assert run["migration"]["steps_ended"] == len(stages)
    assert run["completed"] == run["requests"]
    latencies = {f"{name}_seconds" for name in ("ttft", "tpot", "e2e")}
    assert set(run["migration"]["cost"]) == {*latencies, "goodput_requests_per_second"}


def test_the_table_says_what_is_promised(both: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Steps, the promise and the bound."""
    shown = printed(capsys, "migrate", *both, "--rate", "15/s")
    assert "2 flip" in shown
    assert "limits hold throughout at 15/s" in shown
    assert "Bound: proven" in shown


def test_an_autoscaler_is_told(both: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Its starts, stops and device-hours stand under the table."""
    rule = "begin=1,startup=1s,period=1s"
    assert main(["simulate", both[0], "--autoscale", rule, "--rate", "15/s", "--requests", "200"]) == 0
    assert "Autoscaler: " in capsys.readouterr().out


def test_every_stage_is_deployed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Kustomize folder a stage, scripts that bash can read, and a pool that stays keeps its name."""
    plans = {
        name: deployed(
            "qwen3-235b-a22b",
            "h200",
            workload={"requests_per_second": 1.0},
            prefill={"strategy": "DP=8, EP=8", "instances": count, "tokens": 4096},
            decode={"strategy": decode, "instances": 1},
        )
        for name, count, decode in (("old", 1, "DP=8, EP=8"), ("new", 2, "DP=16, EP=16"))
    }
    for name, made in plans.items():
        stated = tight(1, 1).pools[0].predicted
        pools = [pool.model_copy(update={"predicted": stated}) for pool in made.pools]
        (tmp_path / f"{name}.yaml").write_text(dump_manifest(made.model_copy(update={"pools": pools})))
    old, new, change, files = (str(tmp_path / name) for name in ("old.yaml", "new.yaml", "change", "files"))
    assert main(["migrate", old, new, "--spare-nodes", "2", "--out", change]) == 0
    asked = ["deploy", old, "--migration", f"{change}/migration.yaml", "--engine", "vllm", "--out", files]
    refused(capsys, "none of; deploy each stage", *asked)
    assert main([*asked, "--platform", "kubernetes"]) == 0
    gone, comes = (made_of(name, "sglang", "lws") for name in ("r1-mixed", "r1-cm384"))
    assert _routed(gone, comes) is None  # nobody stays
    for each, waited in (
        ("statefulset", "kubectl rollout status --namespace default --timeout=662s statefulset.v1.apps/"),
        ("volcano", "--for=condition=Ready pod -l volcano.sh/job-name=qwen3-235b-a22b-decode-2-0"),
        ("dynamo", "--for=condition=Ready dynamographdeployment.v1beta1.nvidia.com/qwen3-235b-a22b"),
    ):
        assert main([*asked[:-1], f"{files}-{each}", "--platform", "kubernetes", "--kind", each]) == 0
        assert waited in (Path(f"{files}-{each}") / "rollout.sh").read_text()
        assert bool([*Path(f"{files}-{each}").glob("roll*-router.yaml")]) == (each != "dynamo")
    steps = read_migration(Path(change) / "migration.yaml").migration.steps
    for number in range(len(steps) + 1):
        assert (Path(files) / f"stage-{number:02d}" / "base" / "prefill.yaml").is_file()
    assert (Path(files) / f"stage-{len(steps):02d}" / "base" / "decode-2.yaml").is_file()
    kind, last = "leaderworkerset.v1.leaderworkerset.x-k8s.io/qwen3-235b-a22b", f"stage-{len(steps):02d}"
    for script, gone in (("rollout.sh", "decode"), ("rollback.sh", "decode-2")):
        text = (Path(files) / script).read_text()
        assert subprocess.run(["bash", "-n", "-c", text], check=False).returncode == 0
        assert text.count("--server-side --force-conflicts -k") == len(steps) and "prune" not in text
        (deleted,) = [line for line in text.splitlines() if "delete" in line and f" {kind}-{gone}" in line]
        assert "persistentvolumeclaim" not in deleted and f"{kind}-prefill" not in deleted
        assert f"jsonpath='{{.status.readyReplicas}}'={2 if gone == 'decode' else 1} {kind}-prefill" in text
        assert "deployment/qwen3-235b-a22b-router" in text.splitlines()[-1]
    # What stays is not started anew: its pods are the same, whichever manifest they are of.
    sets = [yaml.safe_load_all((Path(files) / f / "base/prefill.yaml").read_text()) for f in ("stage-00", last)]
    first, second = (next(item["spec"] for item in held if item["kind"] == "LeaderWorkerSet") for held in sets)
    assert (first.pop("replicas"), second.pop("replicas")) == (1, 2) and first == second
    # While instances drain, the router knows those that stay alone, and starts anew to know it.
    drains = sorted(Path(files).glob("roll*-router.yaml"))
    for drain in drains:
        assert f'-f "$here/{drain.name}"' in (Path(files) / f"{drain.name.partition('-')[0]}.sh").read_text()
    routers = [*drains, *(Path(files) / f / "base/router.yaml" for f in ("stage-00", last))]
    told = {path: [*yaml.safe_load_all(path.read_text())] for path in routers}
    pods = {str(held[1]["spec"]["template"]["metadata"]["annotations"]) for held in told.values()}
    assert len(pods) == len({str(held[0]["data"]).split("set -euo")[1] for held in told.values()}) > 1


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Plans of qwen2.5-vl-7b-instruct with encode instances for 20 and 40 requests a second, as files."""
    folder = tmp_path_factory.mktemp("encoders")
    for rate in (20.0, 40.0):
        (folder / f"{rate:g}.yaml").write_text(dump_manifest(assemble(best("separate", "disaggregated", rate), {})))
    return str(folder / "20.yaml"), str(folder / "40.yaml")


def test_encode_instances_come_and_go(encoders, tmp_path, capsys):
    """Every stage has encode instances, the steps are played to their end, and what waits is answered."""
    out = tmp_path / "change"
    found = answered(capsys, "migrate", *encoders, "--spare-nodes", "2", "--startup", "1s", "--out", str(out))
    assert found["carries_before_per_second"] == pytest.approx(20.0, rel=0.6)
    assert found["carries_after_per_second"] > found["carries_before_per_second"]
    assert found["promise"]["below_seconds"] == 0
    for step in found["steps"]:
        assert "encode" in {pool.role for pool in read_manifest(out / step["stage"]).pools}
    run = answered(
        capsys, "simulate", encoders[0], "--migration", str(out / "migration.yaml"), "--requests", "1000", "--seed", "2"
    )
    assert run["completed"] == 1000
    assert run["migration"]["steps_ended"] == len(found["steps"])
    assert run["migration"]["kept_promise"]


def test_a_router_sends_requests_one_way_alone(encoders, tmp_path, capsys):
    """Prefill that encodes cannot stand beside prefill that does not."""
    fused = tmp_path / "fused.yaml"
    fused.write_text(dump_manifest(assemble(best("fused", "disaggregated", 20.0), {})))
    assert main(["migrate", encoders[0], str(fused)]) == ExitCode.INFEASIBLE
    assert "both with the same --encode" in capsys.readouterr().err


def test_what_is_watched_is_planned_with_its_pictures(encoders, tmp_path, capsys):
    """A log of twice the requests asks for more encode instances, too; the manifest says what pictures are."""
    own = read_manifest(Path(encoders[0]))
    stamps = np.cumsum(np.random.default_rng(1).exponential(1 / 40.0, 1000))
    row = f'"input_length": {own.workload.input_tokens:.0f}, "output_length": {own.workload.output_tokens:.0f}'
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"timestamp": {1000 * at:.3f}, {row}}}\n' for at in stamps))
    main(["watch", str(log), "--manifest", encoders[0], "--once", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["change_pays"]
    pools = {pool["role"]: pool["instances"] for pool in found["plan"]["pools"]}
    assert pools["encode"] > len(own.pools[0].instances)
