"""Hold the custom resources of deployments against full CRDs, made strict: an unknown field is an error.

    python scripts/crd_check.py CRDS DEPLOYMENT...

CRDS is a folder of CustomResourceDefinition files (LeaderWorkerSet, Volcano's Job, InferencePool, Gateway, HTTPRoute,
ScaledObject, PodMonitor, …); each DEPLOYMENT a folder that plan deploy wrote. CEL rules and webhooks are not run.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Key = tuple[str, str]


def strict(schema: Any) -> Any:
    """Return an OpenAPI schema of a CRD as JSON Schema that refuses fields it does not name."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    found = {key: strict(value) for key, value in schema.items() if key not in ("description", "default", "format")}
    if "properties" in schema:
        found["properties"] = {name: strict(inner) for name, inner in schema["properties"].items()}
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
        if not open_ended:
            found["additionalProperties"] = False
    if schema.get("nullable") and isinstance(schema.get("type"), str):
        found["type"] = [schema["type"], "null"]
    return found


def validators(folder: Path) -> dict[Key, Draft202012Validator]:
    """Return (apiVersion, kind) -> validator of every version that is served."""
    found = {}
    for path in sorted(folder.rglob("*.yaml")):
        for crd in yaml.load_all(path.read_text(encoding="utf-8"), Loader=Loader):
            if not isinstance(crd, dict) or crd.get("kind") != "CustomResourceDefinition":
                continue
            spec = crd["spec"]
            for version in spec["versions"]:
                schema = strict(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = Draft202012Validator(schema)
    return found


def objects(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the objects of a deployment with their files."""
    for path in sorted(folder.rglob("*.yaml")):
        for item in yaml.load_all(path.read_text(encoding="utf-8"), Loader=Loader):
            if isinstance(item, dict) and "kind" in item:
                yield path, item


def main() -> None:
    """Print every error and how many objects were held against a CRD; exit 1 where there is an error."""
    known, counts, errors = validators(Path(sys.argv[1])), dict[Key, int](), 0
    for folder in map(Path, sys.argv[2:]):
        for path, item in objects(folder):
            key = (item["apiVersion"], item["kind"])
            if key not in known:
                continue
            counts[key] = counts.get(key, 0) + 1
            for error in known[key].iter_errors(item):
                errors += 1
                print(f"{path}: {'/'.join(map(str, error.absolute_path))}: {error.message[:200]}")
    for (api, kind), count in sorted(counts.items()):
        print(f"{count} {kind} ({api})")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
