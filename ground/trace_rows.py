"""One request of a trace, and how its fields are read from what a file holds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput
from ground.units import number_of

Integers = NDArray[np.int64]
Fields = Mapping[str, Any]

MOST_TOKENS = 100_000_000
BYTES_PER_TOKEN_OF_TEXT = 4.0
_HUGE = 10**300
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|[+-]\d\d:\d\d)?")


@dataclass(frozen=True, slots=True)
class Row:
    """A request: ``seconds`` None where the file has no arrival, ``delay_seconds`` after the session's last turn."""

    seconds: float | None
    input_tokens: int
    output_tokens: int
    hash_ids: Integers | None = None
    session: str | None = None
    delay_seconds: float | None = None
    whole_seconds: int = 0
    """Added to ``seconds``: since 1970 where stamps are dates, so that a double keeps their 100 ns."""


def first_of(row: Fields, names: tuple[str, ...], where: str) -> tuple[str, Any]:
    """Return (name, value) of the first field of ``names`` that the row has; BadInput where it has none."""
    for name in names:
        if row.get(name) not in (None, ""):
            return name, row[name]
    raise BadInput(f"{where}: {names[0]} is missing")


def read_number(value: object, where: str) -> float:
    """Return a finite number from JSON or text."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        number = number_of(value) if isinstance(value, str) else float(min(max(value, -_HUGE), _HUGE))
        if -_HUGE < number < _HUGE:
            return number
    raise BadInput(f"{where}: {str(value)[:40]!r} must be a finite number")


def read_tokens(value: object, where: str) -> int:
    """Return a count of tokens, at least 1."""
    number = read_number(value, where)
    if number != int(number) or not 1 <= number <= MOST_TOKENS:
        raise BadInput(f"{where}: {number:g} must be a whole number of tokens from 1 to {MOST_TOKENS}")
    return int(number)


def read_time(value: object, unit_seconds: float, unit_name: str, where: str) -> float:
    """Return a stamp in seconds: a number of units from 0 on."""
    seconds = read_number(value, where) * unit_seconds
    if not 0 <= seconds < 1e12:
        raise BadInput(f"{where}: {str(value)[:40]!r} must be {unit_name} from 0")
    return seconds


def read_delay(row: Fields, names: tuple[str, ...], unit_seconds: float, where: str) -> float | None:
    """Return the seconds after the last turn, None where the row states none."""
    for name in names:
        if row.get(name) not in (None, ""):
            seconds = read_number(row[name], f"{where}: {name}") * unit_seconds
            if not 0 <= seconds < 1e9:
                raise BadInput(f"{where}: {name}: {str(row[name])[:40]!r} must not be negative")
            return seconds
    return None


def read_session(row: Fields, name: str, where: str) -> str | None:
    """Return the session that a turn belongs to, None for a request of its own."""
    value = row.get(name)
    if value in (None, ""):
        return None
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise BadInput(f"{where}: {name}: must be a text or a whole number")
    return str(value)


def read_hash_ids(value: Any, where: str) -> Integers:
    """Return the block identifiers of a prompt."""
    if not isinstance(value, list) or not all(type(item) is int and abs(item) < 2**63 for item in value):
        raise BadInput(f"{where}: must be a list of integers")
    return np.array(value, dtype=np.int64)


def read_stamp(text: object, where: str) -> tuple[datetime, float]:
    """Return the whole second and the fraction of a stamp like 2023-11-16 18:15:46.6805900."""
    if text is None:
        raise BadInput(f"{where} is missing")
    match = _STAMP.fullmatch(str(text).strip())
    try:
        if match:
            return datetime.fromisoformat(match[1]), float(f"0.{match[2] or 0}")
    except ValueError:
        pass
    raise BadInput(f"{where}: {str(text)[:40]!r} must look like 2023-11-16 18:15:46.6805900")


def estimate_tokens(text: object, where: str) -> int:
    """Return the tokens of a text as its UTF-8 bytes over 4, at least 1: an estimate, for files without counts."""
    if not isinstance(text, str):
        raise BadInput(f"{where}: must be a text")
    return max(round(len(text.encode("utf-8", errors="replace")) / BYTES_PER_TOKEN_OF_TEXT), 1)
