"""Hold the custom resources that ``plan deploy`` writes against their projects' full CRDs, made strict.

    python scripts/crd_check.py CHECKOUTS

CHECKOUTS has a clone of every project of SOURCES, by its name, from which the commit is read. Every object of every
(plan, engine, kind) of the tests and of examples/deploy is held against its CRD, where a field that the CRD does not
name is an error, and against the CEL rules in it (pip install cel-python==0.5.0). Writes tests/deploy/crds.json: by
kind the commit, how many objects, and the shapes that were accepted; tests/deploy/objects.py holds what is emitted
against it. Webhooks are not run.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import celpy
import yaml
from celpy.adapter import json_to_cel
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "tests/deploy/crds.json"
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Object = dict[str, Any]
UNREAD: set[str] = set()
# apiVersion, kind -> project, commit, folder of the CRD, whose file is named by its group and the kind's plural
SOURCES = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): ("lws", "060ab4d", "config/crd/bases"),
    ("batch.volcano.sh/v1alpha1", "Job"): ("volcano", "ed72c7c81", "config/crd/volcano/bases"),
    ("nvidia.com/v1beta1", "DynamoGraphDeployment"): ("dynamo", "2a6da14c8", "deploy/operator/config/crd/bases"),
    ("inference.networking.k8s.io/v1", "InferencePool"): (
        "gateway-api-inference-extension", "84436a96", "config/crd/bases",
    ),
    ("gateway.networking.k8s.io/v1", "Gateway"): ("gateway-api", "4564255ac", "config/crd/standard"),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): ("gateway-api", "4564255ac", "config/crd/standard"),
    ("resource.nvidia.com/v1beta1", "ComputeDomain"): (
        "k8s-dra-driver-gpu", "22407113", "deployments/helm/dra-driver-nvidia-gpu/crds",
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): ("keda", "8b4f083ca", "config/crd/bases"),
    ("monitoring.coreos.com/v1", "PodMonitor"): (
        "prometheus-operator", "6adcebc50", "example/prometheus-operator-crd",
    ),
}  # fmt: skip


def crd_of(api: str, kind: str) -> tuple[str, str, str]:
    """Return project, commit and file of a kind's CRD."""
    project, commit, folder = SOURCES[api, kind]
    return project, commit, f"{folder}/{api.partition('/')[0]}_{kind.lower()}s.yaml"


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


@cache
def rule(text: str) -> Any:
    """Return a CEL rule as a programme."""
    environment = celpy.Environment()
    return environment.program(environment.compile(text))


def holds(text: str, value: Any) -> bool:
    """Whether a CEL rule holds of a value; one that cel-python cannot evaluate, as of nested loops, is noted."""
    try:
        return bool(rule(text).evaluate({"self": json_to_cel(value)}))
    except celpy.CELEvalError:
        UNREAD.add(text)
        return True


def broken(schema: Object, value: Any) -> Iterator[str]:
    """Yield the CEL rules that a value breaks, defaults filled in as an API server does; rules of changes are not."""
    parts = schema.get("properties", {})
    if isinstance(value, dict):
        value = {name: part["default"] for name, part in parts.items() if "default" in part} | value
    for held in schema.get("x-kubernetes-validations", []):
        if "oldSelf" not in held["rule"] and not holds(held["rule"], value):
            yield f"{held['rule']} does not hold of {value}"
    if isinstance(value, dict):
        for name, inner in value.items():
            part = parts.get(name, schema.get("additionalProperties"))
            yield from broken(part, inner) if isinstance(part, dict) else ()
    for inner in value if isinstance(value, list) else ():
        yield from broken(schema.get("items", {}), inner)


def crd_schema(folder: Path, api: str, kind: str) -> Object:
    """Return the schema of one version of a CRD."""
    project, commit, path = crd_of(api, kind)
    text = subprocess.run(
        ["git", "-C", folder / project, "show", f"{commit}:{path}"], check=True, capture_output=True, text=True
    ).stdout
    (crd,) = (item for item in yaml.load_all(text, Loader=Loader) if item)
    (schema,) = (
        version["schema"]["openAPIV3Schema"]
        for version in crd["spec"]["versions"]
        if version["name"] == api.rpartition("/")[2]
    )
    schema["properties"]["metadata"] = {"type": "object", "additionalProperties": True}
    return schema


def objects() -> Iterator[Object]:
    """Yield the objects of every pair of the tests, with and without a site's values, and of the examples."""
    from deploy.render import render
    from deploy.site import Site
    from planner.engines.loader import load_engine
    from tests.deploy.cases import DIGEST, made, plan
    from tests.deploy.emitted import possible

    after_start = {"spec": {"leaderWorkerTemplate": {"restartPolicy": "RecreateGroupAfterStart"}}}
    site = Site.model_validate(
        {
            "prometheus": "http://p:9090",
            "topology_key": "rack",
            "patches": [{"target": {"kind": "LeaderWorkerSet"}, "merge": after_start}],
        }
    )
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "examples/deploy").rglob("*.yaml")]
    for name, engine, kind in possible():
        for files in (
            made(name, engine, kind).files,
            render(plan(name), load_engine(engine), kind, site, DIGEST).files,
        ):
            texts += [text for file, text in files.items() if file.endswith(".yaml")]
    for text in texts:
        yield from (item for item in yaml.load_all(text, Loader=Loader) if isinstance(item, dict) and "kind" in item)


def main() -> None:
    """Write what was accepted; print every error and exit 1 where there is one."""
    sys.path.insert(0, str(ROOT))
    from tests.deploy.objects import shapes

    schemas = {key: crd_schema(Path(sys.argv[1]), *key) for key in SOURCES}
    known = {key: Draft202012Validator(strict(schema)) for key, schema in schemas.items()}
    counts, accepted, errors = dict.fromkeys(SOURCES, 0), {key: set[str]() for key in SOURCES}, 0
    for item in objects():
        if (key := (item["apiVersion"], item["kind"])) not in known:
            continue
        counts[key] += 1
        accepted[key] |= set(shapes(item))
        for error in known[key].iter_errors(item):
            errors += 1
            print(f"{key[1]} {'/'.join(map(str, error.absolute_path))}: {error.message[:200]}")
        for said in broken(schemas[key], item):
            errors += 1
            print(f"{key[1]}: {said[:200]}")
    found = {
        f"{api} {kind}": {
            "crd": " ".join(crd_of(api, kind)),
            "objects": counts[api, kind],
            "shapes": sorted(accepted[api, kind]),
        }
        for api, kind in SOURCES
    }
    print(*(f"{held['objects']} {name}" for name, held in found.items()), sep="\n")
    print(*(f"not evaluated: {text}" for text in sorted(UNREAD)), sep="\n")
    if errors:
        sys.exit(1)
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
