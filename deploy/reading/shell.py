"""Reads back generated scripts: the few forms of bash that they use, and nothing else.

A form that is not known here is an error, so that a script cannot say more than what was counted.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LITERAL = re.compile(r"'[^']*'|\"'\"")  # what stands between single quotes, and a single quote between double ones
EXPANSION = re.compile(
    rf"""(?P<literal>{LITERAL.pattern})|\$\(\((?P<sum>[^$()]*)\)\)|\$\(seq -s, "?(?P<first>\d+)"? "?(?P<last>\d+)"?\)"""
    r"""|"\$\{(?P<list>\w+)\[@\]\}"|\$\{(?P<braced>[^${}]*)\}|\$(?P<name>[A-Za-z_]\w*)"""
)
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", re.DOTALL)
LOOP = re.compile(r"for \(\((\w+) = 0; \1 < (\d+); \1\+\+\)\); do\Z")
BRANCH = re.compile(r'if \[ "\$(\w+)" -eq 0 \]; then (.*); else (.*); fi\Z', re.DOTALL)
MOST_DEVICES = 16_384  # of a cluster whose files are read, and rounds of a loop over them
MOST_ROUNDS, MOST_CHARACTERS = 16, 2**21
"""Of a line that is filled in: how deep its variables may name each other, and what Linux passes to a programme."""
IGNORED = ("set ", "source ", "trap ", "wait ", "until ", "find ", "{ grep ", "for F ")

Scope = dict[str, str | list[str]]


class UnknownForm(Exception):
    """A line that this reader does not understand."""


@dataclass(frozen=True, slots=True)
class Process:
    """A command that a script runs, with the variables that it exports."""

    words: tuple[str, ...]
    environment: Mapping[str, str]


def processes(text: str, given: Mapping[str, str | list[str]]) -> list[Process]:
    """Return what a script runs where ``given`` variables are set; assignments to those are passed over."""
    scope: Scope = dict(given)
    return list(_run(statements(text), scope, {}, frozenset(given)))


def variables(text: str) -> Scope:
    """Return what a file of assignments sets."""
    scope: Scope = {}
    list(_run(statements(text), scope, {}, frozenset()))
    return scope


def statements(text: str) -> list[str]:
    """Return lines with their continuations, without comments and blanks."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = (re.sub(r"(^|\s)#[^'\"]*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def _run(lines: list[str], scope: Scope, exported: dict[str, str], fixed: frozenset[str]) -> Iterator[Process]:
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        loop = LOOP.match(line)
        if loop:
            end = lines.index("done", position)
            for value in _range(0, int(loop[2])):
                scope[loop[1]] = str(value)
                yield from _run(lines[position:end], scope, exported, fixed)
            position = end + 1
            continue
        branch = BRANCH.match(line)
        if branch:
            line = branch[2] if scope[branch[1]] == "0" else branch[3]
        process = _statement(line, scope, exported, fixed)
        if process:
            yield process


def _statement(line: str, scope: Scope, exported: dict[str, str], fixed: frozenset[str]) -> Process | None:
    """Carry out one assignment, or return the command that the line runs."""
    if line.startswith(IGNORED):
        return None
    exports = line.startswith("export ")
    assigned = ASSIGNMENT.match(line.removeprefix("export "))
    if assigned:
        name, value = assigned[1], assigned[2]
        if name not in fixed:
            scope[name] = words(value[1:-1], scope) if value.startswith("(") else "".join(words(value, scope))
        held = scope[name]
        if exports:
            exported[name] = held if isinstance(held, str) else " ".join(held)
        return None
    return Process(tuple(words(line.removeprefix("exec ").removesuffix("&"), scope)), dict(exported))


def words(text: str, scope: Mapping[str, str | list[str]]) -> list[str]:
    """Split a line into words as bash does, with variables and arithmetic filled in, the innermost first."""

    def value(found: re.Match[str]) -> str:
        if found["literal"]:
            return found[0]
        if found["sum"] is not None:
            return str(arithmetic(found["sum"], scope))
        if found["first"]:
            return ",".join(map(str, _range(int(found["first"]), int(found["last"]) + 1)))
        return shlex.join(scope[found["list"]]) if found["list"] else _braced(found["name"] or found["braced"], scope)

    before, rounds = "", 0
    while text != before:
        before, text, rounds = text, EXPANSION.sub(value, text), rounds + 1
        if rounds > MOST_ROUNDS or len(text) > MOST_CHARACTERS:
            raise UnknownForm("variables that fill in each other without end")
    if "$" in LITERAL.sub("", text):
        raise UnknownForm(text)
    return shlex.split(text)


def _range(first: int, last: int) -> range:
    """Return numbers of devices or instances. UnknownForm where they are more than a cluster has."""
    if last - first > MOST_DEVICES:
        raise UnknownForm(f"{last - first} rounds of a loop")
    return range(first, last)


def _braced(inner: str, scope: Mapping[str, str | list[str]]) -> str:
    """Return ``${NAME}``, ``${NAME[index]}``, ``${NAME:-default}`` and the cuts of a host's name."""
    if inner.endswith("%-*"):
        return _text(scope, inner[:-3]).rpartition("-")[0]
    if inner.endswith("##*-"):
        return _text(scope, inner[:-4]).rpartition("-")[2]
    if ":-" in inner:
        name, _, default = inner.partition(":-")
        return _text(scope, name) if name in scope else default
    if inner.endswith("]"):
        name, _, index = inner[:-1].partition("[")
        held = scope[name]
        if isinstance(held, str):
            raise UnknownForm(f"{name} is not a list")
        return held[int(index)]
    return _text(scope, inner)


def _text(scope: Mapping[str, str | list[str]], name: str) -> str:
    held = scope.get(name)
    if not isinstance(held, str):
        raise UnknownForm(f"${name} is not set")
    return held


def arithmetic(text: str, scope: Mapping[str, str | list[str]]) -> int:
    """Return a sum of products and whole quotients of numbers and variables."""
    plain = re.sub(r"\$\{?(\w+)(?::-\w+)?\}?", lambda found: found[1], text)
    tokens = iter([*re.findall(r"\w+|\S", plain), ""])

    def value() -> int:
        word = next(tokens)
        return int(word) if word.isdigit() else int(_text(scope, word))

    total, sign, product = 0, 1, value()
    for token in tokens:
        if token == "*":
            product *= value()
        elif token == "/":
            product //= value()
        elif token in ("+", "-", ""):
            total, sign = total + sign * product, -1 if token == "-" else 1
            product = value() if token else 0
        else:
            raise UnknownForm(token)
    return total
