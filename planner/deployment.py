"""One instance to be costed: what the operators, the memory and the step cost are built from."""

from dataclasses import dataclass
from typing import Literal

from hardware.spec import Dtype, HardwareSpec
from models.spec import ModelSpec, MoE
from planner.strategy import Strategy
from podplan.errors import BadInput

Phase = Literal["prefill", "decode", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Model, hardware and strategy of one instance, with the choices that move its cost.

    ``redundant`` counts expert slots beyond one per routed expert, in all; ``shared_ranks`` ranks
    hold only the shared expert (0: every rank has a copy); ``drafts`` is the MTP depth.
    """

    model: ModelSpec
    hardware: HardwareSpec
    strategy: Strategy
    phase: Phase
    weights: Dtype
    kv_dtype: Dtype = "bf16"
    redundant: int = 0
    shared_ranks: int = 0
    drafts: int = 0
    host_seconds: float | None = None

    @property
    def expert_ranks(self) -> int:
        """EP ranks that hold routed experts."""
        return self.strategy.moe_ep - self.shared_ranks

    @property
    def slots_per_rank(self) -> float:
        """Routed expert slots per EP rank."""
        return (self.moe.experts + self.redundant) / self.expert_ranks if self.model.moe else 0.0

    @property
    def moe(self) -> MoE:
        """The experts of a MoE model."""
        assert self.model.moe is not None, "asked for the experts of a dense model"
        return self.model.moe

    @property
    def nodes_spanned(self) -> int:
        """Nodes that the expert group spans when ranks fill node after node."""
        per_node = int(self.hardware.devices_per_node.value)
        return -(-self.strategy.moe_ep * self.strategy.moe_tp // per_node)

    @property
    def in_graph(self) -> bool:
        """Whether steps replay a captured graph: decode does, prefill has dynamic shapes."""
        return self.phase != "prefill"


def default_weights(hardware: HardwareSpec, model: ModelSpec) -> Dtype:
    """Weights as the model ships them where the device multiplies that dtype, else INT8 for FP8, else BF16."""
    peaks = hardware.device.peak_flops_per_second
    if model.native_dtype in peaks:
        return model.native_dtype
    return "int8" if model.native_dtype == "fp8" and "int8" in peaks else "bf16"


def check_slots(deployment: Deployment, flag: str = "--redundant-experts") -> None:
    """Raise BadInput unless the expert slots divide evenly over the expert ranks."""
    if deployment.model.moe is None:
        if deployment.redundant or deployment.shared_ranks:
            raise BadInput(f"{flag}: {deployment.model.name} has no routed experts, so it takes neither replicas nor dedicated ranks")
        return
    if deployment.expert_ranks < 1:
        raise BadInput(
            f"--shared-experts: dedicated={deployment.shared_ranks} leaves no rank of EP={deployment.strategy.moe_ep} "
            "for routed experts; use a smaller number"
        )
    if deployment.shared_ranks and not deployment.moe.shared_experts:
        raise BadInput(f"--shared-experts: {deployment.model.name} has no shared expert to dedicate ranks to")
    slots = deployment.moe.experts + deployment.redundant
    if slots % deployment.expert_ranks:
        lower = slots - slots % deployment.expert_ranks - deployment.moe.experts
        upper = lower + deployment.expert_ranks
        choices = f"{lower} or {upper}" if lower >= 0 else f"{upper}"
        raise BadInput(
            f"{flag}: {deployment.moe.experts} + {deployment.redundant} expert slots do not divide over "
            f"{deployment.expert_ranks} expert ranks; use {choices}"
        )
    if slots > deployment.moe.experts * deployment.expert_ranks:
        raise BadInput(f"{flag}: {deployment.redundant} replicas would put an expert twice on a rank; use fewer")
