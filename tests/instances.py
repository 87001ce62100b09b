"""Instances of the catalogue's models on the catalogue's machines, for tests of the cost model."""

from dataclasses import replace
from typing import Any

from hardware.loader import load_hardware
from hardware.spec import Dtype, HardwareSpec
from models.loader import load_model
from planner.balance.imbalance import parse_balance
from planner.costs.breakdown import Operator, operators
from planner.costs.deployment import Deployment, Phase
from planner.costs.latency import balanced_cost
from planner.instances.candidates import Count, DecodeCandidate, PrefillCandidate
from planner.instances.operating import PrefillServer
from planner.instances.space import role_rows
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepCost, StepLoad
from planner.offers.decode_kinds import DecodeKind
from planner.offers.decode_offers import decode_offers
from planner.offers.prefill_offers import prefill_offers
from planner.question import Question
from planner.strategy import Strategy

CLOUDMATRIX_DECODE: dict[str, Any] = {
    "strategy": Strategy(attention_dp=320, moe_ep=320),
    "redundant": 32,
    "shared_ranks": 32,
    "drafts": 1,
}
"""CloudMatrix384 section 4.1: EP320 on 160 chips, 32 shared copies, 256 routed, 32 redundant, one MTP draft."""


def instance(model: str, hardware: str, phase: Phase, weights: Dtype, **fields: Any) -> Deployment:
    """Return a deployment; degrees and every other field by name, ``strategy`` as a whole or by its degrees."""
    degrees = {name: fields.pop(name) for name in Strategy._fields if name in fields}
    strategy = fields.pop("strategy", None) or Strategy(**degrees)
    return Deployment(
        model=load_model(model),
        hardware=load_hardware(hardware),
        strategy=strategy,
        phase=phase,
        weights=weights,
        **fields,
    )


def cloudmatrix_decode(**changes: Any) -> Deployment:
    """Return CloudMatrix-Infer's decode instance of DeepSeek-R1."""
    return instance("deepseek-r1", "cm384", "decode", "int8", **CLOUDMATRIX_DECODE | changes)


def even_cost(deployment: Deployment) -> StepCost:
    """Return the step cost with all expert ranks loaded alike."""
    return balanced_cost(deployment, parse_balance("perfect"))


def without_host(cost: StepCost) -> StepCost:
    """Return the cost of the device alone."""
    return replace(cost, host_seconds=0.0, launch_seconds=0.0)


def with_bandwidth(hardware: HardwareSpec, factor: float) -> HardwareSpec:
    """Return the machine with its memory bandwidth times ``factor``."""
    device = hardware.device
    value = device.memory_bandwidth_bytes_per_second.value * factor
    bandwidth = replace(device.memory_bandwidth_bytes_per_second, value=value)
    return replace(hardware, device=replace(device, memory_bandwidth_bytes_per_second=bandwidth))


def broken_down(cost: StepCost, load: StepLoad, microbatches: int) -> tuple[Operator, ...]:
    """Return the operators of a step with so many microbatches."""
    return operators(cost, load, evaluate(cost, load, microbatches))


def decode_all(question: Question) -> list[DecodeCandidate]:
    """Return the decode instance of each size that carries most, at its largest batch; smallest size first."""
    offers = decode_offers(question, role_rows(question, "decode"), Count(), 0.0)
    kinds = (offers.build(number) for number in offers.leading_of_each_size(1))
    return sorted(
        (kind.full.candidate for kind in kinds if isinstance(kind, DecodeKind)), key=lambda each: each.devices
    )


def prefill_found(question: Question) -> list[PrefillCandidate]:
    """Return the prefill instance of each size that carries most, with its best budget; smallest size first."""
    offers = prefill_offers(question, role_rows(question, "prefill"), Count())
    servers = (offers.build(number).at(1) for number in offers.leading_of_each_size(1))
    return sorted(
        (each.candidate for each in servers if isinstance(each, PrefillServer)), key=lambda each: each.devices
    )
