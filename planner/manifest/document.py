"""Manifest files: read with every check, written with the same bytes every time."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ground.errors import BadInput
from ground.files import read_yaml
from ground.validation import validate
from planner.manifest.checks import check_manifest
from planner.manifest.schema import MANIFEST_VERSION, Manifest

_PLAIN = re.compile(r"(?!(?:null|true|false)\Z)[a-z][a-z0-9_-]*\Z")
_UNPRINTABLE = re.compile("[\x7f-\x9f\ud800-\udfff\u2028\u2029\ufeff\ufffe\uffff]")


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in ``path`` after every check.

    Raises BadInput: not a file, too large, not YAML, of another version, or wrong in a field that is named.
    """
    return parse_manifest(read_yaml(path), str(path))


def parse_manifest(data: object, where: str) -> Manifest:
    """Return the manifest that ``data`` (what a YAML or JSON reader gives) holds; ``where`` opens every error."""
    if not isinstance(data, dict) or "manifest_version" not in data:
        raise BadInput(f"{where}: must be a manifest, a mapping that starts with manifest_version: {MANIFEST_VERSION}")
    version = data["manifest_version"]
    if version != MANIFEST_VERSION or isinstance(version, bool):
        raise BadInput(
            f"{where}: manifest_version: {str(version)[:40]!r} is not known; this podplan reads {MANIFEST_VERSION}"
        )
    manifest = validate(Manifest, data, where)
    try:
        check_manifest(manifest)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error
    return manifest


def dump_manifest(manifest: Manifest) -> str:
    """Return the YAML text of ``manifest``: the same manifest gives the same bytes, and reading gives it back.

    Lists of scalars and mappings of numbers stand on one line, all else in block style.

    Raises BadInput: the manifest contradicts itself.
    """
    check_manifest(manifest)
    return "\n".join(_lines(manifest.model_dump(mode="json"))) + "\n"


def _lines(value: object, indent: str = "") -> Iterator[str]:
    """Yield the lines of a block mapping or list."""
    if isinstance(value, dict):
        for key, item in value.items():
            if _is_flow(item):
                yield f"{indent}{_text(key)}: {_flow(item)}"
            else:
                yield f"{indent}{_text(key)}:"
                yield from _lines(item, indent + "  ")
    elif isinstance(value, list):
        for item in value:
            if _is_flow(item):
                yield f"{indent}- {_flow(item)}"
            else:
                first, *rest = _lines(item, indent + "  ")
                yield f"{indent}- {first.strip()}"
                yield from rest


def _is_flow(value: object) -> bool:
    """Whether ``value`` stands on one line: a scalar, a list of scalars, a mapping of numbers."""
    if isinstance(value, dict):
        return all(isinstance(item, (int, float)) for item in value.values())
    return not isinstance(value, list) or not any(isinstance(item, (list, dict)) for item in value)


def _flow(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    """Return text plain where nothing can read it as something else, else in JSON's quotes, which YAML shares."""
    if _PLAIN.match(text):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a manifest."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"podplan manifest, version {MANIFEST_VERSION}",
        **Manifest.model_json_schema(),
    }
