"""Predictions rest on operators: no end-to-end row, no constant without a source, none keyed by model and machine."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hardware.loader import hardware_aliases, hardware_names
from models.loader import model_names

ROOT = Path(__file__).parents[2]
PACKAGES = ("ground", "hardware", "models", "planner")

# The rooms whose numbers reach a predicted duration, rate or interval.
COST_ROOMS = ("costs/*.py", "balance/*.py", "engines/behaviour.py", "manifest/stepcost.py", "manifest/terms.py")

PREDICTIONS = """
from hardware.loader import load_hardware
from models.loader import load_model
from planner.costs.predict import Configuration, predict
from planner.strategy import parse_strategy
for model, hardware, phase, strategy, weights in [
    ("deepseek-r1", "cm384", "decode", "DP=320, EP=320", "int8"),
    ("deepseek-r1", "cm384", "decode", "DP=160 x 3, EP=288", "int8"),
    ("deepseek-r1", "h800", "prefill", "DP=32, EP=32", "fp8"),
    ("deepseek-r1", "h20", "decode", "DP=16, EP=16", "fp8"),
    ("qwen3-235b-a22b", "h100", "mixed", "TP=8, EP=8", "fp8"),
    ("qwen3-32b", "h200", "mixed", "TP=2", "fp8"),
    ("llama-3.1-70b", "b200", "mixed", "TP=4", "fp8"),
]:
    spec = load_model(model)
    asked = Configuration(
        model=spec, hardware=load_hardware(hardware), phase=phase, weights=weights, batch=32, tokens=8192,
        concurrency=32, strategy=parse_strategy(strategy, moe=spec.moe is not None),
    )
    answer = predict(asked)
    print(repr((answer.iteration_seconds, answer.tpot_seconds, answer.ttft_seconds, answer.interval)))
"""


def predictions(folder: Path) -> str:
    """Return what the packages in ``folder`` predict, every digit of it."""
    command = [sys.executable, "-c", PREDICTIONS]
    environment = {"PYTHONPATH": str(folder), "NUMBA_DISABLE_JIT": "1"}  # a copy's loops would be compiled anew
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_any_end_to_end_row_predictions_are_the_same(tmp_path: Path) -> None:
    """A copy of the packages with every published row deleted predicts the same to the bit."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / "planner" / "published").glob("*.csv"):
        path.write_text(path.read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")
    assert predictions(tmp_path) == predictions(ROOT)


def rooms() -> list[Path]:
    """Return the cost rooms."""
    return sorted(path for rooms in COST_ROOMS for path in (ROOT / "planner").glob(rooms))


def numbers(tree: ast.Module) -> Iterator[str]:
    """Yield the names of module constants that hold a number, or a mapping to numbers."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and value is not None and not target.id.startswith("_"):
            held = list(value.values) if isinstance(value, ast.Dict) else [value]
            if any(
                isinstance(part, ast.Constant) and part.value != 1 and type(part.value) in (int, float) for part in held
            ):
                yield target.id


@pytest.mark.parametrize("path", rooms(), ids=lambda path: path.stem)
def test_every_constant_stands_in_the_table(path: Path) -> None:
    """What no operator measurement gives is listed with its source in docs/model.md, section 8."""
    text = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
    table = text[text.index("## 8.") : text.index("## 9.")]
    names = set(numbers(ast.parse(path.read_text(encoding="utf-8"))))
    assert {name for name in names if f"`{name}`" not in table} == set()


@pytest.mark.parametrize("path", rooms(), ids=lambda path: path.stem)
def test_no_code_asks_for_a_model_or_a_machine_by_name(path: Path) -> None:
    """So no number can depend on the pair of them."""
    known = {*model_names(), *hardware_names(), *hardware_aliases()}
    texts = [
        node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)
    ]
    assert known.isdisjoint(text.lower() for text in texts if isinstance(text, str))
