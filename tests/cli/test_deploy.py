"""`plan deploy` as a user runs it: files, dry runs, differences, refusals with their exit codes."""

import json
from pathlib import Path

import pytest

from cli.exit_codes import ExitCode
from cli.main import main
from planner.manifest.document import dump_manifest
from tests.deploy.cases import plan
from tests.shell import answered, refused


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A manifest file of the plan that Ascend's engines share."""
    path = tmp_path / "manifest.yaml"
    path.write_text(dump_manifest(plan("r1-cm384")), encoding="utf-8")
    return path


def test_files_are_written_into_a_new_folder(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer is the tree and the devices, every file is there, and a second run needs --force."""
    out = tmp_path / "deploy"
    arguments = ["deploy", str(manifest), "--engine", "vllm-ascend@0.23.0", "--out", str(out)]
    assert main(arguments) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "decode: 1 instances x 4 nodes x 16 devices = 64 devices" in shown
    assert "together: 128 devices on 64 chips" in shown
    assert {path.name for path in out.iterdir()} == {
        "README.md",
        "benchmark.sh",
        "decode.sh",
        "expert-map-decode.json",
        "expert-map-prefill.json",
        "hosts.tsv",
        "prefill.sh",
        "router.sh",
        "site.env",
        "smoke.sh",
    }
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
    assert main([*arguments, "--out", str(out), "--dry-run"]) == ExitCode.DONE
    assert "Would write 10 files" in capsys.readouterr().out
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


def test_differences_are_told(manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against a folder of an earlier run, without writing."""
    out = tmp_path / "deploy"
    assert main(["deploy", str(manifest), "--engine", "sglang", "--out", str(out)]) == ExitCode.DONE
    capsys.readouterr()
    assert main(["deploy", str(manifest), "--engine", "sglang", "--diff", str(out)]) == ExitCode.DONE
    assert capsys.readouterr().out == "Nothing changes.\n"
    text = manifest.read_text(encoding="utf-8").replace("requests_per_dp_rank: 48", "requests_per_dp_rank: 40")
    manifest.write_text(text, encoding="utf-8")
    changes = answered(capsys, "deploy", str(manifest), "--engine", "sglang", "--diff", str(out))["changes"]
    assert "decode: requests per DP rank 48 -> 40" in changes
    refused(
        capsys,
        "has no README.md of plan deploy",
        "deploy",
        str(manifest),
        "--engine",
        "sglang",
        "--diff",
        str(tmp_path),
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--engine", "vllm-ascend@0.9"], ExitCode.BAD_INPUT, "known are 0.23.0 up to (not including) 0.24"),
        (["--engine", "vlm"], ExitCode.BAD_INPUT, "did you mean vllm"),
        (["--engine", "vllm"], ExitCode.INFEASIBLE, "not on Ascend 910C die"),
        (["--engine", "sglang", "--platform", "k8s"], ExitCode.BAD_INPUT, "is not bare, slurm or kubernetes"),
        (["--engine", "sglang", "--kind", "lws"], ExitCode.BAD_INPUT, "add --platform kubernetes"),
        (["--engine", "sglang", "--platform", "kubernetes", "--kind", "lwss"], ExitCode.BAD_INPUT, "did you mean lws"),
        (["--engine", "xllm", "--platform", "kubernetes", "--kind", "dynamo"], ExitCode.BAD_INPUT, "not xLLM"),
        (["--engine", "reference"], ExitCode.BAD_INPUT, "plan simulate"),
        (["--engine", "sglang", "--values", "none.yaml"], ExitCode.BAD_INPUT, "none.yaml: no such file"),
        ([], ExitCode.BAD_INPUT, "give one of mindie, sglang, trtllm, vllm, vllm-ascend, xllm"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], code: ExitCode, said: str, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names the flag, says what would be right, writes nothing."""
    out = tmp_path / "deploy"
    assert main(["deploy", str(manifest), *arguments, "--out", str(out)]) == code
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not out.exists()


def test_there_must_be_somewhere_to_write(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --out, --dry-run or --diff nothing is meant."""
    refused(capsys, "--out: give the folder", "deploy", str(manifest), "--engine", "sglang")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ('namespace: "a b"', "namespace: must be 1 to 30 lower-case letters, digits and inner hyphens, not 'a b'"),
        ('namespace: "ab\\n"', "namespace: must be 1 to 30 lower-case letters"),
        ('image: "x; reboot"', "image: must be 1 to 256 letters, digits and . _ / @ : + -"),
        ("model_path: weights", "model_path: must be a path from / on"),
        ("shared_memory: 64GB", "shared_memory: must be a number or a size such as 64Gi"),
        ("node_selectors: {all: {a b: c}}", "must be a label"),
    ],
)
def test_values_of_another_form_are_told_in_words(
    values: str, told: str, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key, what is right in words and not as a regular expression, and what was given."""
    site = tmp_path / "site.yaml"
    site.write_text(values, encoding="utf-8")
    refused(capsys, told, "deploy", str(manifest), "--engine", "sglang", "--values", str(site), "--dry-run")
