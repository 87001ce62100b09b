"""What the reader of rendered files takes them to start is what bash starts: stubs of engines tell their words."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.reading.nodes import read_nodes
from deploy.reading.shell import UnknownForm, words
from planner.engines.spec import PlatformKind
from tests.deploy.cases import files_of

STUB = '#!/bin/bash\nprintf "%s\\0" "$(basename "$0")" "$@" > "$RECORD/$BASHPID"\n'
Started = tuple[str, dict[str, str], list[str]]


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose vllm, python3 and xllm write their arguments down."""
    folder = tmp_path_factory.mktemp("stubs")
    for name in ("vllm", "python3", "xllm"):
        (folder / name).write_text(STUB, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def started(kind: str, files: dict[str, str], folder: Path) -> Iterator[Started]:
    """Yield the script of every node, its variables and its arguments, as its platform starts it."""
    if kind == "bare":
        (folder / "site.env").write_text(files["site.env"], encoding="utf-8")
        rows = [line.split("\t") for line in files["hosts.tsv"].splitlines() if line and not line.startswith("#")]
        for _, _, _, role, instance, rank, *_ in rows[1:]:
            yield files[f"{role}.sh"], {}, [instance, rank]
        return
    for role in ("prefill", "decode"):
        held = list(yaml.safe_load_all(files[f"{role}.yaml"]))
        script = next(item["data"][f"{role}.sh"] for item in held if item["kind"] == "ConfigMap")
        for pod, variables in (each for item in held for each in pods(item)):
            (container, *_) = pod["spec"]["containers"]
            own = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
            yield script, {"POD_IP": "10.0.0.1", **own, **variables}, []


def pods(item: dict[str, Any]) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield the pods of an object, each with what its controller tells it."""
    spec, name = item.get("spec", {}), item["metadata"]["name"]
    if item["kind"] == "LeaderWorkerSet":
        group = spec["leaderWorkerTemplate"]
        for instance in range(spec["replicas"]):
            for rank in range(group["size"]):
                leads = rank == 0 and "leaderTemplate" in group
                told = {"LWS_WORKER_INDEX": str(rank), "LWS_LEADER_ADDRESS": f"{name}-{instance}"}
                yield group["leaderTemplate" if leads else "workerTemplate"], told
    elif item["kind"] == "StatefulSet":
        for rank in range(spec["replicas"]):
            yield spec["template"], {"HOSTNAME": f"{name}-{rank}"}
    elif item["kind"] == "Job" and "tasks" in spec:
        for task in spec["tasks"]:
            for index in range(task["replicas"]):
                yield task["template"], {"VC_TASK_INDEX": str(index), "HOSTNAME": f"{name}-{task['name']}-{index}"}


@pytest.mark.parametrize(
    ("name", "engine", "kind"),
    [
        ("r1-cm384", "vllm-ascend", "bare"),
        ("r1-cm384", "sglang", "bare"),
        ("r1-cm384", "xllm", "bare"),
        ("r1-h800", "vllm", "bare"),
        ("r1-h800", "vllm", "lws"),
        ("r1-h800", "vllm", "volcano"),
        ("qwen-mi300x", "sglang", "lws"),
        ("qwen-h800", "sglang", "statefulset"),
    ],
)
def test_bash_starts_what_is_read(name: str, engine: str, kind: PlatformKind, stubs: Path, tmp_path: Path) -> None:
    """Every word of every process of every node; that these words are the plan's, rendering itself checks."""
    files = {file: text.replace("/usr/local/bin/xllm", "xllm") for file, text in files_of(name, engine, kind).items()}
    found = []
    for number, (script, variables, arguments) in enumerate(started(kind, files, stubs)):
        record = tmp_path / str(number)
        record.mkdir()
        # The stubs end at once: the script must not stop the others when the first does.
        (stubs / "script.sh").write_text(script.replace("wait -n", "wait"), encoding="utf-8")
        path = {"PATH": f"{stubs}:{os.environ['PATH']}", "RECORD": str(record), "WITHOUT_RDMA": "1"}
        command = ["bash", str(stubs / "script.sh"), *arguments]
        done = subprocess.run(command, env=path | variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(sorted(told.read_text(encoding="utf-8").split("\0")[:-1] for told in record.iterdir()))
    assert sorted(found) == sorted(
        sorted(list(own.words) for own in node.processes) for node in read_nodes(kind, files)
    )


def test_variables_that_fill_in_each_other_are_no_command() -> None:
    """However deep, a circle has no end."""
    with pytest.raises(UnknownForm, match="without end"):
        words("$A", {"A": "$B", "B": "$A"})
