"""`python -m scripts.mutants planner/manifest tests/planner/manifest`: whether tests notice small faults.

Each mutant is the module, or one of the folder's, with one operator, constant, condition or raise changed. It runs
under the tests given, in a process of its own, and is killed where one of them fails or takes too long; survivors are
printed with what they change. Equivalent mutants, such as < for <= where both never meet, survive by right.
"""

import argparse
import ast
import copy
import os
import random
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy  # noqa: F401 - so that every child has it
import pydantic  # noqa: F401
import pytest

import planner.loops.compiled  # noqa: F401

ROOT = Path(__file__).parents[1]
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "maximum": "minimum", "minimum": "maximum"}


def changes(node: ast.AST) -> Iterator[Callable[[ast.AST], ast.AST]]:
    """Yield what a node may be replaced by."""
    for field in ("op", "ops"):
        found = getattr(node, field, None)
        for place, operator in enumerate(found if isinstance(found, list) else [found]):
            if type(operator) in OPERATORS and isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp | ast.AugAssign):
                yield lambda old, field=field, place=place: _swapped(old, field, place)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield lambda old: old.operand  # type: ignore[attr-defined]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield lambda old: ast.Constant(old.value + 1)  # type: ignore[attr-defined]
        yield lambda old: ast.Constant(old.value - 1)  # type: ignore[attr-defined]
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield lambda old: ast.Constant(not old.value)  # type: ignore[attr-defined]
    if isinstance(node, ast.Name) and node.id in NAMES:
        yield lambda old: ast.Name(NAMES[old.id], old.ctx)  # type: ignore[attr-defined]
    if isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield lambda old: ast.Attribute(old.value, NAMES[old.attr], old.ctx)  # type: ignore[attr-defined]
    if isinstance(node, ast.Raise | ast.Break | ast.Continue) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield lambda _: ast.Pass()


def _swapped(old: ast.AST, field: str, place: int) -> ast.AST:
    found = getattr(old, field)
    if isinstance(found, list):
        found[place] = OPERATORS[type(found[place])]()
    else:
        setattr(old, field, OPERATORS[type(found)]())
    return old


class _Change(ast.NodeTransformer):
    """Replaces the node of a number, counted as the tree is walked, by one of its changes."""

    def __init__(self, number: int, choice: int) -> None:
        self.number, self.choice, self.here, self.told = number, choice, -1, ""

    def visit(self, node: ast.AST) -> ast.AST:
        self.here += 1
        if self.here != self.number:
            return self.generic_visit(node)
        was = ast.unparse(node)
        new = list(changes(node))[self.choice](copy.deepcopy(node))
        self.told = f"{getattr(node, 'lineno', 0)}: {was}  ->  {ast.unparse(new)}"
        return ast.copy_location(new, node)


def mutants(source: str) -> list[tuple[int, int]]:
    """Return every mutant of a module as a node's number, as ``_Change`` counts, and one of its changes."""
    found: list[tuple[int, int]] = []

    class Count(ast.NodeTransformer):
        here = -1

        def visit(self, node: ast.AST) -> ast.AST:
            self.here += 1
            found.extend((self.here, choice) for choice, _ in enumerate(changes(node)))
            return self.generic_visit(node)

    Count().visit(ast.parse(source))
    return found


class Finder(MetaPathFinder, Loader):
    """Gives a module's name other code."""

    def __init__(self, path: Path, tree: ast.AST) -> None:
        self.path, self.tree = path, tree
        self.name = ".".join(path.relative_to(ROOT).with_suffix("").parts)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own place, with this for what runs it."""
        return spec_from_file_location(fullname, self.path, loader=self) if fullname == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the other code as the module."""
        exec(compile(ast.fix_missing_locations(self.tree), str(self.path), "exec"), module.__dict__)  # type: ignore[arg-type]


class Nearest:
    """Plugin that runs a module's own tests, of the file named for it, before the others."""

    def __init__(self, path: Path) -> None:
        self.own = f"test_{path.stem}"

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put them first."""
        items.sort(key=lambda item: item.path.stem != self.own)


def survives(path: Path, mutant: tuple[int, int] | None, tests: Sequence[str], limit_seconds: int) -> tuple[bool, str]:
    """Return whether tests pass with a mutant of a module, and what it changes."""
    tree, change = ast.parse(path.read_text(encoding="utf-8")), _Change(*mutant or (-2, 0))
    tree = change.visit(tree)
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_seconds, limit_seconds + 1))
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        sys.meta_path.insert(0, Finder(path, tree))
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
        os._exit(int(pytest.main([*options, *tests], plugins=[Nearest(path)])))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, change.told


def run() -> int:
    """Tell the survivors among so many mutants of all modules together, and the share that is killed of each."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants", description=__doc__)
    parser.add_argument("modules", type=Path, help="a module, or a folder of them")
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-seconds", type=int, default=120)
    given = parser.parse_args()
    paths = sorted(given.modules.rglob("*.py")) if given.modules.is_dir() else [given.modules]
    paths = [path.resolve() for path in paths]
    if not survives(paths[0], None, given.tests, given.limit_seconds)[0]:
        sys.exit("the tests fail without a mutant, or take too long")
    everything = [(path, mutant) for path in paths for mutant in mutants(path.read_text(encoding="utf-8"))]
    chosen = sorted(random.Random(given.seed).sample(everything, min(given.sample, len(everything))))
    count, alive = Counter(path for path, _ in chosen), Counter[Path]()
    for path, mutant in chosen:
        lives, told = survives(path, mutant, given.tests, given.limit_seconds)
        alive[path] += lives
        if lives:
            sys.stdout.write(f"{path.relative_to(ROOT)}:{told}\n")
            sys.stdout.flush()
    for path, number in count.items():
        sys.stdout.write(f"{path.relative_to(ROOT)}: {number - alive[path]} of {number} killed\n")
    share = 1 - alive.total() / max(len(chosen), 1)
    sys.stdout.write(f"{given.modules}: {share:.0%} of {len(chosen)} mutants killed, of {len(everything)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(run())
