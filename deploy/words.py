"""Words of a command: literal values, and the few that a shell fills in when it starts."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shell:
    """Text that the shell expands: ``"$HEAD:5000"`` or ``$((NODE_RANK * 16))``, quotes included where needed."""

    text: str


Value = str | int | float | Shell | None
Flag = tuple[str, Value]


def quoted(value: Value) -> str:
    """Return a value as one word of a shell command."""
    return value.text if isinstance(value, Shell) else shlex.quote(plain(value))


def plain(value: Value) -> str:
    """Return a literal value as an argument; 0.9 stays 0.9."""
    assert not isinstance(value, Shell), f"{value} is known to a shell only"
    return "" if value is None else str(value)


def sum_of(base: int, *terms: str) -> Shell:
    """Return ``$((base + term + …))``."""
    return Shell(f"$(({' + '.join([str(base), *terms])}))")


def given(*rows: tuple[str, Value] | tuple[str, Value, object]) -> list[Flag]:
    """Return flags from rows of name, value and, where a flag is not always given, whether it is."""
    return [(row[0], row[1]) for row in rows if all(row[2:])]


def compact_json(data: Mapping[str, object]) -> str:
    """Return JSON on one line, as flags take it."""
    return json.dumps(data, separators=(",", ":"))


def flag_words(flags: Sequence[Flag], *, joined: bool) -> list[str]:
    """Return flags as shell words: ``--name value``, or ``--name=value`` for parsers that want it so."""
    words = []
    for name, value in flags:
        if value is None:
            words.append(name)
        else:
            words.append(f"{name}={quoted(value)}" if joined else f"{name} {quoted(value)}")
    return words


def command(programme: Sequence[Value], flags: Sequence[Flag], *, joined: bool = False, more: str = "") -> str:
    """Return the lines that run a programme in place of the shell, a flag on each; ``more`` words stand last."""
    words = [" ".join(quoted(word) for word in programme), *flag_words(flags, joined=joined), *([more] if more else [])]
    return " \\\n  ".join([f"exec {words[0]}", *words[1:]])
