"""Deployments of others: what they are, the rate that they carry, what is wrong, and what was planned comes back."""

import re
from pathlib import Path

import pytest
import yaml

import podplan
from cli.main import main
from deploy.reading.foreign import read_source
from ground.errors import BadInput, Infeasible
from planner.engines.spec import PlatformKind
from planner.manifest.document import read_manifest
from podplan.importing import import_deployment
from tests.deploy.cases import made, pairs
from tests.questions import small_answer

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
              --gpu-memory-utilization 0.98 --max-num-seqs 512 --swap-space 4 &
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
      extraPodSpec:
        mainContainer:
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-32B, --tensor-parallel-size, "2", --is-prefill-worker]
    VllmDecodeWorker:
      replicas: 1
      resources: {limits: {gpu: "4"}}
      extraPodSpec:
        mainContainer:
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-32B, --tensor-parallel-size, "4", --disaggregation-mode, decode]
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
  - standardized:
      kind: inference_engine
      tool: llm-d
      tool_version: ghcr.io/llm-d/llm-d-cuda:0.3.1
      role: decode
      replicas: 1
      model: {name: Qwen/Qwen3-32B}
      accelerator: {model: H100, count: 4, parallelism: {tp: 8, dp: 1, dp_local: 1, workers: 2}}
    native: {args: {"--tensor-parallel-size": 4, "--no-enable-prefix-caching": null}}
results: {}
"""
FORMS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
data: {settings.yaml: "max_batch_size: 7"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: own}
data:
  settings.yaml: |
    tensor_parallel_size: 4
    moe_expert_parallel_size: 4
    enable_attention_dp: true
    max_batch_size: 64
    kv_cache_config: {free_gpu_memory_fraction: 0.8, dtype: fp8}
    no_such_argument: 1
---
apiVersion: v1
kind: ConfigMap
metadata: {name: flags}
data: {sglang.yaml: "tensor-parallel-size: 8\\nep-size: 8\\ncontext-length: 9000"}
---
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: g}
spec:
  env: [{name: MODEL, value: Qwen/Qwen3-235B-A22B}, {name: KV, value: '{"kv_connector":"NixlConnector"}'}]
  components:
  - name: a
    podTemplate:
      spec:
        volumes: [{configMap: {name: own}}]
        containers:
        - command: [python3, -m, dynamo.trtllm]
          args: [--model-path, $(MODEL), --extra-engine-args, /etc/settings.yaml, --max-batch-size, "9"]
          resources: {limits: {nvidia.com/gpu: 4}}
  - name: b
    podTemplate:
      spec:
        containers:
        - command: [python3, -m, dynamo.sglang]
          args: [--model-path, $(MODEL), --config, /etc/sglang.yaml, --speculative-algo, NEXTN]
  - name: c
    podTemplate:
      spec:
        containers:
        - command: [sh, -c]
          args:
          - |
            exec python3 -m dynamo.vllm --model "${MODEL}"
              --kv-transfer-config "$KV"
              --tensor-parallel-size 2 --is-prefill-worker
  - name: d
    podTemplate:
      spec:
        containers:
        - command: [sh, -c]
          args:
          - |
            python3 -m dynamo.vllm --model $MODEL \\
              --speculative-config '{
                "method": "mtp"
              }' \\
              --spec-tokens 2 --enable-eplb --eplb-config.num_redundant_experts 8
"""
READ = {"qwen-h800", "r1-h800", "qwen-mi300x"}
ENGINES = {"vllm", "sglang", "trtllm"}
WRITTEN = [each for each in pairs() if each[0] in READ and each[1] in ENGINES and each[2] != "slurm"]


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
    path.write_text(
        yaml.safe_dump({"kind": "DisaggregatedSet", "spec": {"slices": 3, "roles": roles}}), encoding="utf-8"
    )
    assert [(role.name, role.engine, role.instances, role.nodes) for role in read_source(str(path))] == [
        ("prefill", "vllm-ascend", 6, 2),
        ("decode", "vllm-ascend", 6, 2),
    ]
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
    assert changes[3].startswith("--max-num-seqs 512 -> ") and changes[4].startswith(
        "--gpu-memory-utilization 0.98 -> 0.9"
    )
    assert any(finding.change == "drop --enforce-eager" for finding in result.findings if not finding.blocking)
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


def test_roles_that_say_nothing_are_what_they_stand_beside(tmp_path: Path) -> None:
    """What is beside prefill decodes; decode alone, whose caches are offloaded, is aggregated."""
    path = tmp_path / "services.yaml"
    path.write_text(GRAPH.replace(', "4", --disaggregation-mode, decode', ', "4"'), encoding="utf-8")
    assert [role.role for role in read_source(str(path))] == ["prefill", "decode"]
    held = yaml.safe_load(GRAPH)
    del held["spec"]["services"]["VllmPrefillWorker"]
    path.write_text(yaml.safe_dump(held), encoding="utf-8")
    assert [role.role for role in read_source(str(path))] == ["mixed"]
    with pytest.raises(BadInput, match="which is not here"):
        read_source("trtllm-serve Qwen/Qwen3-8B --extra_llm_api_options nowhere.yml")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("max_batch_size: many", "max_batch_size is 'many'"),
        ("kv_cache_config: 3", "not as its kind has it"),
        ("moe_expert_parallel_size: 3", "is 0 of 1"),
        ("[1, 2]", "must be a mapping of settings"),
    ],
)
def test_options_that_are_none_say_so(options: str, said: str) -> None:
    """TensorRT-LLM's file, in one sentence; a balancer in a file of its own and a draft model are passed over."""
    command = "trtllm-serve Qwen/Qwen3-8B --extra_llm_api_options o.yml"
    with pytest.raises(BadInput, match=re.escape(said)):
        read_source(command, {"o.yml": options})[0].counted(256, 5000)
    passed = "moe_config: {load_balancer: /b.yml}\nspeculative_config: {decoding_type: Eagle3, max_draft_len: 3}"
    counted = read_source(command, {"o.yml": passed})[0].counted(256, 5000)
    assert (counted.redundant, counted.drafts) == (0, 0)


@pytest.mark.parametrize(
    ("flags", "settings", "said"),
    [
        ("--max-num-seqs 0", None, "sequences is '0', not a whole number from 1"),
        ("--max-num-batched-tokens -9", None, "tokens is '-9', not a whole number from 1"),
        ("--gpu-memory-utilization nan", None, "the share of memory is nan"),
        ("--gpu-memory-utilization 5", None, "the share of memory is 5"),
        ("", "max_batch_size: x", "max_batch_size is 'x'"),
        ("", "max_num_tokens: 1.5", "max_num_tokens is '1.5'"),
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


def test_a_repository_s_name_says_the_format_of_its_weights() -> None:
    """Qwen3-32B-FP8 is qwen3-32b in FP8."""
    found = import_deployment("vllm serve Qwen/Qwen3-32B-FP8 --max-num-seqs 64", hw="h200")
    assert found.question.model.name == "qwen3-32b"
    assert {pool.weights_dtype for pool in found.manifest.pools} == {"fp8"}


@pytest.mark.parametrize(("name", "engine", "kind"), WRITTEN)
def test_what_deploy_writes_is_read_as_it_was_planned(name: str, engine: str, kind: PlatformKind) -> None:
    """Degrees, instances and batches of every role."""
    try:
        deployment = made(name, engine, kind)
    except Infeasible:  # TensorRT-LLM over several nodes
        pytest.skip("its engine cannot run it")
    ending = (".sh", ".tsv") if kind == "bare" else ".yaml"
    text = "\n---\n".join(text for name, text in deployment.files.items() if name.endswith(ending))
    held = read_source(text, deployment.files)
    assert [role.instances for role in held] == [len(role.instances) for role in deployment.target.roles]
    for found in held:
        planned = deployment.target.role(found.role)
        assert found.devices == planned.devices
        counted = found.counted(planned.setup.experts, 1)
        assert (counted.attention_tp, counted.attention_dp) == (
            planned.strategy.attention_tp,
            planned.strategy.attention_dp,
        )
        assert (counted.sequences, counted.moe_ep) == (planned.sequences, planned.strategy.moe_ep)
        assert found.unknown == ()


def test_a_plan_that_was_deployed_carries_its_rate_again(tmp_path: Path) -> None:
    """Search, deploy, import: the rate within the limits is the plan's, and nothing is wrong."""
    from deploy.render import render
    from deploy.site import Site
    from planner.engines.loader import load_engine
    from planner.plans.assemble import assemble

    best = small_answer(hardware="h100", devices=32, engine="vllm@0.33.0").best
    manifest = assemble(best, {})
    files = render(manifest, load_engine("vllm"), "lws", Site(), "0" * 64).files
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    traffic = manifest.workload
    levels = manifest.service_levels
    result = import_deployment(
        str(tmp_path),
        hw="h100",
        isl=traffic.input_tokens,
        osl=traffic.output_tokens,
        ttft=levels.ttft_seconds,
        tpot=levels.tpot_seconds,
        out=tmp_path / "plan",
    )
    assert result.most_per_second == pytest.approx(best.requests_per_second, rel=0.05)
    assert [finding for finding in result.findings if finding.blocking] == []
    assert {pool.role for pool in read_manifest(tmp_path / "plan" / "manifest.yaml").pools} == {
        pool.role for pool in manifest.pools
    }


def test_the_parts_of_pipeline_stages_make_a_step(tmp_path: Path) -> None:
    """vLLM is told the tokens of one part; all stages are full at once."""
    command = "vllm serve Qwen/Qwen3-8B --pipeline-parallel-size 4 --max-num-batched-tokens 512 --max-num-seqs 64"
    import_deployment(command, hw="h100", rate="1/s", out=tmp_path / "plan")
    (pool,) = read_manifest(tmp_path / "plan" / "manifest.yaml").pools
    assert pool.degrees.pp == 4
    assert pool.limits.tokens_per_device * pool.degrees.attention_tp * pool.degrees.pp == 4 * 512


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nofile.yaml", "no such file; give a YAML file"),
        ("ollama run qwen3", "has no command that is read here"),
        ("vllm serve nobody/knows-this", "--model: 'nobody/knows-this' is not of the catalogue"),
        ("vllm serve Qwen/Qwen3-8B -tp many", "'many' is not a number of devices"),
        ("vllm serve 'Qwen/Qwen3-8B", "cannot be split into words"),
        ("vllm serve --port 80", "has no command that is read here"),
    ],
)
def test_what_cannot_be_read_says_why(source: str, said: str) -> None:
    """One sentence, whatever it is."""
    with pytest.raises(BadInput) as error:
        import_deployment(source, hw="h100")
    assert said in str(error.value) and "\n" not in str(error.value)


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


@pytest.mark.parametrize(("name", "told"), [("a.yaml", "line 1: this is not UTF-8 text"), ("b.yaml", "is a directory")])
def test_a_folder_of_what_is_no_text_is_refused(tmp_path: Path, name: str, told: str) -> None:
    """One sentence that names the file in the folder."""
    (tmp_path / "a.yaml").write_bytes(b"a: \xff") if name == "a.yaml" else (tmp_path / name).mkdir()
    with pytest.raises(BadInput, match=f"{name}.*{told}"):
        import_deployment(str(tmp_path), hw="h100")
