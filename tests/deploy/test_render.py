"""Every engine and kind that the profiles mark possible, on every plan: valid objects, scripts and flags."""

import argparse
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError

from deploy.reading.check import all_texts
from deploy.reading.flags import TABLES, table, table_key
from ground.errors import BadInput, Infeasible
from ground.version import VERSION
from planner.engines.loader import load_engine, load_orchestrator
from planner.engines.spec import PlatformKind
from tests.deploy.cases import DIGEST, SEEN, files_of, made, pairs, plan
from tests.deploy.emitted import commands
from tests.deploy.objects import check
from tests.deploy.plans import deployed

SITE: dict[str, Any] = {
    "name": "r1-prod",
    "image": "registry.example/vllm:v1",
    "resource_name": "example.org/gpu",
    "node_selectors": {"all": {"pool": "inference"}, "decode": {"rack": "b"}},
    "model_host_path": "/mnt/weights/r1",
    "longest_request_tokens": 16384,
    "capabilities": ["SYS_NICE"],
}
DENSE, WIDE = {"mixed": {"strategy": "TP=2"}}, {"strategy": "DP=16, EP=16", "weights": "fp8"}
APART = {"prefill": WIDE, "decode": WIDE}
WHOLE, IB = {"strategy": "TP=16", "weights": "int8"}, {"infiniband_device": "mlx5_0"}
REUSE = {"workload": {"prefix_reuse": 0.5, "input_cv2": 0.2}}
OVERLAPPED = {"prefill": WIDE | {"weights": "int8", "microbatches": 2}, "decode": WHOLE}
QUANTISED = {"mixed": {"strategy": "TP=2", "weights": "fp8"}}
SPARSE = {"mixed": {"strategy": "TP=8"}}
FP8 = {"mixed": {"strategy": "TP=2", "kv_dtype": "fp8"}}


@pytest.mark.parametrize(("name", "engine", "kind"), pairs())
def test_what_is_rendered_is_sound(name: str, engine: str, kind: PlatformKind) -> None:
    """Every file says where it comes from; objects are what Kubernetes takes, scripts bash, flags the engine's own."""
    try:
        deployment = made(name, engine, kind)
    except Infeasible:
        pytest.skip("the engine cannot run the plan")
    files = deployment.files
    pinned = load_engine(engine).versions.pinned
    if kind == "dynamo":
        pinned = load_orchestrator("dynamo").engines.value[engine]
    for file, text in files.items():
        told = file in files["README.md"] if file.endswith(".json") else _says_its_origin(text[:400], pinned)
        assert told, file
        if file.endswith(".yaml"):
            for item in documents(text):
                check(item)
    for file, text in all_texts(files).items():
        if file.endswith((".sh", ".env", ".sbatch")):
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{file}: {done.stderr}"
    for words in commands(kind, files) if engine != "mindie" else ():
        _, rest = parser(TABLES[table_key(engine, kind, words)]).parse_known_args(words)
        assert rest == []
        assert all(isinstance(json.loads(word), dict) for word in words if word.startswith("{"))


def _says_its_origin(head: str, pinned: str) -> bool:
    return DIGEST in head and f" {pinned} " in head and f"podplan {VERSION} " in head


def documents(text: str) -> Iterator[Any]:
    """Yield the documents of a YAML text, by the fast loader where there is one."""
    yield from yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def test_a_misspelt_field_is_refused() -> None:
    """The validation of this suite can fail, at each level."""
    text = files_of("qwen-h800", "vllm", "lws")["decode.yaml"]
    for wrong in (
        text.replace("  size:", "  sizze:"),
        text.replace("resources:", "resourcez:"),
        text.replace("defaultMode: 365", "defaultMode: full"),
    ):
        with pytest.raises((ValidationError, Exception), match=r"sizze|resourcez|full"):
            for item in documents(wrong):
                check(item)


@cache
def parser(tables: tuple[str, ...]) -> argparse.ArgumentParser:
    """Return a parser of the fact tables' flags, abbreviations off."""
    found = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False, add_help=False)
    types: dict[str, Any] = {"int": int, "float": float, "json": json.loads}
    for name in tables:
        for flag, facts in table(name)["flags"].items():
            aliases = [alias for alias in facts.get("aliases", []) if alias not in found._option_string_actions]
            if flag in found._option_string_actions:
                continue
            if facts["type"] == "switch" and not name.startswith("xllm"):
                found.add_argument(flag, *aliases, action=argparse.BooleanOptionalAction)
                continue
            keywords: dict[str, Any] = {"type": types.get(facts["type"], str), "choices": facts.get("choices")}
            if "nargs" in facts:
                keywords["nargs"] = facts["nargs"]
            found.add_argument(flag, *aliases, **keywords)
    return found


def test_the_tables_say_where_their_facts_are_from() -> None:
    """Name, version and source of each; a flag that old recipes use is not in them."""
    for names in TABLES.values():
        for name in names:
            facts = table(name)
            assert facts["name"] + "-" + facts["version"] == name
            assert len(facts["source"]) > 20
    gone = {"--cuda-graph-bs", "--prefill-round-robin-balance", "--cuda-graph-max-bs"}
    assert not gone & table("sglang-0.5.23")["flags"].keys()
    assert "kv_rank" not in table("vllm-0.33.0")["json"]["--kv-transfer-config"]
    assert "torchair_graph_config" not in table("vllm-ascend-0.23.0")["json"]["--additional-config"]


@pytest.mark.parametrize(
    ("name", "engine", "kind", "said"),
    [
        ("r1-cm384", "vllm-ascend", "dynamo", "no runtime for Ascend"),
        ("qwen-mi300x", "vllm", "dynamo", "images are for NVIDIA devices; use bare or slurm or lws or statefulset"),
        ("qwen-mi300x", "sglang", "llm-d", "read here for NVIDIA devices; use bare or slurm or lws or statefulset"),
        ("r1-cm384", "xllm", "llm-d", "not xLLM's"),
        ("r1-cm384", "mindie", "lws", "own deployer makes the objects; use bare or motor"),
        ("r1-cm384", "sglang", "dynamo", "use bare or slurm or lws or statefulset or volcano"),
        ("r1-cm384", "mindie", "bare", "needs --platform kubernetes --kind motor"),
        ("r1-mixed", "mindie", "motor", "needs --platform bare"),
        ("r1-cm384", "reference", "bare", "plan simulate"),
    ],
)
def test_a_kind_that_is_not_possible_says_why(name: str, engine: str, kind: PlatformKind, said: str) -> None:
    """The profile's reason and what is possible instead."""
    with pytest.raises(BadInput, match=r"--(kind|platform): ") as error:
        made(name, engine, kind)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "engine", "rule"),
    [
        ("r1-cm384", "vllm", "accelerator"),
        ("r1-h800", "xllm", "accelerator"),
        ("dense-mixed", "vllm-ascend", "accelerator"),
    ],
)
def test_what_an_engine_cannot_run_is_refused(name: str, engine: str, rule: str) -> None:
    """The pool, the rule and a sentence."""
    with pytest.raises(Infeasible, match=re.escape(f"({rule})")):
        made(name, engine, "bare")


def test_pools_that_cannot_be_told_apart_are_refused() -> None:
    """Two decode pools in a chart that knows one, aggregated instances behind a router of prefill and decode."""
    manifest = plan("r1-h800")
    prefill, decode = manifest.pools
    twice = manifest.model_copy(update={"pools": [prefill, decode, decode]})
    with pytest.raises(BadInput, match="takes one pool of each role"):
        files_of(twice, "vllm", "llm-d")
    files = files_of(twice, "vllm", "lws")
    assert {"decode-1.yaml", "decode-2.yaml", "prefill.yaml"} <= files.keys()
    ascend = plan("r1-cm384")
    one, other = ascend.pools[1], ascend.pools[0].model_copy(update={"role": "decode"})
    for pool, why in ((one, None), (other, "connector tells one TP degree")):
        staged = ascend.model_copy(update={"pools": [ascend.pools[0], one, pool]})
        with pytest.raises(BadInput, match=why) if why else nullcontext():
            files_of(staged, "vllm-ascend", "lws")
    mixed = manifest.model_copy(update={"pools": [prefill, decode, decode.model_copy(update={"role": "mixed"})]})
    with pytest.raises(BadInput, match="a router each"):
        files_of(mixed, "sglang")
    for kind in ("dynamo", "llm-d"):
        with pytest.raises(
            BadInput, match="not in the batches of the plan" if kind == "dynamo" else "not over Mooncake"
        ):
            files_of("seen-h800", "vllm", kind)


def test_what_files_cannot_hold_is_refused() -> None:
    """Layers of unlike slots, consumers of pictures over nodes, and more than a ConfigMap holds."""
    unlike = plan("r1-cm384").model_copy(deep=True)
    mapping = unlike.pools[1].expert_map
    mapping.placements[0].slots.append(0)
    with pytest.raises(Infeasible, match="layers with 320 and 321 expert slots; engines take one number"):
        files_of(unlike, "sglang")
    wide = {"encode": {"strategy": "TP=1"}, "mixed": {"strategy": "TP=4 [PP=4]"}}
    with pytest.raises(BadInput, match="reaches embeddings' consumers on one node each"):
        files_of(deployed("qwen2.5-vl-7b-instruct", "h800", SEEN, **wide), "vllm")
    with pytest.raises(BadInput, match="a ConfigMap holds 1048576; use --platform bare"):
        files_of("qwen-h800", "vllm", "lws", environment={f"LONG_{n}": "x" * 4000 for n in range(300)})


@pytest.mark.parametrize(
    ("model", "hardware", "engine", "kind", "roles", "site", "file", "said"),
    [
        ("deepseek-r1", "h200", "vllm", "lws", APART, SITE, "decode.yaml", "name: r1-prod-decode"),
        ("deepseek-r1", "h200", "vllm", "lws", APART, SITE, "decode.yaml", "image: registry.example/vllm:v1"),
        ("deepseek-r1", "h200", "vllm", "lws", APART, SITE, "decode.yaml", "example.org/gpu: '8'"),
        ("deepseek-r1", "h200", "vllm", "lws", APART, SITE, "decode.yaml", "pool: inference\n          rack: b"),
        ("deepseek-r1", "h200", "vllm", "lws", APART, SITE, "decode.yaml", "path: /mnt/weights/r1"),
        ("deepseek-r1", "h200", "vllm", "lws", APART, SITE, "decode.yaml", "--max-model-len 16384"),
        ("deepseek-r1", "h200", "vllm", "lws", APART, SITE, "decode.yaml", "- SYS_NICE"),
        ("deepseek-r1", "h200", "vllm", "bare", APART, IB, "decode.sh", "NVSHMEM_HCA_LIST=mlx5_0:1"),
        ("deepseek-r1", "h200", "sglang", "bare", APART, IB, "decode.sh", "--disaggregation-ib-device mlx5_0"),
        ("deepseek-r1", "cm384", "mindie", "motor", OVERLAPPED, {}, "user_config.json", '"micro_batch": true'),
        ("qwen3-8b", "910b", "vllm-ascend", "bare", DENSE, {}, "mixed.sh", "--tensor-parallel-size 2"),
        ("qwen3-8b", "910b", "sglang", "bare", DENSE, {}, "mixed.sh", "--device npu"),
        ("qwen3-8b", "910b", "xllm", "lws", DENSE, {"etcd_address": "e:2379"}, "router.yaml", "--etcd_addr=e:2379"),
        ("qwen3-8b", "h100", "vllm", "bare", FP8, {}, "mixed.sh", "--kv-cache-dtype fp8"),
        ("qwen3-8b", "h100", "sglang", "bare", FP8, {}, "mixed.sh", "--kv-cache-dtype fp8_e4m3"),
        ("glm-5", "b200", "vllm", "bare", SPARSE, {}, "mixed.sh", "--kv-cache-dtype bfloat16"),
        ("deepseek-v3.2", "b200", "sglang", "bare", SPARSE, {}, "mixed.sh", "--kv-cache-dtype bfloat16"),
        ("deepseek-v4-flash", "h200", "sglang", "bare", SPARSE, {}, "mixed.sh", "--kv-cache-dtype bfloat16"),
        ("qwen3-8b", "h100", "trtllm", "lws", DENSE, {}, "router.yaml", "podplan/pool: mixed"),
        ("qwen3-8b", "h100", "vllm", "lws", DENSE, {"model_source": "me/mine"}, "weights.yaml", "me/mine"),
        ("qwen3-8b", "h100", "sglang", "bare", DENSE | REUSE, {}, "mixed.sh", "bs-decode 24 \\\n  --enable-metrics"),
        ("qwen3-8b", "h100", "vllm", "bare", DENSE | REUSE, {}, "benchmark.sh", "--random-range-ratio"),
        ("qwen3-8b", "h100", "vllm", "lws", QUANTISED, {}, "weights.yaml", "kind: PersistentVolumeClaim"),
        ("kimi-k2", "h200", "vllm", "bare", APART, {}, "README.md", "with trust_remote_code: true"),
    ],
)
def test_what_a_plan_and_a_site_ask_for_reaches_the_files(model, hardware, engine, kind, roles, site, file, said):
    """Names, images, selectors, resources, storage, networks; caches, microbatches, dense models on every device."""
    files = files_of(deployed(model, hardware, **roles), engine, kind, **site)
    assert said in files[file]
