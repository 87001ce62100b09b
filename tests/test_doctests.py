"""Examples of docstrings give what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("ground", "hardware", "models", "planner", "runtime", "deploy", "podplan", "cli")
SHOWN = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", SHOWN)
def test_examples_hold(name: str) -> None:
    """Each module's, in its own names."""
    found = doctest.testmod(import_module(name))
    assert found.attempted and not found.failed
