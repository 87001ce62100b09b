"""SGLang's command line (0.5.23): ``--tp-size`` is the whole stage, attention TP follows from attention DP.

Requests and prefill tokens are of the instance: SGLang divides both by attention DP.
"""

from collections.abc import Iterator

from deploy.commands.launch import NODE_RANK, Launch, Target, ascend_environment, cache_type, gpu_environment, port
from deploy.experts import needs_map, sglang_map
from deploy.memory import dispatched, exchanges
from deploy.roles import RolePlan
from deploy.words import Flag, Shell, Value, given

BOOTSTRAP_PORT = 8998
DIST_PORT = 5000
STORE_PORT = 24669
UCX = '"/opt/ucx/lib:${LD_LIBRARY_PATH:-}"'  # docker/rocm.Dockerfile: the image sets it in interactive shells alone
STEP_TOKENS = 16_384  # srt/managers/schedule_policy.py: a rank's step takes no further prompt past --max-prefill-tokens
PAGE_TOKENS = 128  # of Ascend, and a multiple of every page on GPUs: a chunk must be whole pages


def launch(target: Target, role: RolePlan) -> Launch:
    """Return what starts a role with SGLang."""
    strategy, ascend = role.strategy, role.accelerator == "ascend"
    dense = role.model.dense_layers and role.mode is not None
    whole = strategy.attention_dp > 1 and strategy.attention_tp == 1
    name, mapped = f"expert-location-{role.name}.json", needs_map(role)
    flags = given(
        ("--model-path", Shell('"$MODEL"')),
        ("--served-model-name", target.name_of_model),
        ("--host", "0.0.0.0"),
        ("--port", port(target, role, target.http_port(role))),
        ("--tp-size", strategy.devices_per_stage),
        ("--pp-size", strategy.pp, strategy.pp > 1),
        *(_ranks(target, role) if strategy.attention_dp > 1 else []),
        ("--enable-dp-lm-head", None, whole),
        ("--moe-dense-tp-size", 1, whole and dense),
        ("--trust-remote-code", None, target.site.trust_remote_code),
        *_experts(role),
        *_nodes(target, role),
        *_limits(target, role),
        *_drafts(role),
        ("--enable-two-batch-overlap", None, role.setup.microbatches > 1),
        *cache_type(target, role, "fp8_e4m3"),
        ("--device", "npu", ascend),
        ("--attention-backend", "ascend", ascend),
        ("--quantization", "modelslim", ascend and role.setup.weights == "int8"),
        ("--disable-radix-cache", None, not role.prefix_caching),
        ("--enable-metrics", None),
        *_encoding(target, role),
        *_disaggregation(target, role),
        ("--init-expert-location", f"{target.site.files_path}/{name}", mapped),
    )
    return Launch(
        role=role,
        programme=("python3", "-m", "sglang.launch_server"),
        flags=tuple(flags),
        environment=_environment(target, role),
        files={name: sglang_map(role)} if mapped else {},
        api="head",
    )


def _experts(role: RolePlan) -> list[Flag]:
    """Return EP and the exchange: an all-to-all forces EP to the stage, without one any divisor is free."""
    if role.mode is None:
        return []
    kernels = {"prefill": "normal", "decode": "low_latency"}.get(role.role, "auto")
    exchanged, redundant = exchanges(role), role.setup.redundant
    return given(
        ("--ep-size", role.strategy.moe_ep),
        ("--moe-a2a-backend", "deepep" if exchanged else "none"),
        ("--deepep-mode", kernels, exchanged),
        ("--ep-num-redundant-experts", redundant, redundant),
        # Without an all-to-all every EP rank must pick the same replica.
        ("--ep-dispatch-algorithm", "static" if exchanged else "dynamic", redundant),
    )


def _ranks(target: Target, role: RolePlan) -> list[Flag]:
    """Return attention DP: one flag in 0.5.23, two in the older releases of Dynamo and of the images for Ascend."""
    ranks = role.strategy.attention_dp
    if target.kind == "dynamo" or role.accelerator == "ascend":
        return [("--dp-size", ranks), ("--enable-dp-attention", None)]
    return [("--attn-dp-size", ranks)]


def chunk_tokens(role: RolePlan) -> int:
    """Return the prompt tokens of a step of a DP rank in whole pages: up in prefill, whose last prompt is not split."""
    pages = -(-role.tokens // PAGE_TOKENS) if role.role == "prefill" else max(role.tokens // PAGE_TOKENS, 1)
    return pages * PAGE_TOKENS


def _nodes(target: Target, role: RolePlan) -> list[Flag]:
    if role.nodes == 1:
        return [("--nccl-port", port(target, role, DIST_PORT))] if target.bare and role.shares_nodes else []
    return [
        ("--nnodes", role.nodes),
        ("--node-rank", Shell(f'"${NODE_RANK}"')),
        ("--dist-init-addr", Shell(f'"$HEAD:{DIST_PORT}"')),
    ]


def _limits(target: Target, role: RolePlan) -> list[Flag]:
    """Return limits in SGLang's unit, the instance; steps that the plan mixes need chunks beside decode."""
    ranks = role.strategy.attention_dp
    return given(
        ("--enable-multimodal", None, role.encodes),  # off for Gemma 3 and Llama 4
        ("--mm-enable-dp-encoder", None, role.encodes and role.strategy.attention_tp > 1),
        ("--max-running-requests", role.sequences * ranks),
        ("--chunked-prefill-size", chunk_tokens(role) * ranks, role.role != "decode"),
        ("--max-prefill-tokens", chunk_tokens(role), role.role != "decode" and chunk_tokens(role) > STEP_TOKENS),
        ("--enable-mixed-chunk", None, role.mixes and not role.drafts),  # SGLang turns it off where it drafts
        ("--context-length", role.longest),
        ("--mem-fraction-static", target.memory(role).fraction),
        ("--cuda-graph-backend-decode", "disabled", role.eager),
        ("--cuda-graph-max-bs-decode", role.sequences, not role.eager and role.role in ("decode", "mixed")),
    )


def _drafts(role: RolePlan) -> list[Flag]:
    if not role.drafts:
        return []
    return [
        ("--speculative-algorithm", "NEXTN"),
        ("--speculative-num-steps", role.drafts),
        ("--speculative-eagle-topk", 1),
        ("--speculative-num-draft-tokens", role.draft_window),
    ]


def _encoding(target: Target, role: RolePlan) -> list[Flag]:
    """Return what makes an instance run the encoder of pictures alone, or leave it to those that do.

    Decode sees no pictures. Embeddings go over Mooncake's RDMA as planned, between NPUs over ZeroMQ.
    """
    encode = target.role("encode")
    if encode is None or role.role == "decode":
        return []
    backend = "zmq_to_scheduler" if role.accelerator == "ascend" else "mooncake"
    sent: list[Flag] = [("--encoder-transfer-backend", backend)]
    if role is encode:
        return [("--encoder-only", None), *sent]
    return [("--language-only", None), ("--encoder-urls", Shell(" ".join(_encoder_urls(target, encode)))), *sent]


def _encoder_urls(target: Target, encode: RolePlan) -> Iterator[str]:
    """Yield the URL of every encode instance; on hosts their ports stand apart where a host is shared."""
    for number, instance in enumerate(encode.instances):
        host, moved = target.host_name(encode, number), 0
        if target.bare:
            host, moved = f"${{{encode.name.upper()}_HOSTS[{number}]}}", instance.first_device
        yield f'"http://{host}:{target.http_port(encode) + moved}"'


def _disaggregation(target: Target, role: RolePlan) -> list[Flag]:
    backend = "ascend" if role.accelerator == "ascend" else target.site.kv_transfer
    apart, adapter = role.role in ("prefill", "decode"), target.site.infiniband_device
    return given(
        ("--disaggregation-mode", role.role, apart),
        ("--disaggregation-transfer-backend", backend, apart),
        ("--disaggregation-bootstrap-port", port(target, role, BOOTSTRAP_PORT), role.role == "prefill"),
        ("--disaggregation-ib-device", adapter, adapter and (apart or role.embedded)),  # of embeddings, too
    )


def _environment(target: Target, role: RolePlan) -> dict[str, Value]:
    """Return the collectives' environment and the room of the low-latency exchange: a rank's requests and drafts."""
    if role.accelerator != "ascend":
        found = gpu_environment(target, role)
        if role.accelerator == "amd" and role.disaggregated and target.site.kv_transfer == "nixl":
            found["LD_LIBRARY_PATH"] = Shell(UCX)
    else:
        found = ascend_environment(target, role)
        if role.disaggregated:
            found["ASCEND_MF_STORE_URL"] = Shell(f'"tcp://$STORE:{STORE_PORT}"')
            if not role.paired:  # A2 has no fabric of its own between servers
                found["ASCEND_MF_TRANSFER_PROTOCOL"] = "device_rdma"
    found["SGLANG_HOST_IP"] = Shell('"$ADDRESS"')
    if exchanges(role) and role.role != "prefill":
        found["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] = dispatched("sglang", role)
    return found
