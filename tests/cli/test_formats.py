"""``--weights`` and ``--kv-dtype`` with several formats, as they are typed."""

import json
from pathlib import Path

import pytest

from cli import main
from ground.errors import ExitCode
from tests.shell import answered

SMALL = ["qwen3-8b", "--engine", "reference", "--hw", "h200", "--devices", "2", "--shape", "disaggregated"]
VLLM = [word.replace("reference", "vllm") for word in SMALL]


def test_a_list_of_formats_is_searched_and_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The JSON has each format, the question the chosen one, and so has the manifest."""
    out = tmp_path / "plan"
    data = answered(capsys, *SMALL, "--weights", "bf16,fp8", "--out", str(out))

    carried = {each["weights"]["decode"]: each["requests_per_second"] for each in data["formats"]}
    assert carried.keys() == {"bf16", "fp8"} and carried["fp8"] > carried["bf16"]
    assert data["question"]["weights"] == {"prefill": "fp8", "decode": "fp8"}
    assert {pool["weights"] for pool in data["best"]["pools"]} == {"fp8"}
    assert "best of bf16,fp8" in data["assumptions"]["formats"]
    assert "weights_dtype: fp8" in (out / "manifest.yaml").read_text(encoding="utf-8")


def test_roles_have_formats_of_their_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As named, or the better of a role's list; in the JSON, in the manifest, and in each role's deployment file."""
    out, files = tmp_path / "plan", tmp_path / "files"
    flags = ["--weights", "prefill=fp8,decode=bf16,int4", "--mtp", "0"]
    data = answered(capsys, *VLLM, *flags, "--out", str(out))

    assert [each["weights"] for each in data["formats"]] == [
        {"prefill": "fp8", "decode": "bf16"},
        {"prefill": "fp8", "decode": "int4"},
    ]
    decode = data["question"]["weights"]["decode"]
    assert [pool["weights"] for pool in data["best"]["pools"]] == ["fp8", decode] and decode != "fp8"
    assert data["assumptions"]["formats"].startswith(f"prefill fp8, decode {decode} weights")
    assert main.main(["deploy", str(out / "manifest.yaml"), "--engine", "vllm", "--out", str(files)]) == ExitCode.DONE
    for role, dtype in (("prefill", "fp8"), ("decode", decode)):
        assert f"MODEL=/models/qwen3-8b/{dtype}" in (files / f"{role}.sh").read_text(encoding="utf-8")
    assert f"/models/qwen3-8b/{decode} (those in {decode})" in (files / "README.md").read_text(encoding="utf-8")


def test_auto_is_what_machine_and_engine_run(capsys: pytest.CaptureFixture[str]) -> None:
    """All caches that vLLM keeps; the text names each format's outcome."""
    arguments = [*VLLM, "--weights", "auto", "--kv-dtype", "auto"]
    assert main.main(arguments) == ExitCode.DONE
    printed = " ".join(capsys.readouterr().out.split())

    assert "fp8 weights, fp8 KV cache: " in printed and "int8 KV cache" not in printed


def test_a_sweep_over_formats_has_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a list of one question would choose."""
    assert main.main(["sweep", *SMALL, "--over", "weights=bf16,fp8", "--json"]) == ExitCode.DONE
    assert [row["weights"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["bf16", "fp8"]


def test_models_of_a_fleet_choose_their_format(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of a list the format that takes the fewest chips."""
    file = tmp_path / "fleet.yaml"
    chips = {}
    for weights in ("bf16", "fp8", "bf16,fp8"):
        model = f"{{model: qwen3-32b, hw: h200, devices: 8, rate: 5/s, osl: 100, weights: '{weights}'}}"
        file.write_text(f"engine: reference\nmodels:\n- {model}\n")
        chips[weights] = answered(capsys, "fleet", str(file))["models"][0]["best"]["chips"]
    assert chips["bf16,fp8"] == min(chips["bf16"], chips["fp8"])
