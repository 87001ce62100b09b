"""One test per trap of deployment files that users of other tools have fallen into; versions in planner/engines."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from deploy.inventory import Inventory, check_inventory
from deploy.reading.check import all_texts, ascend_rows, read_back
from deploy.reading.flags import read_flags, unknown_options
from deploy.reading.nodes import Node, read_nodes
from deploy.render import render
from deploy.site import Site
from ground.errors import BadInput, Infeasible
from ground.units import GIBI
from planner.engines.exchanges import exchange_of, mc2_capacity
from planner.engines.loader import load_engine
from planner.engines.rules import Setup, broken_rule, expert_mode
from planner.engines.spec import PlatformKind
from planner.manifest.schema import Routing
from planner.strategy import parse_strategy
from tests.deploy.cases import DIGEST, made, plan
from tests.deploy.plans import deployed


def flags_of(name: str, engine: str, kind: PlatformKind, role: str) -> dict[str, str | None]:
    """Return the flags of a role's first process."""
    return read_flags(first(name, engine, kind, role).processes[0].words)


def first(name: str, engine: str, kind: PlatformKind, role: str) -> Node:
    """Return a role's first node."""
    return next(node for node in read_nodes(kind, made(name, engine, kind).files) if node.role == role)


def test_ascend_s_redundancy_is_derived_from_the_map() -> None:
    """With a static map vLLM-Ascend must not be told the number of replicas."""
    settings = json.loads(flags_of("r1-cm384", "vllm-ascend", "bare", "decode")["--additional-config"] or "")
    assert set(settings["eplb_config"]) == {"expert_map_path"}


def test_an_all_to_all_back_end_forces_ep_to_the_stage() -> None:
    """SGLang: EP x TP experts go without an all-to-all back end, or the engine silently changes EP."""
    hybrid = deployed(
        "deepseek-r1",
        "h800",
        prefill={"strategy": "TP=4 + DP=4, TP=2 + EP=8"},
        decode={"strategy": "TP=4 + DP=4, EP=16"},
    )
    files = render(hybrid, load_engine("sglang"), "bare", Site(), DIGEST).files
    held = {node.role: read_flags(node.processes[0].words) for node in read_nodes("bare", files)}
    assert (held["prefill"]["--ep-size"], held["prefill"]["--moe-a2a-backend"]) == ("8", "none")
    assert (held["decode"]["--ep-size"], held["decode"]["--moe-a2a-backend"]) == ("16", "deepep")


def test_vllm_refuses_an_ep_tp_hybrid_and_says_who_takes_it() -> None:
    """64 devices, EP32 x TP2: not vLLM's, but xLLM's degree 1, MindIE's and SGLang's without an all-to-all."""
    asked = {"strategy": "TP=2 + DP=32, TP=2 + EP=32", "weights": "int8"}
    hybrid = deployed("deepseek-r1", "cm384", prefill=asked, decode=asked)
    with pytest.raises(Infeasible, match="expert-grid") as error:
        render(hybrid, load_engine("vllm-ascend"), "bare", Site(), DIGEST)
    assert "the nearest that it runs on 64 devices is 'TP=2 + DP=32, EP=64'" in str(error.value)
    for engine, kind in (("xllm", "bare"), ("sglang", "bare"), ("mindie", "motor")):
        files = render(hybrid, load_engine(engine), kind, Site(), DIGEST).files  # type: ignore[arg-type]
        if engine == "xllm":
            held = read_flags(read_nodes("bare", files)[0].processes[0].words)
            assert held["--expert_parallel_degree"] == "1"


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


def test_the_guide_names_the_exchange_at_the_planned_batch() -> None:
    """On A3 decode's 96 tokens go by MC2, prefill's 4096 by an all-to-all."""
    guide = made("r1-cm384", "vllm-ascend", "bare").files["README.md"]
    assert "decode: 96 tokens a step reach their experts by mc2" in guide
    assert "prefill: 4096 tokens a step reach their experts by all_to_all" in guide


def test_dual_batch_overlap_has_an_exchange_that_it_can_hide() -> None:
    """vLLM asserts a deepep or nixl exchange; high throughput for prefill, low latency for decode, never both."""
    decode = flags_of("r1-h800", "vllm", "bare", "decode")
    assert "--enable-dbo" in decode and decode["--all2all-backend"] == "deepep_low_latency"
    assert flags_of("r1-h800", "vllm", "bare", "prefill")["--all2all-backend"] == "deepep_high_throughput"
    asked = Setup(
        strategy=parse_strategy("DP=16, EP=16"), role="mixed", devices_per_node=8, experts=256, microbatches=2
    )
    broken = broken_rule(load_engine("vllm"), asked)
    assert broken is not None and broken.rule == "microbatches"
    # Setting the V2 runner by hand would forbid drafts beside the overlap.
    assert "VLLM_USE_V2_MODEL_RUNNER" not in first("r1-h800", "vllm", "bare", "decode").processes[0].environment


def test_prefill_and_decode_agree_on_drafts_and_cache() -> None:
    """Prefill of vLLM-Ascend drafts one token whatever decode does."""
    two = deployed(
        "deepseek-r1",
        "cm384",
        prefill={"strategy": "DP=16, EP=16", "weights": "int8"},
        decode={"strategy": "DP=16, EP=16", "drafts": 2, "weights": "int8"},
    )
    files = render(two, load_engine("vllm-ascend"), "bare", Site(), DIGEST).files
    held = {node.role: read_flags(node.processes[0].words) for node in read_nodes("bare", files)}
    drafts = {role: json.loads(f["--speculative-config"] or "")["num_speculative_tokens"] for role, f in held.items()}
    assert drafts == {"prefill": 1, "decode": 2}


def test_both_sides_of_mooncake_state_the_sizes_of_both() -> None:
    """vLLM-Ascend: dp and tp of prefill and decode stand in both roles, with a port above the transfer engine's."""
    held = [
        json.loads(flags_of("r1-cm384", "vllm-ascend", "bare", role)["--kv-transfer-config"] or "")
        for role in ("prefill", "decode")
    ]
    assert held[0]["kv_connector_extra_config"] == held[1]["kv_connector_extra_config"]
    assert [config["kv_role"] for config in held] == ["kv_producer", "kv_consumer"]
    assert all(int(config["kv_port"]) >= 36000 for config in held)
    assert not {"kv_rank", "kv_parallel_size"} & set(held[0])


def test_dynamo_is_v1beta1_with_a_main_container_and_no_injected_flags() -> None:
    """v1alpha1's services are obsolete; the operator adds the flags of several nodes; prefill names its connector."""
    graph = yaml.safe_load(made("r1-h800", "vllm", "dynamo").files["graph.yaml"])
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


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_low_latency_exchange_has_queues_and_counters_for_its_tokens(engine: str) -> None:
    """DeepEP asserts two entries of a queue per token, past 511 tokens more than by default, and whole fours of tokens
    of all ranks; it counts up to 1,024.
    """

    def files(requests: int) -> dict[str, str]:
        prefill = {"strategy": "DP=8, EP=8", "weights": "fp8"}
        decode = {"strategy": "DP=16, EP=16", "requests": requests, "drafts": 1, "weights": "fp8"}
        manifest = deployed("deepseek-r1", "h200", prefill=prefill, decode=decode)
        return render(manifest, load_engine(engine), "bare", Site(), DIGEST).files

    assert "export NVSHMEM_QP_DEPTH=1024\n" in files(100)["decode.sh"]
    assert "export NVSHMEM_QP_DEPTH=1210\n" in files(301)["decode.sh"]  # of 602 tokens, in whole fours
    assert ("--max-num-batched-tokens 604 " in files(301)["decode.sh"]) == (engine == "vllm")
    assert ("RANK=604\n" in files(301)["decode.sh"]) == (engine == "sglang")  # which has room for 128 by default
    with pytest.raises(Infeasible, match=r"at most 1024 tokens .* 600 requests bring 1200; plan with --batch 512"):
        files(600)


@pytest.mark.parametrize("engine", ["mindie", "trtllm"])
def test_instances_that_share_a_host_stand_apart_behind_nginx(engine: str) -> None:
    """Neither brings a router on hosts; MindIE reads port and devices from a file, here one of each instance."""
    hardware = "910b" if engine == "mindie" else "h100"
    manifest = deployed("qwen3-8b", hardware, mixed={"strategy": "TP=2", "instances": 2})
    files = dict(render(manifest, load_engine(engine), "bare", Site(), DIGEST).files)
    servers = [f"server FILL-IN-{hardware}-node-0:{port};" for port in (8000, 8002)]
    assert "\n    ".join(servers) in files["nginx.conf"] and "listen 9000;" in files["nginx.conf"]
    assert 'ROUTER="${ROUTER:-http://127.0.0.1:9000}"' in files["smoke.sh"]
    files["site.env"] = files["site.env"].replace("(0 2)", "(0 0)")
    with pytest.raises(ValueError, match="stands twice on one host"):
        read_back(engine, "bare", files, {"mixed": 0})


def test_expert_maps_count_layers_as_each_engine_does() -> None:
    """DeepSeek-R1: 58 MoE layers for Ascend's map, a row for each of 61 layers for SGLang; every expert somewhere."""
    ascend = ascend_rows(made("r1-cm384", "vllm-ascend", "bare").files["expert-map-decode.json"])
    assert len(ascend) == 58
    text = made("r1-cm384", "sglang", "bare").files["expert-location-decode.json"]
    held = json.loads(text)
    assert set(held) == {"physical_to_logical_map"}  # more keys would be arguments that SGLang does not have
    rows = held["physical_to_logical_map"]
    assert len(rows) == 61
    for row in [*ascend, *rows]:
        assert set(row) == set(range(256)) and len(row) == 320


def test_one_stateful_set_is_one_instance() -> None:
    """A set is one rendezvous group, whose names come up before pods are ready."""
    held = list(yaml.safe_load_all(made("r1-h800", "vllm", "statefulset").files["decode.yaml"]))
    sets = [item for item in held if item["kind"] == "StatefulSet"]
    services = [item for item in held if item["kind"] == "Service"]
    assert len(sets) == len(services) == 2
    for item, service in zip(sets, services, strict=True):
        assert item["spec"]["serviceName"] == service["metadata"]["name"]
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
        assert item["spec"]["podManagementPolicy"] == "Parallel"


def test_decode_goes_before_prefill_at_restarts() -> None:
    """Decode holds requests that have begun."""
    held = {
        item["metadata"]["name"].rpartition("-")[2]: item["value"]
        for item in yaml.safe_load_all(made("r1-cm384", "sglang", "lws").files["priorities.yaml"])
    }
    assert held["decode"] > held["prefill"]
    assert made("r1-cm384", "sglang", "bare").files["hosts.tsv"].find("decode") < made(
        "r1-cm384", "sglang", "bare"
    ).files["hosts.tsv"].find("prefill\t")


def test_xllm_s_defaults_that_cap_a_plan_are_raised() -> None:
    """200 concurrent requests (128 open answers of its service), graphs off or of 16 requests bind silently."""
    held = flags_of("r1-cm384", "xllm", "bare", "decode")
    assert held["--max_concurrent_requests"] == str(48 * 64)
    assert held["--enable_graph"] == "true"
    assert held["--acl_graph_decode_batch_size_limit"] == "48"
    assert "--http_server_max_concurrency=0" in made("r1-cm384", "xllm", "bare").files["router.sh"]


@pytest.mark.parametrize(
    ("name", "engine"), [("qwen-h800", "vllm"), ("r1-cm384", "sglang"), ("r1-cm384", "vllm-ascend")]
)
def test_a_repository_s_code_runs_where_the_site_says_so(name: str, engine: str) -> None:
    """Kimi's tokenizer is code; and vLLM gives engines up after ten minutes, while weights may load for longer."""
    trusted = render(plan(name), load_engine(engine), "bare", Site(trust_remote_code=True), DIGEST).files["decode.sh"]
    assert (
        "--trust-remote-code" in trusted and "--trust-remote-code" not in made(name, engine, "bare").files["decode.sh"]
    )
    assert ("VLLM_ENGINE_READY_TIMEOUT_S=3600" in trusted) == engine.startswith("vllm")


def test_xllm_cuts_no_prompts_and_keeps_no_prefixes_where_prefill_is_apart() -> None:
    """Its guide turns both off, so that whole prompts must fit a step; a plan that counts on reuse is refused."""
    held = flags_of("r1-cm384", "xllm", "bare", "prefill")
    assert (held["--enable_chunked_prefill"], held["--enable_prefix_cache"]) == ("false", "false")
    assert int(held["--max_tokens_per_batch"] or 0) >= 4096 and "--enable_schedule_overlap" not in held
    workload = plan("r1-cm384").workload.model_copy(update={"prefix_reuse": 0.5})
    with pytest.raises(Infeasible, match="xLLM caches no prefixes"):
        render(plan("r1-cm384").model_copy(update={"workload": workload}), load_engine("xllm"), "bare", Site(), DIGEST)


def test_a_longer_request_than_memory_holds_is_refused() -> None:
    """Lengths come from the workload, never past the KV cache of a rank or the model's positions."""
    manifest = plan("r1-cm384")
    pools = [
        pool.model_copy(update={"kv": pool.kv.model_copy(update={"capacity_tokens_per_rank": 4096})})
        for pool in manifest.pools
    ]
    small = manifest.model_copy(update={"pools": pools})
    with pytest.raises(Infeasible, match="mean request of 5120 tokens does not fit the KV cache"):
        render(small, load_engine("sglang"), "bare", Site(), DIGEST)
    with pytest.raises(BadInput, match="longest_request_tokens: 9999999 tokens do not fit"):
        render(manifest, load_engine("sglang"), "bare", Site(longest_request_tokens=9_999_999), DIGEST)


def test_the_mode_of_two_microbatches_is_an_exchange() -> None:
    """Overlap needs something to hide: no engine's mode with microbatches is without an exchange."""
    asked = Setup(
        strategy=parse_strategy("DP=16, EP=16"),
        role="prefill",
        devices_per_node=16,
        experts=256,
        microbatches=2,
        architecture="deepseek_v3",
    )
    for engine in ("vllm", "sglang", "mindie"):
        mode = expert_mode(load_engine(engine), asked)
        assert mode is not None and mode.exchange != "none"
        assert broken_rule(load_engine(engine), replace(asked, microbatches=1)) is None


def test_prefill_has_room_for_the_draft_layer_that_it_must_load() -> None:
    """Plans draft nothing in prefill, but engines load the layer there too: refused where it does not fit."""
    manifest = plan("r1-cm384")
    prefill = manifest.pools[0]
    capacity = prefill.memory_bytes_per_device.capacity
    full = prefill.memory_bytes_per_device.model_copy(update={"weights": capacity * 0.875, "kv_cache": 0.0})
    tight = manifest.model_copy(
        update={"pools": [prefill.model_copy(update={"memory_bytes_per_device": full}), manifest.pools[1]]}
    )
    with pytest.raises(Infeasible, match="must load the draft layer that decode uses"):
        render(tight, load_engine("sglang"), "bare", Site(), DIGEST)


def test_kv_may_go_over_mooncake_between_gpus() -> None:
    """One site value changes the engines' connectors and the router alike; NPUs keep their own."""
    site = Site(kv_transfer="mooncake")
    vllm = render(plan("qwen-h800"), load_engine("vllm"), "bare", site, DIGEST).files
    assert '"kv_connector":"MooncakeConnector","kv_role":"kv_consumer"' in vllm["decode.sh"]
    assert "export VLLM_MOONCAKE_BOOTSTRAP_PORT=$((8998 + FIRST_DEVICE))" in vllm["prefill.sh"]
    assert "NIXL" not in vllm["decode.sh"] and "--kv-connector mooncake" in vllm["router.sh"]
    assert "--prefill http://FILL-IN-h800-node-0:8004 9002" in vllm["router.sh"]
    sglang = render(plan("qwen-h800"), load_engine("sglang"), "bare", site, DIGEST).files
    assert "--disaggregation-transfer-backend mooncake" in sglang["decode.sh"]
    ascend = render(plan("r1-cm384"), load_engine("sglang"), "bare", site, DIGEST).files
    assert "--disaggregation-transfer-backend ascend" in ascend["decode.sh"]


def test_schedulers_aim_at_the_plan_s_limits() -> None:
    """TTFT 2 s and TPOT 50 ms, in milliseconds, where MindIE Motor and xLLM's service ask for them."""
    controller = json.loads(made("r1-cm384", "mindie", "motor").files["user_config.json"])[
        "mindie_ms_controller_config"
    ]
    assert (controller["digs_prefill_slo"], controller["digs_decode_slo"]) == (2000, 50)
    router = made("r1-cm384", "xllm", "bare").files["router.sh"]
    assert "--target_ttft=2000" in router and "--target_tpot=50" in router


def test_motor_s_reader_finds_every_key_it_asks_for() -> None:
    """deploy_ac_job.py and its validator at 5dfb024 index these without a default, whatever is switched off."""
    files = made("r1-cm384", "mindie", "motor").files
    deploy = json.loads(files["user_config.json"])["deploy_config"]
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
        items = deploy["tls_config"][f"{name}_tls_items"]
        assert set(items) == {"ca_cert", "tls_cert", "tls_key", "tls_passwd", "tls_crl"}
    environment = json.loads(files["mindie_env.json"])
    assert environment["mindie_server_decode_env"]["HCCL_BUFFSIZE"] > 500
    assert deploy["mindie_container_log_path"] == environment["mindie_common_env"]["MINDIE_LOG_PATH"]


SERVER = "ipAddress port maxLinkNum httpsEnabled inferMode allowAllZeroIpListening metricsPort tokenTimeout e2eTimeout"
BACKEND = "backendName tokenizerProcessNumber modelInstanceNumber npuDeviceIds interNodeTLSEnabled ScheduleConfig"
SCHEDULE = (
    "templateName templateType cacheBlockSize decodePolicyType decodeTimeMsPerReq maxBatchSize maxPreemptCount "
    "maxPrefillTokens maxIterTimes maxPrefillBatchSize maxQueueDelayMicroseconds prefillPolicyType "
    "prefillTimeMsPerReq supportSelectBatch"
)


def test_mindie_s_reader_finds_its_compulsory_keys() -> None:
    """MindIE-LLM's src/config_manager at 0695772 ends the server without them, on a host that merges no defaults."""
    own = json.loads(made("r1-mixed", "mindie", "bare").files["config-mixed-0.json"])
    assert set(SERVER.split()) <= set(own["ServerConfig"]) and own["ServerConfig"]["httpsEnabled"] is False
    motor = json.loads(made("r1-cm384", "mindie", "motor").files["user_config.json"])
    for config in (own, motor["mindie_server_prefill_config"], motor["mindie_server_decode_config"]):
        backend = config["BackendConfig"]
        schedule, deployed = backend["ScheduleConfig"], backend["ModelDeployConfig"]
        assert set(BACKEND.split()) <= set(backend) and set(SCHEDULE.split()) <= set(schedule)
        assert 0 < schedule["maxPrefillBatchSize"] <= schedule["maxBatchSize"]
        assert schedule["maxPrefillTokens"] >= deployed["maxInputTokenLen"]
        assert 0 < schedule["maxIterTimes"] <= deployed["maxSeqLen"]
        assert len(backend["npuDeviceIds"][0]) == deployed["ModelConfig"][0]["worldSize"]


def test_a_plan_that_mixes_is_told_to_mix() -> None:
    """SGLang reads prompts beside decoding requests with --enable-mixed-chunk alone, and never where it drafts; the
    manifest says in which order it was played. A chunk is whole pages.
    """
    assert "--enable-mixed-chunk" in made("dense-mixed", "sglang", "bare").files["mixed.sh"]
    own = plan("dense-mixed").model_copy(update={"routing": Routing(chunks="prefill_first")})
    text = render(own, load_engine("sglang"), "bare", Site(), DIGEST).files["mixed.sh"]
    assert "--chunked-prefill-size" in text and "--enable-mixed-chunk" not in text
    flags = read_flags(first("r1-mixed", "sglang", "bare", "mixed").processes[0].words)
    assert "--enable-mixed-chunk" not in flags
    assert "where it drafts, lets those wait" in made("r1-mixed", "sglang", "bare").files["README.md"]
    assert "in steps of their own" in render(own, load_engine("vllm"), "bare", Site(), DIGEST).files["README.md"]
    assert "plan again" not in made("dense-mixed", "sglang", "bare").files["README.md"]
    assert int(flags["--chunked-prefill-size"] or 0) // 16 % 128 == 0
    assert "--enable-mixed-chunk" not in made("r1-cm384", "sglang", "bare").files["prefill.sh"]


def test_an_engine_is_told_the_tokens_of_one_stage_s_part() -> None:
    """Four stages have four parts of a step of 2,048 tokens under way; a scheduler forms one of them at a time."""
    staged = deployed(
        "qwen3-8b", "h100", mixed={"strategy": "TP=1 [PP=4]", "tokens": 512, "requests": 128, "instances": 2}
    )
    for engine, flag in (("vllm", "--max-num-batched-tokens 512"), ("sglang", "--chunked-prefill-size 512")):
        assert flag in render(staged, load_engine(engine), "bare", Site(), DIGEST).files["mixed.sh"]


def test_releases_have_their_own_flags_of_attention_dp() -> None:
    """0.5.23 on GPUs; 0.5.21 inside Dynamo 1.6.1 and 0.5.18 in the images for Ascend know the older pair alone."""
    assert "--attn-dp-size" in made("qwen-h800", "sglang", "bare").files["decode.sh"]
    older = (
        made("qwen-h800", "sglang", "dynamo").files["graph.yaml"],
        made("r1-cm384", "sglang", "bare").files["decode.sh"],
    )
    for text in older:
        assert "--enable-dp-attention" in text and "--attn-dp-size" not in text
    assert "# qwen3-235b-a22b with SGLang 0.5.21, dynamo" in made("qwen-h800", "sglang", "dynamo").files["README.md"]


def test_buffers_follow_batch_and_layout() -> None:
    """48 requests of 2 tokens at EP 64 with 5 slots a device; the prefill of SGLang combines 4096 tokens a device."""
    exported = dict(re.findall(r"export (\w+)=(\S+)", made("r1-cm384", "vllm-ascend", "bare").files["decode.sh"]))
    assert int(exported["HCCL_BUFFSIZE"]) == pytest.approx(892, abs=2)
    exported = dict(re.findall(r"export (\w+)=(\S+)", made("r1-cm384", "sglang", "bare").files["prefill.sh"]))
    assert int(exported["HCCL_BUFFSIZE"]) == 862
    decode = made("r1-h800", "vllm", "lws").files["decode.yaml"]
    assert "export NVSHMEM_REMOTE_TRANSPORT=ibgda" in decode and "export NVSHMEM_SYMMETRIC_SIZE=2G" in decode
    assert "SYS_RAWIO" in decode and "rdma/ib: '1'" in decode


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("kind", ["lws", "dynamo"])
def test_nvlink_over_trays_takes_a_claimed_channel(engine: str, kind: PlatformKind) -> None:
    """IMEX joins the trays of decode; prefill, inside one, claims none; no adapter's registers are mapped."""
    files = made("r1-gb200", engine, kind).files
    assert "kind: ComputeDomain" in files["nvlink.yaml"]
    text = files["decode.yaml"] if kind == "lws" else files["graph.yaml"]
    assert text.count("resourceClaimTemplateName: deepseek-r1-nvlink") == text.count(" claims:\n") > 0
    assert "NCCL_MNNVL_ENABLE" in text and "FABRIC" in text and "ibgda" not in text and "SYS_RAWIO" not in text
    assert ("VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL" in text) == (engine == "vllm")
    assert (
        "resourceClaims" not in files.get("prefill.yaml", "")
        and "nvlink.yaml" not in made("r1-h800", engine, kind).files
    )


def test_memory_shares_leave_room_for_buffers_and_graphs() -> None:
    """SGLang keeps its floor of 10 GiB and DeepEP's buffers; vLLM takes its default unless the plan needs more."""
    flags = read_flags(first("qwen-h800", "sglang", "bare", "decode").processes[0].words)
    capacity = plan("qwen-h800").pools[1].memory_bytes_per_device.capacity
    assert float(flags["--mem-fraction-static"] or 0) < 1 - 10 * GIBI / capacity
    flags = read_flags(first("qwen-h800", "vllm", "bare", "decode").processes[0].words)
    assert flags["--gpu-memory-utilization"] == "0.92"
    pool = plan("qwen-h800").pools[1]
    memory = pool.memory_bytes_per_device.model_copy(update={"weights": 76e9})
    tight = plan("qwen-h800").model_copy(
        update={"pools": [plan("qwen-h800").pools[0], pool.model_copy(update={"memory_bytes_per_device": memory})]}
    )
    with pytest.raises(Infeasible, match=r"vLLM leaves .* for keys and values in the decode pool"):
        render(tight, load_engine("vllm"), "bare", Site(), DIGEST)


def test_a_gang_knows_its_names_before_it_is_ready() -> None:
    """A head is ready once its workers have joined, who find it by name; nothing shuts the router out or gives up."""
    for item in yaml.safe_load_all(made("r1-h800", "vllm", "volcano").files["decode.yaml"]):
        if item["kind"] == "Job":
            assert item["spec"]["maxRetry"] == 1_000_000
            assert item["spec"]["plugins"]["svc"] == [
                "--publish-not-ready-addresses=true",
                "--disable-network-policy=true",
            ]


def test_rank_tables_are_asked_for_and_waited_for() -> None:
    """The Ascend operator fills in a ConfigMap that must be there; it collects none for LeaderWorkerSets."""
    files = made("r1-cm384", "xllm", "volcano").files
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
        first.model_copy(
            update={"pools": [first.pools[0], other.pools[1]], "clusters": first.clusters | other.clusters}
        )
        for first in (prefill, gpus)
    )
    with pytest.raises(BadInput, match="SGLang cannot span ascend and nvidia devices"):
        render(across, load_engine("sglang"), "bare", Site(), DIGEST)
    with pytest.raises(Infeasible, match=r"\(pair-device\).*moves no keys and values from"):
        render(both, load_engine("vllm-ascend"), "bare", Site(), DIGEST)
    assert "decode.sh" in render(both, load_engine("sglang"), "bare", Site(), DIGEST).files
    with pytest.raises(BadInput, match="one Slurm job has nodes of one kind, the plan 2"):
        render(both, load_engine("sglang"), "slurm", Site(), DIGEST)
    with pytest.raises(BadInput, match="host 'a' must name its cluster, one of"):
        check_inventory(Inventory.model_validate({"hosts": [{"name": "a", "address": "10.0.0.1"}]}), both, "hosts.yaml")


def test_devices_whose_files_are_not_known_are_refused() -> None:
    """Ascend 950 is no A2 of another name; DeepEP has no kernels for PCIe, vLLM's gathers have."""
    asked = {"strategy": "TP=1 + DP=8, EP=8"}
    with pytest.raises(Infeasible, match=r"not for Ascend 950DT \(machine\)"):
        render(deployed("qwen3-235b-a22b", "950dt", mixed=asked), load_engine("vllm-ascend"), "bare", Site(), DIGEST)
    cards = deployed("qwen3-235b-a22b", "rtx-pro-6000", mixed=asked)
    with pytest.raises(Infeasible, match=r"take NVLink inside a node .* is on PCIe \(machine\)"):
        render(cards, load_engine("sglang"), "bare", Site(), DIGEST)
    assert "mixed.sh" in render(cards, load_engine("vllm"), "bare", Site(), DIGEST).files


def test_dynamo_s_pods_may_ask_the_kubernetes_api() -> None:
    """Workers register and frontends look them up there: without a token of the operator's account none is found."""
    site = Site(service_account="serving", model_host_path="/mnt/weights")
    files = render(plan("r1-h800"), load_engine("vllm"), "dynamo", site, DIGEST).files
    for component in yaml.safe_load(files["graph.yaml"])["spec"]["components"]:
        spec = component["podTemplate"]["spec"]
        assert not {"automountServiceAccountToken", "serviceAccountName"} & spec.keys()
        assert {"name": "model", "hostPath": {"path": "/mnt/weights", "type": "Directory"}} in spec["volumes"]


def test_a_router_waits_as_long_as_engines_may_load() -> None:
    """Its own limit is ten minutes, or half an hour, and then it ends."""
    for engine, kind in (("vllm", "bare"), ("sglang", "lws")):
        files = all_texts(made("r1-h800", engine, kind).files)  # type: ignore[arg-type]
        assert "--worker-startup-timeout-secs 3600" in files["router.sh"]


def test_weights_are_there_before_engines_start() -> None:
    """The README waits for the job that fetches them; without such a job it names none."""
    name = "job/qwen3-235b-a22b-weights"
    assert name in made("qwen-h800", "vllm", "lws").files["README.md"]
    own = render(plan("qwen-h800"), load_engine("vllm"), "lws", Site(model_claim="mine"), DIGEST)
    assert name not in own.files["README.md"]
    assert "weights.yaml" not in made("r1-cm384", "mindie", "motor").files["README.md"]


def trtllm_options(tokens: int) -> dict[str, Any]:
    """Return the YAML of an aggregated instance of TensorRT-LLM whose steps hold so many tokens."""
    roles = {"mixed": {"strategy": "DP=8, EP=8", "tokens": tokens, "redundant": 8, "requests": 8}}
    manifest = deployed("qwen3-30b-a3b", "h800", **roles)
    files = render(manifest, load_engine("trtllm"), "bare", Site(), DIGEST).files
    assert "TRTLLM_CAN_USE_DEEP_EP=1" in files["mixed.sh"]  # off by default, and then tokens are gathered
    found: dict[str, Any] = yaml.safe_load(files["options-mixed.yml"])
    return found


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
        render(manifest, load_engine("mindie"), "motor", Site(), DIGEST)
