"""Checked reading of a Hugging Face ``config.json``: no key is guessed, every refusal names its key."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ground.errors import BadInput
from ground.files import parse_json, read_text
from ground.units import MEBI
from models.spec import LARGEST_DIMENSION

SIZE_LIMIT_BYTES = 4 * MEBI


@dataclass(frozen=True, slots=True)
class Config:
    """The keys of one configuration and the file that they came from.

    A method takes every accepted spelling of a key, the usual one first. All raise BadInput naming the
    file, the key, and what would be right.
    """

    values: Mapping[str, object]
    where: str

    def find(self, *spellings: str) -> tuple[str, object]:
        """Return the spelling that is there and its value; several with different values are refused."""
        found = [(key, self.values[key]) for key in spellings if key in self.values]
        if not found:
            raise BadInput(f"{self.where}: the key {spell(spellings)} is missing")
        if any(value != found[0][1] for _, value in found[1:]):
            given = " and ".join(f"{key} {shown(value)}" for key, value in found)
            raise BadInput(f"{self.where}: {given} are the same thing with different values; keep the right one")
        return found[0]

    def get(self, key: str, default: object = None) -> object:
        """Return the value of ``key``, or ``default`` where it is absent."""
        return self.values.get(key, default)

    def integer(self, *spellings: str, least: int = 1, most: int = LARGEST_DIMENSION) -> int:
        """Return a whole number that must be given."""
        key, value = self.find(*spellings)
        # A boolean is an int to Python; 61.0 is tolerated because some writers store whole numbers so.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(key, f"must be a whole number from {least} to {most}")
        return value

    def integer_or(self, default: int, *spellings: str, least: int = 1) -> int:
        """Return a whole number; ``default``, which the format itself defines, where it is absent or null."""
        if all(self.values.get(key) is None for key in spellings):
            return default
        return self.integer(*spellings, least=least)

    def integer_or_null(self, *spellings: str, least: int = 1, most: int = LARGEST_DIMENSION) -> int | None:
        """Return a whole number that must be given, None where it is null."""
        return None if self.find(*spellings)[1] is None else self.integer(*spellings, least=least, most=most)

    def even(self, key: str, least: int = 1) -> int:
        """Return a whole number that may be listed once per layer; layers that differ are refused."""
        value = self.find(key)[1]
        if not isinstance(value, list):
            return self.integer(key, least=least)
        if not value or any(one != value[0] for one in value):
            self.refuse(key, "must be the same number for every layer")
        return Config({key: value[0]}, self.where).integer(key, least=least)

    def section(self, key: str) -> "Config":
        """Return the keys of a nested object that must be given."""
        value = self.find(key)[1]
        if not isinstance(value, dict):
            self.refuse(key, "must be an object with keys of its own")
        return Config(value, f"{self.where}: {key}")

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false; ``default``, which the format itself defines, where it is absent."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "must be true or false")
        return value

    def require(self, key: str, accepted: tuple[object, ...], why: str) -> None:
        """Refuse ``key`` unless it is absent or one of ``accepted``: ``why`` is what podplan does not carry."""
        if key in self.values and self.values[key] not in accepted:
            self.refuse(key, why)

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise the BadInput that names the file, ``key`` and its value."""
        value = f" is {shown(self.values[key])}" if key in self.values else ""
        raise BadInput(f"{self.where}: {key}{value}: {problem}")


def read_config(path: Path) -> Config:
    """Return the configuration in the file ``path``; BadInput naming the file, and the line where it is not JSON."""
    values = parse_json(read_text(path, SIZE_LIMIT_BYTES), str(path))
    if not isinstance(values, dict):
        raise BadInput(f"{path}: must hold one JSON object with the keys of a model's config.json")
    return Config(values, str(path))


def spell(spellings: tuple[str, ...]) -> str:
    """Return the usual spelling, with the other accepted ones in brackets."""
    return f"{spellings[0]} (or {' or '.join(spellings[1:])})" if len(spellings) > 1 else spellings[0]


def shown(value: object) -> str:
    """Return a value as a message shows it, as JSON and at most 60 characters of it."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
