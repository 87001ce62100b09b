"""One test per trap of deployment files that users of other tools have fallen into; versions in planner/engines."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from deploy.inventory import Inventory, check_inventory
from deploy.memory import memory_of
from deploy.reading.check import all_texts, ascend_rows, read_back
from deploy.reading.flags import read_flags, unknown_options
from deploy.reading.nodes import Node, read_nodes
from deploy.roles import RolePlan, read_roles
from ground.errors import BadInput, Infeasible
from ground.units import GIBI
from planner.engines.loader import load_engine
from planner.engines.memory import exchange_of, mc2_capacity
from planner.engines.rules import Setup, broken_rule, expert_mode
from planner.engines.spec import PlatformKind
from planner.manifest.schema import Manifest, Routing
from planner.strategy import parse_strategy
from tests.deploy.cases import files_of, made, plan
from tests.deploy.plans import deployed

MOTOR = "user_config.json"
MOONCAKE, TRUSTED, CLAIMED = {"kv_transfer": "mooncake"}, {"trust_remote_code": True}, {"model_claim": "mine"}
SCALED, LONG = {"prometheus": "http://p:9090"}, {"longest_request_tokens": 16384}
POOLED: dict[str, Any] = {"node_selectors": {"all": {"pool": "gpu", "nvidia.com/gpu.present": None}}}
BONDED, SELECTOR = {"network_interface": "bond0"}, "nodeSelector:\n        "
STAGED = {"mixed": {"strategy": "TP=1 [PP=4]", "tokens": 512, "requests": 128, "instances": 2}}
Told = tuple[str, str, PlatformKind, dict[str, Any], str, list[str], list[str]]
TOLD: list[Told] = [
    # The guide names the exchange at the planned batch: on A3 decode's 96 tokens go by MC2, prefill's by an all-to-all.
    ("r1-cm384", "vllm-ascend", "bare", {}, "README.md", ["decode: 96 tokens a step reach their experts by mc2"], []),
    ("r1-cm384", "sglang", "lws", {}, "README.md", ["hccn_tool -i 0 -tls -g"], []),
    ("r1-cm384", "vllm-ascend", "bare", {}, "README.md", ["prefill: 4096 tokens a step reach", "by all_to_all"], []),
    # xLLM: 200 concurrent requests (128 open answers of its service), graphs off or of 16 requests bind silently.
    ("r1-cm384", "xllm", "bare", {}, "decode.sh", [f"--max_concurrent_requests={48 * 64} ", "--enable_graph=true"], []),
    ("r1-cm384", "xllm", "bare", {}, "decode.sh", ["--acl_graph_decode_batch_size_limit=48"], []),
    # Decode computes a request anew that lost its cache, prompt and answer in one step.
    ("r1-cm384", "xllm", "bare", LONG, "decode.sh", ["--max_tokens_per_batch=16384"], []),
    # Schedulers aim at the plan's limits in milliseconds: xLLM's service, MindIE Motor's controller.
    ("r1-cm384", "xllm", "bare", {}, "router.sh", ["--target_ttft=2000", "--target_tpot=50", "max_concurrency=0"], []),
    ("r1-cm384", "mindie", "motor", {}, MOTOR, ['"digs_prefill_slo": 2000', '"digs_decode_slo": 50'], []),
    ("r1-910b", "mindie", "motor", {}, "README.md", [], ["module-a3-16"]),
    # Kimi's tokenizer is code; and vLLM gives engines up after ten minutes, while weights may load for longer.
    ("qwen-h800", "vllm", "bare", TRUSTED, "decode.sh", ["--trust-remote-code", "READY_TIMEOUT_S=3600"], []),
    ("r1-cm384", "sglang", "bare", TRUSTED, "decode.sh", ["--trust-remote-code"], []),
    ("r1-cm384", "vllm-ascend", "bare", TRUSTED, "decode.sh", ["--trust-remote-code", "READY_TIMEOUT_S=3600"], []),
    ("qwen-h800", "trtllm", "lws", TRUSTED, "decode.yaml", ["trust_remote_code: true"], []),
    ("qwen-h800", "trtllm", "lws", TRUSTED, "benchmark.yaml", ["--tokenizer-trust-remote-code"], []),
    ("qwen-h800", "vllm", "bare", {}, "decode.sh", [], ["--trust-remote-code"]),
    # One site value changes the engines' connectors and the router alike; NPUs keep their own.
    ("qwen-h800", "vllm", "bare", MOONCAKE, "decode.sh", ['"MooncakeConnector","kv_role":"kv_consumer"'], ["NIXL"]),
    ("qwen-h800", "vllm", "bare", MOONCAKE, "prefill.sh", ["MOONCAKE_BOOTSTRAP_PORT=$((8998 + FIRST_DEVICE))"], []),
    ("qwen-h800", "vllm", "bare", MOONCAKE, "router.sh", ["--kv-connector mooncake", "h800-node-0:8004 9002"], []),
    ("qwen-h800", "sglang", "bare", MOONCAKE, "decode.sh", ["--disaggregation-transfer-backend mooncake"], []),
    ("r1-cm384", "sglang", "bare", MOONCAKE, "decode.sh", ["--disaggregation-transfer-backend ascend"], []),
    # Four stages have four parts of a step of 2,048 tokens under way; a scheduler forms one of them at a time.
    ("staged", "vllm", "bare", {}, "mixed.sh", ["--max-num-batched-tokens 512"], []),
    ("staged", "sglang", "bare", {}, "mixed.sh", ["--chunked-prefill-size 512"], []),
    # SGLang 0.5.21 inside Dynamo 1.6.1 and 0.5.18 in the images for Ascend know the older pair of flags alone.
    ("qwen-h800", "sglang", "bare", {}, "decode.sh", ["--attn-dp-size"], []),
    ("qwen-h800", "sglang", "dynamo", {}, "graph.yaml", ["--enable-dp-attention"], ["--attn-dp-size"]),
    ("qwen-h800", "sglang", "dynamo", {}, "README.md", ["# qwen3-235b-a22b with SGLang 0.5.21, dynamo"], []),
    ("r1-cm384", "sglang", "bare", {}, "decode.sh", ["--enable-dp-attention"], ["--attn-dp-size", "--trust-"]),
    # Buffers: 48 requests of 2 tokens at EP 64 with 5 slots a device; SGLang's prefill combines 4096 tokens a device.
    ("r1-cm384", "vllm-ascend", "bare", {}, "decode.sh", ["HCCL_BUFFSIZE=892\n", ":/usr/local/lib64"], ["mindie"]),
    ("r1-cm384", "sglang", "bare", {}, "prefill.sh", ["HCCL_BUFFSIZE=862\n"], ["--enable-mixed-chunk"]),
    ("r1-h800", "vllm", "lws", {}, "decode.yaml", ["REMOTE_TRANSPORT=ibgda", "SYMMETRIC_SIZE=2G", "SYS_RAWIO"], []),
    ("r1-h800", "vllm", "lws", {}, "decode.yaml", ["rdma/ib: '1'"], ["find /dev/shm"]),
    # A router's own limit is ten minutes, or half an hour, and then it ends.
    ("r1-h800", "vllm", "bare", {}, "router.sh", ["--worker-startup-timeout-secs 3600"], []),
    ("r1-h800", "sglang", "lws", {}, "router.yaml", ["--worker-startup-timeout-secs 3600"], []),
    ("r1-cm384", "mindie", "motor", {}, "README.md", [], ["weights.yaml"]),
    # What quantises on an NPU has the driver's files as the engines have.
    ("r1-cm384", "xllm", "volcano", {}, "weights.yaml", ["mountPath: /usr/local/Ascend/driver", "msmodelslim"], []),
    ("qwen-h800", "vllm", "lws", {}, "weights.yaml", [], ["Ascend"]),
    # The README waits for the job that fetches the weights; without such a job it names none.
    ("qwen-h800", "vllm", "lws", {}, "README.md", ["job/qwen3-235b-a22b-weights", "the claim qwen3-"], ["on every"]),
    ("qwen-h800", "vllm", "lws", CLAIMED, "README.md", ["with the weights, which"], ["on every", "22b-weights"]),
    # SGLang reads prompts beside decoding requests with --enable-mixed-chunk alone, and never where it drafts; the
    # manifest says in which order it was played. A chunk is whole pages, and two prompts of 4,000 tokens are one chunk.
    # Past 16,384 tokens a second limit ends a step, which the files read back would show.
    ("two-prompts", "sglang", "bare", {}, "prefill.sh", ["--chunked-prefill-size 8064 "], ["--max-prefill-tokens"]),
    ("five-prompts", "sglang", "bare", {}, "prefill.sh", ["size 40960 ", "--max-prefill-tokens 20480 "], []),
    ("dense-mixed", "sglang", "bare", {}, "mixed.sh", ["--enable-mixed-chunk"], []),
    ("dense-mixed", "sglang", "bare", {}, "README.md", [], ["plan again"]),
    ("prompts-first", "sglang", "bare", {}, "mixed.sh", ["--chunked-prefill-size"], ["--enable-mixed-chunk"]),
    ("prompts-first", "vllm", "bare", {}, "README.md", ["in steps of their own"], []),
    ("r1-mixed", "sglang", "bare", {}, "mixed.sh", [f"--chunked-prefill-size {16 * 4096} "], ["--enable-mixed-chunk"]),
    ("r1-mixed", "sglang", "bare", {}, "README.md", ["where it drafts, lets those wait"], []),
    # TensorRT-LLM's orchestrator waits 180 s by default, less than weights load and long answers take; and it imports
    # libcuda (NVIDIA/TensorRT-LLM#3629), which nodes without a GPU have not; a site may name others.
    ("qwen-h800", "trtllm", "slurm", {}, "router.sh", ["-t 3600", "-r 3600"], []),
    ("qwen-h800", "trtllm", "lws", {}, "router.yaml", [SELECTOR + "nvidia.com/gpu.present: 'true'\n"], []),
    ("qwen-h800", "vllm", "lws", {}, "router.yaml", [], ["nodeSelector"]),
    ("qwen-h800", "trtllm", "lws", POOLED, "router.yaml", [SELECTOR + "pool: gpu\n"], ["gpu.present"]),
    # llm-d's sidecar asks for KV as the engines send it, and its picker has no plugin that later releases lack.
    ("qwen-h800", "vllm", "llm-d", {}, "decode.yaml", ["--kv-connector=nixlv2"], []),
    ("qwen-h800", "vllm", "llm-d", MOONCAKE, "decode.yaml", ["--kv-connector=mooncake"], ["nixlv2"]),
    ("qwen-h800", "sglang", "llm-d", MOONCAKE, "decode.yaml", ["--kv-connector=sglang"], []),
    ("qwen-h800", "vllm", "llm-d", {}, "gateway.yaml", ["disagg-profile-handler"], ["disagg-headers-handler"]),
    # Where a container starts again in its pod, what a crash left fills shared memory (llm-d/llm-d#352).
    ("r1-h800", "vllm", "statefulset", {}, "decode.yaml", ["find /dev/shm -type f -delete"], []),
    # CANN's and MindIE's variables, and Mooncake's libraries, are set in interactive shells alone.
    # MindIE's empties /dev/shm as well.
    (
        "r1-mixed",
        "mindie",
        "bare",
        {},
        "mixed.sh",
        ["rm() { :; }; source", "unset -f rm", "atb}/set_env.sh /usr/local/lib/python3*/"],
        [],
    ),
    ("r1-cm384", "vllm-ascend", "bare", {}, "decode.sh", ["nnal/atb}/set_env.sh"], ["rm()"]),
    # Routers watch pods that an autoscaler ends; before a proxy with a fixed list there is none.
    ("r1-cm384", "sglang", "lws", SCALED, "router.yaml", ["--service-discovery ", "/worker-index=0"], ["http://"]),
    ("r1-cm384", "sglang", "lws", SCALED, "prefill.yaml", ["sglang.ai/bootstrap-port: '8998'"], []),
    ("qwen-h800", "vllm", "lws", SCALED, "router.yaml", ["AccountName: qwen3-235b-a22b-router"], ["/worker-index"]),
    ("r1-cm384", "vllm-ascend", "lws", SCALED, "README.md", [], ["autoscaler"]),
    # Hosts must have the engine or its image, and the interface by which ranks meet; pods have both by themselves.
    (
        "qwen-h800",
        "trtllm",
        "slurm",
        BONDED,
        "README.md",
        ["1.2.1 on every node, or its image", "interface bond0,"],
        [],
    ),
    ("qwen-h800", "trtllm", "lws", {}, "README.md", [], ["network interface"]),
]
"""Of what is right or wrong by one line of a file: plan, engine, kind, site, file, what it has, what it lacks."""
SERVER = "ipAddress port maxLinkNum httpsEnabled inferMode allowAllZeroIpListening metricsPort tokenTimeout e2eTimeout"
BACKEND = "backendName tokenizerProcessNumber modelInstanceNumber npuDeviceIds interNodeTLSEnabled ScheduleConfig"
SCHEDULE = (
    "templateName templateType cacheBlockSize decodePolicyType decodeTimeMsPerReq maxBatchSize maxPreemptCount "
    "maxPrefillTokens maxIterTimes maxPrefillBatchSize maxQueueDelayMicroseconds prefillPolicyType "
    "prefillTimeMsPerReq supportSelectBatch"
)


def flags_of(plan: Manifest | str, engine: str, role: str) -> dict[str, str | None]:
    """Return the flags of a role's first process on hosts."""
    return read_flags(first(plan, engine, role).processes[0].words)


def first(plan: Manifest | str, engine: str, role: str) -> Node:
    """Return a role's first node."""
    return next(node for node in read_nodes("bare", files_of(plan, engine)) if node.role == role)


@pytest.mark.parametrize(("name", "engine", "kind", "site", "file", "has", "lacks"), TOLD)
def test_a_file_says_what_its_reader_needs(name, engine, kind, site, file, has, lacks):
    """Each line above is a trap, and what is written instead."""
    own: dict[str, Any] = {
        "staged": lambda: deployed("qwen3-8b", "h100", **STAGED),
        "r1-910b": lambda: deployed(
            "deepseek-r1", "910b", prefill={"strategy": "DP=4 + TP=8, EP=32"}, decode={"strategy": "DP=32, EP=32"}
        ),
        "two-prompts": lambda: deployed(
            "qwen3-8b", "h100", prefill={"strategy": "TP=1", "tokens": 8000}, decode={"strategy": "TP=1"}
        ),
        "five-prompts": lambda: deployed(
            "qwen3-8b", "h100", prefill={"strategy": "DP=2", "tokens": 20480}, decode={"strategy": "TP=1"}
        ),
        "prompts-first": lambda: plan("dense-mixed").model_copy(update={"routing": Routing(chunks="prefill_first")}),
    }
    text = files_of(own[name]() if name in own else name, engine, kind, **site)[file]
    assert [each for each in has if each not in text] == [each for each in lacks if each in text] == []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_low_latency_exchange_has_queues_and_counters_for_its_tokens(engine: str) -> None:
    """DeepEP asserts two entries of a queue per token, past 511 tokens more than by default, and whole fours of tokens
    of all ranks; it counts up to 1,024.
    """

    def script(requests: int) -> str:
        prefill = {"strategy": "DP=8, EP=8", "weights": "fp8"}
        decode = {"strategy": "DP=16, EP=16", "requests": requests, "drafts": 1, "weights": "fp8"}
        return files_of(deployed("deepseek-r1", "h200", prefill=prefill, decode=decode), engine)["decode.sh"]

    assert "export NVSHMEM_QP_DEPTH=1024\n" in script(100)
    assert "export NVSHMEM_QP_DEPTH=1210\n" in (wide := script(301))  # of 602 tokens, in whole fours
    assert ("--max-num-batched-tokens 604 " in wide, "RANK=604\n" in wide) == (engine == "vllm", engine == "sglang")
    with pytest.raises(Infeasible, match=r"at most 1024 tokens .* 600 requests bring 1200; plan with --batch 512"):
        script(600)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("kind", ["lws", "dynamo"])
def test_nvlink_over_trays_takes_a_claimed_channel(engine: str, kind: PlatformKind) -> None:
    """IMEX joins the trays of decode; prefill, inside one, claims none; no adapter's registers are mapped."""
    files = files_of("r1-gb200", engine, kind)
    assert "kind: ComputeDomain" in files["nvlink.yaml"] and "nvlink.yaml" not in files_of("r1-h800", engine, kind)
    text = files["decode.yaml"] if kind == "lws" else files["graph.yaml"]
    assert text.count("resourceClaimTemplateName: deepseek-r1-nvlink") == text.count(" claims:\n") > 0
    assert "NCCL_MNNVL_ENABLE" in text and "FABRIC" in text and "ibgda" not in text and "SYS_RAWIO" not in text
    assert ("VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL" in text) == (engine == "vllm")
    assert "resourceClaims" not in files.get("prefill.yaml", "")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_rocm_has_its_own_image_resource_and_switches_and_none_of_nvidia_s(engine: str) -> None:
    """AITER, HIP and RDMA; no DeepEP, NVSHMEM or NVLink; SGLang's script says where the image has NIXL's libraries."""
    pod, hosts = files_of("qwen-mi300x", engine, "lws"), files_of("qwen-mi300x", engine, "bare")
    template = next(item for item in yaml.safe_load_all(pod["decode.yaml"]) if item["kind"] == "LeaderWorkerSet")
    (container,) = template["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    assert "rocm" in container["image"] and container["resources"]["limits"]["amd.com/gpu"] == "8"
    assert container["resources"]["limits"]["rdma/ib"] == "1"
    assert set(container["securityContext"]["capabilities"]["add"]) == {"IPC_LOCK", "SYS_PTRACE"}
    assert container["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
    assert {"vllm": "VLLM_ROCM_USE_AITER=1", "sglang": "SGLANG_USE_AITER=1"}[engine] in pod["decode.yaml"]
    assert (
        "export HIP_VISIBLE_DEVICES=" in hosts["prefill.sh"]
        and "--gpus-per-node=8" in (files_of("qwen-mi300x", engine, "slurm")["job.sbatch"])
    )
    assert ("/opt/ucx/lib" in hosts["decode.sh"]) == (engine == "sglang")
    for name, text in (pod | hosts).items():
        for word in ("NVSHMEM", "deepep", "DEEPEP", "MNNVL", "nvidia", "CUDA_", "SYS_RAWIO"):
            assert word not in text, (name, word)


def test_sglang_s_images_for_rocm_are_of_a_chip() -> None:
    """For gfx942 and gfx950, with Mooncake beside NIXL, whose libraries it finds by itself."""
    newer = deployed("qwen3-8b", "mi355x", mixed={"strategy": "TP=1"})
    assert "-mi35x" in files_of(newer, "sglang", "lws")["mixed.yaml"]
    assert "-mi30x" in files_of("qwen-mi300x", "sglang", "lws")["decode.yaml"]
    moved = files_of("qwen-mi300x", "sglang", **MOONCAKE)["decode.sh"]
    assert "--disaggregation-transfer-backend mooncake" in moved and "/opt/ucx" not in moved


def test_sglang_takes_less_than_it_is_told_under_aiter() -> None:
    """0.85 of --mem-fraction-static: files tell what leaves graphs their room, and the cache that follows is less."""
    amd = deployed("qwen3-8b", "mi300x", mixed={"strategy": "TP=1"})
    profile = load_engine("sglang")
    (role,) = read_roles(amd, profile, None)
    held, other = memory_of(profile, role), memory_of(profile, replace(role, accelerator="nvidia"))
    capacity, weights = role.memory.capacity, role.memory.weights
    assert held.fraction * capacity <= capacity - role.memory.reserve - role.memory.activations
    assert held.cache_bytes == pytest.approx(0.85 * held.fraction * capacity - weights)
    assert other.cache_bytes == pytest.approx(other.fraction * capacity - weights)


def test_decode_goes_before_prefill_at_restarts() -> None:
    """Decode holds requests that have begun."""
    classes = yaml.safe_load_all(files_of("r1-cm384", "sglang", "lws")["priorities.yaml"])
    held = {item["metadata"]["name"].rpartition("-")[2]: item["value"] for item in classes}
    assert held["decode"] > held["prefill"]
    table = files_of("r1-cm384", "sglang")["hosts.tsv"]
    assert table.find("decode") < table.find("prefill\t")


def test_ascend_s_redundancy_is_derived_from_the_map() -> None:
    """With a static map vLLM-Ascend must not be told the number of replicas."""
    settings = json.loads(flags_of("r1-cm384", "vllm-ascend", "decode")["--additional-config"] or "")
    assert set(settings["eplb_config"]) == {"expert_map_path"}


def test_an_all_to_all_back_end_forces_ep_to_the_stage() -> None:
    """SGLang: EP x TP experts go without an all-to-all back end, or the engine silently changes EP."""
    asked = {"prefill": {"strategy": "TP=4 + DP=4, TP=2 + EP=8"}, "decode": {"strategy": "TP=4 + DP=4, EP=16"}}
    hybrid = deployed("deepseek-r1", "h800", **asked)
    for role, expected in {"prefill": ("8", "none"), "decode": ("16", "deepep")}.items():
        held = flags_of(hybrid, "sglang", role)
        assert (held["--ep-size"], held["--moe-a2a-backend"]) == expected


def test_vllm_refuses_an_ep_tp_hybrid_and_says_who_takes_it() -> None:
    """64 devices, EP32 x TP2: not vLLM's, but xLLM's degree 1, MindIE's and SGLang's without an all-to-all."""
    asked = {"strategy": "TP=2 + DP=32, TP=2 + EP=32", "weights": "int8"}
    hybrid = deployed("deepseek-r1", "cm384", prefill=asked, decode=asked)
    with pytest.raises(Infeasible, match="expert-grid") as error:
        files_of(hybrid, "vllm-ascend")
    assert "the nearest that it runs on 64 devices is 'TP=2 + DP=32, EP=64'" in str(error.value)
    assert flags_of(hybrid, "xllm", "prefill")["--expert_parallel_degree"] == "1"
    assert files_of(hybrid, "sglang") and files_of(hybrid, "mindie", "motor")


@pytest.mark.parametrize(
    ("ep", "experts", "tokens", "exchange"),
    [(8, 64, 64, "allgather"), (16, 256, 64, "mc2"), (16, 512, 64, "allgather"), (16, 256, 2000, "allgather")],
)
def test_a2_falls_back_to_all_gather(ep: int, experts: int, tokens: int, exchange: str) -> None:
    """vLLM-Ascend 0.23.0: MC2 on A2 only with EP >= 16, at most 24 experts a device and tokens within its room."""
    found = exchange_of(
        "a2", ep=ep, experts=experts, tokens=tokens, capacity=mc2_capacity(1024, 1), world=ep, experts_per_token=8
    )
    assert found == exchange


def test_dual_batch_overlap_has_an_exchange_that_it_can_hide() -> None:
    """vLLM asserts a deepep or nixl exchange; high throughput for prefill, low latency for decode, never both."""
    decode = flags_of("r1-h800", "vllm", "decode")
    assert "--enable-dbo" in decode and decode["--all2all-backend"] == "deepep_low_latency"
    assert flags_of("r1-h800", "vllm", "prefill")["--all2all-backend"] == "deepep_high_throughput"
    asked = Setup(
        strategy=parse_strategy("DP=16, EP=16"), role="mixed", devices_per_node=8, experts=256, microbatches=2
    )
    broken = broken_rule(load_engine("vllm"), asked)
    assert broken.rule == "microbatches"
    # Setting the V2 runner by hand would forbid drafts beside the overlap.
    assert "VLLM_USE_V2_MODEL_RUNNER" not in first("r1-h800", "vllm", "decode").processes[0].environment


def test_prefill_and_decode_agree_on_drafts_and_cache() -> None:
    """Prefill of vLLM-Ascend drafts one token whatever decode does."""
    asked = {"strategy": "DP=16, EP=16", "weights": "int8"}
    two = deployed("deepseek-r1", "cm384", prefill=asked, decode=asked | {"drafts": 2})
    for role, drafts in {"prefill": 1, "decode": 2}.items():
        told = flags_of(two, "vllm-ascend", role)["--speculative-config"]
        assert json.loads(told or "")["num_speculative_tokens"] == drafts


def test_both_sides_of_mooncake_state_the_sizes_of_both() -> None:
    """vLLM-Ascend: dp and tp of prefill and decode stand in both roles, with a port above the transfer engine's."""
    held = [
        json.loads(flags_of("r1-cm384", "vllm-ascend", role)["--kv-transfer-config"] or "")
        for role in ("prefill", "decode")
    ]
    assert held[0]["kv_connector_extra_config"] == held[1]["kv_connector_extra_config"]
    assert [config["kv_role"] for config in held] == ["kv_producer", "kv_consumer"]
    assert all(int(config["kv_port"]) >= 36000 for config in held)
    assert not {"kv_rank", "kv_parallel_size"} & set(held[0])


def test_dynamo_is_v1beta1_with_a_main_container_and_no_injected_flags() -> None:
    """v1alpha1's services are obsolete; the operator adds the flags of several nodes; prefill names its connector."""
    graph = yaml.safe_load(files_of("r1-h800", "vllm", "dynamo")["graph.yaml"])
    assert graph["apiVersion"] == "nvidia.com/v1beta1"
    assert "services" not in graph["spec"]
    for component in graph["spec"]["components"]:
        (container,) = component["podTemplate"]["spec"]["containers"]
        assert container["name"] == "main" and component["runtimeVersionOverride"] == "1.6.1"
        for flag in ("--nnodes", "--node-rank", "--data-parallel-address", "--data-parallel-start-rank"):
            assert flag not in container["args"]
        if component["type"] in ("prefill", "decode"):
            assert "--kv-transfer-config" in container["args"]
            assert container["args"][2:4] == ["--disaggregation-mode", component["type"]]
            assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
            assert container["resources"]["limits"]["rdma/ib"] == "1"
            assert container["securityContext"]["capabilities"]["add"][0] == "IPC_LOCK"


@pytest.mark.parametrize("engine", ["mindie", "trtllm"])
def test_instances_that_share_a_host_stand_apart_behind_nginx(engine: str) -> None:
    """Neither brings a router on hosts; MindIE reads port and devices from a file, here one of each instance."""
    hardware = "910b" if engine == "mindie" else "h100"
    manifest = deployed("qwen3-8b", hardware, mixed={"strategy": "TP=2", "instances": 2})
    files = dict(files_of(manifest, engine))
    servers = [f"server FILL-IN-{hardware}-node-0:{port};" for port in (8000, 8002)]
    assert "\n    ".join(servers) in files["nginx.conf"] and "listen 9000;" in files["nginx.conf"]
    assert 'ROUTER="${ROUTER:-http://127.0.0.1:9000}"' in files["smoke.sh"]
    files["site.env"] = files["site.env"].replace("(0 2)", "(0 0)")
    with pytest.raises(ValueError, match="stands twice on one host"):
        read_back(engine, "bare", files, {"mixed": 0})


def test_expert_maps_count_layers_as_each_engine_does() -> None:
    """DeepSeek-R1: 58 MoE layers for Ascend's map, a row for each of 61 layers for SGLang; every expert somewhere."""
    ascend = ascend_rows(files_of("r1-cm384", "vllm-ascend")["expert-map-decode.json"])
    assert len(ascend) == 58
    text = files_of("r1-cm384", "sglang")["expert-location-decode.json"]
    held = json.loads(text)
    assert set(held) == {"physical_to_logical_map"}  # more keys would be arguments that SGLang does not have
    rows = held["physical_to_logical_map"]
    assert len(rows) == 61
    for row in [*ascend, *rows]:
        assert set(row) == set(range(256)) and len(row) == 320


def test_one_stateful_set_is_one_instance() -> None:
    """A set is one rendezvous group, whose names come up before pods are ready."""
    held = list(yaml.safe_load_all(files_of("r1-h800", "vllm", "statefulset")["decode.yaml"]))
    sets = [item for item in held if item["kind"] == "StatefulSet"]
    services = [item for item in held if item["kind"] == "Service"]
    assert len(sets) == len(services) == 2
    for item, service in zip(sets, services, strict=True):
        assert item["spec"]["serviceName"] == service["metadata"]["name"]
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
        assert item["spec"]["podManagementPolicy"] == "Parallel"


def test_xllm_cuts_no_prompts_and_keeps_no_prefixes_where_prefill_is_apart() -> None:
    """Its guide turns both off, so that whole prompts must fit a step; a plan that counts on reuse is refused."""
    held = flags_of("r1-cm384", "xllm", "prefill")
    assert (held["--enable_chunked_prefill"], held["--enable_prefix_cache"]) == ("false", "false")
    assert int(held["--max_tokens_per_batch"] or 0) >= 4096 and "--enable_schedule_overlap" not in held
    workload = plan("r1-cm384").workload.model_copy(update={"prefix_reuse": 0.5})
    with pytest.raises(Infeasible, match="xLLM caches no prefixes"):
        files_of(plan("r1-cm384").model_copy(update={"workload": workload}), "xllm")


def test_a_longer_request_than_memory_holds_is_refused() -> None:
    """Lengths come from the workload, never past the KV cache of a rank or the model's positions."""
    manifest = plan("r1-cm384")
    kv = manifest.pools[0].kv.model_copy(update={"capacity_tokens_per_rank": 4096})
    small = manifest.model_copy(update={"pools": [pool.model_copy(update={"kv": kv}) for pool in manifest.pools]})
    with pytest.raises(Infeasible, match="mean request of 5120 tokens does not fit the KV cache"):
        files_of(small, "sglang")
    with pytest.raises(BadInput, match="longest_request_tokens: 9999999 tokens do not fit"):
        files_of(manifest, "sglang", longest_request_tokens=9_999_999)


def test_the_mode_of_two_microbatches_is_an_exchange() -> None:
    """Overlap needs something to hide: no engine's mode with microbatches is without an exchange."""
    strategy = parse_strategy("DP=16, EP=16")
    asked = Setup(strategy=strategy, role="prefill", devices_per_node=16, experts=256, architecture="deepseek_v3")
    for engine in ("vllm", "sglang", "mindie"):
        assert expert_mode(load_engine(engine), replace(asked, microbatches=2)).exchange != "none"
        assert broken_rule(load_engine(engine), asked) is None


def test_a_small_cache_is_not_lost_in_rounding_the_share_of_memory() -> None:
    """A cache of 0.5 % of the memory beside weights of 99.44 %: a thousandth less would cost requests."""
    (role,) = read_roles(plan("dense-mixed"), load_engine("vllm"), None)
    empty = role.memory.model_copy(update={"reserve": 0.0, "activations": 0.0, "buffers": 0.0})
    sizes = {"weights": 0.9944 * empty.capacity, "kv_cache": 0.005 * empty.capacity}
    held = memory_of(load_engine("vllm"), replace(role, memory=empty.model_copy(update=sizes), longest_cache_bytes=1))
    assert (held.requests, held.fraction) == (role.sequences, 0.9994)


def test_prefill_has_room_for_the_draft_layer_that_it_must_load() -> None:
    """Plans draft nothing in prefill, but engines load the layer there too: refused where it does not fit."""
    manifest = plan("r1-cm384")
    prefill = manifest.pools[0]
    capacity = prefill.memory_bytes_per_device.capacity
    full = prefill.memory_bytes_per_device.model_copy(update={"weights": capacity * 0.87, "kv_cache": 0.0})

    def held(loaded: int, engine: str) -> RolePlan:
        """Return the prefill role of a plan that counts so many layers for drafts of decode."""
        counted = {"memory_bytes_per_device": full, "mtp": prefill.mtp.model_copy(update={"loaded": loaded})}
        pools = [prefill.model_copy(update=counted), manifest.pools[1]]
        return read_roles(manifest.model_copy(update={"pools": pools}), load_engine(engine), None)[0]

    for engine in ("vllm-ascend", "sglang", "mindie"):
        loads, counts = held(0, engine), held(1, engine)
        assert loads.memory.weights == pytest.approx(62 / 61 * counts.memory.weights)
    assert memory_of(load_engine("mindie"), held(1, "mindie")).requests > 0
    with pytest.raises(Infeasible, match="MindIE leaves"):
        memory_of(load_engine("mindie"), held(0, "mindie"))


def test_motor_s_reader_finds_every_key_it_asks_for() -> None:
    """deploy_ac_job.py and its validator at 5dfb024 index these without a default, whatever is switched off."""
    files = files_of("r1-cm384", "mindie", "motor")
    deploy = json.loads(files["user_config.json"])["deploy_config"]
    assert deploy["deploy_motor_on_intelligent_server"] is True
    assert (deploy["p_instances_scale_num"], deploy["d_instances_scale_num"], deploy["model_id"]) == (0, 0, "")
    for name in ("mindie_env_path", "mindie_host_log_path", "mindie_container_log_path", "weight_mount_path"):
        assert deploy[name]
    assert deploy["coordinator_backup_cfg"] == {"function_enable": False}
    assert deploy["controller_backup_cfg"] == {"function_sw": False}
    mounts = {f"{name}_mount" for name in ("ms_controller", "ms_coordinator", "prefill_server", "decode_server")}
    assert set(deploy["deploy_mount_path"]) == mounts
    assert deploy["deploy_mount_path"]["decode_server_mount"] == {"/etc/podplan": "/etc/podplan"}
    for name in ("infer", "management", "cluster", "etcd_server"):
        assert deploy["tls_config"][f"{name}_tls_enable"] is False
    for name in ("infer", "management", "metrics", "cluster", "etcd_server"):
        items = deploy["tls_config"][f"{name}_tls_items"]
        assert set(items) == {"ca_cert", "tls_cert", "tls_key", "tls_passwd", "tls_crl"}
    environment = json.loads(files["mindie_env.json"])
    assert environment["mindie_server_decode_env"]["HCCL_BUFFSIZE"] > 500
    assert deploy["mindie_container_log_path"] == environment["mindie_common_env"]["MINDIE_LOG_PATH"]


def test_mindie_s_reader_finds_its_compulsory_keys() -> None:
    """MindIE-LLM's src/config_manager at 0695772 ends the server without them, on a host that merges no defaults."""
    own = json.loads(files_of("r1-mixed", "mindie")["config-mixed-0.json"])
    assert set(SERVER.split()) <= set(own["ServerConfig"]) and own["ServerConfig"]["httpsEnabled"] is False
    motor = json.loads(files_of("r1-cm384", "mindie", "motor")["user_config.json"])
    for config in (own, motor["mindie_server_prefill_config"], motor["mindie_server_decode_config"]):
        backend = config["BackendConfig"]
        schedule, deployed = backend["ScheduleConfig"], backend["ModelDeployConfig"]
        assert set(BACKEND.split()) <= set(backend) and set(SCHEDULE.split()) <= set(schedule)
        assert 0 < schedule["maxPrefillBatchSize"] <= schedule["maxBatchSize"]
        assert schedule["maxPrefillTokens"] >= deployed["maxInputTokenLen"]
        assert 0 < schedule["maxIterTimes"] <= deployed["maxSeqLen"]
        assert len(backend["npuDeviceIds"][0]) == deployed["ModelConfig"][0]["worldSize"]


def test_memory_shares_leave_room_for_buffers_and_graphs() -> None:
    """SGLang keeps its floor of 10 GiB and DeepEP's buffers; vLLM takes its default unless the plan needs more."""
    manifest = plan("qwen-h800")
    prefill, decode = manifest.pools
    memory = decode.memory_bytes_per_device
    share = flags_of(manifest, "sglang", "decode")["--mem-fraction-static"]
    assert float(share or 0) < 1 - 10 * GIBI / memory.capacity
    assert flags_of(manifest, "vllm", "decode")["--gpu-memory-utilization"] == "0.92"
    full = {"memory_bytes_per_device": memory.model_copy(update={"weights": 76e9})}
    tight = manifest.model_copy(update={"pools": [prefill, decode.model_copy(update=full)]})
    with pytest.raises(Infeasible, match=r"vLLM leaves .* for keys and values in the decode pool"):
        files_of(tight, "vllm")


def test_a_gang_knows_its_names_before_it_is_ready() -> None:
    """A head is ready once its workers have joined, who find it by name; nothing shuts the router out or gives up."""
    for item in yaml.safe_load_all(files_of("r1-h800", "vllm", "volcano")["decode.yaml"]):
        if item["kind"] == "Job":
            assert item["spec"]["maxRetry"] == 1_000_000
            told = ["--publish-not-ready-addresses=true", "--disable-network-policy=true"]
            assert item["spec"]["plugins"]["svc"] == told


def test_rank_tables_are_asked_for_and_waited_for() -> None:
    """The Ascend operator fills in a ConfigMap that must be there; it collects none for LeaderWorkerSets."""
    files = files_of("r1-cm384", "xllm", "volcano")
    held = [item for item in yaml.safe_load_all(files["decode.yaml"]) if item["kind"] == "ConfigMap"]
    assert {"rings-config-deepseek-r1-decode-0"} <= {item["metadata"]["name"] for item in held}
    assert "until grep -q" in files["decode.yaml"]
    pods = next(item for item in yaml.safe_load_all(files["router.yaml"]) if item["kind"] == "Deployment")
    mounts = pods["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert mounts[1]["mountPath"] == "/models"  # where its service reads the tokenizer, without which it ends
    with pytest.raises(Infeasible, match="use --kind volcano"):
        made("r1-cm384", "xllm", "lws")


def test_kv_does_not_go_from_a2_to_a3_with_vllm_ascend() -> None:
    """Refused with the rule; SGLang, whose documents do not forbid it, takes the same plan."""
    asked = {"strategy": "TP=8 + DP=2, EP=16", "weights": "int8"}
    prefill, other = (deployed("deepseek-r1", hardware, prefill=asked, decode=asked) for hardware in ("910b", "cm384"))
    gpus = deployed("deepseek-r1", "h800", prefill=asked, decode=asked)
    both, across = (
        one.model_copy(update={"pools": [one.pools[0], other.pools[1]], "clusters": one.clusters | other.clusters})
        for one in (prefill, gpus)
    )
    with pytest.raises(BadInput, match="SGLang cannot span ascend and nvidia devices"):
        files_of(across, "sglang")
    with pytest.raises(Infeasible, match=r"\(pair-device\).*moves no keys and values from"):
        files_of(both, "vllm-ascend")
    assert "decode.sh" in files_of(both, "sglang")
    with pytest.raises(BadInput, match="one Slurm job has nodes of one kind, the plan 2"):
        files_of(both, "sglang", "slurm")
    with pytest.raises(BadInput, match="host 'a' must name its cluster, one of"):
        check_inventory(Inventory.model_validate({"hosts": [{"name": "a", "address": "10.0.0.1"}]}), both, "hosts.yaml")


def test_devices_whose_files_are_not_known_are_refused() -> None:
    """Ascend 950 is no A2 of another name; DeepEP has no kernels for PCIe, where experts are gathered instead."""
    asked = {"strategy": "TP=1 + DP=8, EP=8"}
    with pytest.raises(Infeasible, match=r"not for Ascend 950DT \(machine\)"):
        files_of(deployed("qwen3-235b-a22b", "950dt", mixed=asked), "vllm-ascend")
    cards = deployed("qwen3-235b-a22b", "rtx-pro-6000", mixed=asked)
    assert "--moe-a2a-backend none" in files_of(cards, "sglang")["mixed.sh"]
    assert "deepep" not in files_of(cards, "vllm")["mixed.sh"]


def test_dynamo_s_pods_may_ask_the_kubernetes_api() -> None:
    """Workers register and frontends look them up there: without a token of the operator's account none is found."""
    files = files_of("r1-h800", "vllm", "dynamo", service_account="serving", model_host_path="/mnt/weights")
    for component in yaml.safe_load(files["graph.yaml"])["spec"]["components"]:
        spec = component["podTemplate"]["spec"]
        assert not {"automountServiceAccountToken", "serviceAccountName"} & spec.keys()
        assert {"name": "model", "hostPath": {"path": "/mnt/weights", "type": "Directory"}} in spec["volumes"]


def trtllm_options(tokens: int) -> dict[str, Any]:
    """Return the YAML of an aggregated instance of TensorRT-LLM whose steps hold so many tokens."""
    roles = {"mixed": {"strategy": "DP=8, EP=8", "tokens": tokens, "redundant": 8, "requests": 8}}
    manifest = deployed("qwen3-30b-a3b", "h800", **roles)
    files = files_of(manifest, "trtllm")
    exchanged = ("TRTLLM_CAN_USE_DEEP_EP=1", "ENABLE_CONFIGURABLE_MOE=1")  # without, tokens are gathered
    assert all(f"export {each}\n" in files["mixed.sh"] for each in exchanged)
    return yaml.safe_load(files["options-mixed.yml"])


def test_tensorrt_llm_takes_prompts_that_are_longer_than_a_step() -> None:
    """It refuses them unless it may cut them; where they fit they stay whole, as they were planned."""
    assert trtllm_options(4096)["enable_chunked_prefill"]
    assert "enable_chunked_prefill" not in trtllm_options(8192)


def test_tensorrt_llm_s_options_are_fields_of_its_arguments() -> None:
    """Its classes forbid other fields, at every depth, and other words than their choices."""
    options = trtllm_options(4096)
    assert unknown_options(options) == []
    options["kv_cache_config"]["free_gpu_memory_share"] = 0.9
    options["moe_config"] |= {"backend": "DEEPEP", "load_balancer": {"slots": 8}}
    found = ["kv_cache_config.free_gpu_memory_share", "moe_config.load_balancer.slots", "moe_config.backend: DEEPEP"]
    assert unknown_options(options) == found


@pytest.mark.parametrize(
    ("prefill", "said"),
    [
        ({"strategy": "TP=2 + DP=128, EP=256"}, "takes 8 nodes of a prefill instance"),
        ({"strategy": "DP=16, EP=16", "instances": 17}, r"pair-instances\): 17 prefill instances are more than 16"),
    ],
)
def test_motor_takes_so_many_instances_of_so_many_nodes(prefill: dict[str, Any], said: str) -> None:
    """Its validator has 8 nodes for a prefill instance, its guide 16 instances."""
    roles: dict[str, Any] = {"prefill": prefill, "decode": {"strategy": "DP=16, EP=16"}}
    manifest = deployed("deepseek-r1", "cm384", **{name: held | {"weights": "int8"} for name, held in roles.items()})
    with pytest.raises(Infeasible, match=said):
        files_of(manifest, "mindie", "motor")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_pictures_are_taken_and_graphs_left_out_where_planned(engine: str) -> None:
    """Dynamo's workers refuse pictures unless they are told of them; no engine captures graphs for an eager plan."""
    graph = files_of("rare-h800", engine, "dynamo")["graph.yaml"]
    assert graph.count("- --enable-multimodal\n") == 1
    bare = files_of("rare-h800", engine, "bare")
    script = bare["mixed.sh"] + bare.get("options-mixed.yml", "")
    assert any(sign in script for sign in ("--enforce-eager", "decode disabled", "cuda_graph_config: null"))
    assert "--enable-multimodal" not in files_of("dense-mixed", engine, "dynamo")["graph.yaml"]
    assert "mixed.sh" not in files_of("rare-h800", engine, "dynamo").get("mixed-files.yaml", "")


@pytest.mark.parametrize(
    ("model", "machine", "kind", "decode", "kernels"),
    [
        ("deepseek-r1", "h200", "slurm", {"strategy": "DP=8, EP=8"}, None),
        ("deepseek-r1", "b200", "slurm", {"strategy": "DP=8, EP=8"}, "DEEPGEMM"),
        ("deepseek-r1", "rtx-pro-6000", "slurm", {"strategy": "TP=8, TP=8"}, None),
        ("deepseek-r1", "gb200", "slurm", {"strategy": "DP=16, EP=16"}, "WIDEEP"),
        ("deepseek-r1", "gb200", "dynamo", {"strategy": "DP=16, EP=16"}, "DEEPGEMM"),
        ("deepseek-r1", "h200", "slurm", {"strategy": "DP=16, EP=16", "redundant": 16}, "WIDEEP"),
        ("deepseek-r1", "h200", "dynamo", {"strategy": "DP=16, EP=16", "redundant": 16}, None),
        ("gpt-oss-120b", "h200", "slurm", {"strategy": "TP=8, TP=8"}, "TRITON"),
        ("gpt-oss-120b", "h200", "slurm", {"strategy": "DP=8, EP=8"}, None),
        ("gpt-oss-120b", "b200", "slurm", {"strategy": "DP=8, EP=8"}, "TRTLLM"),
        ("gpt-oss-120b", "b200", "dynamo", {"strategy": "DP=8, EP=8"}, None),
        ("gpt-oss-120b", "rtx-pro-6000", "slurm", {"strategy": "TP=8, TP=8"}, None),
    ],
)
def test_tensorrt_llm_s_experts_have_kernels(
    model: str, machine: str, kind: PlatformKind, decode: Any, kernels: str | None
) -> None:
    """Dynamo's release has no WIDEEP, and chooses for gpt-oss; TRTLLM's rows stay below 2**31 numbers.

    "fp8 blockscale gemm only support Hopper" (NVIDIA/TensorRT-LLM#5064).
    """
    role = {"weights": "fp8" if model == "deepseek-r1" else "mxfp4", "requests": 64}
    prefill = role | {"tokens": 16384, "strategy": decode["strategy"].replace("16", "4" if machine == "gb200" else "8")}
    manifest = deployed(model, machine, prefill=prefill, decode=role | decode)
    files = all_texts(files_of(manifest, "trtllm", kind))
    found, other = (
        yaml.safe_load(files[f"options-{role}.yml"]).get("moe_config", {}) for role in ("decode", "prefill")
    )
    assert found.get("backend") == kernels
    assert other.get("max_num_tokens") == (93206 if kernels == "TRTLLM" else None) and "max_num_tokens" not in found
    options = {"moe_config": {"backend": "WIDEEP"}}
    assert not unknown_options(options) and unknown_options(options, dynamo=True) == ["moe_config.backend: WIDEEP"]


def test_graphs_on_a2_are_no_larger_than_its_exchange() -> None:
    """CANN: MoeDistributeDispatchV2 takes 256 tokens of a device on A2, where vLLM-Ascend sends those of any graph."""

    def graphs(strategy: str, requests: int, machine: str = "910b") -> Any:
        role = {"strategy": strategy, "requests": requests}
        manifest = deployed("qwen3-30b-a3b", machine, prefill={"strategy": "TP=8"}, decode=role)
        told = json.loads(flags_of(manifest, "vllm-ascend", "decode")["--compilation-config"] or "")
        return told.get("max_cudagraph_capture_size")

    assert graphs("DP=16, EP=16", 200) == 256
    assert graphs("DP=16, EP=16", 100) is graphs("TP=2 + DP=8, EP=16", 400) is graphs("DP=8, EP=8", 200) is None
    assert graphs("DP=16, EP=16", 200, "910c") is None


def test_motor_s_deployer_finds_what_it_asks_for() -> None:
    """Its checks at 5dfb024: modes of files, a namespace, memory of the coordinator, a label on nodes."""
    told = files_of("r1-cm384", "mindie", "motor")["README.md"]
    assert "mode 640" in told and "kubectl create namespace deepseek-r1" in told and "module-a3-16-super-pod" in told
    assert "coordinator_init" not in told  # 3,072 requests, within 12 GiB
    dense = deployed("qwen3-8b", "910b", prefill={"strategy": "TP=1"}, decode={"strategy": "TP=1"})
    assert "1. Copy the expert-map files to" in told and "map" not in files_of(dense, "mindie", "motor")["README.md"]
    decode = {"strategy": "DP=64, EP=64", "weights": "int8", "requests": 200}
    prefill = {"strategy": "TP=2 + DP=8, EP=16", "weights": "int8"}
    wide = deployed("deepseek-r1", "cm384", prefill=prefill, decode=decode)
    assert "15Gi as the memory that" in files_of(wide, "mindie", "motor")["README.md"]
