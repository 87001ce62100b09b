"""House rules that no linter knows: budgets of size, one place for scale factors, a source for every number."""

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGES = ["ground", "hardware", "models", "planner", "runtime", "deploy", "podplan", "cli"]
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
API = ROOT / "podplan"  # whose names load when they are used
LONGEST_FILE = 450
LONGEST_FUNCTION_WITHOUT_DOCSTRING = 60
SCALE_FACTORS = {"1e3", "1e6", "1e9", "1e12", "1e15", "1024", "1e-3", "1e-6", "1e-9"}


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(_text(path))))


@pytest.mark.parametrize("path", SOURCES, ids=_named)
def test_files_and_functions_are_short(path: Path) -> None:
    """A room that outgrows its file is split; a long function says what it does."""
    assert _text(path).count("\n") <= LONGEST_FILE
    for node in _nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not ast.get_docstring(node):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= LONGEST_FUNCTION_WITHOUT_DOCSTRING, f"{node.name} in line {node.lineno} has {length} lines"


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.name == "__init__.py" and path.parent != API], ids=_named
)
def test_packages_do_nothing_when_imported(path: Path) -> None:
    """Importing a manifest must import no solver."""
    assert _text(path).strip() == ""


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name != "units.py"], ids=_named)
def test_scale_factors_stand_in_units_only(path: Path) -> None:
    """GB, GiB and tera are converted at the edge, by names from ground.units."""
    tokens = list(tokenize.generate_tokens(io.StringIO(_text(path)).readline))
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.string.replace("_", "") in SCALE_FACTORS:
            scales = before.string in {"*", "/"} or after.string in {"*", "/", "**"}
            assert not scales, f"line {token.start[0]}: {token.line.strip()}"


def _bare_numbers(value: object, path: str = "", sourced: bool = False) -> Iterator[str]:
    """Yield the path to every number that stands in no mapping with a source."""
    if isinstance(value, dict):
        sourced = sourced or "source" in value
        for key, held in value.items():
            yield from _bare_numbers(held, f"{path}.{key}", sourced)
    elif isinstance(value, list):
        for position, held in enumerate(value):
            yield from _bare_numbers(held, f"{path}[{position}]", sourced)
    elif isinstance(value, int | float) and not isinstance(value, bool) and not sourced:
        yield path.removeprefix(".")


@pytest.mark.parametrize("path", sorted((ROOT / "hardware" / "catalog").glob("*.yaml")), ids=_named)
def test_every_number_of_the_hardware_catalogue_has_a_source(path: Path) -> None:
    """A number without an origin cannot be checked by anyone; only the schema's version needs none."""
    assert list(_bare_numbers(yaml.safe_load(path.read_text(encoding="utf-8")))) == ["schema_version"]


def test_the_readme_and_ci_run_the_same_command() -> None:
    """What a contributor reads is what continuous integration runs."""
    command = "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && .venv/bin/pytest -q\n"
    assert f"    {command}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\n{command}" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_readme_fits_its_budget() -> None:
    """The first screen decides; the rest is in docs/."""
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= 120
