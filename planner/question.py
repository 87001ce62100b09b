"""A question: model, machines, traffic, service levels, objective."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple, Self

from hardware.formats import KvDtype
from hardware.spec import Dtype, HardwareSpec
from models.spec import ModelSpec
from planner.balance.imbalance import Balance
from planner.costs.deployment import DRIVEN, Host, Shared
from planner.manifest.drafts import Acceptance
from planner.objective import OBJECTIVES, Objective, ObjectiveName
from planner.serving.prefill import OfflineBeside
from planner.serving.streams import with_answers
from planner.strategy import Strategy, format_strategy
from planner.workload import Offline, Workload

Loss = Literal["node", "instance"]
PrefixRouting = Literal["round_robin", "least_load", "prefix_aware"]


Role = Literal["encode", "prefill", "decode", "mixed"]
"""Of instances: prefill and decode of a disaggregated deployment, mixed of an aggregated one; before either encode."""

Queueing = Literal["bulk", "mixserve"]
Shape = Literal["auto", "aggregated", "disaggregated"]
"""Of a deployment: mixed instances that take prompts and answer them, or prefill and decode apart; auto: the better."""
Encode = Literal["fused", "separate", "auto"]
"""Where pictures are encoded: in steps with prompts, or on encode instances before them; auto: the better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Devices that one role may use. Roles with the same ``budget`` name share its devices."""

    hardware: HardwareSpec
    devices: int
    weights: Dtype
    budget: str
    among_others: bool = False  # whether instances of other roles or models may stand anywhere on the same nodes
    share: int = 0  # devices of each node that the role may use; 0: all

    @property
    def devices_per_node(self) -> int:
        """Devices of one node."""
        return self.share or int(self.hardware.devices_per_node.value)

    @property
    def devices_per_chip(self) -> int:
        """Devices of one chip."""
        return int(self.hardware.devices_per_chip.value)

    def nodes_of(self, devices: int) -> int:
        """Return the nodes that so many devices occupy when they fill one after the other."""
        return math.ceil(devices / self.devices_per_node)

    @property
    def device_cost(self) -> float:
        """Price of a device and hour in USD; that of a chip counts as 1 where it has none."""
        price = self.hardware.price_usd_per_chip_hour
        return (price.value if price else 1.0) / self.devices_per_chip

    def per_device(self, goal: Objective) -> tuple[float, float]:
        """Return what a device counts in an objective, and in its tie-break."""
        return goal.per_device(1 / self.devices_per_chip, self.device_cost)

    def unit(self, devices: float) -> int:
        """Devices by which a pool of so many is told larger or smaller: a node, and less than one a chip."""
        return self.devices_per_chip if devices < self.devices_per_node else self.devices_per_node

    def grown(self, factor: float) -> int:
        """Devices times a factor, up to a whole unit."""
        unit = self.unit(self.devices * factor)
        return max(math.ceil(self.devices * factor / unit - 1e-9), 1) * unit


class Formats(NamedTuple):
    """Number formats that a deployment may have: of the weights of each role, and of the KV cache that they share."""

    prefill: Dtype
    decode: Dtype
    kv: KvDtype


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPool:
    """Pooled host memory that keeps prefixes, and SSD behind it, which keeps all that memory does."""

    plane: str  # network plane of the prefill machines over which they read the pool
    capacity_bytes: float
    ssd_bytes: float = 0.0
    ssd_share: float = 0.0  # share of the found tokens that are read from SSD, not from memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Pinned fields of a role's instances; a field that is None is left to the search."""

    strategy: Strategy | None = None
    instances: int | None = None
    batch: int | None = None  # requests of a DP rank, all microbatches together
    tokens: int | None = None  # of a prefill pass per device, reused ones included; of an aggregated step per DP rank
    redundant: int | None = None
    shared: Shared | None = None


FREE = Pin()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A capacity question. None leaves a choice to podplan; limits hold each on its own at ``percentile``."""

    model: ModelSpec
    prefill: Machines
    decode: Machines
    workload: Workload
    ttft_seconds: float
    tpot_seconds: float
    percentile: float = 99.0
    rate_per_second: float | None = None
    rate_flag: str = "--rate"  # flag that gives the rate, as the largest of several where it is another one
    objective: ObjectiveName = "throughput"
    kv_dtype: KvDtype = "bf16"
    formats: tuple[Formats, ...] = ()  # alternatives to choose from; none: those of the machines and ``kv_dtype``
    drafts: tuple[int, ...] = (0,)
    acceptance: Acceptance = 0.7
    driven: Host = DRIVEN  # model of host time per step
    balance: Balance = Balance(kind="measured")
    microbatches: tuple[int, ...] = (1, 2)
    redundant: int | None = None
    shared: Shared = "auto"
    engine: str = "reference"  # ``reference`` or NAME@VERSION of a profile in ``planner/engines``
    engines: tuple[str, ...] = ()  # alternatives to choose from; none: ``engine`` alone
    queueing: Queueing = "bulk"  # ``mixserve``: the queues of ``closed_forms.mixserve``
    survive: Loss | None = None
    most_utilisation: float = 0.98
    """Of saturation, the most that is planned with: beyond, any error of the service times makes queues grow."""
    confidence: float | None = None
    """In the predicted service times, with which every limit must hold; as predicted without."""
    headroom: float = 0.0  # relative rise of the rate at which all limits must still hold
    stretch: tuple[tuple[Role, float], ...] = ()
    """Factors on the predicted step times of roles, which the plans of the question have; 1 for others."""
    shape: Shape = "auto"
    encode: Encode = "fused"
    encode_share: float = 0.0
    """Share of the TTFT limit for encode instances; 0: no encode instances (``instances.encoding``)."""
    model_cache: str | None = None
    """Plane over which prefill and decode load weights off pooled host memory; None: they come from an object store."""
    prefix_pool: PrefixPool | None = None  # where reused prefixes come from; None: they are in device memory
    prefix_routing: PrefixRouting | None = None
    """Who is sent where, if prefixes are in the memory of one instance; None: every instance reaches them."""
    pins: tuple[tuple[Role, Pin], ...] = ()
    max_instance_devices: int | None = None  # devices of an instance at most, all of which a fault of one takes with it
    offline: Offline | None = None
    """Work beside the online requests, in proportion to them, for which the TPOT limit alone holds."""

    @property
    def spread(self) -> bool:
        """Whether instances below a node are spread over nodes, so that the loss of one takes few.

        Beside other models they fill node after node.
        """
        return self.survive == "node" and not (self.prefill.among_others or self.decode.among_others)

    @property
    def decoded(self) -> Workload:
        """The traffic of decode instances: online requests with room for an answer, and what is beside them."""
        online = with_answers(self.workload, float(self.model.max_position))
        return online if self.offline is None else self.offline.beside(online)

    @property
    def requests_each(self) -> float:
        """Requests in decode for each online one, itself included."""
        return 1.0 + (self.offline.per_request if self.offline else 0.0)

    @property
    def beside(self) -> OfflineBeside | None:
        """The offline prompts beside the others; None without any."""
        return OfflineBeside(self.offline, self.ttft_seconds) if self.offline else None

    def beside_times(self, times: float) -> "Question":
        """Return the question with so many times as many offline requests for each online one."""
        own = self.offline
        return self if own is None else replace(self, offline=replace(own, per_request=own.per_request * times))

    def pin(self, role: Role) -> Pin:
        """Return the pinned fields of a role; redundancy and shared ranks default to those given for all roles."""
        own = dict(self.pins).get(role, FREE)
        return replace(
            own,
            redundant=self.redundant if own.redundant is None else own.redundant,
            shared=self.shared if own.shared is None else own.shared,
        )

    def stretch_of(self, role: Role) -> float:
        """Return the factor on the predicted step times of a role."""
        return dict(self.stretch).get(role, 1.0)

    def on_clock(self, role: Role) -> "Question":
        """Return the question on a clock on which a role takes what is predicted: the limits are so much tighter."""
        times = self.stretch_of(role)
        limits = self.ttft_seconds / times, self.tpot_seconds / times
        return replace(self, stretch=(), ttft_seconds=limits[0], tpot_seconds=limits[1]) if self.stretch else self

    @property
    def given(self) -> dict[str, str]:
        """Return the pinned fields of all roles, by flag, as typed."""
        moe = self.model.moe is not None
        found: dict[str, str] = {}
        for role, pin in self.pins:
            for field in fields(pin):
                value = getattr(pin, field.name)
                if value is not None:
                    text = f'"{format_strategy(value, moe=moe)}"' if isinstance(value, Strategy) else f"{value}"
                    shared = field.name == "shared" and not isinstance(value, str)
                    flag = f"{field.name}_experts" if field.name in ("redundant", "shared") else field.name
                    found[flag] = f"{found[flag]}," if flag in found else ""
                    found[flag] += f"{role}={'dedicated=' if shared else ''}{text}"
        return found

    def on_roles(self, change: Callable[[Machines], Machines], roles: Sequence[str] = ("prefill", "decode")) -> Self:
        """Return the question with the machines of some roles changed."""
        prefill, decode = (
            change(own) if role in roles else own for role, own in (("prefill", self.prefill), ("decode", self.decode))
        )
        return replace(self, prefill=prefill, decode=decode)

    @property
    def one_pool(self) -> bool:
        """Whether both roles take devices from one budget."""
        return self.prefill.budget == self.decode.budget

    @property
    def devices(self) -> int:
        """Devices of both roles together."""
        return self.prefill.devices + (0 if self.one_pool else self.decode.devices)

    @property
    def goal(self) -> Objective:
        """The objective."""
        return OBJECTIVES[self.objective]

    @property
    def sized_for(self) -> float | None:
        """The rate that a plan must carry; None where the largest is sought."""
        return None if self.goal.maximised else self.rate_per_second
