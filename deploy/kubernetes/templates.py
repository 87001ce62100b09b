"""Kubernetes objects from the templates in the folder beside this file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deploy.commands.launch import Target
from deploy.templates import Object, documents, filled

FOLDER = Path(__file__).with_name("templates")
LOCKED: Object = {  # the security context of the containers beside the engines
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def metadata(target: Target, name: str, extra: Mapping[str, str] | None = None) -> Object:
    """Return the metadata of a top-level object."""
    return {
        "name": name,
        "namespace": target.site.namespace,
        "labels": {"app.kubernetes.io/part-of": target.name, **(extra or {})},
        "annotations": target.annotations,
    }


def plain_pod(target: Target) -> Object:
    """Return what pods beside the engines ask of the cluster."""
    found: Object = {"automountServiceAccountToken": False, "enableServiceLinks": False}
    if target.site.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in target.site.image_pull_secrets]
    if target.site.tolerations:
        found["tolerations"] = target.site.tolerations
    return found


def objects(name: str, target: Target, **values: Any) -> Iterator[Object]:
    """Yield the objects of a template; labels and annotations that it states stand beside those of the deployment."""
    known = {
        "name": target.name,
        "namespace": target.site.namespace,
        "files_path": target.site.files_path,
        "locked": LOCKED,
        "plain_pod": plain_pod(target),
    } | values
    for document in template(name):
        item = filled(document, known)
        own = item["metadata"]
        made = metadata(target, own["name"], own.get("labels"))
        made["annotations"] |= own.get("annotations", {})
        yield item | {"metadata": made}


def template(name: str) -> list[Object]:
    """Return the documents of a template."""
    return documents(FOLDER / f"{name}.yaml")
