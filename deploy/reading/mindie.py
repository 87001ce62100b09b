"""Reads MindIE's files of settings: a server's ``config.json``, and the ``user_config.json`` of MindIE Motor."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deploy.reading.engines import ascend_replicas
from deploy.reading.found import BATCH, LENGTH, Found
from ground.errors import BadInput
from planner.engines.spec import RoleName

Object = dict[str, Any]
CONFIG = "MIES_CONFIG_JSON_PATH"
ENVIRONMENT = "mindie_env.json"


def is_settings(text: str) -> bool:
    """Whether a text is one of the files that are read here."""
    return text.lstrip().startswith("{") and ('"BackendConfig"' in text or '"deploy_config"' in text)


def of_settings(text: str, beside: Mapping[str, str]) -> Iterator[Found]:
    """Yield the roles of either file; ``beside`` has Motor's environment and the expert maps."""
    held: Object = json.loads(text)
    if "deploy_config" not in held:
        yield server("server", text, {}, beside)
        return
    deploy, told = held["deploy_config"], json.loads(beside.get(ENVIRONMENT, "{}"))
    for role, letter in (("prefill", "p"), ("decode", "d")):
        own = told.get(f"mindie_server_{role}_env", {})
        found = server(
            role,
            json.dumps(held[f"mindie_server_{role}_config"]),
            {name: str(value) for name, value in own.items()},
            beside,
            role="prefill" if role == "prefill" else "decode",
            instances=deploy[f"{letter}_instances_num"],
            nodes=deploy[f"single_{letter}_instance_pod_num"],
        )
        if found.devices != found.nodes * deploy[f"{letter}_pod_npu_num"]:
            raise BadInput(f"SOURCE: {role}: its pods have other devices than its dp * tp of {found.devices}")
        yield found


def server(
    name: str,
    text: str,
    environment: Mapping[str, str],
    beside: Mapping[str, str],
    *,
    role: RoleName = "mixed",
    instances: int = 1,
    nodes: int | None = None,
    kubernetes: bool = False,
) -> Found:
    """Return the role that a ``config.json`` sets up; -1 stands for what MindIE works out itself."""
    held: Object = json.loads(text)
    backend = held["BackendConfig"]
    model = backend["ModelDeployConfig"]["ModelConfig"][0]
    world = model["worldSize"]
    dp = max(model.get("dp", 1), 1)
    tp = model["tp"] if model.get("tp", -1) > 0 else max(world // dp, 1)
    ep = max(model.get("moe_ep", 1), 1)
    if model.get("cp", 1) > 1:
        raise BadInput(f"SOURCE: {name}: cp {model['cp']}: no plan here cuts a prompt over devices")
    degrees = {"dp": dp, "tp": tp, "cp": 1, "pp": 1, "moe_ep": ep, "moe_tp": dp * tp // ep}
    deepseek = dict(model.get("models", {}).get("deepseekv2", {}))
    eplb = deepseek.pop("eplb", {})
    path = eplb.get("expert_map_file", "") if eplb.get("level") == 1 else ""
    held["BackendConfig"]["ModelDeployConfig"]["ModelConfig"] = [model | degrees | {"models": {"deepseekv2": deepseek}}]
    held["BackendConfig"]["ScheduleConfig"] = {"distributedEnable": False} | backend["ScheduleConfig"]
    held["ServerConfig"] = {"inferMode": "standard"} | held.get("ServerConfig", {})
    buffer = deepseek.get("parallel_options", {}).get("hccl_moe_ep_buffer")  # goes before the variable
    replicas = ascend_replicas(path, beside)
    return Found(
        name=name,
        role=role,
        engine="mindie",
        model=model["modelWeightPath"],
        instances=instances,
        nodes=nodes or -(-dp * tp // len(backend["npuDeviceIds"][0])),
        devices=dp * tp,
        flags={
            "config": json.dumps(held),
            "--served-model-name": model["modelName"],
            LENGTH["mindie"]: str(backend["ModelDeployConfig"]["maxSeqLen"]),
            BATCH["mindie"]: str(backend["ScheduleConfig"]["maxBatchSize"]),
        },
        environment={**environment, **({"HCCL_BUFFSIZE": str(buffer)} if buffer else {})},
        limits={},
        capabilities=(),
        assumed=(f"no replicas: {path} is not here",) if path and replicas is None else (),
        unknown=(),
        kubernetes=kubernetes,
        replicas=replicas,
    )
