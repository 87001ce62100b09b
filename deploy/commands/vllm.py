"""vLLM's command line (0.33.0): one process per node, hybrid load balancing across nodes.

Every node of a data-parallel instance has its own API server (``--data-parallel-hybrid-lb``), so that nodes are
alike and no single front end carries hundreds of ranks; with one rank per node the balancing is external.
"""

from deploy.commands.launch import (
    NODE_RANK,
    RENDEZVOUS_PORT,
    STARTUP_SECONDS,
    Launch,
    Target,
    cache_type,
    gpu_environment,
    port,
    spans_nodes_by_nvlink,
)
from deploy.roles import RolePlan
from deploy.words import Flag, Shell, Value, compact_json, given, quoted

SIDE_CHANNEL_PORT = 5600
EMBEDDING_PORT = 14579  # the first that a consumer of embeddings listens on, one for each of its ranks
BOOTSTRAP_PORT = 8998
OWN: dict[str, Value] = {
    "VLLM_ENGINE_READY_TIMEOUT_S": STARTUP_SECONDS,  # after 600 s vLLM gives its engines up
    "VLLM_HOST_IP": Shell('"$ADDRESS"'),  # else the address of the default route, whichever network that is
}
CONNECTORS = {"nixl": "NixlConnector", "mooncake": "MooncakeConnector"}
EXCHANGES = {"prefill": "deepep_high_throughput", "decode": "deepep_low_latency"}


def launch(target: Target, role: RolePlan) -> Launch:
    """Return what starts a role with vLLM on GPUs."""
    environment = gpu_environment(target, role) | OWN
    exchanging = role.role in ("prefill", "decode")
    if exchanging and target.site.kv_transfer == "nixl":
        environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] = Shell('"$ADDRESS"')
        environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] = port(target, role, SIDE_CHANNEL_PORT)
    elif role.role == "prefill":
        environment["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = port(target, role, BOOTSTRAP_PORT)
    if spans_nodes_by_nvlink(role) and role.role == "decode":  # IPC handles of its NVLink buffer end at a node
        environment |= {"VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL": 1, "VLLM_DEEPEP_BUFFER_SIZE_MB": 0}
    side = "kv_producer" if role.role == "prefill" else "kv_consumer"
    connector = {"kv_connector": CONNECTORS[target.site.kv_transfer], "kv_role": side}
    redundant = role.setup.redundant  # vLLM's own balancing is dynamic only: replicas in all, no placement
    flags = given(
        *common_flags(target, role),
        ("--all2all-backend", EXCHANGES.get(role.role), _exchanges(role)),
        ("--enable-eplb", None, redundant),
        ("--eplb-config", compact_json({"num_redundant_experts": redundant}), redundant),
        ("--enable-dbo", None, role.setup.microbatches > 1),
        *cache_type(target, role, "fp8"),
        *(_embedding_flags(target, role) if target.role("encode") else []),
        ("--kv-transfer-config", compact_json(connector), exchanging),
    )
    return served(role, flags, environment)


def _exchanges(role: RolePlan) -> bool:
    """Whether experts are exchanged: by kernels for throughput or for latency, never both in one instance."""
    return role.mode is not None and role.mode.exchange == "all_to_all" and role.strategy.attention_dp > 1


def _embedding_flags(target: Target, role: RolePlan) -> list[Flag]:
    """Return what lets an instance run the encoder of pictures alone, or take embeddings of those that do.

    The proxy tells both sides apart by their request ids, and a producer of the address of its consumer.
    """
    settings = {"ec_connector": "ECMooncakeConnector", "ec_role": "ec_producer"}
    if role.role == "encode":
        return [("--enable-request-id-headers", None), ("--ec-transfer-config", compact_json(settings))]
    held = compact_json(settings | {"ec_role": "ec_consumer", "ec_ip": "$ADDRESS", "ec_port": "PORT"})
    number = quoted(port(target, role, EMBEDDING_PORT))
    held = held.replace('"PORT"', number).replace('"', '\\"')
    flags: list[Flag] = [("--enable-mm-embeds", None), ("--enable-request-id-headers", None)]
    return [*flags, ("--ec-transfer-config", Shell(f'"{held}"'))]


def served(role: RolePlan, flags: list[Flag], environment: dict[str, Value], **files: str) -> Launch:
    """Return vLLM's server; of several nodes with one wide rank only the first has an API."""
    wide = role.nodes > 1 and role.strategy.attention_dp == 1
    return Launch(
        role=role,
        programme=("vllm", "serve", Shell('"$MODEL"')),
        flags=tuple(flags),
        workers=(("--headless", None),) if wide else (),
        environment=environment,
        files=files,
        api="head" if wide else "all",
    )


def common_flags(target: Target, role: RolePlan) -> list[Flag]:
    """Return what vLLM takes on every platform: degrees, limits, memory, drafts."""
    tensor, stages = role.strategy.attention_tp, role.strategy.pp
    caches = role.prefix_caching and role.role != "decode"
    drafting = {"method": "mtp", "num_speculative_tokens": role.drafts}
    return given(
        ("--served-model-name", target.name_of_model),
        ("--host", "0.0.0.0"),
        ("--port", port(target, role, target.http_port(role))),
        ("--tensor-parallel-size", tensor),
        ("--pipeline-parallel-size", stages, stages > 1),
        ("--trust-remote-code", None, target.site.trust_remote_code),
        *_nodes(target, role),
        ("--enable-expert-parallel", None, role.mode is not None and role.mode.name == "expert-parallel"),
        ("--max-num-seqs", role.sequences),
        ("--max-num-batched-tokens", role.tokens),
        ("--max-model-len", role.longest),
        ("--gpu-memory-utilization", target.memory(role).fraction),
        ("--enable-prefix-caching" if caches else "--no-enable-prefix-caching", None),
        ("--enforce-eager", None, role.role in ("encode", "prefill") or role.eager),
        ("--mm-encoder-tp-mode", "data", role.encodes and tensor > 1),
        ("--speculative-config", compact_json(drafting), role.drafts),
    )


def _nodes(target: Target, role: RolePlan) -> list[Flag]:
    """Return how ranks find each other: data-parallel ranks by address, one wide rank by its nodes."""
    dp, nodes, local = role.strategy.attention_dp, role.nodes, role.ranks_per_node
    rank = Shell(f'"${NODE_RANK}"')
    if nodes > 1 and dp == 1:
        meeting: list[Flag] = [("--master-addr", Shell('"$HEAD"')), ("--master-port", RENDEZVOUS_PORT)]
        return [("--nnodes", nodes), ("--node-rank", rank), *meeting]
    several = nodes > 1 and local > 1
    return given(
        ("--data-parallel-size", dp, dp > 1),
        ("--data-parallel-size-local", local, several),
        ("--data-parallel-start-rank", Shell(f"$(({NODE_RANK} * {local}))"), several),
        ("--data-parallel-rank", rank, nodes > 1 and local == 1),
        ("--data-parallel-address", Shell('"$HEAD"'), nodes > 1),
        (
            "--data-parallel-rpc-port",
            port(target, role, RENDEZVOUS_PORT),
            dp > 1 and (nodes > 1 or (target.bare and role.shares_nodes)),
        ),
        ("--data-parallel-hybrid-lb", None, several),
    )
