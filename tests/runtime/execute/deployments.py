"""Manifests of any strategy over a catalogue model on the toy machine, for the reference runtime."""

from dataclasses import replace
from typing import Any

from models.loader import load_model
from models.spec import ModelSpec
from planner.manifest.checks import check_manifest, spec_hash
from planner.manifest.layout import Degrees, ExpertLayers, ExpertMap, Instance
from planner.manifest.schema import Cluster, EmbeddedModel, LinkMapping, Manifest
from planner.strategy import Strategy, parse_strategy
from tests import manifests


def slim(name: str, experts: int = 32) -> ModelSpec:
    """Return a catalogue model with fewer experts, which take most of a test's time."""
    model = load_model(name)
    return model if model.moe is None else replace(model, moe=replace(model.moe, experts=experts))


def expert_map(model: ModelSpec, ranks: int, redundant: int = 0, dedicated: int = 0) -> ExpertMap | None:
    """Return experts in turn over the ranks, replicas behind them; the last ranks hold the shared expert alone."""
    if model.moe is None:
        return None
    holders, slots = ranks - dedicated, model.moe.experts + redundant
    assert slots % holders == 0, f"{slots} slots do not divide over {holders} ranks"
    layers = list(range(model.dense_layers, model.layers))
    half = len(layers) // 2
    turned = [(slot + model.moe.experts // 3) % model.moe.experts for slot in range(slots)]
    return ExpertMap(
        expert_ranks=list(range(holders)),
        shared_expert_ranks=list(range(holders, ranks)),
        placements=[
            ExpertLayers(layers=layers[half:], slots=[slot % model.moe.experts for slot in range(slots)]),
            *([ExpertLayers(layers=layers[:half], slots=turned)] if half else []),
        ],
    )


def pool(  # noqa: PLR0913
    model: ModelSpec,
    role: str,
    strategy: str | Strategy,
    first_node: int,
    *,
    redundant: int = 0,
    dedicated: int = 0,
    drafts: int = 0,
    microbatches: int = 2,
    weights: str = "bf16",
    **changes: Any,
) -> dict[str, Any]:
    """Return the fields of a pool of one instance."""
    parsed = parse_strategy(strategy, moe=model.moe is not None) if isinstance(strategy, str) else strategy
    degrees = Degrees(**parsed._asdict())
    mapping = expert_map(model, degrees.moe_ep, redundant, dedicated)
    nodes = list(range(first_node, first_node + -(-degrees.devices // 8)))
    fields = {
        "drafts": drafts,
        "microbatches": microbatches,
        "weights_dtype": weights,
        "strategy": str(strategy),
    } | changes
    return manifests.pool(
        role, degrees, [Instance(name=f"{role}-0", nodes=nodes)], model=model, expert_map=mapping, **fields
    )


def deployed(
    model: ModelSpec | str,
    prefill: str | Strategy,
    decode: str | Strategy | None = None,
    *,
    checked: bool = True,
    **fields: Any,
) -> Manifest:
    """Return a manifest of a prefill and a decode instance, or of one mixed instance where ``decode`` is None.

    Fields that begin with ``prefill_`` or ``decode_`` go to one of the pools, others to both.
    """
    spec = load_model(model) if isinstance(model, str) else model
    pools, node = [], 0
    for role, strategy in (("prefill", prefill), ("decode", decode)):
        if strategy is None:
            continue
        own = {key: value for key, value in fields.items() if not key.startswith(("prefill_", "decode_"))}
        own |= {key.removeprefix(f"{role}_"): fields[key] for key in fields if key.startswith(f"{role}_")}
        made = pool(spec, "mixed" if decode is None else role, strategy, node, **own)
        node += len(made["instances"][0].nodes)
        pools.append(made)
    first, last = pools[0]["degrees"], pools[-1]["degrees"]
    ratio = first.attention_tp / last.attention_tp
    groups = last.attention_dp * max(last.domains, 1)
    hardware = manifests.machine(nodes=256)
    link = None if decode is None else {"mapping": LinkMapping(ratio=ratio, group_size=groups / ratio)}
    made_manifest = manifests.build(
        pools,
        {},
        made_by={"podplan": "0.1.0"},
        clusters={"toy": Cluster(nodes=256, sha256=spec_hash(hardware), spec=hardware)},
        model=EmbeddedModel(sha256=spec_hash(spec), spec=spec),
        service_levels={},
        kv_transfer=link and manifests.LINK | link,
    )
    if checked:
        check_manifest(made_manifest)
    return made_manifest
