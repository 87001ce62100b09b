"""Reads back generated scripts: the few forms of bash that they use, and nothing else.

A form that is not known here is an error, so that a script cannot say more than what was counted.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN = re.compile(r"[^\s'\"$]+")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", re.DOTALL)
LOOP = re.compile(r"for \(\((\w+) = 0; \1 < (\d+); \1\+\+\)\); do\Z")
BRANCH = re.compile(r'if \[ "\$(\w+)" -eq 0 \]; then (.*); else (.*); fi\Z', re.DOTALL)
IGNORED = ("set ", "source ", "trap ", "wait ", "until ", "{ grep ")

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
    exported: dict[str, str] = {}
    return list(_run(statements(text), scope, exported, frozenset(given)))


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
            for value in range(int(loop[2])):
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
    found = words(line.removeprefix("exec ").removesuffix("&"), scope)
    return Process(tuple(found), dict(exported))


def words(text: str, scope: Mapping[str, str | list[str]]) -> list[str]:
    """Split a line into words as bash does, with variables and arithmetic filled in."""
    found: list[str] = []
    current: str | None = None
    position = 0
    while position < len(text):
        letter = text[position]
        if letter.isspace():
            if current is not None:
                found.append(current)
            current, position = None, position + 1
        elif letter == "'":
            end = text.index("'", position + 1)
            current, position = (current or "") + text[position + 1 : end], end + 1
        elif letter == '"':
            end = _closing(text, position + 1)
            inner = text[position + 1 : end]
            if inner.endswith("[@]}") and inner.startswith("${"):
                found += scope[inner[2:-4]]
            else:
                current = (current or "") + _expand(inner, scope)
            position = end + 1
        elif letter == "$":
            value, position = _variable(text, position, scope)
            current = (current or "") + value
        else:
            run = PLAIN.match(text, position)
            assert run is not None, "blanks, quotes and dollars are read above"
            current, position = (current or "") + run[0], run.end()
    return found if current is None else [*found, current]


def _closing(text: str, position: int) -> int:
    """Return where a double quote ends; one inside ``$(…)`` is another."""
    depth = 0
    while text[position] != '"' or depth:
        depth += (text[position] == "(") - (text[position] == ")")
        position += 1
    return position


def _expand(text: str, scope: Mapping[str, str | list[str]]) -> str:
    """Return text between double quotes with its variables filled in."""
    parts, position = "", 0
    while (dollar := text.find("$", position)) >= 0:
        value, end = _variable(text, dollar, scope)
        parts, position = parts + text[position:dollar] + value, end
    return parts + text[position:]


def _variable(text: str, position: int, scope: Mapping[str, str | list[str]]) -> tuple[str, int]:
    """Return the value of the expansion at ``position`` and where it ends."""
    if text.startswith("$((", position):
        end = text.index("))", position)
        return str(arithmetic(text[position + 3 : end], scope)), end + 2
    if text.startswith("$(seq -s, ", position):
        end = _parenthesis(text, position + 1)
        first, last = (int(word) for word in words(text[position + 10 : end], scope))
        return ",".join(map(str, range(first, last + 1))), end + 1
    if text.startswith("${", position):
        end = _brace(text, position + 1)
        return _braced(text[position + 2 : end], scope), end + 1
    name = NAME.match(text, position + 1)
    if name is None:
        raise UnknownForm(text[position : position + 40])
    return _text(scope, name[0]), name.end()


def _parenthesis(text: str, position: int) -> int:
    depth = 0
    for index in range(position, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if not depth:
            return index
    raise UnknownForm(text)


def _brace(text: str, position: int) -> int:
    depth = 0
    for index in range(position, len(text)):
        depth += (text[index] == "{") - (text[index] == "}")
        if not depth:
            return index
    raise UnknownForm(text)


def _braced(inner: str, scope: Mapping[str, str | list[str]]) -> str:
    """Return ``${NAME}``, ``${NAME[index]}``, ``${NAME:-default}`` and the cuts of a host's name."""
    if inner.endswith("%-*"):
        return _text(scope, inner[:-3]).rpartition("-")[0]
    if inner.endswith("##*-"):
        return _text(scope, inner[:-4]).rpartition("-")[2]
    if ":-" in inner:
        name, _, default = inner.partition(":-")
        return _text(scope, name) if name in scope else _expand(default, scope)
    if inner.endswith("]"):
        name, _, index = inner[:-1].partition("[")
        held = scope[name]
        if isinstance(held, str):
            raise UnknownForm(f"{name} is not a list")
        return held[int(_expand(index, scope))]
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
