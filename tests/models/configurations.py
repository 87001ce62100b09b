"""Hugging Face configurations of a few public models, as their reports give the dimensions."""

from copy import deepcopy
from functools import cache
from pathlib import Path

import yaml

Keys = dict[str, object]


@cache
def _all() -> dict[str, Keys]:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def config(name: str) -> Keys:
    """Return the configuration of a model of configurations.yaml."""
    return deepcopy(_all()[name])


def without(keys: Keys, *names: str) -> Keys:
    """Return ``keys`` less some."""
    return {key: value for key, value in keys.items() if key not in names}
