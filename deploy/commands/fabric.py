"""Environment of collectives and of KV transfer: which interface, which devices, how large their buffers are."""

import math

from deploy.commands.launch import Target
from deploy.memory import dispatched, holding, symmetric_gibibytes
from deploy.roles import RolePlan
from deploy.words import Shell, Value
from planner.engines.memory import exchange_bytes, hccl_mebibytes

AITER = {"vllm": "VLLM_ROCM_USE_AITER", "sglang": "SGLANG_USE_AITER"}  # rocm.docs.amd.com: vLLM optimization; SGLang
LEAST_QUEUE = 1024  # DeepEP's default, which carries 511 tokens of a rank


def talks_over_nodes(role: RolePlan) -> bool:
    """Whether a role needs RDMA: it spans nodes, or keys and values, or embeddings, come or go."""
    return role.nodes > 1 or role.disaggregated or role.embedded


def spans_nodes_by_nvlink(role: RolePlan) -> bool:
    """Whether NVLink joins the nodes of an instance, as in an NVL72 rack, which takes IMEX on every node."""
    inner = role.hardware.scopes[0]
    return role.nodes > 1 and inner.plane == "nvlink" and role.node_size < (inner.devices.value or math.inf)


def gpu_environment(target: Target, role: RolePlan) -> dict[str, Value]:
    """Return the environment of NCCL or RCCL, NVSHMEM (DeepEP) and UCX (NIXL) on GPUs; AMD's kernels are AITER's."""
    interface, devices = target.site.network_interface, target.site.infiniband_device
    found: dict[str, Value] = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    if role.accelerator == "amd":
        found |= {AITER[target.profile.engine]: 1, "HIP_FORCE_DEV_KERNARG": 1}
    if not talks_over_nodes(role):
        return found
    if devices:
        found["NCCL_IB_HCA"] = devices
        found["UCX_NET_DEVICES"] = ",".join(name if ":" in name else f"{name}:1" for name in devices.split(","))
    heap = symmetric_gibibytes(target.profile.engine, role)
    if heap:
        found["NVSHMEM_SYMMETRIC_SIZE"] = f"{heap}G"
        sent = dispatched(target.profile.engine, role)
        found["NVSHMEM_QP_DEPTH"] = max(2 * (sent + 1), LEAST_QUEUE)  # DeepEP's buffer.py asserts it at a dispatch
    joined = spans_nodes_by_nvlink(role)
    if joined:
        found |= {"NCCL_MNNVL_ENABLE": 1, "NCCL_CUMEM_ENABLE": 1}
    if role.nodes == 1 or not exchange_bytes(holding(target.profile.engine, role)):
        return found
    found["NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"] = interface  # DeepEP over nodes, in either of its kernels
    if joined:
        found |= {"NVSHMEM_CUMEM_HANDLE_TYPE": "FABRIC", "NVSHMEM_DISABLE_CUDA_VMM": 0}
    else:
        found |= {"NVSHMEM_REMOTE_TRANSPORT": "ibgda", "NVSHMEM_IB_ENABLE_IBGDA": "true"}
        if devices:
            found["NVSHMEM_HCA_LIST"] = found["UCX_NET_DEVICES"]
    return found


def ascend_environment(target: Target, role: RolePlan) -> dict[str, Value]:
    """Return the environment of HCCL and of the allocator on an Ascend device."""
    interface = target.site.network_interface
    return {
        "HCCL_IF_IP": Shell('"$ADDRESS"'),
        "HCCL_SOCKET_IFNAME": interface,
        "GLOO_SOCKET_IFNAME": interface,
        "HCCL_BUFFSIZE": int(hccl_mebibytes(holding(target.profile.engine, role))),
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "TASK_QUEUE_ENABLE": 1,
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "OMP_PROC_BIND": "false",
        "OMP_NUM_THREADS": 10,
    }
