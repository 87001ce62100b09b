"""Kustomize and Helm hold the same objects as the plain files, rendered by kubectl and by Helm."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.layout import laid_out
from deploy.render import Deployment, render
from deploy.site import Site, read_site
from ground.errors import BadInput
from planner.engines.loader import load_engine
from planner.engines.spec import PlatformKind
from tests.deploy.cases import DIGEST, files_of, made, plan
from tests.deploy.objects import check
from tests.deploy.tools import Objects, built, by_name, written

PAIRS: list[tuple[str, str, PlatformKind]] = [
    ("r1-h800", "vllm", "lws"),
    ("r1-h800", "sglang", "dynamo"),
    ("qwen-h800", "vllm", "llm-d"),
    ("r1-cm384", "xllm", "volcano"),
]
DECODE = {"kind": "LeaderWorkerSet", "name": "qwen3-235b-a22b-decode"}
SITE = """
image_pull_secrets: [registry]
service_account: serving
priority_class: gold
tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
annotations: {k8s.v1.cni.cncf.io/networks: rdma-net}
environment: {NCCL_DEBUG: "it's on"}
node_selectors: {all: {pool: inference}}
spread_key: topology.kubernetes.io/zone
topology_key: rack
rdma_resource: nvidia.com/mlnxnics
rdma_count: 8
infiniband_device: mlx5_0,mlx5_1
resources: {hugepages-2Mi: 4Gi}
cpus_per_device: 12
storage_class: fast
token_secret: hf
prometheus: http://prometheus.monitoring:9090
patches:
- target: {kind: LeaderWorkerSet, name: qwen3-235b-a22b-prefill}
  merge: {spec: {leaderWorkerTemplate: {restartPolicy: RecreateGroupAfterStart}}}
- target: {kind: PodDisruptionBudget}
  merge: {spec: {maxUnavailable: null, minAvailable: 1}}
"""


def objects(files: dict[str, str]) -> Objects:
    """Return the objects of plain files by kind and name."""
    return by_name(*(text for name, text in files.items() if name.endswith(".yaml")))


@pytest.mark.parametrize(("name", "engine", "kind"), PAIRS[:2])
def test_kubectl_builds_the_base_and_the_proof(name: str, engine: str, kind: PlatformKind, tmp_path: Path) -> None:
    """``kubectl kustomize`` gives every object of the plain files, unchanged."""
    deployment = made(name, engine, kind)
    written(tmp_path, laid_out("kustomize", deployment.target, deployment.files))
    overlay, proof = (built("kubectl", "kustomize", tmp_path / folder) for folder in ("overlays/site", "proof"))
    assert overlay | proof == objects(deployment.files)


@pytest.mark.parametrize(("name", "engine", "kind"), PAIRS)
def test_helm_makes_the_plain_files(name: str, engine: str, kind: PlatformKind, tmp_path: Path) -> None:
    """``helm template`` of a chart with its own values gives every object, unchanged but for the hook of the proof."""
    deployment = made(name, engine, kind)
    chart = written(tmp_path, laid_out("helm", deployment.target, deployment.files))
    found = built("helm", "template", "any", chart, "--namespace", "default")
    for item in found.values():
        item["metadata"].get("annotations", {}).pop("helm.sh/hook", None)
    assert found == objects(deployment.files)


def test_a_chart_s_values_reach_its_objects(tmp_path: Path) -> None:
    """The release's namespace, instances and images; an option that is off leaves its objects out."""
    deployment = made("qwen-h800", "vllm", "llm-d")
    files = laid_out("helm", deployment.target, deployment.files)
    chart = written(tmp_path, files)
    assert "helm install qwen3-235b-a22b . --namespace default" in files["README.md"]
    sets = ["--set", "instances.prefill=7,images.engine=own/vllm:1,monitoring=false"]
    found = built("helm", "template", "any", chart, "--namespace", "elsewhere", *sets)
    group, bound = found["LeaderWorkerSet", "qwen3-235b-a22b-prefill"], found["RoleBinding", "qwen3-235b-a22b-epp"]
    assert (group["metadata"]["namespace"], group["spec"]["replicas"]) == ("elsewhere", 7)
    assert bound["subjects"][0]["namespace"] == "elsewhere"
    assert found["Job", "qwen3-235b-a22b-weights"]["metadata"]["annotations"]["helm.sh/hook"] == "pre-install"
    pod = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    assert pod["containers"][0]["image"] == "own/vllm:1"
    assert not any(key[0] == "PodMonitor" for key in found)
    assert any(key[0] == "PodMonitor" for key in objects(deployment.files))


def of_site(**values: Any) -> Deployment:
    """Return a deployment with values of a site."""
    return render(plan("qwen-h800"), load_engine("vllm"), "lws", Site(**values), DIGEST)


def test_patches_are_the_site_s_own() -> None:
    """Other images, numbers and containers stand in every layout; images of one name have values of their own."""
    held = [{"name": "engine", "image": "own/vllm:2"}, {"name": "log", "image": "own/log:1"}]
    pods = {"leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": held}}}}
    deployment = of_site(patches=[{"target": DECODE, "merge": {"spec": {"replicas": None, **pods}}}])
    assert laid_out("plain", deployment.target, deployment.files) == deployment.files
    chart = laid_out("helm", deployment.target, deployment.files)
    values = yaml.safe_load(chart["values.yaml"])
    assert {"engine", "engineOther", "log"} <= values["images"].keys() and values["instances"]["decode"] == 1
    assert "own/log" in laid_out("kustomize", deployment.target, deployment.files)["overlays/site/kustomization.yaml"]


@pytest.mark.parametrize(
    "merge",
    [{"spec": 3}, {"spec": None}, {"kind": "Pod"}, {"apiVersion": None}, {"metadata": []}, {"metadata": {"name": "x"}}],
)
def test_a_patch_cannot_take_an_object_apart(merge: dict[str, Any]) -> None:
    """What an object is and is called stays; the message names the patch."""
    with pytest.raises(BadInput, match=r"--values: patches\[1\]\.merge: takes the \w+ of LeaderWorkerSet .* apart"):
        of_site(patches=[{"merge": {}}, {"target": DECODE, "merge": merge}])


def test_variables_that_take_commands_apart_are_the_site_s() -> None:
    """The site's environment goes before what is generated, so what it breaks is refused by its name."""
    with pytest.raises(BadInput, match="--values: environment: with it rendered files"):
        files_of("r1-mixed", "mindie", environment={"WORLD_SIZE": "8"})


def test_the_site_s_keys_reach_the_pods(tmp_path: Path) -> None:
    """Each key is where Kubernetes reads it, and what comes out is still valid."""
    path = tmp_path / "site.yaml"
    path.write_text(SITE, encoding="utf-8")
    held = objects(render(plan("qwen-h800"), load_engine("vllm"), "lws", read_site(path), DIGEST).files)
    for item in held.values():
        check(item)
    group = held["LeaderWorkerSet", "qwen3-235b-a22b-prefill"]
    template = group["spec"]["leaderWorkerTemplate"]
    assert template["restartPolicy"] == "RecreateGroupAfterStart"
    assert group["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/exclusive-topology"] == "rack"
    pod = template["workerTemplate"]
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "rdma-net"
    assert (spec["serviceAccountName"], spec["priorityClassName"]) == ("serving", "gold")
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["tolerations"][0]["key"] == "gpu" and spec["nodeSelector"] == {"pool": "inference"}
    assert spec["topologySpreadConstraints"][0]["topologyKey"] == "topology.kubernetes.io/zone"
    limits = container["resources"]["limits"]
    assert (limits["nvidia.com/mlnxnics"], limits["hugepages-2Mi"], limits["memory"]) == ("8", "4Gi", "128Gi")
    assert container["resources"]["requests"]["cpu"] == "48"
    script = held["ConfigMap", "qwen3-235b-a22b-prefill-files"]["data"]["prefill.sh"]
    assert "export NCCL_IB_HCA=mlx5_0,mlx5_1" in script and "mlx5_0:1,mlx5_1:1" in script
    (export,) = (line for line in script.splitlines() if line.startswith("export NCCL_DEBUG"))
    done = subprocess.run(["bash", "-c", f"{export}; echo $NCCL_DEBUG"], capture_output=True, text=True, check=True)
    assert done.stdout == "it's on\n"
    assert held["PodDisruptionBudget", "qwen3-235b-a22b-prefill"]["spec"]["minAvailable"] == 1
    scaled = held["ScaledObject", "qwen3-235b-a22b-prefill"]["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 2)
    claim = held["PersistentVolumeClaim", "qwen3-235b-a22b-weights"]["spec"]
    assert claim["storageClassName"] == "fast"
    assert not any(kind == "PriorityClass" for kind, _ in held)


def test_pods_on_the_host_s_network_have_nodes_of_their_own() -> None:
    """Two of them on one node would take the same port, so that the second never starts."""
    held = objects(files_of("r1-h800", "vllm", "lws", host_network=True))
    assert not any(kind == "NetworkPolicy" for kind, _ in held)  # which would shut out the pods that it takes for nodes
    group = held["LeaderWorkerSet", "deepseek-r1-decode"]
    check(group)
    spec = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    with pytest.raises(BadInput, match="host_network: instances of prefill share nodes"):
        files_of("qwen-h800", "vllm", "lws", host_network=True)


def test_dynamo_scales_by_its_operator_s_adapter() -> None:
    """The operator makes an adapter for each component that asks, by the names of the graph and the component."""
    planned = plan("qwen-h800")
    files = files_of(planned, "vllm", "dynamo", prometheus="http://p:9090")
    (graph,) = yaml.safe_load_all(files["graph.yaml"])
    asked = [held["name"] for held in graph["spec"]["components"] if held.get("scalingAdapter") == {}]
    (scaled,) = yaml.safe_load_all(files["autoscaler.yaml"])
    held = planned.requests_held(planned.pools[0])  # so that the planned rate asks for the planned instances
    assert scaled["spec"]["triggers"][0]["metadata"]["threshold"] == str(round(held))
    assert asked == ["prefill"] and scaled["spec"]["scaleTargetRef"]["name"] == f"{graph['metadata']['name']}-prefill"
    monitors = [item for item in yaml.safe_load_all(files["monitoring.yaml"]) if item["kind"] == "PodMonitor"]
    assert {held["port"] for item in monitors for held in item["spec"]["podMetricsEndpoints"]} == {"system"}


def test_a_label_of_the_defaults_can_be_taken_away() -> None:
    """MindCluster's labels do not stand on every Ascend cluster: null removes one."""
    kept = objects(files_of("r1-cm384", "sglang", "lws"))["LeaderWorkerSet", "deepseek-r1-decode"]
    selector = kept["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["nodeSelector"]
    assert selector == {"accelerator": "huawei-Ascend910", "accelerator-type": "module-a3-16-super-pod"}
    without = {"all": {"accelerator": None, "accelerator-type": None}}
    files = files_of("r1-cm384", "sglang", "lws", node_selectors=without)
    bare = objects(files)["LeaderWorkerSet", "deepseek-r1-decode"]["spec"]["leaderWorkerTemplate"]
    assert "nodeSelector" not in bare["workerTemplate"]["spec"]


def test_a_dashboard_draws_the_plan_s_limits() -> None:
    """TTFT and TPOT at the plan's percentile, with its limits as lines."""
    held = objects(files_of("qwen-h800", "vllm", "lws"))["ConfigMap", "qwen3-235b-a22b-dashboard"]
    board = json.loads(held["data"]["qwen3-235b-a22b.json"])
    first = board["panels"][0]
    assert "histogram_quantile(0.99" in first["targets"][0]["expr"]
    assert first["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"] == 2.0
