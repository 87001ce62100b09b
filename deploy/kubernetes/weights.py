"""The weights: a claim, and a job that fetches them into it, or quantises them where the plan takes int8."""

import math
import re
from collections.abc import Iterator

from deploy.commands.launch import Target
from deploy.kubernetes.pods import driver, pod_settings, resources, security, weights_mount
from deploy.kubernetes.templates import LOCKED, objects, template
from deploy.templates import Object, filled
from deploy.words import quoted
from ground.units import GIBI
from hardware.formats import ELEMENT_BYTES
from hardware.spec import Dtype
from models.parameters import count_parameters

STEP_GIBIBYTES = 100
SPARE = 1.2
HUB = "huggingface_hub==0.36.0"
TOOL = "https://gitcode.com/Ascend/msmodelslim.git"  # ModelSlim, which writes what vLLM-Ascend, SGLang and xLLM read
HUB_PAGE = re.compile(r"https://huggingface\.co/([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(/.*)?")


def source_of(target: Target) -> str | None:
    """Return the repository that the weights come from: the site's, or the one that the model's entry was read from."""
    if target.site.model_source:
        return target.site.model_source
    found = HUB_PAGE.fullmatch(target.roles[0].model.source)
    return found[1] if found else None


def quantised(target: Target) -> list[str]:
    """Return the formats that the repository does not hold and ModelSlim makes."""
    formats = dict.fromkeys(role.setup.weights for role in target.roles)
    native = target.roles[0].model.native_dtype
    return [] if target.site.model_source else [name for name in formats if name == "int8" and name != native]


def mismatched(target: Target) -> list[str]:
    """Return the formats that neither the repository holds nor ModelSlim makes."""
    formats = dict.fromkeys(role.setup.weights for role in target.roles)
    held = {target.roles[0].model.native_dtype, "int8"}
    return [] if target.site.model_source else [name for name in formats if name not in held]


def weights(target: Target) -> Iterator[Object]:
    """Yield the claim and the job; nothing where the site has the weights, or nobody can say whence they come."""
    site, repository = target.site, source_of(target)
    if site.model_claim or site.model_host_path:
        return
    fetched = repository if repository is not None and not mismatched(target) else None
    values = _job(target, fetched) if fetched else {"settings": {}, "before": None, "container": None, "drivers": []}
    claimed = {"name": "model", "persistentVolumeClaim": {"claimName": f"{target.name}-weights"}}
    values["volumes"] = [claimed, *values.pop("drivers")]
    # Room for every format and for what is fetched, with a share for draft layers, scales and tables
    model = target.roles[0].model
    formats: set[Dtype] = {role.setup.weights for role in target.roles}
    if quantised(target):
        formats.add(model.native_dtype)
    held = sum(count_parameters(model).total * ELEMENT_BYTES[name] for name in formats)
    gibibytes = math.ceil(SPARE * held / GIBI / STEP_GIBIBYTES) * STEP_GIBIBYTES
    made = objects("weights", target, storage=f"{gibibytes}Gi", storage_class=site.storage_class, **values)
    yield next(made)
    if fetched:
        yield from made


def _job(target: Target, repository: str) -> Object:
    """Return what of the job differs: how it fetches, and quantises on one node's devices where int8 is planned."""
    converted = quantised(target)
    fetched = f"{target.model_path}-fetched" if converted else target.model_path
    values = {"mount": weights_mount(target), "locked": LOCKED}
    (form,), (conversion,) = template("fetch"), template("convert")
    command = f"pip install --quiet {HUB} && hf download {quoted(repository)} --local-dir {fetched}"
    fetch = filled(form, values | {"image": target.site.tools_image, "command": command, "token": _token(target)})
    if not converted:
        return {"settings": {"automountServiceAccountToken": False}, "before": None, "container": fetch, "drivers": []}
    role = next(role for role in target.roles if role.setup.weights == "int8")
    words = [
        f"git clone --quiet --depth 1 {TOOL} /tmp/tool",
        "cd /tmp/tool",
        "bash install.sh",
        f"msmodelslim quant --model_path {fetched} --save_path {target.weights_path(role)} --device npu "
        f"--quant_type w8a8 --model_type {quoted(repository.rpartition('/')[2])} --trust_remote_code False",
    ]
    drivers, places = driver(role)
    mounts = [{"name": "model", "mountPath": weights_mount(target)}, *places]
    own = {"resources": resources(target, role), "security": security(target, role), "mounts": mounts}
    convert = filled(conversion, values | own | {"image": target.image(role), "command": " && ".join(words)})
    settings = {key: value for key, value in pod_settings(target, role).items() if key != "priorityClassName"}
    return {"settings": settings, "before": [fetch], "container": convert, "drivers": drivers}


def _token(target: Target) -> list[Object]:
    if not target.site.token_secret:
        return []
    secret = {"name": target.site.token_secret, "key": "HF_TOKEN"}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}]
