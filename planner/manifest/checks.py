"""What must agree inside a manifest beyond the types of its fields; every error names its field."""

import hashlib
import json
import math
from itertools import zip_longest

import numpy as np

from ground.arrays import Ints
from ground.errors import BadInput
from ground.records import Stated
from ground.validation import plain
from planner.manifest.costs import EXPERT_VARIABLES, REACH_VARIABLES, TERM_GROUPS, StepCostModel
from planner.manifest.layout import RANK_COLUMNS, group_rules, rank_table
from planner.manifest.loads import check_expert_map
from planner.manifest.schema import Manifest, ManifestWorkload, Pool, PromptKinds

PLACE = [RANK_COLUMNS.index(name) for name in ("node", "device")]


def spec_hash(spec: Stated) -> str:
    """Return the SHA-256 of a spec's canonical JSON (sorted keys, no blanks, no defaults).

    Without defaults, so that a manifest outlives an optional field that specs get later.
    """
    text = json.dumps(plain(spec, mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_manifest(manifest: Manifest) -> None:
    """Raise BadInput at the first contradiction, with the path to its field."""
    _check_hashes(manifest)
    _check_kinds(manifest.workload)
    used: dict[tuple[str, int], str] = {}
    names: set[str] = set()
    for index, pool in enumerate(manifest.pools):
        path = f"pools[{index}]"
        if pool.hardware not in manifest.clusters:
            raise BadInput(f"{path}.hardware: {pool.hardware!r} is not among clusters {sorted(manifest.clusters)}")
        _check_sizes(manifest, pool, path)
        table = np.array(pool.rank_table.rows, dtype=np.int64)
        per_node = int(manifest.clusters[pool.hardware].spec.devices_per_node.value)
        _check_rows(pool, table, per_node, f"{path}.rank_table.rows")
        _check_groups(pool, f"{path}.groups")
        _check_instances(manifest, pool, table, path, used, names)
        _check_experts(manifest, pool, f"{path}.expert_map")
        _check_shards(pool, f"{path}.weight_shards")
        _check_costs(manifest, pool, f"{path}.step_costs")
    _check_roles(manifest)


def _check_hashes(manifest: Manifest) -> None:
    """Embedded specs are what their hashes say."""
    for path, sha256, spec in [
        ("model", manifest.model.sha256, manifest.model.spec),
        *((f"clusters.{name}", cluster.sha256, cluster.spec) for name, cluster in manifest.clusters.items()),
    ]:
        if spec_hash(spec) != sha256:
            raise BadInput(f"{path}.sha256: the embedded spec was changed after the plan was made; plan again with it")


def _check_kinds(workload: ManifestWorkload) -> None:
    """Kinds of requests are columns of one length, some are likely, and of none more is reused than it has."""
    for name, kinds in (("prompt_kinds", workload.prompt_kinds), ("answer_kinds", workload.answer_kinds)):
        if kinds is None:
            continue
        path, rows = f"workload.{name}", len(kinds.tokens)
        reused = kinds.reused if isinstance(kinds, PromptKinds) else [0.0] * rows
        if not rows == len(kinds.weights) == len(reused):
            raise BadInput(f"{path}: its columns must be of one length, as many weights as tokens")
        if not 0 < sum(kinds.weights) < math.inf:
            raise BadInput(f"{path}.weights: must sum to more than 0, and to a finite number")
        if any(part > tokens for part, tokens in zip(reused, kinds.tokens, strict=True)):
            raise BadInput(f"{path}.reused: a prompt has more reused tokens than tokens")


def _check_sizes(manifest: Manifest, pool: Pool, path: str) -> None:
    """Degrees, devices, chips, stages and memory agree."""
    cluster, degrees = manifest.clusters[pool.hardware], pool.degrees
    if pool.devices_per_instance != degrees.devices:
        raise BadInput(
            f"{path}.devices_per_instance: {pool.devices_per_instance} must be {degrees.devices} as degrees say"
        )
    chips = pool.devices_per_instance / cluster.spec.devices_per_chip.value
    if not np.isclose(pool.chips_per_instance, chips):
        raise BadInput(f"{path}.chips_per_instance: {pool.chips_per_instance:g} must be {chips:g}")
    stages = pool.layers_per_stage
    layers = _layers(manifest, pool, path)
    if len(stages) != degrees.pp or sum(stages) != layers:
        raise BadInput(f"{path}.layers_per_stage: must be {degrees.pp} counts that add up to {layers} layers")
    memory = pool.memory_bytes_per_device
    used = memory.weights + memory.kv_cache + memory.activations + memory.buffers + memory.reserve
    if used > memory.capacity * (1 + 1e-9):
        raise BadInput(
            f"{path}.memory_bytes_per_device: {used:.4g} bytes do not fit a capacity of {memory.capacity:.4g}"
        )


def _layers(manifest: Manifest, pool: Pool, path: str) -> int:
    """Return the layers that an instance runs: of an encode pool those of the model's encoder of pictures."""
    model = manifest.model.spec
    if pool.role != "encode":
        return model.layers
    if model.vision is None or pool.devices_per_instance != 1:
        raise BadInput(f"{path}.role: encode is for models with an encoder of pictures, on one device an instance")
    return model.vision.layers


def _check_rows(pool: Pool, table: Ints, per_node: int, path: str) -> None:
    """Each rank stands once, on its own device, with the coordinates that the degrees give it."""
    expected = np.array(rank_table(pool.degrees, per_node).rows, dtype=np.int64)
    count, (node, device) = len(expected), table[:, PLACE].T
    if len(table) != count:
        raise BadInput(f"{path}: has {len(table)} rows, must have one for each of {count} ranks")
    outside = np.flatnonzero((node < 0) | (node >= count) | (device < 0) | (device >= per_node))
    if outside.size:
        row = outside[0]
        raise BadInput(f"{path}[{row}]: node {node[row]}, device {device[row]} must lie in nodes of {per_node} devices")
    _, first = np.unique(node * per_node + device, return_index=True)
    again = np.setdiff1d(np.arange(count), first)
    if again.size:
        raise BadInput(f"{path}[{again[0]}]: rank {again[0]} stands on a device that an earlier rank has")
    expected[:, PLACE] = table[:, PLACE]
    wrong = np.argwhere(table != expected)
    if wrong.size:
        row, column = wrong[0]
        name, right = RANK_COLUMNS[column], expected[row, column]
        raise BadInput(f"{path}[{row}][{column}]: {name} {table[row, column]} must be {right} as degrees say")


def _check_groups(pool: Pool, path: str) -> None:
    """The groups of each kind are those of the degrees."""
    for index, (given, right) in enumerate(zip_longest(pool.groups, group_rules(pool.degrees))):
        if given != right:
            groups = f"must be {right.model_dump()}" if right else "must not be there"
            raise BadInput(f"{path}[{index}]: {groups} as degrees say")


def _check_instances(
    manifest: Manifest, pool: Pool, table: Ints, path: str, used: dict[tuple[str, int], str], names: set[str]
) -> None:
    """Instances lie in the cluster and share no device."""
    cluster = manifest.clusters[pool.hardware]
    per_node = int(cluster.spec.devices_per_node.value)
    node, device = table[:, PLACE].T
    linear = node * per_node + device
    for index, instance in enumerate(pool.instances):
        where = f"{path}.instances[{index}]"
        if instance.name in names:
            raise BadInput(f"{where}.name: {instance.name!r} stands for two instances")
        names.add(instance.name)
        if len(set(instance.nodes)) < len(instance.nodes) or max(instance.nodes) >= cluster.nodes:
            raise BadInput(f"{where}.nodes: must be different nodes from 0 to {cluster.nodes - 1} of {pool.hardware}")
        positions = linear + instance.first_device
        if positions.max() >= len(instance.nodes) * per_node:
            raise BadInput(f"{where}.nodes: {len(instance.nodes)} nodes of {per_node} devices do not hold all ranks")
        devices = np.array(instance.nodes, dtype=np.int64)[positions // per_node] * per_node + positions % per_node
        for device in devices.tolist():
            other = used.setdefault((pool.hardware, device), instance.name)
            if other != instance.name:
                raise BadInput(
                    f"{where}: stands on device {device % per_node} of node {device // per_node}, which {other!r} has"
                )


def _check_experts(manifest: Manifest, pool: Pool, path: str) -> None:
    """The map covers every MoE layer once and every EP rank has its part."""
    model, mapping = manifest.model.spec, pool.expert_map
    if pool.role == "encode" and mapping is None:
        return
    if (model.moe is None) != (mapping is None):
        raise BadInput(f"{path}: must {'not be given for a dense model' if mapping else 'be given for a MoE model'}")
    if model.moe is None or mapping is None:
        return
    ranks = [*mapping.expert_ranks, *mapping.shared_expert_ranks]
    if sorted(ranks) != list(range(pool.degrees.moe_ep)):
        raise BadInput(
            f"{path}: expert_ranks and shared_expert_ranks must name each of {pool.degrees.moe_ep} EP ranks once"
        )
    covered: set[int] = set()
    main = set(model.moe_layer_numbers)
    expected = main | set(range(model.layers, model.layers + model.mtp_layers))
    for index, entry in enumerate(mapping.placements):
        for layer in entry.layers:
            if layer in covered or layer not in expected:
                raise BadInput(f"{path}.placements[{index}].layers: {layer} stands twice or is no MoE layer")
            covered.add(layer)
        slots = np.array(entry.slots, dtype=np.int64)[None, :]
        check_expert_map(slots, model.moe.experts, len(mapping.expert_ranks), f"{path}.placements[{index}].slots")
    missing = main - covered
    if missing:
        raise BadInput(f"{path}.placements: MoE layer {min(missing)} has no slots")


def _check_shards(pool: Pool, path: str) -> None:
    """A cut has an axis, a coordinate and a degree that the coordinate's group can carry."""
    sizes = {"tp": pool.degrees.attention_tp, "moe_tp": pool.degrees.moe_tp}
    for index, rule in enumerate(pool.weight_shards):
        if (rule.axis is None) != (rule.coordinate is None) or (rule.axis is None and rule.degree > 1):
            raise BadInput(f"{path}[{index}]: a cut needs axis, coordinate and degree, and a whole tensor none of them")
        if rule.coordinate and sizes[rule.coordinate] % rule.degree:
            raise BadInput(
                f"{path}[{index}].degree: {rule.degree} must divide {rule.coordinate} of {sizes[rule.coordinate]}"
            )


def _check_costs(manifest: Manifest, pool: Pool, path: str) -> None:
    """The phases that the role can run are there, for this pool's drafts, over variables that exist."""
    needed = {"mixed": ("mixed",), "encode": ("prefill",)}.get(pool.role, ("prefill", "decode"))
    for phase in needed:
        if phase not in pool.step_costs:
            raise BadInput(f"{path}: {phase} is missing; {pool.role} pools need it")
    for phase, cost in pool.step_costs.items():
        queries = pool.mtp.beams * (1 + pool.mtp.drafts)
        if phase != "prefill" and cost.queries_per_sequence != queries:
            raise BadInput(f"{path}.{phase}.queries_per_sequence: must be {queries}, one more than mtp.drafts, a beam")
        _check_variables(cost, f"{path}.{phase}")
        if cost.rule == "attention_experts" and cost.moe_layers and pool.microbatches == 2 and cost.cores < 2:
            raise BadInput(f"{path}.{phase}.cores: two streams need at least 2 partitions to split")
        if (cost.rule == "disaggregated") != (cost.domains > 0):
            raise BadInput(f"{path}.{phase}.domains: must be 1 or more with the rule disaggregated, and 0 with others")


def _check_variables(cost: StepCostModel, path: str) -> None:
    """Only a step cost with experts, or with a reach, has their variables, and experts have slots."""
    absent: dict[str, str] = {}
    if cost.experts:
        if cost.slots_per_rank <= 0 or cost.experts_per_token < 1 or cost.experts_per_token > cost.experts:
            raise BadInput(f"{path}: experts need slots_per_rank > 0 and experts_per_token from 1 to {cost.experts}")
    elif cost.moe_layers:
        raise BadInput(f"{path}.moe_layers: must be 0 where experts is 0")
    else:
        absent |= dict.fromkeys(EXPERT_VARIABLES, "experts")
    if not cost.reach_tokens:
        absent |= dict.fromkeys(REACH_VARIABLES, "reach_tokens")
    for group in TERM_GROUPS:
        for index, term in enumerate(getattr(cost, group)):
            forms = {"bytes": term.bytes}
            if term.kind == "compute":
                forms |= {"flops": term.flops, "idle_flops": term.idle_flops}
            for name, form in forms.items():
                unknown = absent.keys() & form.keys()
                if unknown:
                    first = min(unknown)
                    raise BadInput(f"{path}.{group}[{index}].{name}: {first!r} exists only with {absent[first]}")


def _check_roles(manifest: Manifest) -> None:
    """Prefill and decode come together, and KV has a plane between them."""
    roles = {pool.role for pool in manifest.pools}
    if ("prefill" in roles) != ("decode" in roles):
        raise BadInput("pools: a prefill pool needs a decode pool and the other way round")
    if roles == {"encode"}:
        raise BadInput("pools: an encode pool needs prefill and decode pools, or a mixed one, behind it")
    if ("encode" in roles) != (manifest.embedding_transfer is not None):
        raise BadInput("embedding_transfer: must be given where a pool has the role encode, and nowhere else")
    if "encode" in roles and not manifest.workload.picture_tokens:
        raise BadInput("workload.picture_tokens: must be given where a pool has the role encode")
    if "prefill" not in roles:
        return
    if manifest.kv_transfer is None:
        raise BadInput("kv_transfer: must be given where prefill and decode are different pools")
    source = next(pool for pool in manifest.pools if pool.role == "prefill")
    planes = sorted(plane.name for plane in manifest.clusters[source.hardware].spec.planes)
    if manifest.kv_transfer.plane not in planes:
        raise BadInput(f"kv_transfer.plane: {manifest.kv_transfer.plane!r} is not among {planes} of {source.hardware}")
