"""Reads back which processes run on which nodes, from the files of each kind."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.reading.shell import MOST_DEVICES, Process, Scope, processes, variables
from ground.files import parse_yaml

Object = dict[str, Any]
BREAK = re.compile(r"^---(?:[ \t].*)?\r?(?:\n|\Z)", re.MULTILINE)
POD = {"POD_IP": "10.0.0.1"}


@dataclass(frozen=True, slots=True)
class Node:
    """One node of one instance: the devices that it is granted, what it runs, and the host that it may share."""

    role: str
    instance: int
    rank: int
    devices: int
    processes: tuple[Process, ...]
    host: str | None = None


def read_documents(text: str, where: str) -> list[Object]:
    """Return the YAML documents of a file, which is told as ``where``, those of a list of objects one by one."""
    found = [parse_yaml(part, where, aliases=True) for part in BREAK.split(text)]
    held = [item for item in found if isinstance(item, dict)]
    return [part for item in held for part in (item["items"] if item.get("kind") == "List" else [item])]


def read_nodes(kind: str, files: Mapping[str, str]) -> list[Node]:
    """Return all nodes of a deployment."""
    if kind in ("bare", "slurm"):
        return list(_bare(files))
    held = [item for name, text in files.items() if name.endswith(".yaml") for item in read_documents(text, name)]
    if kind == "dynamo":
        return [node for item in held if item.get("kind") == "DynamoGraphDeployment" for node in _dynamo(item)]
    scripts = {
        name.removesuffix(".sh"): text
        for item in held
        if item.get("kind") == "ConfigMap"
        for name, text in item["data"].items()
        if name.endswith(".sh")
    }
    readers: dict[str, Callable[[Object, dict[str, str]], Iterator[Node]]] = {
        "LeaderWorkerSet": _lws,
        "StatefulSet": _statefulset,
        "Job": _volcano,
    }
    held = [item for item in held if not str(item.get("apiVersion")).startswith("batch/")]  # a Job is Volcano's
    nodes = [node for item in held if item.get("kind") in readers for node in readers[item["kind"]](item, scripts)]
    # Count instances per role, where each is an object of its own with instance 0
    started: dict[str, int] = {}
    found = []
    for node in nodes:
        if node.rank == 0:
            started[node.role] = started.get(node.role, -1) + 1
        found.append(Node(node.role, started[node.role], node.rank, node.devices, node.processes))
    return found


def _bare(files: Mapping[str, str]) -> Iterator[Node]:
    site = variables(files["site.env"])
    rows = [line.split("\t") for line in files["hosts.tsv"].splitlines() if not line.startswith("#")]
    columns = rows[0]
    for cells in rows[1:]:
        row = dict(zip(columns, cells, strict=True))
        first, last = (int(rank) for rank in row["ranks"].split("-"))
        place: Scope = {**site, "INSTANCE": row["instance"], "NODE_RANK": row["rank_of_node"]}
        run = processes(files[f"{row['role']}.sh"], place)
        place_of, host = (int(row["instance"]), int(row["rank_of_node"])), f"{row['cluster']} {row['node']}"
        yield Node(row["role"], *place_of, counted(last - first + 1), tuple(run), host)


def counted(value: object) -> int:
    """Return a number of instances, nodes or devices. ValueError where it is none that a cluster has."""
    if type(value) is not int or not 1 <= value <= MOST_DEVICES:
        raise ValueError(f"{str(value)[:20]!r} is not a whole number from 1 to {MOST_DEVICES}")
    return value


def granted(container: Object) -> int:
    """Return the devices that a container may use: its first limit; all limits must equal their requests."""
    limits = container["resources"]["limits"]
    requests = container["resources"].get("requests", limits)
    if any(requests.get(name) != limit for name, limit in limits.items()):
        raise ValueError("extended resources need requests equal to limits")
    return counted(int(next(iter(limits.values()))))


def _pod_node(template: Object, scripts: dict[str, str], instance: int, rank: int, place: Mapping[str, str]) -> Node:
    """Return the node that a pod of a template is."""
    (container,) = template["spec"]["containers"]
    role = template["metadata"]["labels"]["podplan/pool"]
    own = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    return Node(role, instance, rank, granted(container), tuple(processes(scripts[role], POD | own | dict(place))))


def _lws(item: Object, scripts: dict[str, str]) -> Iterator[Node]:
    spec = item["spec"]["leaderWorkerTemplate"]
    instances, size = counted(item["spec"]["replicas"]), counted(spec["size"])
    counted(instances * size)
    for instance in range(instances):
        for rank in range(size):
            template = spec.get("leaderTemplate", spec["workerTemplate"]) if rank == 0 else spec["workerTemplate"]
            place = {"LWS_WORKER_INDEX": str(rank), "LWS_LEADER_ADDRESS": f"{item['metadata']['name']}-{instance}"}
            yield _pod_node(template, scripts, instance, rank, place)


def _statefulset(item: Object, scripts: dict[str, str]) -> Iterator[Node]:
    for rank in range(counted(item["spec"]["replicas"])):
        place = {"HOSTNAME": f"{item['metadata']['name']}-{rank}"}
        yield _pod_node(item["spec"]["template"], scripts, 0, rank, place)


def _volcano(item: Object, scripts: dict[str, str]) -> Iterator[Node]:
    rank = 0
    for task in item["spec"]["tasks"]:
        for index in range(counted(task["replicas"])):
            yield _pod_node(task["template"], scripts, 0, rank, {"VC_TASK_INDEX": str(index)})
            rank += 1
    if item["spec"]["minAvailable"] != rank:
        raise ValueError(f"{item['metadata']['name']}: a gang of {item['spec']['minAvailable']} of {rank} pods")


def _dynamo(item: Object) -> Iterator[Node]:
    for component in item["spec"]["components"]:
        if component["type"] == "frontend":
            continue
        (container,) = component["podTemplate"]["spec"]["containers"]
        words = (*container["command"], *container["args"])
        own = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
        for instance in range(counted(component["replicas"])):
            for rank in range(counted(component.get("multinode", {"nodeCount": 1})["nodeCount"])):
                yield Node(component["name"], instance, rank, granted(container), (Process(words, own),))
