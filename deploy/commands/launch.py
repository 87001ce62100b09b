"""What starts one role: programme, flags, environment and files, apart from where it runs."""

from dataclasses import dataclass, field, replace
from typing import Literal

from deploy.memory import Memory, memory_of
from deploy.roles import RolePlan
from deploy.site import Site
from deploy.words import Flag, Value, sum_of
from ground.units import MILLI
from planner.engines.spec import EngineProfile, Metrics, PlatformKind
from planner.manifest.schema import ServiceLevels

RENDEZVOUS_PORT = 13345
STARTUP_SECONDS = 3600  # weights of hundreds of gigabytes load in tens of minutes
SIDECAR_SERVICE_PORT, SIDECAR_TARGET_PORT = 8000, 8200  # llm-d-modelservice's defaults
DEFAULT_TTFT_SECONDS, DEFAULT_TPOT_SECONDS = 1.0, 0.05  # of xllm-service and MindIE Motor
DEVICE = "DEVICE"  # shell variables that every script sets
NODE_RANK = "NODE_RANK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is rendered for what: engine, kind of files, site and all roles."""

    profile: EngineProfile
    kind: PlatformKind
    site: Site
    name: str
    roles: tuple[RolePlan, ...]
    levels: ServiceLevels

    def memory(self, role: RolePlan) -> Memory:
        """What a role's engine may take of a device's memory."""
        return memory_of(self.profile, role)

    def role(self, kind: str) -> RolePlan | None:
        """Return the first role of a kind, None where there is none."""
        return next((role for role in self.roles if role.role == kind), None)

    @property
    def model_path(self) -> str:
        """Where the weights are on every node."""
        return self.site.model_path or f"/models/{self.name_of_model}"

    def weights_path(self, role: RolePlan) -> str:
        """Where a role's weights are on its nodes: in a folder named by their format where roles differ in it."""
        several = len({other.weights_dtype for other in self.roles}) > 1
        return f"{self.model_path}/{role.weights_dtype}" if several else self.model_path

    @property
    def metrics(self) -> Metrics | None:
        """The series that the engine serves, None where it serves none."""
        deployment = self.profile.deployment
        return deployment.metrics.value if deployment and deployment.metrics else None

    @property
    def name_of_model(self) -> str:
        """The model's name, under which it is served."""
        return self.roles[0].model.name

    @property
    def limits_milliseconds(self) -> tuple[int, int]:
        """TTFT and TPOT that schedulers aim at: the plan's limits, else the defaults of the engines that ask."""
        ttft, tpot = self.levels.ttft_seconds, self.levels.tpot_seconds
        return round((ttft or DEFAULT_TTFT_SECONDS) / MILLI), round((tpot or DEFAULT_TPOT_SECONDS) / MILLI)

    def draft_model_path(self, role: RolePlan) -> str:
        """Where xLLM's exported draft model is."""
        return self.site.draft_model_path or f"{self.weights_path(role)}/mtp"

    def http_port(self, role: RolePlan) -> int:
        """Return the port of a role's API; llm-d puts a sidecar in front of decode."""
        if self.kind != "llm-d":
            return self.site.http_port
        return SIDECAR_TARGET_PORT if role.role == "decode" else SIDECAR_SERVICE_PORT

    @property
    def bare(self) -> bool:
        """Whether hosts are used directly, where instances may share one."""
        return self.kind in ("bare", "slurm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The processes of one node of one instance.

    ``workers`` flags are of the nodes behind the first alone. With ``per_device`` one process runs for each device
    of the node, ``$DEVICE`` from 0. ``api`` says which nodes answer requests at ``port``: all or the head.
    """

    role: RolePlan
    programme: tuple[Value, ...]
    flags: tuple[Flag, ...]
    workers: tuple[Flag, ...] = ()
    environment: dict[str, Value] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    per_device: bool = False
    joined: bool = False
    api: Literal["all", "head"] = "all"
    port: int = 8000
    health: str = "/health"
    visible_devices: str | None = None

    def without(self, names: frozenset[str]) -> "Launch":
        """Return the launch less some flags, as an orchestrator adds them itself."""
        kept = tuple(flag for flag in self.flags if flag[0] not in names)
        return replace(self, flags=kept, workers=())


def port(target: Target, role: RolePlan, base: int) -> Value:
    """Return a port; instances that share a host stand as far apart as their first devices."""
    return sum_of(base, "FIRST_DEVICE") if target.bare and role.shares_nodes else base
