"""Reads deployments that others wrote: Kubernetes objects, llm-d's reports, scripts, commands, MindIE's settings.

Scripts are searched for the engine's command; variables are filled in where the object says them.
"""

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.reading.engines import ascend_replicas
from deploy.reading.flags import TABLES, Flags, table_key, unknown_flags, unknown_options
from deploy.reading.found import DEFAULTS, DEGREES, OPTIONS, SHARE, STATED, Found, family_of
from deploy.reading.lines import COMMANDS, canonical, commands
from deploy.reading.mindie import CONFIG, is_settings, of_settings, server
from deploy.reading.nodes import BREAK, counted, read_documents
from ground.archives import unbroken
from ground.errors import BadInput
from ground.files import parse_yaml, read_text
from ground.units import read_index
from planner.engines.spec import RoleName

Object = dict[str, Any]
DEVICES = re.compile(r"((?:nvidia|amd)\.com/gpu|huawei\.com/[A-Za-z0-9_-]+)\Z")
ASCEND = re.compile(r"huawei|HCCL_|ASCEND_|ascend\Z")  # of resources, variables and quantisation
PLACES = re.compile(
    r"(data-parallel-(address|rpc-port|start-rank|rank|size-local|hybrid-lb|external-lb)|node[-_]rank|nnodes|dist-init-addr"
    r"|master[-_](node_)?(addr|port))"
)
SETTINGS = ("--extra_llm_api_options", "--extra-engine-args", "--config")
NOTHING: Mapping[str, str] = {}
STARTS = re.compile(r"^# Starts one node of the role (\S+)\.", re.MULTILINE)
HOSTS = re.compile(r"\tbash (\S+)\.sh \d+ (\d+)$", re.MULTILINE)
PLACE = {"NODE_RANK": "0", "FIRST_DEVICE": "0", "DEVICE": "0"}  # of the first process


def read_source(source: str, beside: Mapping[str, str] = NOTHING) -> list[Found]:
    """Return the roles of a file of Kubernetes objects or scripts, or of a command line, prefill first.

    ``beside`` has the settings that commands may name: the text of files by name.

    BadInput where there is no engine that is read here.
    """
    path = Path(source)
    named = os.path.isfile(source)  # not Path.is_file, which raises at names that are too long
    text = read_text(path) if named else source
    if not named and " " not in source.strip():
        raise BadInput(f"SOURCE: {source[:60]}: no such file; give a YAML file, a script, or a command line in quotes")
    with unbroken("SOURCE: holds an object or a command that is not as its kind has it, so that it cannot be read"):
        reported = named and path.suffix.lower() in (".yaml", ".yml", ".json") and "inference_engine" in text
        objects = re.search(r"^(kind:|\s*\"kind\":)", text, re.MULTILINE)
        read = of_settings if is_settings(text) else _of_objects if objects else _of_script
        found = list(_of_report(text) if reported else read(text, beside))
    if not found:
        known = ", ".join(COMMANDS)
        raise BadInput(f"SOURCE: {source[:60]!r} has no command that is read here: {known}")
    return sorted(_paired(_merged(found)), key=lambda role: role.role != "prefill")


def _paired(found: list[Found]) -> list[Found]:
    """Return roles as they stand together: what is beside prefill decodes, and decode alone is aggregated.

    Dynamo's decode workers may say nothing of it, and a cache that is offloaded is no transfer.
    """
    roles = {role.role for role in found}
    if roles == {"prefill", "mixed"}:
        return [replace(role, role="decode") if role.role == "mixed" else role for role in found]
    if roles == {"decode"} and len(found) == 1:
        return [replace(role, role="mixed", assumed=(*role.assumed, "prompts, too: no prefill")) for role in found]
    return found


def _merged(found: Sequence[Found]) -> list[Found]:
    """Return roles of which every instance is an object of its own as one role: name-0, name-1 and so on."""
    held: dict[str, Found] = {}
    for role in found:
        name = re.sub(r"-\d+$", "", role.name) if role.kubernetes else role.name
        own = re.compile(re.escape(name) + r"-\d+") if role.name != name else re.compile(r"\Z.")
        plain = {key: own.sub(name, value) for key, value in role.environment.items()}  # addresses of instances
        role = replace(role, name=name, environment=plain)
        first = held.get(name)
        if first is not None and replace(first, instances=role.instances) == role:
            role = replace(role, instances=first.instances + role.instances)
        elif first is not None:
            name = f"{name} ({len(held) + 1})"
        held[name] = replace(role, name=name)
    return list(held.values())


def _of_report(text: str) -> Iterator[Found]:
    """Yield the engines that llm-d's report (0.2) says it measured; its own degrees count where flags say none."""
    parts = [part for item in read_documents(text, "SOURCE") for part in item["scenario"]["stack"]]
    for part in (part for part in parts if part["standardized"].get("kind") == "inference_engine"):
        held, ran = part["standardized"], part.get("native") or {}
        given = {f"--{str(name).lstrip('-')}": value for name, value in (ran.get("args") or {}).items()}
        mark = "sglang.launch_server" if {"--tp-size", "--tp", "--model-path"} & given.keys() else "vllm serve"
        engine, degrees = COMMANDS[mark], held["accelerator"].get("parallelism") or {}
        known = canonical(engine, [*given])
        given |= {name: degrees[key] for name, key in STATED[engine].items() if name not in known and degrees.get(key)}
        if engine == "vllm" and (degrees.get("ep") or 1) > 1:
            given["--enable-expert-parallel"] = None
        given.setdefault("--model-path" if engine == "sglang" else "--model", held["model"]["name"])
        words = [mark, *(word for name, value in given.items() for word in _words(name, value))]
        label = (part.get("metadata") or {}).get("label") or f"component {parts.index(part) + 1}"
        environment = {str(key): str(value) for key, value in (ran.get("envars") or {}).items()}
        instances, count = held["replicas"], _count(held["accelerator"]["count"], "accelerator.count")
        role = _found(label, words, environment, instances=_count(instances, "replicas"), nodes=None, container=None)
        own: RoleName = held["role"] if held["role"] in ("prefill", "decode") else "mixed"
        if role is not None:
            yield replace(role, role=own, nodes=-(-role.devices // count))


def _words(name: str, value: object) -> list[str]:
    """Return the words of a flag whose value is of YAML."""
    if value is None or value is True:
        return [name]
    return [name, json.dumps(value) if isinstance(value, dict | list) else str(value)]


def _of_script(text: str, beside: Mapping[str, str]) -> Iterator[Found]:
    """Yield the roles of a script or a command line: one for each command of an engine.

    Scripts of plan deploy name theirs, and its table of hosts has a row for the head of every instance.
    """
    names, hosts = STARTS.findall(text), [(name, int(rank)) for name, rank in HOSTS.findall(text)]
    started = Counter(name for name, rank in hosts if rank == 0)
    nodes = {name: rank + 1 for name, rank in sorted(hosts, key=lambda host: host[1])}
    ran = (each for script in BREAK.split(text) for each in commands(script, PLACE))  # variables are a script's own
    for number, (words, environment) in enumerate(ran):
        name = names[number] if number < len(names) else f"command {number + 1}"
        own, count = nodes.get(name), started[name] or 1
        held = _found(name, words, environment, instances=count, nodes=own, container=None, texts=beside)
        if held is not None:
            yield held


def _of_objects(text: str, beside: Mapping[str, str]) -> Iterator[Found]:
    items = read_documents(text, "SOURCE")
    files = {
        (str(item["metadata"]["name"]), name): str(content)
        for item in items
        if item.get("kind") == "ConfigMap"
        for name, content in (item.get("data") or {}).items()
    }
    for item in items:
        for name, template, instances, nodes in _templates(item):
            spec = template.get("spec") or template
            own = {(held.get("configMap") or {}).get("name") for held in spec.get("volumes") or []}
            near = sorted(files, key=lambda key: key[0] in own)  # of files of one name, that of the pod's volumes
            texts = {**beside, **{key[1]: files[key] for key in near}}
            for container in spec.get("containers") or [spec.get("mainContainer") or {}]:
                stated = {entry["name"]: str(entry["value"]) for entry in _environment(item, template, container)}
                scope = {"LWS_GROUP_SIZE": str(nodes), "LWS_WORKER_INDEX": "0", "NODE_RANK": "0", **stated}
                for command, environment in commands(_ran(container, texts), scope):
                    held = _found(
                        str(name),
                        command,
                        stated | environment,
                        instances=_count(instances, "replicas"),
                        nodes=_count(nodes, "size"),
                        container=container,
                        texts=texts,
                    )
                    if held is not None:
                        yield held


def _environment(item: Object, template: Object, container: Object) -> Iterator[Object]:
    """Yield the variables of a container that have values, Dynamo's for a whole graph and for a service first."""
    whole = item["spec"] if item.get("kind") == "DynamoGraphDeployment" else {}
    for held in (whole.get("env"), whole.get("envs"), template.get("envs"), container.get("env")):
        yield from (entry for entry in held or [] if "value" in entry)


def _count(value: object, what: str) -> int:
    """Return a number of instances or nodes; BadInput where it is none that a cluster has."""
    try:
        return counted(value)
    except ValueError as error:
        raise BadInput(f"SOURCE: {what}: {error}") from None


def _ran(container: Object, texts: Mapping[str, str]) -> str:
    """Return the text of what a container runs: a script that a ConfigMap holds, one that stands there, or words."""
    started = container.get("command") or [container.get("image", "")]  # whose entry point may be an engine's
    words = [str(word) for word in (*started, *(container.get("args") or ()))]
    named = [word.rpartition("/")[2] for word in words]
    held = next((texts[name] for name in named if name.endswith(".sh") and name in texts), None)
    if held is not None:
        return held
    return "\n".join(words) if words and words[0].endswith("sh") else shlex.join(words)


def _templates(item: Object) -> Iterator[tuple[str, Object, int, int]]:
    """Yield (role's name, pod template, instances, nodes of each) of an object that holds pods."""
    spec, kind = item.get("spec") or {}, item.get("kind")
    name = str((item.get("metadata") or {}).get("name", kind))
    if kind == "LeaderWorkerSet":
        group = spec["leaderWorkerTemplate"]
        template = group.get("leaderTemplate") or group["workerTemplate"]
        yield name, template, spec.get("replicas", 1), group.get("size", 1)
    elif kind == "DisaggregatedSet":
        for role in spec.get("roles") or []:
            own = role.get("spec") or {}
            each, slices = _count(own.get("replicas", 1), "replicas"), _count(spec.get("slices", 1), "slices")
            own = own | {"replicas": each * slices}  # a slice has every role once more
            yield from _templates({"kind": "LeaderWorkerSet", "metadata": {"name": role["name"]}, "spec": own})
    elif kind == "Job" and spec.get("tasks"):  # batch.volcano.sh: an instance is a job, its head the first task
        yield name, spec["tasks"][0]["template"], 1, sum(task.get("replicas", 1) for task in spec["tasks"])
    elif kind in ("Deployment", "StatefulSet", "Pod"):
        yield name, item if kind == "Pod" else spec["template"], spec.get("replicas", 1), 1
    elif kind == "DynamoGraphDeployment":
        for part in spec.get("components") or []:
            nodes = (part.get("multinode") or {}).get("nodeCount", 1)
            yield part["name"], part.get("podTemplate") or {}, part.get("replicas", 1), nodes
        for own, part in (spec.get("services") or {}).items():  # nvidia.com/v1alpha1
            nodes = (part.get("multinode") or {}).get("nodeCount", 1)
            pod = part.get("extraPodSpec") or {}
            limits = (part.get("resources") or {}).get("limits") or {}
            if "gpu" in limits:
                limits = {"nvidia.com/gpu": limits["gpu"], **(limits.get("custom") or {})}
                pod = pod | {"mainContainer": {**pod.get("mainContainer", {}), "resources": {"limits": limits}}}
            yield own, pod | {"envs": part.get("envs")}, part.get("replicas", 1), nodes


def _found(
    name: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    instances: int,
    nodes: int | None,
    container: Object | None,
    texts: Mapping[str, str] = NOTHING,
) -> Found | None:
    """Return the role that a command is; None for a front end without a device. ``texts`` are files beside it."""
    container = container or {}
    held = {key: str(value) for key, value in ((container.get("resources") or {}).get("limits") or {}).items()}
    engine = COMMANDS[words[0]]
    if engine == "mindie":
        text = _text(name, environment.get(CONFIG, "config.json"), texts)
        return server(name, text, environment, texts, instances=instances, nodes=nodes, kubernetes=bool(container))
    given = canonical(engine, words[1:])
    settings = _settings(name, given, texts)
    if engine != "trtllm" and settings:
        stated = [word for key, value in settings.items() for word in _words(f"--{key}", value)]
        given = canonical(engine, stated) | given
    engine = "vllm-ascend" if engine == "vllm" and _on_ascend(given, (*held, *environment)) else engine
    family = family_of(engine)
    model = _model(words, given)
    if model is None:
        return None
    role, unknown = _role(name, given, settings or {}), list[str]()
    key = table_key(engine, "dynamo" if words[0].startswith("dynamo") else "bare", words)
    if engine == "trtllm":
        given, unknown = _options(given, settings or {}, role)
    else:
        unknown = unknown_flags(key, given)
    total = _total(family, given)
    granted = next((int(value) for key, value in held.items() if DEVICES.match(key)), None)
    nodes = nodes or int(given.get("--nnodes") or 1)
    if granted is not None and granted * nodes < total:
        nodes = -(-total // granted)
        instances = max(instances // nodes, 1)  # the replicas of a StatefulSet are then an instance's nodes
    own = {key: value for key, value in given.items() if not PLACES.search(key)}
    defaults = _defaults(family, own)
    placed = json.loads(given.get("--additional-config") or "{}").get("eplb_config") or {}  # of vLLM-Ascend
    return Found(
        name=name,
        role=role,
        engine=engine,
        model=model,
        instances=instances,
        nodes=nodes,
        devices=total if granted is None else max(total, granted * nodes),
        flags={**own, **defaults},
        environment=environment,
        limits=held,
        capabilities=tuple(((container.get("securityContext") or {}).get("capabilities") or {}).get("add") or ()),
        assumed=tuple(f"{key} {value}" for key, value in defaults.items()),
        unknown=tuple(unknown),
        release=TABLES[key][-1].rpartition("-")[2],
        kubernetes=bool(container),
        replicas=ascend_replicas(str(placed.get("expert_map_path") or ""), texts),
    )


def _on_ascend(given: Flags, names: Sequence[str]) -> bool:
    """Whether flags, or names of resources and variables, are those of NPUs."""
    signs = (*names, given.get("--quantization") or "")
    return "--additional-config" in given or any(ASCEND.match(sign) for sign in signs)


def _model(words: Sequence[str], given: Flags) -> str | None:
    """Return the model that a command serves; None where it serves none, as TensorRT-LLM's orchestrator."""
    model = given.get("--model") or given.get("--model-path") or given.get("--served-model-name")
    if words[0] in ("vllm serve", "trtllm-serve") and len(words) > 1 and not words[1].startswith("-"):
        model = words[2] if words[1] == "serve" and len(words) > 2 else words[1]
    return None if model == "disaggregated" else model


def _defaults(family: str, given: Flags) -> dict[str, str]:
    """Return the engine's own limits where a command states none, for all ranks of an instance."""
    found = {key: value for key, value in DEFAULTS[family].items() if key not in given}
    most, chunk = "--max-running-requests", "--chunked-prefill-size"
    ranks = max(int(given.get("--attn-dp-size") or given.get("--dp-size") or 1), 1)
    if most in found:  # of a rank, as graphs are
        found[most] = str(int(found[most]) * ranks)
    if chunk in found:  # SGLang divides it and leaves the rest
        found[chunk] = str(int(found[chunk]) // ranks * ranks)
    return found


def _text(name: str, path: str, texts: Mapping[str, str]) -> str:
    """Return a file beside a command that reads it."""
    text = texts.get(path.rpartition("/")[2])
    if text is None:
        raise BadInput(f"SOURCE: {name} reads {path[:60]}, which is not here; give a folder that has it")
    return text


def _settings(name: str, flags: Flags, texts: Mapping[str, str]) -> Object | None:
    """Return what the file of settings says that a command names; None where it names none."""
    path = next((flags[flag] for flag in SETTINGS if flags.get(flag)), None)
    if path is None:
        return None
    held = parse_yaml(_text(name, path, texts), path)
    if not isinstance(held, dict):
        raise BadInput(f"SOURCE: {path[:60]}: must be a mapping of settings")
    return held


def _options(flags: Flags, settings: Object, role: RoleName) -> tuple[Flags, list[str]]:
    """Return TensorRT-LLM's LLM arguments, those of its file before flags, with its defaults, and what is unknown."""
    held: Object = {key: default for key, (_, default) in OPTIONS.items() if default is not None}
    for key, (names, _) in OPTIONS.items():
        stated = next((value for name in names.split() if (value := flags.get(name))), None)
        held |= {} if stated is None else {key: int(stated)}
    held |= {key: value for key, value in settings.items() if value is not None}
    share = float(flags.get("--free-gpu-memory-fraction") or 0.9)
    cache: Object = {"free_gpu_memory_fraction": share} | held.get("kv_cache_config", {})
    cache["free_gpu_memory_fraction"] = float(cache["free_gpu_memory_fraction"])
    for key in OPTIONS.keys() & held.keys():
        if type(held[key]) is not int or held[key] < 1:
            raise BadInput(f"SOURCE: {key} is {str(held[key])[:20]!r}; it must be a whole number above 0")
    read = {key: held[key] for key in OPTIONS if key in held}
    read |= {"enable_attention_dp": held.get("enable_attention_dp", False), "kv_cache_config": cache}
    if ep := held.get("moe_expert_parallel_size"):
        read["moe_tensor_parallel_size"] = held.get("moe_tensor_parallel_size", held["tensor_parallel_size"] // ep)
    if isinstance(balancer := held.get("moe_config", {}).get("load_balancer"), dict):
        read["moe_config"] = {"load_balancer": balancer}
    drafting = held.get("speculative_config", {})
    if drafting.get("decoding_type") == "MTP":
        read["speculative_config"] = {"num_nextn_predict_layers": int(drafting.get("num_nextn_predict_layers", 1))}
    else:  # a draft model, which is not priced
        settings = {key: value for key, value in settings.items() if key != "speculative_config"}
    if role != "mixed":
        read |= {"cache_transceiver_config": {}, "disable_overlap_scheduler": role == "prefill"}
    told: Flags = {key: str(read[key]) for key in OPTIONS if key in read}
    told |= {"options": json.dumps(read), SHARE["trtllm"]: str(cache["free_gpu_memory_fraction"])}
    return told | {"--kv-cache-dtype": str(cache.get("dtype", "auto"))}, unknown_options(settings)


def _total(family: str, flags: Flags) -> int:
    """Return the devices of an instance by its degrees."""
    total = 1
    for name in DEGREES[family].split():
        value = flags.get(name) or "1"
        degree = read_index(value)
        if not degree:
            raise BadInput(f"{name}: {value[:20]!r} is not a number of devices")
        total *= degree
    return _count(total, "the product of the parallel degrees")


def _role(name: str, flags: Flags, settings: Object) -> RoleName:
    """Return what a role does: by its flags or settings, else by its name."""
    mode = flags.get("--disaggregation-mode") or (flags.get("--instance_role") or "").lower()
    transfer = flags.get("--kv-transfer-config") or ""
    for role, sign, letters in (("prefill", "kv_producer", "prefill"), ("decode", "kv_consumer", "decode")):
        if mode == role or sign in transfer or ((transfer or mode) and letters in name.lower()):
            return "prefill" if role == "prefill" else "decode"
    if "--encoder-only" in flags or "ec_producer" in (flags.get("--ec-transfer-config") or ""):
        return "encode"
    if "--is-prefill-worker" in flags:
        return "prefill"
    if "cache_transceiver_config" in settings:  # TensorRT-LLM's orchestrator alone knows, but for its overlap
        return "prefill" if settings.get("disable_overlap_scheduler") else "decode"
    return "mixed"
