"""Reads deployments that others wrote: Kubernetes objects, llm-d's reports, commands of vLLM, vLLM-Ascend and SGLang.

Scripts are searched for the engine's command; variables are filled in where the object says them. Limits that a
command leaves out are the engine's own defaults, and are told as assumed.
"""

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deploy.reading.engines import READERS, Counted
from deploy.reading.flags import TABLES, Flags, read_flags, table, table_key, unknown_flags
from deploy.reading.nodes import Node, counted, read_documents
from deploy.reading.shell import Process, UnknownForm, arithmetic
from ground.archives import unbroken
from ground.errors import BadInput
from ground.files import read_text
from ground.units import read_index
from planner.engines.spec import RoleName

Object = dict[str, Any]
COMMANDS = {
    "vllm serve": "vllm",
    "vllm.entrypoints.openai.api_server": "vllm",
    "sglang.launch_server": "sglang",
    "dynamo.vllm": "vllm",
    "dynamo.sglang": "sglang",
}
DEVICES = re.compile(r"((?:nvidia|amd)\.com/gpu|huawei\.com/[A-Za-z0-9_-]+)\Z")
PLACES = re.compile(
    r"(data-parallel-(address|rpc-port|start-rank|rank|size-local|hybrid-lb|external-lb)|node-rank|nnodes|dist-init-addr)"
)
SHORT = {"-tp": "--tensor-parallel-size", "-dp": "--data-parallel-size", "-pp": "--pipeline-parallel-size"}
SHORT |= {"--tp": "--tp-size", "--dp": "--dp-size", "--ep": "--ep-size", "--pp": "--pp-size"}
# vllm/engine/arg_utils.py 0.33.0 on devices of 70 to 160 GB; sglang srt/arg_groups/memory_hook.py 0.5.23.
DEFAULTS = {
    "vllm": {"--max-num-seqs": "1024", "--max-num-batched-tokens": "8192", "--gpu-memory-utilization": "0.92"},
    "sglang": {"--max-running-requests": "256", "--chunked-prefill-size": "8192", "--mem-fraction-static": "0.85"},
}
STATED = {
    "vllm": {"--tensor-parallel-size": "tp", "--data-parallel-size": "dp", "--pipeline-parallel-size": "pp"},
    "sglang": {"--tp-size": "tp", "--pp-size": "pp", "--ep-size": "ep"},
}
LENGTH = {"vllm": "--max-model-len", "sglang": "--context-length"}
STARTS = re.compile(r"^# Starts one node of the role (\S+)\.", re.MULTILINE)
HEADS = re.compile(r"\tbash (\S+)\.sh \d+ 0$", re.MULTILINE)
PARSED = {"--enable-dp-attention"}  # deprecated, and read all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One role of a deployment as its files say it; ``devices`` of one instance."""

    name: str
    role: RoleName
    engine: str
    model: str
    instances: int
    nodes: int
    devices: int
    flags: Flags
    environment: Mapping[str, str]
    limits: Mapping[str, str]
    capabilities: tuple[str, ...]
    assumed: tuple[str, ...]
    unknown: tuple[str, ...]
    kubernetes: bool

    def counted(self, experts: int, longest: int) -> Counted:
        """Return what an instance is; ``longest`` where the command states no length. BadInput if it cannot be."""
        words = [word for name, value in self.flags.items() for word in ([name] if value is None else [name, value])]
        if LENGTH[_family(self.engine)] not in self.flags:
            words += [LENGTH[_family(self.engine)], str(longest)]
        node = Node(self.name, 0, 0, self.devices, (Process(tuple(words), dict(self.environment)),))
        try:
            return READERS[self.engine]([node], experts, None)
        except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            raise BadInput(f"{self.name}: its command does not add up: {error}") from None


def read_source(source: str) -> list[Found]:
    """Return the roles of a file of Kubernetes objects or scripts, or of a command line, prefill first.

    BadInput where there is no engine that is read here.
    """
    path = Path(source)
    named = os.path.isfile(source)  # not Path.is_file, which raises at names that are too long
    text = read_text(path) if named else source
    if not named and " " not in source.strip():
        raise BadInput(f"SOURCE: {source[:60]}: no such file; give a YAML file, a script, or a command line in quotes")
    with unbroken("SOURCE: holds an object or a command that is not as its kind has it, so that it cannot be read"):
        reported = named and path.suffix.lower() in (".yaml", ".yml", ".json") and "inference_engine" in text
        objects = re.search(r"^kind:", text, re.MULTILINE)
        found = list((_of_report if reported else _of_objects if objects else _of_script)(text))
    if not found:
        known = ", ".join(COMMANDS)
        raise BadInput(f"SOURCE: {source[:60]!r} has no command that is read here: {known}")
    return sorted(_merged(found), key=lambda role: role.role != "prefill")


def _merged(found: Sequence[Found]) -> list[Found]:
    """Return roles of which every instance is an object of its own as one role: name-0, name-1 and so on."""
    held: dict[str, Found] = {}
    for role in found:
        name = re.sub(r"-\d+$", "", role.name) if role.kubernetes else role.name
        plain = {key: value.replace(role.name, name) for key, value in role.environment.items()}  # its address
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
    parts = [part for item in read_documents(text) for part in item["scenario"]["stack"]]
    for part in (part for part in parts if part["standardized"].get("kind") == "inference_engine"):
        held, ran = part["standardized"], part.get("native") or {}
        given = {f"--{str(name).lstrip('-')}": value for name, value in (ran.get("args") or {}).items()}
        mark = "sglang.launch_server" if {"--tp-size", "--tp", "--model-path"} & given.keys() else "vllm serve"
        engine, degrees = COMMANDS[mark], held["accelerator"].get("parallelism") or {}
        known = _canonical(engine, [*given])
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


def _of_script(text: str) -> Iterator[Found]:
    """Yield the roles of a script or a command line: one for each command of an engine.

    Scripts of plan deploy name theirs, and its table of hosts has a row for the head of every instance.
    """
    names, started = STARTS.findall(text), Counter(HEADS.findall(text))
    for number, (words, environment) in enumerate(_commands(text, {})):
        name = names[number] if number < len(names) else f"command {number + 1}"
        held = _found(name, words, environment, instances=started[name] or 1, nodes=None, container=None)
        if held is not None:
            yield held


def _of_objects(text: str) -> Iterator[Found]:
    items = read_documents(text)
    scripts = {
        name: content
        for item in items
        if item.get("kind") == "ConfigMap"
        for name, content in (item.get("data") or {}).items()
        if name.endswith(".sh")
    }
    for item in items:
        for name, template, instances, nodes in _templates(item):
            spec = template.get("spec") or {}
            for container in spec.get("containers") or [template.get("mainContainer") or {}]:
                stated = {
                    entry["name"]: str(entry["value"]) for entry in container.get("env") or [] if "value" in entry
                }
                scope = {"LWS_GROUP_SIZE": str(nodes), "LWS_WORKER_INDEX": "0", "NODE_RANK": "0", **stated}
                for command, environment in _commands(_ran(container, scripts), scope):
                    held = _found(
                        str(name),
                        command,
                        stated | environment,
                        instances=_count(instances, "replicas"),
                        nodes=_count(nodes, "size"),
                        container=container,
                    )
                    if held is not None:
                        yield held


def _count(value: object, what: str) -> int:
    """Return a number of instances or nodes; BadInput where it is none that a cluster has."""
    try:
        return counted(value)
    except ValueError as error:
        raise BadInput(f"SOURCE: {what}: {error}") from None


def _ran(container: Object, scripts: Mapping[str, str]) -> str:
    """Return the text of what a container runs: a script that a ConfigMap holds, one that stands there, or words."""
    words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    named = [word.rpartition("/")[2] for word in words]
    held = next((scripts[name] for name in named if name in scripts), None)
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
            own = own | {"replicas": own.get("replicas", 1) * spec.get("slices", 1)}  # a slice has every role once more
            yield from _templates({"kind": "LeaderWorkerSet", "metadata": {"name": role["name"]}, "spec": own})
    elif kind == "Job" and spec.get("tasks"):  # batch.volcano.sh: an instance is a job, its head the first task
        yield name, spec["tasks"][0]["template"], 1, sum(task.get("replicas", 1) for task in spec["tasks"])
    elif kind in ("Deployment", "StatefulSet"):
        yield name, spec["template"], spec.get("replicas", 1), 1
    elif kind == "DynamoGraphDeployment":
        for part in spec.get("components") or []:
            nodes = (part.get("multinode") or {}).get("nodeCount", 1)
            yield part["name"], part.get("podTemplate") or {}, part.get("replicas", 1), nodes
        for own, part in (spec.get("services") or {}).items():  # nvidia.com/v1alpha1
            nodes = (part.get("multinode") or {}).get("nodeCount", 1)
            pod = part.get("extraPodSpec") or {}
            limits = (part.get("resources") or {}).get("limits") or {}
            if "gpu" in limits:
                pod = {
                    "mainContainer": {
                        **pod.get("mainContainer", {}),
                        "resources": {"limits": {"nvidia.com/gpu": limits["gpu"]}},
                    }
                }
            yield own, pod, part.get("replicas", 1), nodes


def _commands(text: str, given: Mapping[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield every engine command in a text as words, with the variables set before it, filled in where known."""
    joined = re.sub(r"\\\r?\n\s*", " ", text)
    joined = re.sub(r"(?<!\n)\n(?=--)", " ", joined)  # arguments listed one a line
    scope, own = dict(given), dict[str, str]()
    for line in joined.splitlines():
        assigned = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(\S*)\s*$", line)
        if assigned:
            own[assigned[1]] = _filled(assigned[2].strip("\"'"), scope)
            scope = {**own, **scope}
        start = min((at for mark in COMMANDS if (at := line.find(mark)) >= 0), default=-1)
        if start < 0 or line.lstrip().startswith("#"):
            continue
        mark = next(mark for mark in COMMANDS if line.startswith(mark, start))
        try:
            words = shlex.split(_filled(line[start + len(mark) :], scope), comments=True)
        except ValueError as error:
            raise BadInput(f"SOURCE: a command cannot be split into words: {error}") from None
        end = next(
            (n for n, word in enumerate(words) if word in ("&", "|", "||", "&&", ";") or word.startswith((">", "2>"))),
            len(words),
        )
        yield [mark, *words[:end]], dict(own)


def _filled(text: str, scope: Mapping[str, str]) -> str:
    """Return text with ``$((…))``, ``${NAME:-…}`` and ``$NAME`` filled in; what is not known stays."""

    def name(found: re.Match[str]) -> str:
        return scope.get(found[1] or found[3], found[2] if found[2] is not None else found[0])

    def computed(found: re.Match[str]) -> str:
        try:
            return str(arithmetic(found[1], scope))
        except (UnknownForm, ValueError, ZeroDivisionError):
            return found[0]

    text = re.sub(r"\$\(\((.*?)\)\)", computed, text)
    return re.sub(r"\$(?:\{([A-Za-z_]\w*)(?::-([^}]*))?\}|([A-Za-z_]\w*))", name, text)


def _family(engine: str) -> str:
    return "sglang" if engine == "sglang" else "vllm"


def _found(
    name: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    instances: int,
    nodes: int | None,
    container: Object | None,
) -> Found | None:
    """Return the role that a command is; None for a front end without a device."""
    container = container or {}
    held = {key: str(value) for key, value in ((container.get("resources") or {}).get("limits") or {}).items()}
    engine = COMMANDS[words[0]]
    given = _canonical(engine, words[1:])
    if engine == "vllm" and ("--additional-config" in given or any(key.startswith("huawei") for key in held)):
        engine = "vllm-ascend"
    family = _family(engine)
    model = given.get("--model") or given.get("--model-path") or given.get("--served-model-name")
    if words[0] == "vllm serve" and len(words) > 1 and not words[1].startswith("-"):
        model = words[1]
    if model is None:
        return None
    total = _total(family, given)
    granted = next((int(value) for key, value in held.items() if DEVICES.match(key)), None)
    nodes = nodes or int(given.get("--nnodes") or 1)
    if granted is not None and granted * nodes < total:
        nodes = -(-total // granted)
        instances = max(instances // nodes, 1)  # the replicas of a StatefulSet are then an instance's nodes
    own = {key: value for key, value in given.items() if not PLACES.search(key)}
    kind = "dynamo" if words[0].startswith("dynamo") else "bare"
    defaults = {key: value for key, value in DEFAULTS[family].items() if key not in own}
    if "--max-running-requests" in defaults:  # of a rank, as graphs are
        ranks = own.get("--attn-dp-size") or own.get("--dp-size") or "1"
        defaults |= {name: str(int(defaults[name]) * int(ranks)) for name in ("--max-running-requests",)}
    return Found(
        name=name,
        role=_role(name, own),
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
        unknown=tuple(name for name in unknown_flags(table_key(engine, kind, words), given) if name not in PARSED),
        kubernetes=bool(container),
    )


def _canonical(engine: str, words: Sequence[str]) -> Flags:
    """Return flags under their first names: dashes for underscores, aliases and short forms spelt out."""
    aliases = dict(SHORT)
    for part in TABLES[engine]:
        for first, facts in table(part)["flags"].items():
            aliases |= {alias: first for alias in facts.get("aliases", [])}
    spelt = []
    for word in words:
        first, equals, value = word.partition("=")
        if re.fullmatch(r"--?[a-z][a-z0-9_-]*", first):
            first = aliases.get(first, aliases.get(first.replace("_", "-"), first.replace("_", "-")))
        spelt.append(f"{first}{equals}{value}")
    return {name: _known(value) for name, value in read_flags(spelt).items()}


def _known(value: str | None) -> str | None:
    """Return a value; one that still holds a variable is none, so that what needs it says so."""
    return None if value is not None and value.startswith("$") else value


def _total(family: str, flags: Flags) -> int:
    """Return the devices of an instance by its degrees."""
    names = ("tp", "pp") if family == "sglang" else ("tensor-parallel", "pipeline-parallel", "data-parallel")
    total = 1
    for name in names:
        value = flags.get(f"--{name}-size") or "1"
        degree = read_index(value)
        if not degree:
            raise BadInput(f"--{name}-size: {value[:20]!r} is not a number of devices")
        total *= degree
    return _count(total, "the product of the parallel degrees")


def _role(name: str, flags: Flags) -> RoleName:
    """Return what a role does: by its flags, else by its name."""
    mode = flags.get("--disaggregation-mode") or ""
    transfer = flags.get("--kv-transfer-config") or ""
    for role, sign, letters in (("prefill", "kv_producer", "prefill"), ("decode", "kv_consumer", "decode")):
        if mode == role or sign in transfer or ((transfer or mode) and letters in name.lower()):
            return "prefill" if role == "prefill" else "decode"
    if "--encoder-only" in flags or "ec_producer" in (flags.get("--ec-transfer-config") or ""):
        return "encode"
    if "--is-prefill-worker" in flags:
        return "prefill"
    return "mixed"
