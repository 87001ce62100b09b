"""`plan verify --next`: which run would change the pick, by closed forms, and commands that the command line takes."""

import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from ground.errors import BadInput
from planner.verification.next_runs import next_runs
from planner.verification.residuals import Residual
from planner.verification.runs import METRICS
from tests.shell import answered


def _plan(rate: float, strategy: str, devices: int) -> dict[str, Any]:
    pool = {"role": "mixed", "instances": 1, "strategy": strategy, "devices_per_instance": devices, "hardware": "h100"}
    return {
        "pools": [pool | {"weights": "bf16"}],
        "requests_per_second": rate,
        "ttft_seconds": {"mean": 0.2},
        "tpot_seconds": {"mean": 0.02},
    }


def _folder(path: Path, second: float) -> Path:
    question = {
        "model": "qwen3-8b",
        "hardware": {"prefill": "h100", "decode": "h100"},
        "devices": {"shared": 8},
        "weights": {"prefill": "bf16", "decode": "bf16"},
        "kv_dtype": "bf16",
        "input_tokens": {"mean": 1024, "squared_cv": 0.0},
        "output_tokens": {"mean": 128, "squared_cv": 0.25},
        "prefix_reuse": 0.0,
        "rate_per_second": None,
        "ttft_seconds": 2.0,
        "tpot_seconds": 0.05,
        "percentile": 99.0,
        "objective": "throughput",
        "engine": "vllm@0.33.0",
    }
    best, other = _plan(10.0, "TP=1", 1), _plan(second, "TP=8", 8)
    flags = {"model": "qwen3-8b", "hw": "h100", "devices": "8"}
    data = {"flags": flags, "question": question, "best": best, "pareto": [best, other, _plan(second / 2, "TP=8", 8)]}
    (path / "plan.json").write_text(json.dumps(data), encoding="utf-8")
    return path


def test_a_close_runner_up_may_change_the_pick_and_a_far_one_not(tmp_path: Path) -> None:
    """Equal values: half of what is measured turns them; at a tenth of the value nothing does; layouts stand once."""
    close = next_runs(_folder(tmp_path, 9.9999), 5, [])
    assert len(close) == 2 and all(run.chance == pytest.approx(0.5, abs=0.01) and run.gain > 0 for run in close)
    far = next_runs(_folder(tmp_path, 1.0), 5, [])
    assert [run.chance for run in far] == [0.0, 0.0]
    assert len(next_runs(tmp_path, 1, [])) == 1


def test_what_was_measured_counts(tmp_path: Path) -> None:
    """Runs like the pick that came out a third slower make the runner-up likelier."""
    folder = _folder(tmp_path, 9.5)
    labels = {"engine": "vllm", "hardware": "h100", "model": "qwen3-8b", "weights": "bf16"}
    features = tuple(math.log(each) for each in (1, 27, 1024, 128))
    slow = [(METRICS[2], Residual(labels=labels, features=features, error=math.log(2 / 3)))] * 8
    before, after = ({run.layout: run.chance for run in next_runs(folder, 2, known)} for known in ([], slow))
    assert after["mixed 1 x TP=8"] > before["mixed 1 x TP=8"]


def test_commands_plan_that_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line: the runner-up's command is one that plan search takes, and gives that layout."""
    assert main(["qwen3-8b", "--hw", "h100", "--devices", "2", "--engine", "vllm", "--out", str(tmp_path / "a")]) == 0
    capsys.readouterr()
    manifest = str(tmp_path / "a" / "manifest.yaml")
    found = answered(capsys, "verify", "--manifest", manifest, "--next", "3")["next"]
    assert found[0].keys() == {"layout", "picked", "chance", "gain", "commands"}
    others = [run for run in found if not run["picked"]]
    assert others
    words = shlex.split(others[0]["commands"][0])
    assert main(words[1:]) == 0
    made = json.loads((Path(words[-1]) / "plan.json").read_text())
    assert (
        ", ".join(f"{p['role']} {p['instances']} x {p['strategy']}" for p in made["best"]["pools"])
        == others[0]["layout"]
    )


def test_bad_input(tmp_path: Path) -> None:
    """No manifest, no plan.json, a file that is none, a count that is none."""
    assert main(["verify", "--next", "2"]) == 2
    assert main(["verify", "--next", "0", "--manifest", "x"]) == 2
    with pytest.raises(BadInput, match="not there"):
        next_runs(tmp_path, 1, [])
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(BadInput, match=r"no plan\.json"):
        next_runs(tmp_path, 1, [])
