"""Routers of requests over instances: those of vLLM, SGLang and TensorRT-LLM, xllm-service with etcd, nginx."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deploy.commands import trtllm
from deploy.commands.launch import STARTUP_SECONDS, Launch, Target
from deploy.commands.sglang import BOOTSTRAP_PORT
from deploy.commands.vllm import EMBEDDING_PORT
from deploy.roles import RolePlan
from deploy.templates import script_of
from deploy.words import Flag, Shell, Value, command, quoted
from ground.errors import BadInput

Endpoint = tuple[str, int]
# Where the images of the project keep it.
EMBEDDING_PROXY = "/vllm-workspace/examples/disaggregated/disaggregated_encoder/disagg_epd_proxy.py"
ASCEND_PROXY = "/vllm-workspace/vllm-ascend/examples/disaggregated_prefill_v1/load_balance_proxy_server_example.py"


Address = Callable[[RolePlan, int, int], str]
ETCD_PORT = 2379


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """The command of a router."""

    programme: tuple[Value, ...]
    flags: tuple[Flag, ...]
    joined: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()


def endpoints(launch: Launch, address: Address, *, shifted: bool) -> list[Endpoint]:
    """Return (address, port) of every API of a role: of each node, or of each instance's first.

    ``address`` of (role, instance, node); ``shifted`` where instances share hosts and stand apart by their ports.
    """
    role = launch.role
    return [
        (address(role, number, node), launch.port + (instance.first_device if shifted and role.shares_nodes else 0))
        for number, instance in enumerate(role.instances)
        for node in range(role.nodes if launch.api == "all" else 1)
    ]


def router_of(target: Target, launches: Mapping[str, Launch], address: Address) -> Router | None:
    """Return the router in front of the instances, with their addresses; None where a Service routes."""
    engine = target.profile.engine
    if engine == "xllm":
        return xllm_service(target, etcd_address(target, address))
    found: dict[str, list[Endpoint]] = {}
    for launch in launches.values():
        found.setdefault(launch.role.role, []).extend(endpoints(launch, address, shifted=target.bare))
    if engine == "vllm-ascend" and "decode" in found:
        return _ascend_proxy(target, found)
    if engine == "vllm" and "encode" in found:
        return _embedding_proxy(target, found)
    urls = {name: [f"http://{host}:{number}" for host, number in held] for name, held in found.items()}
    if engine == "trtllm" and "decode" in urls:
        return _trtllm_orchestrator(target, urls)
    if engine in ("trtllm", "mindie"):
        return _nginx(target, found["mixed"]) if target.bare else None
    return _round_robin(target, urls, launches)


def _round_robin(target: Target, urls: dict[str, list[str]], launches: Mapping[str, Launch]) -> Router:
    """Return vLLM's router or SGLang's, from which it was made; either waits for engines that load their weights."""
    sglang = target.profile.engine == "sglang"
    flags: list[Flag] = []
    if "decode" in urls:
        apart: list[Flag] = [("--vllm-pd-disaggregation", None), ("--kv-connector", target.site.kv_transfer)]
        flags += [("--pd-disaggregation", None)] if sglang else apart
    if target.watched:
        flags += _selectors(target, launches)
    elif "decode" in urls:
        bootstraps = _bootstraps(target)
        flags += [("--prefill", _bootstrapped(target, url) if bootstraps else url) for url in urls["prefill"]]
        flags += [("--decode", url) for url in urls["decode"]]
    else:
        flags.append(("--worker-urls", Shell(" ".join(quoted(url) for url in urls["mixed"]))))
    flags += [("--policy", "round_robin"), ("--host", "0.0.0.0"), ("--port", target.site.router_port)]
    flags.append(("--worker-startup-timeout-secs", STARTUP_SECONDS))
    programme = ("python3", "-m", "sglang_router.launch_router") if sglang else ("vllm-router",)
    return Router(programme=programme, flags=tuple(flags))


def _selectors(target: Target, launches: Mapping[str, Launch]) -> list[Flag]:
    """Return the flags by which either router watches pods instead of a list, whose names may not be there."""
    found: dict[str, Flag] = {"": ("--service-discovery-namespace", target.site.namespace)}
    for role, launch in ((launch.role.role, launch) for launch in launches.values() if launch.role.role != "encode"):
        chosen = f"app.kubernetes.io/part-of={target.name} podplan/role={role}"
        chosen += " leaderworkerset.sigs.k8s.io/worker-index=0" * (launch.api == "head")
        found[role] = ("--selector" if role == "mixed" else f"--{role}-selector", Shell(chosen))
    return [("--service-discovery", None), ("--service-discovery-port", target.site.http_port), *found.values()]


def _bootstraps(target: Target) -> bool:
    """Whether decode asks prefill at a port of its own where the cache lies."""
    return target.profile.engine == "sglang" or target.site.kv_transfer == "mooncake"


def found_by(target: Target, role: RolePlan) -> dict[str, str]:
    """Return the annotation by which a router that watches pods knows their bootstrap port."""
    asked = target.watched and role.role == "prefill" and _bootstraps(target)
    return {f"{target.profile.engine}.ai/bootstrap-port": str(BOOTSTRAP_PORT)} if asked else {}


def _embedding_proxy(target: Target, hosts: dict[str, list[Endpoint]]) -> Router:
    """Return vLLM's example proxy, which has pictures encoded before it sends requests on; both in turn, all by chance.

    Each aggregated instance listens for embeddings as far from the first port as its API does, each DP rank behind the
    one before. BadInput where ranks of an instance are on several nodes.
    """
    mixed = target.role("mixed")
    assert mixed is not None, "vLLM has encode instances before aggregated ones alone"
    if mixed.nodes > 1:
        raise BadInput("--engine: vLLM's proxy reaches embeddings' consumers on one node each; plan with --strategy")
    replicas, width = mixed.strategy.attention_dp, mixed.strategy.attention_tp * mixed.strategy.pp
    urls = {role: ",".join(f"http://{host}:{number}" for host, number in held) for role, held in hosts.items()}
    firsts = [(host, EMBEDDING_PORT + number - target.site.http_port) for host, number in hosts["mixed"]]
    ranks = [f"tcp://{host}:{first + rank * width}" for host, first in firsts for rank in range(replicas)]
    flags: tuple[Flag, ...] = (
        ("--host", "0.0.0.0"),
        ("--port", target.site.router_port),
        ("--encode-servers-urls", urls["encode"]),
        ("--prefill-servers-urls", "disable"),
        ("--decode-servers-urls", urls["mixed"]),
        ("--ec-consumer-zmq-addrs", ",".join(ranks)),
    )
    flags += (("--ec-consumer-dp-size", replicas),) if replicas > 1 else ()
    return Router(programme=("python3", EMBEDDING_PROXY), flags=flags)


def _bootstrapped(target: Target, url: str) -> Shell:
    """Return a prefill URL and its bootstrap port; an instance that shares its host has both ports moved alike."""
    moved = int(url.rpartition(":")[2]) - target.site.http_port
    return Shell(f"{quoted(url)} {BOOTSTRAP_PORT + moved}")


def _trtllm_orchestrator(target: Target, urls: dict[str, list[str]]) -> Router:
    name = "disaggregated.yml"
    flags: tuple[Flag, ...] = (
        ("-c", f"{target.site.files_path}/{name}"),
        ("-t", STARTUP_SECONDS),  # 180 s by default, in which no weights are loaded; it ends where servers are late
        ("-r", STARTUP_SECONDS),  # 180 s by default, which cuts long answers off
    )
    files = ((name, trtllm.orchestrator(target, urls)),)
    return Router(programme=("trtllm-serve", "disaggregated"), flags=flags, files=files)


def _nginx(target: Target, servers: list[Endpoint]) -> Router:
    """Return nginx before aggregated instances on hosts, of engines that have no router of their own."""
    name = "nginx.conf"
    held = "\n".join(f"    server {host}:{number};" for host, number in servers)
    files = ((name, script_of(name, port=target.site.router_port, servers=held)),)
    return Router(programme=("nginx",), flags=(("-c", f"{target.site.files_path}/{name}"),), files=files)


def _ascend_proxy(target: Target, hosts: dict[str, list[Endpoint]]) -> Router:
    """Return vLLM-Ascend's example proxy: one host and port for every API."""
    flags: list[Flag] = [("--host", "0.0.0.0"), ("--port", target.site.router_port)]
    for role, name in (("prefill", "prefiller"), ("decode", "decoder")):
        flags.append((f"--{name}-hosts", Shell(" ".join(quoted(host) for host, _ in hosts[role]))))
        flags.append((f"--{name}-ports", Shell(" ".join(str(number) for _, number in hosts[role]))))
    return Router(programme=("python3", ASCEND_PROXY), flags=tuple(flags))


def etcd_address(target: Target, address: Address) -> str:
    """Return host:port of the etcd where xLLM's instances meet: the site's, or the one that is generated."""
    if target.site.etcd_address:
        return target.site.etcd_address
    host = address(target.roles[-1], 0, 0) if target.bare else f"{target.name}-etcd"
    return f"{host}:{ETCD_PORT}"


def etcd_command(name: str) -> list[str]:
    """Return the command of one etcd member that clients reach as ``name``."""
    listen = f"http://0.0.0.0:{ETCD_PORT}"
    return ["etcd", "--listen-client-urls", listen, "--advertise-client-urls", f"http://{name}"]


def xllm_service(target: Target, etcd: str) -> Router:
    """Return xLLM's service, which finds instances in etcd."""
    ttft, tpot = target.limits_milliseconds
    flags: list[Flag] = [
        ("--etcd_addr", etcd),
        ("--http_server_port", target.site.router_port),
        ("--rpc_server_port", target.site.router_port + 1),
        ("--http_server_max_concurrency", 0),  # of 128 open answers by default, past which brpc refuses; 0 bounds none
        ("--rpc_server_max_concurrency", 0),
        ("--tokenizer_path", f"{target.weights_path(target.roles[0])}/"),
        ("--load_balance_policy", "RR"),
        ("--target_ttft", ttft),
        ("--target_tpot", tpot),
        ("--block_size", 128),
    ]
    return Router(
        programme=("/opt/xllm-service/xllm_master_serving",),
        flags=tuple(flags),
        joined=True,
        environment=(("ENABLE_DECODE_RESPONSE_TO_SERVICE", "true"),),
    )


def router_script(target: Target, router: Router) -> str:
    """Return the script that starts a router."""
    lines = [
        "#!/usr/bin/env bash",
        target.head("Starts the router in front of all instances."),
        "set -euo pipefail",
        "",
    ]
    lines += [f"export {name}={quoted(value)}" for name, value in router.environment]
    return "\n".join([*lines, command(router.programme, router.flags, joined=router.joined)]) + "\n"
