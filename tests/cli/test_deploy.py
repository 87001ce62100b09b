"""`plan deploy` as a user runs it: files, dry runs and differences."""

import json
from pathlib import Path

import pytest

from cli.main import main
from ground.errors import ExitCode
from planner.manifest.document import dump_manifest
from tests.deploy.cases import plan
from tests.deploy.plans import deployed
from tests.shell import answered, printed, refused


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A manifest file of the plan that Ascend's engines share."""
    path = tmp_path / "manifest.yaml"
    path.write_text(dump_manifest(plan("r1-cm384")), encoding="utf-8")
    return path


def test_files_are_written_into_a_new_folder(manifest, tmp_path, capsys):
    """The answer is the tree and the devices, every file is there, and a second run needs --force."""
    out = tmp_path / "deploy"
    arguments = ["deploy", str(manifest), "--engine", "vllm-ascend@0.23.0", "--out", str(out)]
    assert main(arguments) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "decode: 1 instances x 4 nodes x 16 devices = 64 devices" in shown
    assert "together: 128 devices on 64 chips" in shown
    scripts = {f"{name}.sh" for name in ("benchmark", "decode", "prefill", "router", "smoke")}
    maps = {f"expert-map-{role}.json" for role in ("decode", "prefill")}
    assert {path.name for path in out.iterdir()} == {"README.md", "hosts.tsv", "site.env", *scripts, *maps}
    before = (out / "decode.sh").read_bytes()
    (out / "decode.sh").write_text("mine\n", encoding="utf-8")
    refused(capsys, "has files in it", *arguments)
    assert (out / "decode.sh").read_text(encoding="utf-8") == "mine\n"
    assert main([*arguments, "--force"]) == ExitCode.DONE
    assert (out / "decode.sh").read_bytes() == before


def test_a_dry_run_writes_nothing(manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tree and the arithmetic alone, as text and as JSON."""
    out = tmp_path / "deploy"
    arguments = ["deploy", str(manifest), "--engine", "sglang", "--platform", "kubernetes", "--kind", "volcano"]
    assert "Would write 10 files" in printed(capsys, *arguments, "--out", str(out), "--dry-run")
    data = answered(capsys, *arguments, "--dry-run")
    assert data["devices"] == 128 and data["written_to"] is None
    assert data["roles"][1]["requests_per_dp_rank"] == 48
    assert not out.exists()


def test_the_default_kind_is_possible(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LeaderWorkerSet where it can be, Volcano for xLLM's rank tables, Motor's own for MindIE."""
    for engine, kind in (("xllm", "volcano"), ("mindie", "motor")):
        arguments = ["deploy", str(manifest), "--engine", engine, "--platform", "kubernetes", "--dry-run", "--json"]
        assert main(arguments) == ExitCode.DONE
        assert json.loads(capsys.readouterr().out)["kind"] == kind


def test_the_default_kind_takes_instances_over_several_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorRT-LLM's ranks are started by Dynamo there, and one on a node by a LeaderWorkerSet."""
    for degree, kind in ((8, "lws"), (16, "dynamo")):
        asked = {"strategy": f"DP={degree}, EP={degree}", "weights": "fp8"}
        path = tmp_path / f"{kind}.yaml"
        path.write_text(dump_manifest(deployed("deepseek-r1", "h200", mixed=asked)), encoding="utf-8")
        line = ["deploy", str(path), "--engine", "trtllm", "--platform", "kubernetes", "--dry-run"]
        assert answered(capsys, *line)["kind"] == kind


def test_differences_are_told(manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against a folder of an earlier run, without writing."""
    out = tmp_path / "deploy"
    assert main(["deploy", str(manifest), "--engine", "sglang", "--out", str(out)]) == ExitCode.DONE
    capsys.readouterr()
    assert printed(capsys, "deploy", str(manifest), "--engine", "sglang", "--diff", str(out)) == "Nothing changes.\n"
    text = manifest.read_text(encoding="utf-8").replace("requests_per_dp_rank: 48", "requests_per_dp_rank: 40")
    manifest.write_text(text, encoding="utf-8")
    changes = answered(capsys, "deploy", str(manifest), "--engine", "sglang", "--diff", str(out))["changes"]
    assert "decode: requests per DP rank 48 -> 40" in changes


def test_a_machine_that_an_engine_does_not_run_on(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3 and one sentence."""
    assert main(["deploy", str(manifest), "--engine", "vllm", "--dry-run"]) == ExitCode.INFEASIBLE
    error = capsys.readouterr().err
    assert "not on Ascend 910C die" in error and error.count("\n") == 1
