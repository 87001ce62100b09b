"""House rules that no linter knows: budgets of size, one place for scale factors, a source for every number."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

from ground.files import read_yaml

ROOT = Path(__file__).parents[1]
PACKAGES = ["ground", "hardware", "models", "planner", "runtime", "deploy", "podplan", "cli"]
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
API = ROOT / "podplan"  # whose names load when they are used
LONGEST_FILE = 450
LONGEST_FUNCTION_WITHOUT_DOCSTRING = 60
SCALE_FACTORS = {"1e3", "1e6", "1e9", "1e12", "1e15", "1024", "1e-3", "1e-6", "1e-9"}


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions below a node, at any depth."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt | ast.excepthandler | ast.match_case):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                yield inner
            yield from _functions(inner)


def test_files_and_functions_are_short() -> None:
    """A room that outgrows its file is split; a long function says what it does."""
    long = [path for path in SOURCES if path.read_text(encoding="utf-8").count("\n") > LONGEST_FILE]
    assert not long
    for path in SOURCES:
        for node in _functions(ast.parse(path.read_text(encoding="utf-8"))):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            short = length <= LONGEST_FUNCTION_WITHOUT_DOCSTRING or ast.get_docstring(node)
            assert short, f"{path}: {node.name} in line {node.lineno} has {length} lines"


def test_packages_do_nothing_when_imported() -> None:
    """Importing a manifest must import no solver."""
    packages = [path for path in SOURCES if path.name == "__init__.py" and path.parent != API]
    assert [path for path in packages if path.read_text(encoding="utf-8").strip()] == []


def test_scale_factors_stand_in_units_only() -> None:
    """GB, GiB and tera are converted at the edge, by names from ground.units."""
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if path.name == "units.py" or not any(factor in text.replace("_", "") for factor in SCALE_FACTORS):
            continue
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if token.string.replace("_", "") in SCALE_FACTORS:
                scales = before.string in {"*", "/"} or after.string in {"*", "/", "**"}
                assert not scales, f"{path}, line {token.start[0]}: {token.line.strip()}"


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


def test_every_number_of_the_hardware_catalogue_has_a_source() -> None:
    """A number without an origin cannot be checked by anyone; only the schema's version needs none."""
    for path in sorted((ROOT / "hardware" / "catalog").glob("*.yaml")):
        assert list(_bare_numbers(read_yaml(path))) == ["schema_version"], path


def test_the_readme_and_ci_run_the_same_command() -> None:
    """What a contributor reads is what continuous integration runs."""
    command = "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && .venv/bin/pytest -q\n"
    assert f"    {command}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\n{command}" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_readme_fits_its_budget() -> None:
    """The first screen decides; the rest is in docs/."""
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= 120
