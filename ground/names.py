"""What a mistyped name may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 200
"""Characters of what may be a mistyped name: to compare takes their square."""


def close_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return up to ``limit`` of ``known`` that resemble ``name``, nearest first, without regard to case.

    A name that starts with what was typed counts as near, however long it is.
    """
    if len(name) > LONGEST:
        return []
    by_lower = {candidate.lower(): candidate for candidate in known}
    typed = name.lower()
    near = get_close_matches(typed, by_lower, n=limit, cutoff=0.6)
    if len(typed) >= 3:
        near += [candidate for candidate in sorted(by_lower) if candidate.startswith(typed) and candidate not in near]
    return [by_lower[candidate] for candidate in near[:limit]]


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean a, b or c?"`` for the names near ``name``, or ``""`` where none is near."""
    near = close_names(name, known)
    if not near:
        return ""
    listed = near[0] if len(near) == 1 else f"{', '.join(near[:-1])} or {near[-1]}"
    return f"; did you mean {listed}?"
