"""Suggestions for mistyped names, and file names for any name."""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from itertools import chain, count

LONGEST = 200
"""Most characters of a name that is compared; the time of a comparison is quadratic in them."""
MOST = 3
"""Names that are suggested at most."""


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
