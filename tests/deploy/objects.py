"""What Kubernetes objects must look like: core objects by its own schemas, custom ones as their CRDs accepted them.

scripts/crd_check.py held custom resources against the full CRDs and wrote the shapes of what they accepted. Pods inside
custom resources are checked as core PodTemplates.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
from kubernetes_validate import utils

# They read megabytes of schemas from disk for every object otherwise.
utils.schema_contents, utils.all_versions = cache(utils.schema_contents), cache(utils.all_versions)
KUBERNETES = "1.33"
Object = dict[str, Any]
CRDS: Object = json.loads(Path(__file__).with_name("crds.json").read_text(encoding="utf-8"))
PODS = {"workerTemplate", "leaderTemplate", "template", "podTemplate"}
OPEN = {"metadata", "labels", "annotations", "matchLabels", "plugins"}
CHECKED: set[str] = set()


def shapes(item: Any, path: str = "") -> Iterator[str]:
    """Yield what a CRD judges of a custom resource: the keys of every object, the type of every value, every word.

    Pods, names and labels are left out: they are Kubernetes' own.
    """
    if isinstance(item, list):
        for inner in item:
            yield from shapes(inner, f"{path}[]")
    elif isinstance(item, dict):
        yield f"{path}: {' '.join(sorted(item))}"
        for key, inner in item.items():
            if key not in PODS | OPEN:
                yield from shapes(inner, f"{path}.{key}")
    else:
        word = isinstance(item, str) and path.rpartition(".")[2] != "name" and item.isalpha()
        yield f"{path} = {item if word else type(item).__name__}"


def check(item: Object) -> None:
    """Raise ValueError where an object is not what Kubernetes or its CRD takes; one of each form is looked at.

    Objects that differ only in the number of their instance or in the text of a script have one form.
    """
    form = re.sub(r"-[0-9]+\b", "-N", json.dumps(item | ({"data": sorted(item["data"])} if "data" in item else {})))
    if form not in CHECKED:
        _check(item)
        CHECKED.add(form)


def _check(item: Object) -> None:
    crd = CRDS.get(f"{item['apiVersion']} {item['kind']}")
    if crd is None:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
        return
    if unknown := set(shapes(item)) - set(crd["shapes"]):
        raise ValueError(f"{item['kind']}: no CRD accepted {sorted(unknown)}: run scripts/crd_check.py")
    for template in _pods(item):
        wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "checked"}, "template": template}
        kubernetes_validate.validate(wrapped, KUBERNETES, strict=True)


def _pods(item: Any) -> Iterator[Object]:
    """Yield the pod templates inside a custom resource."""
    for key, inner in item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ():
        if key in PODS:
            yield inner
        else:
            yield from _pods(inner)
