"""Kubernetes objects from the templates beside this file: YAML with ``$name`` where the plan or the site decides.

A value that is ``$name`` alone is whatever it stands for, and is left out with its key where that is None; inside text
it is text. A key ``$name`` without a value stands for all entries of a mapping.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from deploy.commands.launch import Target
from deploy.header import Provenance, annotations
from deploy.reading.nodes import read_documents
from ground.files import read_text

Object = dict[str, Any]
FOLDER = Path(__file__).with_name("templates")
LOCKED: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context of what stands beside the engines."""


def metadata(target: Target, name: str, origin: Provenance, extra: Mapping[str, str] | None = None) -> Object:
    """Return the metadata of a top-level object."""
    return {
        "name": name,
        "namespace": target.site.namespace,
        "labels": {"app.kubernetes.io/part-of": target.name, **(extra or {})},
        "annotations": annotations(origin),
    }


def plain_pod(target: Target) -> Object:
    """Return what pods beside the engines ask of the cluster."""
    found: Object = {"automountServiceAccountToken": False, "enableServiceLinks": False}
    if target.site.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in target.site.image_pull_secrets]
    if target.site.tolerations:
        found["tolerations"] = target.site.tolerations
    return found


def objects(template: str, target: Target, origin: Provenance, **values: Any) -> Iterator[Object]:
    """Yield the objects of a template; labels and annotations that it states stand beside those of the deployment."""
    known = {
        "name": target.name,
        "namespace": target.site.namespace,
        "files_path": target.site.files_path,
        "locked": LOCKED,
        "plain_pod": plain_pod(target),
    } | values
    for document in documents(template):
        item = filled(document, known)
        own = item["metadata"]
        made = metadata(target, own["name"], origin, own.get("labels"))
        made["annotations"] |= own.get("annotations", {})
        yield item | {"metadata": made}


@cache
def documents(template: str) -> list[Object]:
    """Return the YAML documents of a template."""
    return read_documents(read_text(FOLDER / f"{template}.yaml"))


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of a template with its values.

    >>> filled({"a": "$x", "b": "$y", "c": "$x-1", "$z": None}, {"x": 2, "y": None, "z": {"d": 3}})
    {'a': 2, 'c': '2-1', 'd': 3}
    """
    if isinstance(value, str):
        return values[value[1:]] if value[1:] in values and value[0] == "$" else Template(value).substitute(values)
    if isinstance(value, list):
        held = [(inner, filled(inner, values)) for inner in value]
        return [found for inner, found in held if found is not None or inner is None]
    if not isinstance(value, dict):
        return value
    found: Object = {}
    for key, inner in value.items():
        if key.startswith("$") and inner is None:
            found |= values[key[1:]]
        elif (held := filled(inner, values)) is not None or inner is None:
            found[filled(key, values)] = held
    return found
