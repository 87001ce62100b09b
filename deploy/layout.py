"""The files of Kubernetes in another layout: a Kustomize base with components and an overlay, or a Helm chart."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from deploy.commands.launch import Target
from deploy.guide import guide
from deploy.reading.nodes import read_documents
from deploy.site import merged
from ground.files import to_yaml
from ground.version import VERSION

Layout = Literal["plain", "kustomize", "helm"]
Object = dict[str, Any]
OPTIONAL = ("monitoring", "autoscaler")  # they need operators that not every cluster has
PROOF = ("smoke", "benchmark")
TOKEN = re.compile(r"PODPLAN_([a-z]+)_([a-zA-Z]+)_NALPDOP")


def laid_out(layout: Layout, target: Target, files: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a deployment in a layout, README.md at its top."""
    if layout == "plain":
        return dict(files)
    others = {name: text for name, text in files.items() if not name.endswith(".yaml")}
    sheets = {name.removesuffix(".yaml"): text for name, text in files.items() if name.endswith(".yaml")}
    made = _kustomize(target, sheets) if layout == "kustomize" else _helm(target, sheets)
    return others | dict(made) | {"README.md": guide(target, files, layout)}


def _kustomize(target: Target, sheets: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield a base of what always runs, a component for each option, an overlay of the site and the proof."""

    def kustomization(folder: str, purpose: str, kind: str = "Kustomization", **fields: Any) -> tuple[str, str]:
        version = "v1alpha1" if kind == "Component" else "v1beta1"
        held = {"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, **fields}
        return f"{folder}/kustomization.yaml", target.head(purpose) + "\n" + to_yaml(held)

    base = [name for name in sheets if name not in (*OPTIONAL, *PROOF)]
    for name in base:
        yield f"base/{name}.yaml", sheets[name]
    yield kustomization("base", "What always runs.", resources=[f"{name}.yaml" for name in base])
    options = [name for name in OPTIONAL if name in sheets]
    for name in options:
        yield f"components/{name}/{name}.yaml", sheets[name]
        yield kustomization(
            f"components/{name}", "Take it where its operator is.", "Component", resources=[f"{name}.yaml"]
        )
    proof = [name for name in PROOF if name in sheets]
    for name in proof:
        yield f"proof/{name}.yaml", sheets[name]
    yield kustomization("proof", "Apply it once all is up.", resources=[f"{name}.yaml" for name in proof])
    fields: Object = {"namespace": target.site.namespace, "resources": ["../../base"]}
    fields["components"] = [f"../../components/{name}" for name in options]
    fields["images"] = [{"name": name} for name in sorted({image.rpartition(":")[0] for image in _images(sheets)})]
    yield kustomization("overlays/site", "The site's own: newName, newTag or digest of images, patches.", **fields)


def _images(sheets: Mapping[str, str]) -> set[str]:
    return {
        held for text in sheets.values() for held in re.findall(r"^\s*(?:- )?image: (\S+:\S+)$", text, re.MULTILINE)
    }


def _helm(target: Target, sheets: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield a chart whose values are images, instances and options; the proof runs by ``helm test``."""
    values: Object = {"images": {}, "instances": {}, **{name: name in sheets for name in OPTIONAL}}
    templates = {
        name: "---\n".join(
            _template(target, item, name, values, fetched="kind: Job" in text) for item in read_documents(text, name)
        )
        for name, text in sorted(sheets.items(), key=lambda sheet: sheet[0] == "weights")  # the engines name images
    }
    chart = {
        "apiVersion": "v2",
        "name": target.name,
        "description": f"{target.name_of_model} with {target.profile.title} {target.version}, planned by podplan",
        "type": "application",
        "version": VERSION,
        "appVersion": target.version,
    }
    yield "Chart.yaml", target.head("helm install NAME . --namespace NAMESPACE.") + "\n" + to_yaml(chart)
    yield "values.yaml", target.head("Images, instances and options.") + "\n" + to_yaml(values)
    for name, text in templates.items():
        head = target.head(f"From {name}.yaml.") + "\n"
        if name in OPTIONAL:
            text = f"{{{{- if .Values.{name} }}}}\n{text}{{{{- end }}}}\n"
        yield f"templates/{name}.yaml", head + text


def _template(target: Target, item: Object, sheet: str, values: Object, *, fetched: bool) -> str:
    """Return an object's template; what it takes from the values is noted there."""
    item, hook = _with_images(item, values["images"]), None
    if sheet in PROOF and item["kind"] == "Job":
        hook = {"helm.sh/hook": "test"}
    elif sheet == "weights" and fetched:  # before engines, which would find half a model
        hook = {"helm.sh/hook": "pre-install"}
    item = merged(item, {"metadata": {"annotations": hook}}) if hook else item
    if item["kind"] == "LeaderWorkerSet":
        key = _key(sheet)
        values["instances"][key] = item["spec"].get("replicas", 1)
        item = merged(item, {"spec": {"replicas": f"PODPLAN_instances_{key}_NALPDOP"}})
    text = to_yaml(item).replace("{{", '{{ "{{" }}')
    text = TOKEN.sub(r"{{ .Values.\1.\2 }}", text)
    own = re.escape(target.site.namespace)  # of objects, and where arguments, subjects and queries name it
    return re.sub(rf'(namespace(?:: |=\\*"?| )){own}(?![\w.-])', r"\1{{ .Release.Namespace }}", text)


def _key(name: str) -> str:
    """Return a name as a key that templates can write after a dot."""
    return re.sub(r"[^a-zA-Z]+(.)?", lambda found: (found[1] or "").upper(), name)


def _with_images(value: Any, images: Object) -> Any:
    """Return a value with every image named in the chart's values, by the name of its container."""
    if isinstance(value, list):
        return [_with_images(held, images) for held in value]
    if not isinstance(value, dict):
        return value
    found = {name: _with_images(held, images) for name, held in value.items()}
    image, name = value.get("image"), value.get("name")
    if isinstance(image, str) and isinstance(name, str):
        key = next((key for key, held in images.items() if held == image), None) or _key(name)
        while images.get(key, image) != image:
            key += "Other"
        images[key] = image
        found["image"] = f"PODPLAN_images_{key}_NALPDOP"
    return found
