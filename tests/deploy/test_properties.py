"""Random feasible plans, counted again from the rendered text alone: bash runs the scripts, none of our readers do.

The engine is a stub that writes down its arguments; what it was given is summed here in each engine's own terms.
"""

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from deploy.render import render
from deploy.site import Site
from models.loader import load_model
from planner.engines.loader import load_engine
from planner.engines.rules import Setup, broken_pair, broken_rule
from planner.strategy import Strategy
from tests.deploy.plans import deployed

MACHINES = {"vllm": "h800", "vllm-ascend": "cm384", "sglang": "cm384", "xllm": "cm384"}
KINDS = ("bare", "slurm", "lws", "statefulset", "volcano")
ORCHESTRATED = ("dynamo", "llm-d")  # on GPUs
# xLLM over several nodes reads rank tables that only Volcano's jobs get.
BY_ENGINE = {"vllm": (*KINDS, *ORCHESTRATED), "xllm": ("bare", "slurm", "volcano")}
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
STUB = """#!/bin/bash
printf '%s\\0' "$(basename "$0")" "$@" > "$RECORD/$BASHPID"
"""


def setup_of(role: str, node: int, asked: dict[str, Any]) -> Setup:
    """Return a role of DeepSeek-R1 as rules read it."""
    return Setup(
        strategy=asked["degrees"],
        role=role,  # type: ignore[arg-type]
        devices_per_node=node,
        experts=256,
        architecture="deepseek_v3",
        latent=True,
        redundant=asked["redundant"],
        drafts=asked["drafts"],
        microbatches=asked["microbatches"],
        scaled_columns=load_model("deepseek-r1").scaled_columns(asked["weights"]),
    )


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an engine, a kind and two roles that the engine can run together."""
    engine = draw(st.sampled_from(sorted(MACHINES)))
    node = 8 if MACHINES[engine] == "h800" else 16
    profile = load_engine(engine)
    roles: dict[str, dict[str, Any]] = {}
    setups = {}
    for role in ("prefill", "decode"):
        devices = draw(st.sampled_from([4, 8, 16, 32, 48, 64]))
        tp = draw(st.sampled_from([n for n in (1, 2, 4, 8, 16) if devices % n == 0]))
        moe_tp = draw(st.sampled_from([1, devices, tp]))
        strategy = Strategy(attention_tp=tp, attention_dp=devices // tp, moe_tp=moe_tp, moe_ep=devices // moe_tp)
        least = -256 % strategy.moe_ep
        redundant = draw(st.sampled_from([least, least + strategy.moe_ep])) if strategy.moe_ep > 1 else 0
        asked = {
            "degrees": strategy,
            "redundant": redundant,
            "drafts": draw(st.integers(0, 2)) if role == "decode" else 0,
            "microbatches": draw(st.sampled_from([1, 2])),
            "requests": draw(st.integers(1, 200)),
            "tokens": draw(st.integers(64, 4096)),
            "instances": draw(st.integers(1, 3)),
            "weights": "fp8" if engine == "vllm" else "int8",
        }
        setup = setup_of(role, node, asked)
        if broken_rule(profile, setup) is not None:
            whole = Strategy(attention_dp=devices, moe_ep=devices)
            asked |= {"microbatches": 1, "degrees": whole, "redundant": -256 % devices}
            setup = setup_of(role, node, asked)
        if broken_rule(profile, setup) is not None:  # 48 devices are no power of two, nor has DeepEP kernels for them
            asked |= {"degrees": Strategy(attention_dp=32, moe_ep=32), "redundant": 0}
            setup = setup_of(role, node, asked)
        assert broken_rule(profile, setup) is None
        roles[role], setups[role] = asked, setup
    assert broken_pair(profile, setups["prefill"], setups["decode"]) is None
    lengths = {"input_tokens": draw(st.integers(16, 20000)), "output_tokens": draw(st.integers(2, 5000))}
    return {
        "engine": engine,
        "kind": draw(st.sampled_from(BY_ENGINE.get(engine, KINDS))),
        "roles": roles,
        "workload": lengths,
        "node": node,
    }


def run(script: str, folder: Path, variables: dict[str, str], *arguments: str) -> list[dict[str, str | None]]:
    """Run a script with stubs for the engines and return the flags that each of them was given."""
    record = folder / "record"
    record.mkdir(exist_ok=True)
    for old in record.iterdir():
        old.unlink()
    path = folder / "run.sh"
    path.write_text(script, encoding="utf-8")
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "RECORD": str(record), "WITHOUT_RDMA": "1", **variables}
    done = subprocess.run(
        ["bash", str(path), *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [_flags(text.read_text(encoding="utf-8").split("\0")[1:-1]) for text in record.iterdir()]


def _flags(words: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for number, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            behind = words[number + 1] if number + 1 < len(words) else "--"
            found[name] = value if equals else None if behind.startswith("--") else behind
    return found


def nodes(
    kind: str, files: dict[str, str], folder: Path
) -> Iterator[tuple[str, str, int, list[dict[str, str | None]]]]:
    """Yield (role, instance, devices granted, flags of each process) of every node, as its platform would start it."""
    if kind in ("bare", "slurm"):
        (folder / "site.env").write_text(files["site.env"], encoding="utf-8")
        rows = [line.split("\t") for line in files["hosts.tsv"].splitlines() if line and not line.startswith("#")]
        for _, _, _, role, instance, rank, _, ranks, _ in rows[1:]:
            first, last = ranks.split("-")
            yield role, instance, int(last) - int(first) + 1, run(files[f"{role}.sh"], folder, {}, instance, rank)
        return
    if kind == "dynamo":  # the operator spreads an instance's ranks over its nodes
        for component in yaml.load(files["graph.yaml"], Loader=LOADER)["spec"]["components"][1:]:
            container = component["podTemplate"]["spec"]["containers"][0]
            count = next(iter(container["resources"]["limits"].values()))
            devices = int(count) * component.get("multinode", {"nodeCount": 1})["nodeCount"]
            for instance in range(component["replicas"]):
                yield component["name"], str(instance), devices, [_flags(container["args"])]
        return
    table = folder / "hccl.json"
    table.write_text('{"status": "completed"}', encoding="utf-8")
    for file in ("prefill", "decode"):
        held = list(yaml.load_all(files[f"{file}.yaml"], Loader=LOADER))
        script = next(item["data"][f"{file}.sh"] for item in held if item["kind"] == "ConfigMap")
        for item in held:
            for instance, pod, variables in _pods(item):
                container = pod["spec"]["containers"][0]
                own = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
                count = next(iter(container["resources"]["limits"].values()))
                place = {"POD_IP": "10.1.1.1", "RANK_TABLE_FILE": str(table), **own, **variables}
                yield file, f"{item['metadata']['name']}/{instance}", int(count), run(script, folder, place)


def _pods(item: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any], dict[str, str]]]:
    spec, name = item.get("spec", {}), item["metadata"]["name"]
    if item["kind"] == "LeaderWorkerSet":
        group = spec["leaderWorkerTemplate"]
        for instance in range(spec["replicas"]):
            for rank in range(group["size"]):
                leads = rank == 0 and "leaderTemplate" in group
                pod = group["leaderTemplate" if leads else "workerTemplate"]
                yield instance, pod, {"LWS_WORKER_INDEX": str(rank), "LWS_LEADER_ADDRESS": f"{name}-{instance}.{name}"}
    elif item["kind"] == "StatefulSet":
        for rank in range(spec["replicas"]):
            yield 0, spec["template"], {"HOSTNAME": f"{name}-{rank}"}
    elif item["kind"] == "Job" and "tasks" in spec:
        for task in spec["tasks"]:
            for index in range(task["replicas"]):
                yield 0, task["template"], {"VC_TASK_INDEX": str(index), "HOSTNAME": f"{name}-{task['name']}-{index}"}


def started_ranks(engine: str, processes: list[dict[str, str | None]], devices: int) -> list[int]:
    """Return the ranks of all devices that the processes of one node start."""

    def number(flags: dict[str, str | None], name: str, default: int) -> int:
        return int(flags.get(name) or default)

    if engine == "xllm":
        return [number(flags, "--node_rank", -1) for flags in processes]
    (flags,) = processes
    if engine == "sglang":
        return [number(flags, "--node-rank", 0) * devices + device for device in range(devices)]
    dp, tp = number(flags, "--data-parallel-size", 1), number(flags, "--tensor-parallel-size", 1)
    if dp == 1:
        return [number(flags, "--node-rank", 0) * devices + device for device in range(devices)]
    start = number(flags, "--data-parallel-start-rank", number(flags, "--data-parallel-rank", 0))
    local = number(flags, "--data-parallel-size-local", 1 if "--data-parallel-rank" in flags else dp)
    return list(range(start * tp, (start + local) * tp))


def limits(engine: str, flags: dict[str, str | None]) -> dict[str, Any]:
    """Return what a command says, in one unit: requests and tokens of an attention DP rank."""

    def number(name: str, default: int = 1) -> int:
        return int(flags.get(name) or default)

    if engine.startswith("vllm"):
        tp, dp = number("--tensor-parallel-size"), number("--data-parallel-size")
        return {
            "tp": tp,
            "dp": dp,
            "ep": tp * dp if "--enable-expert-parallel" in flags else 1,
            "requests": number("--max-num-seqs"),
            "tokens": number("--max-num-batched-tokens"),
            "length": number("--max-model-len"),
            "drafts": json.loads(flags.get("--speculative-config") or "{}").get("num_speculative_tokens", 0),
        }
    if engine == "sglang":
        dp = number("--dp-size" if "--enable-dp-attention" in flags else "--attn-dp-size")
        return {
            "tp": number("--tp-size") // dp,
            "dp": dp,
            "ep": number("--ep-size"),
            "requests": number("--max-running-requests") / dp,
            "tokens": number("--chunked-prefill-size", 0) / dp or None,
            "length": number("--context-length"),
            "drafts": number("--speculative-num-draft-tokens", 1) - 1,
        }
    dp = number("--dp_size")
    return {
        "tp": number("--nnodes") // dp,
        "dp": dp,
        "ep": number("--ep_size"),
        "requests": number("--max_seqs_per_batch") / dp,
        "tokens": number("--max_tokens_per_batch") / dp,
        "length": None,
        "drafts": number("--num_speculative_tokens", 0),
    }


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose vllm, python3 and xllm write their arguments down."""
    folder = tmp_path_factory.mktemp("stubs")
    for name in ("vllm", "python3", "xllm"):
        path = folder / name
        path.write_text(STUB, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


@settings(max_examples=12, deadline=None, phases=[Phase.generate])  # shrinking would run bash for minutes
@given(asked=plans())
def test_rendered_text_adds_up_to_the_plan(asked: dict[str, Any], stubs: Path) -> None:
    """Devices, ranks, degrees, batch limits, lengths and drafts of every node, as its own bash starts it."""
    engine, kind = asked["engine"], asked["kind"]
    manifest = deployed("deepseek-r1", MACHINES[engine], asked["workload"], **asked["roles"])
    files = render(manifest, load_engine(engine), kind, Site(), "0" * 64).files
    # The stubs end at once: the script must not stop the others when the first does.
    files = {name: text.replace("/opt/xllm/xllm", "xllm").replace("wait -n", "wait") for name, text in files.items()}
    ranks: dict[tuple[str, str], list[int]] = {}
    granted: dict[str, int] = {}
    drafted = asked["roles"]["decode"]["drafts"]
    for role, instance, devices, processes in nodes(kind, files, stubs):
        plan = asked["roles"][role]
        granted[role] = granted.get(role, 0) + devices
        ranks.setdefault((role, instance), []).extend(started_ranks(engine, processes, devices))
        drafts = drafted if role == "decode" or engine == "xllm" else min(drafted, 1)
        wide = plan["degrees"].attention_tp
        tokens = plan["requests"] * (1 + drafts) if role == "decode" else plan["tokens"] * wide
        if engine == "vllm" and role == "decode":  # whole fours
            tokens += -tokens % 4
        lengths = asked["workload"]
        longest = -(-(lengths["input_tokens"] + lengths["output_tokens"] + 256) // 128) * 128
        requests = plan["requests"]
        if (
            engine == "vllm-ascend" and role == "prefill"
        ):  # the prompts of two passes, for each of which buffers have room
            passes = -(-plan["tokens"] * wide * plan["degrees"].pp // lengths["input_tokens"])
            requests = min(requests, max(2 * passes, 4))
        if engine == "sglang":
            tokens = max(tokens // 128, 1) * 128
        if engine == "xllm" and role == "prefill":  # a whole prompt fits an instance's step
            tokens = max(tokens, -(-(lengths["input_tokens"] + 256) // plan["degrees"].attention_dp))
        for flags in processes:
            assert limits(engine, flags) == {
                "tp": wide,
                "dp": plan["degrees"].attention_dp,
                "ep": plan["degrees"].moe_ep,
                "requests": requests,
                "tokens": None if engine == "sglang" and role == "decode" else tokens,
                "length": None if engine == "xllm" else longest,
                "drafts": drafts,
            }
    for role, plan in asked["roles"].items():
        devices = plan["degrees"].devices
        assert granted[role] == devices * plan["instances"]
        held = [sorted(found) for (name, _), found in ranks.items() if name == role]
        assert held == [list(range(devices))] * plan["instances"]
