"""Holds what was rendered against the manifest: whatever does not add up is a fault, never a file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from deploy.commands.launch import Target
from deploy.commands.sglang import chunk_tokens
from deploy.commands.trtllm import stage_batch
from deploy.commands.xllm import step_tokens
from deploy.reading.engines import READERS, Counted, ascend_replicas, ascend_rows, configured, motor_roles, trtllm
from deploy.reading.flags import read_flags, table, table_key, unknown_flags
from deploy.reading.nodes import Node, read_documents, read_nodes
from deploy.reading.shell import Process, UnknownForm, processes
from deploy.roles import RolePlan
from ground.errors import Fault

CONFIGURED = "MIES_CONFIG_JSON_PATH"
ADDRESSES = {"prefill": "--prefill", "decode": "--decode", "mixed": "--worker-urls"}
ROUTERS: dict[str, tuple[str | None, dict[str, str]]] = {
    "vllm-router": ("vllm-router-0.1.17", ADDRESSES),
    "sglang_router.launch_router": ("sglang-router-0.3.2", ADDRESSES),
    "load_balance_proxy_server_example.py": (None, {"prefill": "--prefiller-hosts", "decode": "--decoder-hosts"}),
    "disagg_epd_proxy.py": (None, {"encode": "--encode-servers-urls", "mixed": "--decode-servers-urls"}),
    "xllm_master_serving": ("xllm-service-0.9.0", {}),
    "disaggregated": (None, {}),
    "nginx": (None, {}),
}
PRIVATE = ("--port", "--devices", "--transfer_listen_port", "--disagg_pd_port")
PROBLEMS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, UnknownForm)


def check_round_trip(target: Target, files: Mapping[str, str]) -> dict[str, list[Counted]]:
    """Return role -> what each instance was read back as. Fault where it differs from the plan."""
    try:
        experts = {role.name: role.setup.experts for role in target.roles}
        texts = all_texts(files)
        counted = read_back(target.profile.engine, target.kind, files, experts, texts)
        problems = [*_differences(target, counted), *_maps(target, texts), *_rank_tables(target, files)]
        problems += [*_router(target, texts), *_encoders(target, files)]
    except PROBLEMS as error:
        raise Fault(f"rendered files cannot be read back: {type(error).__name__}: {error}") from error
    if problems:
        raise Fault(f"rendered files do not add up to the manifest: {'; '.join(problems[:3])}")
    return counted


def read_back(
    engine: str, kind: str, files: Mapping[str, str], experts: Mapping[str, int], texts: Mapping[str, str] | None = None
) -> dict[str, list[Counted]]:
    """Return role -> what each instance is, from the text of the files; ``experts`` is 0 for roles of dense models.

    Raises ValueError where a file contradicts itself.
    """
    if kind == "motor":
        return motor_roles(files)
    by_role: dict[str, dict[int, list[Node]]] = {}
    nodes = read_nodes(kind, files)
    texts = texts or all_texts(files)
    _unshared(nodes, files)
    for node in nodes:
        by_role.setdefault(node.role, {}).setdefault(node.instance, []).append(node)

    def counted(role: str, instance: list[Node]) -> Counted:
        if engine == "mindie":
            devices, (daemon, *_) = sum(node.devices for node in instance), instance[0].processes
            if {node.processes[0].environment["WORLD_SIZE"] for node in instance} != {str(devices)}:
                raise ValueError(f"WORLD_SIZE of {role} is not {devices}")
            return configured(_configuration(daemon, files), role, devices, files)
        words = instance[0].processes[0].words
        parser = table_key(engine, kind, words)
        if unknown := unknown_flags(parser, read_flags(words)):
            raise ValueError(f"{parser} does not know {', '.join(unknown)}")
        if engine == "trtllm":
            return trtllm(instance, experts[role], texts)
        reader = READERS[f"dynamo.{engine}" if kind == "dynamo" else engine]
        return reader(instance, experts[role], replicas_of_map(engine, role, texts))

    return {role: [counted(role, held) for held in instances.values()] for role, instances in by_role.items()}


def _unshared(nodes: Sequence[Node], files: Mapping[str, str]) -> None:
    """Raise ValueError where two processes of a host take the same device or port."""
    taken: set[tuple[str, str, str]] = set()
    for node in nodes:
        host = node.host or f"{node.role} {node.instance} {node.rank}"
        for process in node.processes:
            claims = [(name, value) for name, value in read_flags(process.words).items() if name in PRIVATE and value]
            visible = (value for name, value in process.environment.items() if name.endswith("_VISIBLE_DEVICES"))
            claims += [("device", number) for held in visible for number in held.split(",")]
            if CONFIGURED in process.environment:
                claims.append(("--port", str(_configuration(process, files)["ServerConfig"]["port"])))
            for name, value in claims:
                if (host, name, value) in taken:
                    raise ValueError(f"{name} {value} stands twice on one host")
                taken.add((host, name, value))


def _configuration(process: Process, files: Mapping[str, str]) -> Any:
    """Return the configuration that MindIE-LLM's daemon reads."""
    return json.loads(files[process.environment[CONFIGURED].rpartition("/")[2]])


def all_texts(files: Mapping[str, str]) -> dict[str, str]:
    """Return files by name, those inside ConfigMaps included."""
    found = dict(files)
    for name, text in files.items():
        if name.endswith(".yaml") and "kind: ConfigMap" in text:
            for item in read_documents(text, name):
                found |= item["data"] if item.get("kind") == "ConfigMap" else {}
    return found


def replicas_of_map(engine: str, role: str, texts: Mapping[str, str]) -> int | None:
    """Return the slots beyond one per expert of a role's expert map, None where there is none."""
    if engine != "sglang":
        return ascend_replicas(f"expert-map-{role}.json", texts)
    text = texts.get(f"expert-location-{role}.json")
    rows = json.loads(text)["physical_to_logical_map"] if text else None
    return None if rows is None else len(rows[-1]) - len(set(rows[-1]))


def expected(target: Target, role: RolePlan) -> Counted:
    """Return what one instance of a role must read back as."""
    engine = target.profile.engine
    own: dict[str, int | None] = {"mindie": max(role.tokens, role.longest_prompt), "xllm": step_tokens(role)}
    own["sglang"] = None if role.role == "decode" else chunk_tokens(role)
    return Counted(
        devices=role.devices,
        ranks=role.devices,
        attention_tp=role.strategy.attention_tp,
        attention_dp=role.strategy.attention_dp,
        pp=role.strategy.pp,
        moe_ep=role.strategy.moe_ep if role.setup.experts else None,
        redundant=role.setup.redundant,
        drafts=role.drafts,
        microbatches=role.setup.microbatches,
        sequences=stage_batch(role) * role.strategy.pp if engine == "trtllm" else role.sequences,
        tokens=own.get(engine, role.tokens),
        longest=None if engine == "xllm" else role.longest,
        memory_frac=0.0 if engine == "mindie" else target.memory(role).fraction,
        kv_role=role.role if role.disaggregated else None,
    )


def _differences(target: Target, counted: Mapping[str, Sequence[Counted]]) -> Iterator[str]:
    """Yield every number that is not the plan's."""
    for role in target.roles:
        held = counted.get(role.name, [])
        if len(held) != len(role.instances):
            yield f"{role.name} has {len(held)} instances instead of {len(role.instances)}"
        wanted = expected(target, role)
        for number, found in enumerate(held):
            for name in Counted.__slots__:
                ours, theirs = getattr(wanted, name), getattr(found, name)
                if name == "moe_ep" and role.setup.experts == 0:
                    continue
                if ours != theirs:
                    yield f"{role.name} {number}: {name} is {theirs} instead of {ours}"


def _maps(target: Target, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield where an expert map is not the manifest's."""
    for role in target.roles:
        if role.expert_map is None:
            continue
        held = {layer: entry.slots for entry in role.expert_map.placements for layer in entry.layers}
        numbers = role.model.moe_layer_numbers
        own = [held[layer] for layer in numbers]
        ascend, sglang = texts.get(f"expert-map-{role.name}.json"), texts.get(f"expert-location-{role.name}.json")
        if ascend and ascend_rows(ascend) != own:
            yield f"the expert map of {role.name} is not the manifest's"
        if sglang:
            rows = json.loads(sglang)["physical_to_logical_map"]
            if len(rows) != role.model.layers or [rows[layer] for layer in numbers] != own:
                yield f"the expert location of {role.name} is not the manifest's, a row for each of its layers"


def _rank_tables(target: Target, files: Mapping[str, str]) -> Iterator[str]:
    """Yield where a rank table does not hold each rank once."""
    for name, text in files.items():
        if not name.startswith("ranktable-"):
            continue
        held = json.loads(text)
        ranks = [int(device["rank_id"]) for server in held["server_list"] for device in server["device"]]
        role = max((r for r in target.roles if name.startswith(f"ranktable-{r.name}-")), key=lambda r: len(r.name))
        if ranks != list(range(role.devices)) or held["server_count"] != str(len(held["server_list"])):
            yield f"{name} must hold ranks 0 to {role.devices - 1} in order"


def _router(target: Target, texts: Mapping[str, str]) -> list[str]:
    """Return what of the router is wrong: flags that its version has not, instances missing or named twice."""
    if "router.sh" not in texts:
        return []
    (process,) = processes(texts["router.sh"], {})
    words = list(process.words)
    known, flags = next(found for name, found in ROUTERS.items() if any(word.endswith(name) for word in words[:3]))
    problems = []
    if known is not None:
        names = table(known)["flags"].keys()
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        problems += [f"the router does not know {name}" for name in sorted(given - names)]
    for role, flag in flags.items():
        if "--service-discovery" in words:  # which asks for labels, whatever there is
            flag = "--selector" if role == "mixed" else f"--{role}-selector"
        wanted = sum(len(held.instances) for held in target.roles if held.role == role)
        held = _values(words, flag)
        once = flag.endswith("-hosts") or len(set(held)) == len(held)  # hosts repeat, their ports tell them apart
        if len(held) < (min(wanted, 1) if flag.endswith("selector") else wanted) or not once:
            problems.append(f"the router has {len(set(held))} {role} addresses for {wanted} instances")
    return problems


def _encoders(target: Target, files: Mapping[str, str]) -> Iterator[str]:
    """Yield instances that are not told of every encode instance once."""
    wanted = sum(len(role.instances) for role in target.roles if role.role == "encode")
    told = wanted and target.profile.engine == "sglang"  # elsewhere the router knows them
    readers = {role.name for role in target.roles if role.role in ("prefill", "mixed")}
    for node in read_nodes(target.kind, files) if told else ():
        held = _values(list(node.processes[0].words), "--encoder-urls")
        if node.role in readers and (len(held) != wanted or len(set(held)) != wanted):
            yield f"{node.role} {node.instance} has {len(set(held))} addresses for {wanted} encode instances"


def _values(words: list[str], flag: str) -> list[str]:
    """Return the addresses behind every occurrence of a flag; ports that stand alone are not addresses."""
    found: list[str] = []
    for position, word in enumerate(words):
        if word == flag:
            values = takewhile(lambda value: not value.startswith("--"), words[position + 1 :])
            found += [each for value in values for each in value.split(",") if not each.isdigit()]
    return found
