"""The one tree of errors, and the codes with which commands end.

PodplanError
├── BadInput      the question, a flag, a file or a spec is wrong      exit code 2
├── Infeasible    a valid question without a feasible answer           exit code 3
└── Fault         podplan contradicts itself                           exit code 1

A message is one sentence that names the flag, the field or the file and says what would be right.
Only ``cli`` turns these into exit codes; no other room exits or prints.

Mistyped names get suggestions, and any name a file name.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from enum import IntEnum
from itertools import chain, count

LONGEST = 200  # most characters of a name that is compared; the time of a comparison is quadratic in them
MOST = 3  # names that are suggested at most


class ExitCode(IntEnum):
    """Exit codes of every command; scripts depend on them."""

    DONE = 0  # done, or feasible
    FAULT = 1  # podplan contradicts itself or is installed wrongly
    BAD_INPUT = 2  # a flag, a file or a name is wrong
    INFEASIBLE = 3  # a valid question without a feasible answer
    INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT
    PIPE_CLOSED = 141  # the reader of stdout went away: 128 + SIGPIPE


class PodplanError(Exception):
    """Base of every error that podplan raises on purpose."""


class BadInput(PodplanError):
    """Invalid input of the user, told in one sentence; exit code 2."""


class Infeasible(PodplanError):
    """The question is valid and has no feasible answer: the limit that binds, exit code 3."""


class Fault(PodplanError):
    """Two parts of podplan disagree: a defect here, never the user's, exit code 1."""


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Prefix the message of a BadInput with its source: a flag, a file or a place in it."""
    try:
        yield
    except BadInput as error:
        text = str(error)
        raise BadInput(text if text.startswith(where) else f"{where}: {text}") from None


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to ``MOST`` of ``known`` that resemble ``name``, nearest first, without regard to case.

    A name that starts with what was typed counts as near, however long it is.
    """
    if len(name) > LONGEST:
        return []
    by_lower = {candidate.lower(): candidate for candidate in known}
    typed = name.lower()
    near = get_close_matches(typed, by_lower, n=MOST, cutoff=0.6)
    if len(typed) >= 3:
        near += [candidate for candidate in sorted(by_lower) if candidate.startswith(typed) and candidate not in near]
    return [by_lower[candidate] for candidate in near[:MOST]]


def file_names(names: Iterable[str], taken: Collection[str] = ()) -> list[str]:
    """Return what each name is called as a file or folder: none twice, and none of those ``taken``.

    Lower-case letters, digits, inner points and hyphens, 60 at most, which no file system, shell or solver minds.

    >>> file_names(["chat!", "chat?", "Chat", "../x", "--help", "fleet.json"], ["fleet.json"])
    ['chat', 'chat-2', 'chat-3', 'x', 'help', 'fleet.json-2']
    """
    found: list[str] = []
    for name in names:
        stem = re.sub(r"[^a-z0-9.]+", "-", name.lower()[:LONGEST])[:60].strip("-.") or "model"
        tried = chain([stem], (f"{stem}-{number}" for number in count(2)))
        found.append(next(each for each in tried if each not in found and each not in taken))
    return found


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean a, b or c?"`` for the names near ``name``, or ``""`` where none is near."""
    near = close_names(name, known)
    if not near:
        return ""
    listed = near[0] if len(near) == 1 else f"{', '.join(near[:-1])} or {near[-1]}"
    return f"; did you mean {listed}?"
