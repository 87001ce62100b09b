"""Deployments of others: what they are, the rate that they carry, what is wrong, and what was planned comes back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import podplan
from cli.main import main
from deploy.reading.benchmark import sent, spread_line
from deploy.reading.check import expected
from deploy.reading.foreign import read_source
from ground.errors import BadInput, Infeasible
from ground.files import write_files
from planner.engines.spec import PlatformKind
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from planner.plans.assemble import assemble
from podplan.importing import ImportResult, _text_of, import_deployment
from podplan.options import QuestionFlags
from podplan.question import read_question
from tests.deploy.cases import files_of, made, pairs
from tests.deploy.plans import deployed
from tests.questions import best_of

LWS = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: r1}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 2
    workerTemplate:
      spec:
        containers:
        - name: vllm
          env: [{name: DP_LOCAL, value: "8"}]
          command: ["/bin/bash", "-c"]
          args:
          - |
            START=$(( LWS_WORKER_INDEX * DP_LOCAL ))
            # vllm serve is below
            exec vllm serve deepseek-ai/DeepSeek-R1 \\
              -tp 1 --data_parallel_size $((LWS_GROUP_SIZE * DP_LOCAL)) \\
              --data-parallel-size-local $DP_LOCAL --data-parallel-start-rank $START \\
              --enable-expert-parallel --max-model-len 4096 --enforce-eager \\
              --gpu-memory-utilization 0.995 --max-num-seqs 512 --swap-space 4 &
          resources: {limits: {nvidia.com/gpu: 8}}
"""
GRAPH = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: q}
spec:
  services:
    Frontend: {replicas: 1, extraPodSpec: {mainContainer: {command: [python3, -m, dynamo.frontend]}}}
    VllmPrefillWorker:
      replicas: 2
      resources: {limits: {gpu: "2"}}
      extraPodSpec: {mainContainer: {command: [python3, -m, dynamo.vllm], args: [--model, Qwen/Qwen3-32B,
        --tensor-parallel-size, "2", --is-prefill-worker]}}
    VllmDecodeWorker:
      replicas: 1
      resources: {limits: {gpu: "4"}}
      extraPodSpec: {mainContainer: {command: [python3, -m, dynamo.vllm], args: [--model, Qwen/Qwen3-32B,
        --tensor-parallel-size, "4", --disaggregation-mode, decode]}}
"""
REPORT = """
version: "0.2.1"
run: {uid: "1"}
scenario:
  stack:
  - metadata: {label: prefill-0}
    standardized:
      kind: inference_engine
      tool: llm-d
      tool_version: ghcr.io/llm-d/llm-d-cuda:0.3.1
      role: prefill
      replicas: 2
      model: {name: Qwen/Qwen3-32B}
      accelerator: {model: H100, count: 2, parallelism: {tp: 2, dp: 1, dp_local: 1, workers: 1}}
    native: {args: {max-model-len: 8192, kv-transfer-config: {kv_connector: NixlConnector}}, envars: {A: b}}
  - standardized: {kind: generic, tool: epp, tool_version: "1"}
  - standardized: {kind: inference_engine, tool: llm-d, tool_version: "cuda:0.3.1", role: decode, replicas: 1,
      model: {name: Qwen/Qwen3-32B}, accelerator: {count: 4, parallelism: {tp: 8, dp: 1, dp_local: 1, workers: 2}}}
    native: {args: {"--tensor-parallel-size": 4, "--no-enable-prefix-caching": null}}
results: {}
"""
FORMS = (Path(__file__).parent / "deployments/forms.yaml").read_text(encoding="utf-8")


def test_a_report_of_llm_d_says_what_it_measured(tmp_path: Path) -> None:
    """Its engines, not what stands beside them; a flag goes before the report's own field."""
    path = tmp_path / "benchmark_report.yaml"
    path.write_text(REPORT, encoding="utf-8")
    prefill, decode = read_source(str(path))
    assert prefill.flags["--max-model-len"] == "8192" and prefill.environment == {"A": "b"}
    assert "--no-enable-prefix-caching" in decode.flags and decode.model == "Qwen/Qwen3-32B"
    found = import_deployment(str(path), hw="h100")
    assert [role["name"] for role in found.rows()] == ["prefill-0", "component 3"]
    path.write_text(REPORT.replace("dp_local: 1, workers: 1", "ep: 2"), encoding="utf-8")
    assert "--enable-expert-parallel" in read_source(str(path))[0].flags
    path.write_text(REPORT.replace("Qwen/Qwen3-32B", "", 1), encoding="utf-8")
    assert [role.name for role in read_source(str(path))] == ["component 3"]
    path.write_text(REPORT.replace("replicas: 2", "replicas: many"), encoding="utf-8")
    with pytest.raises(BadInput, match="replicas: 'many' is not a whole number"):
        read_source(str(path))


def test_a_group_of_pods_is_read_with_its_variables(tmp_path: Path) -> None:
    """Two instances of two nodes, 16 ranks each; what the command leaves out is told."""
    path = tmp_path / "lws.yaml"
    path.write_text(LWS, encoding="utf-8")
    (found,) = read_source(str(path))
    counted = found.counted(256, 5120)
    assert (found.instances, found.nodes, found.devices, found.role) == (2, 2, 16, "mixed")
    assert (counted.attention_dp, counted.moe_ep, counted.sequences, counted.ranks) == (16, 16, 512, 16)
    assert found.assumed == ("--max-num-batched-tokens 8192",)
    assert found.unknown == ("--swap-space",)


def test_objects_of_objects_count_what_they_start(tmp_path: Path) -> None:
    """A slice of a DisaggregatedSet has all its roles; pods of a StatefulSet may be one instance's."""
    text, path = LWS.replace("nvidia.com/gpu", "huawei.com/Ascend910"), tmp_path / "objects.yaml"
    roles = [{"name": name, "spec": yaml.safe_load(text)["spec"]} for name in ("prefill", "decode")]
    whole = {"kind": "DisaggregatedSet", "spec": {"slices": 3, "roles": roles}}
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    read = [(role.name, role.engine, role.instances, role.nodes) for role in read_source(str(path))]
    assert read == [(name, "vllm-ascend", 6, 2) for name in ("prefill", "decode")]
    pods = []
    for number, ranks in enumerate(("16", "16", "8")):
        words = ["python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B", "--tp", ranks]
        container = {"command": words, "resources": {"limits": {"nvidia.com/gpu": 8}}}
        spec = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
        pods.append({"kind": "StatefulSet", "metadata": {"name": f"q-{number}"}, "spec": spec})
    path.write_text(yaml.safe_dump_all(pods), encoding="utf-8")
    wide, narrow = read_source(str(path))
    assert (wide.name, wide.instances, wide.nodes, narrow.name, narrow.instances) == ("q", 2, 2, "q (2)", 2)
    assert wide.flags["--max-running-requests"] == "256"


def test_what_is_wrong_is_told_with_the_change_that_mends_it(tmp_path: Path) -> None:
    """Unknown flags, a length that refuses the workload, TCP, a batch past TPOT, memory; and what is only wasted."""
    path = tmp_path / "lws.yaml"
    path.write_text(LWS, encoding="utf-8")
    result = podplan.import_deployment(str(path), hw="h200", rate="2/s")
    changes = [finding.change or "" for finding in result.findings if finding.blocking]
    assert changes[:3] == ["drop --swap-space", "--max-model-len 4096 -> 5120", "limits: {rdma/ib: 1}"]
    assert changes[3].startswith("--gpu-memory-utilization 0.995 -> 0.9")
    could = [finding.change or "" for finding in result.findings if not finding.blocking]
    assert could[0] == "drop --enforce-eager" and could[-1].startswith("--max-num-seqs 512 -> ")
    assert result.most_per_second is not None and result.headroom is not None and not result.feasible
    assert result.to_dict()["roles"][0]["attention_dp"] == 16


@pytest.mark.parametrize("text", [GRAPH, REPORT], ids=["Dynamo v1alpha1", "llm-d"])
def test_services_are_prefill_and_decode(tmp_path: Path, text: str) -> None:
    """Of Dynamo's older graph and of a report; the front end has no device."""
    path = tmp_path / "services.yaml"
    path.write_text(text, encoding="utf-8")
    found = [(role.role, role.instances, role.nodes, role.devices) for role in read_source(str(path))]
    assert found == [("prefill", 2, 1, 2), ("decode", 1, 1, 4)]


def test_the_forms_in_which_upstream_writes_its_graphs_are_read(tmp_path: Path) -> None:
    """Variables of a graph, files of settings, JSON within quotes and over lines, keys of JSON as flags."""
    path = tmp_path / "graph.yaml"
    path.write_text(FORMS.replace("\\\\", "\\"), encoding="utf-8")
    c, a, b, d = read_source(str(path))
    assert {role.model for role in (a, b, c, d)} == {"Qwen/Qwen3-235B-A22B"}
    options = a.counted(128, 5000)
    assert (options.attention_dp, options.moe_ep, options.sequences, options.longest) == (4, 4, 64, 5000)
    assert (options.memory_frac, a.unknown, a.engine) == (0.8, ("no_such_argument",), "trtllm")
    assert (b.devices, b.flags["--ep-size"], b.unknown) == (8, "8", ())
    assert b.flags["--speculative-algorithm"] == "NEXTN"
    assert c.role == "prefill" and c.flags["--kv-transfer-config"] == '{"kv_connector":"NixlConnector"}'
    drafted = d.counted(128, 5000)
    assert (drafted.drafts, drafted.redundant, d.unknown, d.devices) == (2, 8, (), 1)
    path.write_text(path.read_text(encoding="utf-8").replace("settings.yaml: |", "elsewhere.yaml: |"), encoding="utf-8")
    assert read_source(str(path))[1].flags["max_batch_size"] == "7"


def test_variables_before_a_command_are_its_own() -> None:
    """Several behind export, with a remark, or before the command itself; what a shell computes stays unknown."""
    script = """export IP=$(hostname -I | awk '{print $1}') HCCL_BUFFSIZE=9
export HCCL_BUFFSIZE=600 TASK_QUEUE_ENABLE=1  # of decode
export A="--max-num-seqs 7"; export TP=4
DP=2 B=3 vllm serve deepseek-r1 -tp $TP -dp $DP $A --host $IP"""
    (role,) = read_source(script)
    known = {"HCCL_BUFFSIZE": "600", "TASK_QUEUE_ENABLE": "1", "A": "--max-num-seqs 7"}
    assert role.environment == known | {"TP": "4", "DP": "2", "B": "3"}
    assert (role.devices, role.flags["--max-num-seqs"], role.flags["--host"]) == (8, "7", None)


def test_collectives_of_ascend_devices_tell_the_engine() -> None:
    """A dense model's script has no setting of vLLM-Ascend's own; an odd number of dies is on whole chips."""
    (role,) = read_source("HCCL_IF_IP=10.0.0.1 vllm serve qwen3-8b")
    assert role.engine == "vllm-ascend"
    found = import_deployment("HCCL_IF_IP=10.0.0.1 vllm serve qwen3-8b", hw="910c", weights="bf16")
    assert found.question.decode.devices == 2 and found.most_per_second


def test_a_default_chunk_is_what_divides_over_ranks() -> None:
    """SGLang divides its 8,192 tokens by attention DP and leaves the rest."""
    (role,) = read_source("python3 -m sglang.launch_server --model-path deepseek-r1 --tp 12 --attn-dp-size 12")
    assert role.flags["--chunked-prefill-size"] == "8184" and role.counted(256, 5000).tokens == 682


def test_roles_that_say_nothing_are_what_they_stand_beside(tmp_path: Path) -> None:
    """What is beside prefill decodes; decode alone, whose caches are offloaded, is aggregated."""
    path = tmp_path / "services.yaml"
    path.write_text(GRAPH.replace(', "4", --disaggregation-mode, decode', ', "4"'), encoding="utf-8")
    assert [role.role for role in read_source(str(path))] == ["prefill", "decode"]
    held = yaml.safe_load(GRAPH)
    del held["spec"]["services"]["VllmPrefillWorker"]
    path.write_text(yaml.safe_dump(held), encoding="utf-8")
    (alone,) = read_source(str(path))
    assert (alone.role, alone.assumed[-1], alone.release) == ("mixed", "prompts, too: no prefill", "0.31.0")
    with pytest.raises(BadInput, match="which is not here"):
        read_source("trtllm-serve Qwen/Qwen3-8B --extra_llm_api_options nowhere.yml")


def test_options_of_files_elsewhere_are_passed_over() -> None:
    """A balancer in a file of its own, and a draft model."""
    command = "trtllm-serve Qwen/Qwen3-8B --extra_llm_api_options o.yml"
    passed = "moe_config: {load_balancer: /b.yml}\nspeculative_config: {decoding_type: Eagle3, max_draft_len: 3}"
    counted = read_source(command, {"o.yml": passed})[0].counted(256, 5000)
    assert (counted.redundant, counted.drafts) == (0, 0)
    passed = "moe_config: {load_balancer: {num_slots: 264}}\nmoe_expert_parallel_size: 8\ntensor_parallel_size: 8"
    assert read_source(command, {"o.yml": passed})[0].counted(256, 5000).redundant == 8


@pytest.mark.parametrize(
    ("flags", "settings", "said"),
    [
        ("--max-num-seqs 0", None, "sequences is '0', not a whole number from 1"),
        ("--max-num-batched-tokens -9", None, "tokens is '-9', not a whole number from 1"),
        ("--gpu-memory-utilization nan", None, "the share of memory is nan"),
        ("--gpu-memory-utilization 5", None, "the share of memory is 5"),
        ("", "max_batch_size: x", "max_batch_size is 'x'"),
        ("", "max_num_tokens: 1.5", "max_num_tokens is '1.5'"),
        ("", "moe_expert_parallel_size: 3", "is 0 of 1"),
        ("", "[1, 2]", "must be a mapping of settings"),
        ("", "max_seq_len: -4", "max_seq_len is '-4'"),
        ("", "kv_cache_config: {free_gpu_memory_fraction: x}", "not as its kind has it"),
        ("", "speculative_config: {decoding_type: MTP, num_nextn_predict_layers: x}", "not as its kind has it"),
    ],
)
def test_numbers_that_no_engine_takes_are_refused(flags: str, settings: str | None, said: str) -> None:
    """A count below one, a share that is none, a text in a file of settings."""
    command = f"vllm serve Qwen/Qwen3-8B {flags}"
    if settings is not None:
        command = "trtllm-serve serve Qwen/Qwen3-8B --extra_llm_api_options o.yml"
    with pytest.raises(BadInput, match=said):
        read_source(command, {"o.yml": settings or ""})[0].counted(0, 1024)


@pytest.mark.parametrize(("engine", "hw", "weights"), [("xllm", "910b", "int8"), ("vllm", "b200", "nvfp4")])
def test_the_weights_folder_of_a_plan_says_a_format_that_is_not_shipped(tmp_path, engine, hw, weights) -> None:
    """No flag of these engines does; the plan that comes back has it."""
    made = deployed("qwen3-8b", hw, mixed={"strategy": "TP=1", "weights": weights})
    write_files({tmp_path / name: text for name, text in files_of(made, engine).items()}, force=False)
    found = import_deployment(str(tmp_path), hw=hw)
    assert {pool.weights_dtype for pool in found.manifest.pools} == {weights}


def test_scripts_have_their_own_variables_and_roles_their_own_formats(tmp_path: Path) -> None:
    """Weights of both formats stand in folders of one; a repository's name may say it; a chart is refused."""
    pools = {"prefill": {"strategy": "TP=1", "weights": "fp8"}, "decode": {"strategy": "TP=1"}}
    made = deployed("qwen3-8b", "h100", **pools)
    write_files({tmp_path / name: text for name, text in files_of(made, "vllm").items()}, force=False)
    found = import_deployment(str(tmp_path), hw="h100")
    assert [pool.weights_dtype for pool in found.manifest.pools] == ["fp8", "bf16"]
    shipped = import_deployment("vllm serve Qwen/Qwen3-32B-FP8 --max-num-seqs 64", hw="h200")
    assert shipped.question.model.name == "qwen3-32b" and shipped.manifest.pools[0].weights_dtype == "fp8"
    (tmp_path / "Chart.yaml").write_text("name: c", encoding="utf-8")
    with pytest.raises(BadInput, match="is a Helm chart"):
        import_deployment(str(tmp_path), hw="h100")


@pytest.mark.parametrize(
    ("engine", "asked"),
    [
        ("vllm", {"isl_cv": "0.4", "prefix_reuse": "0.25"}),
        ("vllm", {"isl_cv": "1", "osl_cv": "0.8", "prefix_reuse": "0.25"}),
        ("sglang", {"isl_cv": "1"}),
        ("sglang", {"images": "1@1280x720", "isl_cv": "0.2", "osl_cv": "0.2"}),
        ("sglang", {"prefix_reuse": "0.25"}),
        ("trtllm", {"isl_cv": "0.4", "osl_cv": "0.3"}),
        ("trtllm", {"images": "1@1280x720"}),
        ("vllm", {"video": "8@640x360"}),
        ("trtllm", {"video": "8@640x360"}),
    ],
)
def test_a_benchmark_says_the_traffic_that_was_planned(engine: str, asked: dict[str, str], tmp_path: Path) -> None:
    """Of every tool: lengths, what they vary by, the cached share, pictures; what is given goes before it."""
    model = "qwen3-vl-8b-instruct" if {"images", "video"} & asked.keys() else "qwen3-8b"
    fixed = {"strategy": 'mixed="TP=1"', "shape": "aggregated", "isl": "1500", "osl": "300", "rate": "1/s"}
    planned = podplan.plan(model, hw="h100", engine=engine, devices="8", ttft="20s", **fixed, **asked).manifest()
    write_files({tmp_path / name: text for name, text in files_of(planned, engine).items()}, force=False)
    held, wanted = import_deployment(str(tmp_path), hw="h100").question.workload, planned.workload
    assert held.input_tokens.mean == pytest.approx(wanted.input_tokens, rel=1e-3)
    assert held.input_tokens.squared_cv == pytest.approx(wanted.input_cv2, rel=0.01)
    assert held.output_tokens.squared_cv == pytest.approx(wanted.output_cv2, rel=0.01)
    assert held.prefix_reuse == pytest.approx(wanted.prefix_reuse, rel=1e-3)
    assert import_deployment(str(tmp_path), hw="h100", isl="99", osl="9").question.workload.input_tokens.mean < 2e3


def test_a_benchmark_without_lengths_and_a_changed_one_tell_what_they_send(tmp_path: Path) -> None:
    """No lengths of a dataset; of a command that was changed by hand its own, not what its script says of the plan."""
    assert sent("vllm bench serve --model m --dataset-name sharegpt") == {}
    command = "vllm bench serve --random-input-len 100 --random-output-len 10 --random-range-ratio"
    told = sent(f"{spread_line(1.0, 0.0)}\n{command} 0.3")
    assert told == {"isl": "100", "osl": "10", "isl_cv": "0.173", "osl_cv": "0.173"}
    (tmp_path / "benchmark.sh").write_text(f"{command} half\n", encoding="utf-8")
    (tmp_path / "serve.sh").write_text(f"{SERVE}\n", encoding="utf-8")
    with pytest.raises(BadInput, match="give --isl and --osl"):
        import_deployment(str(tmp_path), hw="h100")


def test_weights_that_leave_no_room_for_a_request_are_told_at_once() -> None:
    """DeepSeek-V3 on one H100: nothing is played, where every iteration of a request beyond memory would be."""
    found = import_deployment("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3", hw="h100")
    assert found.manifest is None and [each.what for each in found.findings] == ["no request fits beside the weights"]


@pytest.mark.parametrize(("name", "engine", "kind"), [pair for pair in pairs() if pair[1] != "reference"])
def test_what_deploy_writes_is_read_as_it_was_planned(
    name: str, engine: str, kind: PlatformKind, tmp_path: Path
) -> None:
    """Degrees, instances, limits, drafts, replicas and memory of every role, for every engine and platform."""
    try:
        deployment = made(name, engine, kind)
    except Infeasible:  # TensorRT-LLM over several nodes, and the like
        pytest.skip("its engine cannot run it")
    write_files({tmp_path / file: text for file, text in deployment.files.items()}, force=False)
    held = read_source(*_text_of(str(tmp_path)))
    assert [(role.role, role.instances, role.nodes, role.engine, role.unknown) for role in held] == [
        (role.role, len(role.instances), role.nodes, engine, ()) for role in deployment.target.roles
    ]
    for found, planned in zip(held, deployment.target.roles, strict=True):
        wanted, counted = expected(deployment.target, planned), found.counted(planned.setup.experts, 1)
        if wanted.tokens is None:  # decode of SGLang states none, so that the engine's default counts
            counted = replace(counted, tokens=None)
        if engine == "mindie":  # whose share of memory is of its environment
            counted = replace(counted, memory_frac=0.0)
        assert replace(counted, moe_ep=wanted.moe_ep if not planned.setup.experts else counted.moe_ep) == wanted


def redeployed(folder: Path, manifest: Manifest, engine: str, kind: PlatformKind, **flags: object) -> ImportResult:
    """Return what the files of a manifest are read as, of which nothing must be mended."""
    write_files({folder / name: text for name, text in files_of(manifest, engine, kind).items()}, force=False)
    result = import_deployment(str(folder), **flags)
    assert [finding for finding in result.findings if finding.blocking] == []
    return result


def test_a_plan_that_was_deployed_carries_its_rate_again(tmp_path: Path) -> None:
    """Search, deploy, import: the rate within the limits is the plan's, lengths the benchmark's, nothing is wrong."""
    best = best_of(hardware="h100", devices=32, engine="vllm@0.33.0")
    manifest = assemble(best, {})
    levels = manifest.service_levels
    asked = {"ttft": levels.ttft_seconds, "tpot": levels.tpot_seconds, "out": tmp_path / "plan"}
    result = redeployed(tmp_path, manifest, "vllm", "lws", hw="h100", **asked)
    assert result.most_per_second == pytest.approx(best.requests_per_second, rel=0.05)
    written = read_manifest(tmp_path / "plan" / "manifest.yaml")
    assert {pool.role for pool in written.pools} == {pool.role for pool in manifest.pools}


@pytest.mark.parametrize(("engine", "kind"), [("mindie", "motor"), ("xllm", "bare")])
def test_a_plan_on_npus_carries_its_rate_again(engine: str, kind: PlatformKind, tmp_path: Path) -> None:
    """MindIE's documents and xLLM's processes say all that the plan counts; pods must have as many devices."""
    manifest = podplan.plan("deepseek-r1", hw="cm384", nodes="8", engine=engine).manifest()
    result = redeployed(tmp_path, manifest, engine, kind, hw="cm384")
    assert result.most_per_second == pytest.approx(manifest.predicted.requests_per_second, rel=0.01)
    assert not result.findings  # a full batch may pass TPOT, and does not at the rate of a plan
    if engine == "mindie":
        text = (tmp_path / "user_config.json").read_text(encoding="utf-8")
        with pytest.raises(BadInput, match="its pods have other devices"):
            read_source(text.replace('"d_pod_npu_num": 16', '"d_pod_npu_num": 8'))


def test_engines_count_what_they_compute_of_prompts(tmp_path: Path) -> None:
    """Plans count cached tokens of a pass, too: with half of them cached a pass is as long in the files again."""
    asked = {"nodes": "1", "engine": "vllm", "isl": "5000", "osl": "500", "prefix_reuse": "0.5", "mtp": "0"}
    manifest = podplan.plan("qwen3-32b", hw="h200", shape="disaggregated", **asked).manifest()
    result = redeployed(tmp_path, manifest, "vllm", "bare", hw="h200")
    planned, read = (each.pools[0].limits.tokens_per_device for each in (manifest, result.manifest))
    assert result.roles[0][1].tokens == planned * manifest.pools[0].degrees.attention_tp / 2 and read == planned


def test_forms_of_kubernetes_that_tools_write(tmp_path: Path) -> None:
    """A list of kubectl in JSON; Helm's breaks with comments and ends of line, a sidecar, anchors and merge keys."""
    path = tmp_path / "objects.json"
    path.write_text(json.dumps({"kind": "List", "items": [yaml.safe_load(LWS)]}, indent=4), encoding="utf-8")
    assert [(role.name, role.nodes) for role in read_source(str(path))] == [("r1", 2)]
    pod = """---   # Source: chart/templates/a.yaml
x-env: &env
- {name: SIZE, value: "2"}
x-base: &base {image: some, env: *env}
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - {<<: *base, name: proxy, command: [envoy]}
  - <<: [*base, {image: other}]
    name: engine
    command: [vllm, serve, Qwen/Qwen3-8B, -tp, $(SIZE)]
---
"""
    (tmp_path / "pod.yaml").write_bytes(pod.replace("\n", "\r\n").encode())
    (found,) = read_source(str(tmp_path / "pod.yaml"))
    assert (found.name, found.devices, found.instances) == ("p", 2, 1)
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 99)}]\n" for n in range(1, 9))
    for text, said in ((bomb, "stand for more than"), ("a: &a [*a]\n", "stands for nothing that ends before")):
        with pytest.raises(BadInput, match=said):
            read_source(f"kind: Pod\n{text}")


SERVER = """{"ServerConfig": {}, "BackendConfig": {"npuDeviceIds": [[0, 1, 2, 3]],
 "ModelDeployConfig": {"maxSeqLen": 8192, "maxInputTokenLen": 4096, "ModelConfig": [{"modelName": "qwen",
 "modelWeightPath": "/data/Qwen3-32B", "worldSize": 4, "dp": -1, "tp": -1, "moe_ep": -1, "npuMemSize": -1}]},
 "ScheduleConfig": {"maxPrefillTokens": 8192, "maxBatchSize": 64}}}"""


def test_an_image_that_starts_vllm_needs_no_command() -> None:
    """Of the project's own image arguments alone stand in a pod and behind docker run; lengths may be 32k, or auto."""
    flags = "--model meta-llama/Llama-3.1-8B-Instruct --max-model-len 32k --max-num-batched-tokens 16K"
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.33.0", "args": flags.split()}
    spec = {"replicas": 3, "template": {"spec": {"containers": [container, {"name": "side", "image": "nginx"}]}}}
    items = {"kind": "Deployment", "metadata": {"name": "llama"}, "spec": spec}
    (pods,) = read_source(yaml.safe_dump(items, sort_keys=False))
    (process,) = read_source(f"docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.33.0 {flags}")
    assert (pods.name, pods.instances, process.instances) == ("llama", 3, 1)
    for found in (pods, process):
        assert (found.engine, found.model) == ("vllm", "meta-llama/Llama-3.1-8B-Instruct")
        assert (found.flags["--max-model-len"], found.flags["--max-num-batched-tokens"]) == ("32000", "16384")
    (longest,) = read_source("vllm serve Qwen/Qwen3-8B --max-model-len auto")
    assert "--max-model-len" not in longest.flags


def test_a_server_of_mindie_is_read_from_its_settings(tmp_path: Path) -> None:
    """-1 is what MindIE works out; a map that is not here is told, cp refused; a pod's daemon names its file."""
    path = tmp_path / "config.json"
    path.write_text(SERVER, encoding="utf-8")
    (found,) = read_source(str(path))
    held = found.counted(0, 100)
    assert (held.attention_tp, held.attention_dp, held.sequences, held.longest) == (4, 1, 64, 8192)
    assert import_deployment(str(path), hw="910b", isl="512", osl="128").most_per_second
    for old, new, said in (('"dp": -1', '"cp": 2', "cuts a prompt"), ("[[0,", "[[0, 4,", "npuDeviceIds has 5")):
        with pytest.raises(BadInput, match=said):
            read_source(SERVER.replace(old, new))[0].counted(0, 100)
    mapped = '"models": {"deepseekv2": {"ep_level": 2, "eplb": {"level": 1, "expert_map_file": "/m/map.json"}}}, "tp"'
    (found,) = read_source(SERVER.replace('"tp"', mapped))
    assert found.assumed == ("no replicas: /m/map.json is not here",)
    container = {"command": ["bash", "-c", "./bin/mindieservice_daemon"], "env": [], "resources": {}}
    pod = {"kind": "Pod", "metadata": {"name": "m"}, "spec": {"containers": [container]}}
    assert read_source(json.dumps(pod, indent=1), {"config.json": SERVER})[0].engine == "mindie"


def test_a_process_of_xllm_says_its_instance() -> None:
    """Limits of the instance, a batch past its graphs, a role; single dashes as gflags takes them."""
    flags = "--nnodes=4 --dp_size 2 --ep_size=4 --expert_parallel_degree=2 --enable_graph=true --node_rank=$i"
    (found,) = read_source(f"for i in 0 1 2 3; do xllm --model /w/Qwen3-30B-A3B -max_seqs_per_batch 96 {flags} & done")
    held = found.counted(128, 5000)
    assert (held.devices, held.attention_tp, held.attention_dp, held.moe_ep, held.sequences) == (4, 2, 2, 4, 48)
    assert "--max_tokens_per_batch 10240" in found.assumed and found.unknown == ()
    result = import_deployment(f"xllm --model /w/Qwen3-30B-A3B --max_seqs_per_batch=96 {flags}", hw="910c")
    assert any("_limit 16 -> 48" in (each.change or "") for each in result.findings)


def test_the_parts_of_pipeline_stages_make_a_step(tmp_path: Path) -> None:
    """vLLM is told the tokens of one part; all stages are full at once."""
    command = "vllm serve Qwen/Qwen3-8B --pipeline-parallel-size 4 --max-num-batched-tokens 512 --max-num-seqs 64"
    import_deployment(command, hw="h100", rate="1/s", out=tmp_path / "plan")
    (pool,) = read_manifest(tmp_path / "plan" / "manifest.yaml").pools
    assert pool.degrees.pp == 4
    assert pool.limits.tokens_per_device * pool.degrees.attention_tp * pool.degrees.pp == 4 * 512


def test_the_command_prints_headroom_and_findings(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 where it runs and keeps the limits."""
    arguments = [
        "import", "vllm serve Qwen/Qwen3-8B --max-num-seqs 256", "--hw", "h100", "--isl", "512", "--osl", "128",
    ]  # fmt: skip
    assert main([*arguments, "--rate", "5/s"]) == 0
    shown = capsys.readouterr().out
    assert "headroom over 5/s: +" in shown and "within the limits; 0 things must be mended" in shown


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("replicas: 2", "replicas: many"), "replicas: 'many'"),
        (("size: 2", "size: 0"), "size: '0'"),
        (("containers:", "containers: x\n        others:"), "not as its kind has it"),
        (("env: [{name: DP_LOCAL", "env: [{nme: DP_LOCAL"), "not as its kind has it"),
        (("-tp 1", "-tp 99999999"), "is not a whole number from 1 to"),
        (("-tp 1", "-tp ²"), "is not a number of devices"),
        (("serve deepseek-ai/DeepSeek-R1", "serve --port 80"), "has no command that is read here"),
        (("--max-num-seqs 512", "--max-num-seqs x"), "its command does not add up: invalid literal"),
    ],
)
def test_objects_that_are_not_as_their_kind_are_refused(change: tuple[str, str], told: str) -> None:
    """One sentence, whatever stands where Kubernetes would refuse it."""
    with pytest.raises(BadInput, match=told):
        for role in read_source(LWS.replace(*change)):
            role.counted(256, 4096)


@pytest.mark.parametrize(("name", "told"), [("a.yaml", "a.yaml, line 1: this is not UTF-8"), ("b.yaml", "has no YAML")])
def test_a_folder_of_what_is_no_text_is_refused(tmp_path: Path, name: str, told: str) -> None:
    """One sentence that names the file; a folder within is no file."""
    (tmp_path / "a.yaml").write_bytes(b"a: \xff") if name == "a.yaml" else (tmp_path / name).mkdir()
    with pytest.raises(BadInput, match=told):
        import_deployment(str(tmp_path), hw="h100")


DOUBLED = "A1=ab\n" + "".join(f"A{n + 1}=$A{n}$A{n}\n" for n in range(1, 60))
SERVE = "vllm serve Qwen/Qwen3-8B -tp 1 --max-num-seqs 64"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{DOUBLED}{SERVE} --seed $A60", "hold over 131072 characters"),
        (f"{SERVE} --seed 'it\n" + "it''s\n" * 50_000, "opens a quote that is not closed"),
        (f'{SERVE} --seed "' + '\\"' * 50_000, "opens a quote that is not closed"),
        (f"{SERVE} --max-model-len " + "$((" * 40_000, "does not add up"),
        (f"{SERVE} --max-model-len x" + "${A:-" * 20_000, "does not add up"),
        (SERVE + "x" * 500, "does not add up"),
        (f"{SERVE} --seed {'7' * 140_000}", "cannot be split into words"),
        ("deploy.yaml", "no such file"),
    ],
    ids=["doubled", "quotes", "escapes", "sums", "defaults", "long", "longer", "absent"],
)
def test_a_command_that_grows_or_does_not_end_is_refused_at_once(text: str, told: str) -> None:
    """Whatever its variables and quotes are, reading takes time in proportion to its length."""
    with pytest.raises(BadInput, match=told):
        import_deployment(text, hw="h100")


@pytest.mark.parametrize(("engine", "unasked"), [("vllm", "fp8"), ("sglang", "bf16")])
def test_caches_are_planned_as_the_engine_keeps_them(engine: str, unasked: str) -> None:
    """vLLM keeps DeepSeek-V4's in FP8 alone; SGLang, too, unless a flag says otherwise, which a plan's files do."""
    asked = {"model": "deepseek-v4-flash", "hw": "h200", "nodes": "1"}
    assert read_question(QuestionFlags(**asked, engine=engine)).question.kv_dtype == unasked
    command = {"vllm": "vllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 8"}
    command["sglang"] = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Flash --tp-size 8"
    for more, held in (("", "fp8"), (" --kv-cache-dtype bfloat16", "bf16")):
        if engine == "sglang" or not more:
            found = import_deployment(command[engine] + more, hw="h200", isl="2000", osl="300")
            assert found.manifest.pools[0].kv_dtype == held


@pytest.mark.parametrize(("model", "asked"), [("qwen3-8b", {"isl_cv": "2", "osl": "100"}), ("qwen3-30b-a3b", {})])
def test_an_import_tells_the_rate_of_the_plan(model: str, asked: dict[str, str], tmp_path: Path) -> None:
    """The one that many requests keep, lower than few show; and no more of saturation than is planned with."""
    wanted = {"isl": "3000", "osl": "800", "engine": "vllm", "shape": "disaggregated"} | asked
    planned = podplan.plan(model, hw="h100", devices="8", **wanted).manifest()
    write_files({tmp_path / name: text for name, text in files_of(planned, "vllm").items()}, force=False)
    found = import_deployment(str(tmp_path), hw="h100")
    assert found.most_per_second == pytest.approx(planned.predicted.requests_per_second, rel=4e-3)
