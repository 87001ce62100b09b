"""The composition: a decode iteration or a prefill pass of one instance, as loads and as seconds.

Service times only: no waiting for arrivals, no KV transfer; those are ``serving``.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ground.arrays import placed
from hardware.spec import HardwareSpec
from models.parameters import Seen
from models.spec import GQA, ModelSpec, VisionTower
from planner.balance.imbalance import Balance, expected_maximum_normal, static_factor
from planner.costs.deployment import Deployment
from planner.costs.operators import build_step_cost
from planner.costs.roofline import Roofline
from planner.manifest.drafts import Acceptance, tokens_per_iteration
from planner.manifest.stepcost import evaluate, launches
from planner.manifest.terms import CurveTerm, Number, StepCost, StepLoad, larger, smaller
from planner.strategy import Strategy


class Pass(NamedTuple):
    """A load and how often it occurs in a row to serve one prompt."""

    load: StepLoad
    tokens: float


def balanced_cost(deployment: Deployment, balance: Balance) -> StepCost:
    """Return the step cost with the busiest expert rank that a balance setting implies."""
    cost = with_encoder(build_step_cost(deployment), deployment)
    if deployment.model.moe is None or not deployment.expert_parallel or balance.kind == "perfect":
        return cost
    if balance.kind == "factor":
        return replace(cost, balance=balance.factor)
    balanced, experts = balance.kind == "measured", deployment.moe.experts
    if not isinstance(deployment.expert_ranks, np.ndarray):
        count, extra = int(deployment.expert_ranks), int(deployment.redundant)
        one = static_factor(experts, count, extra, balance.distribution, balanced)
        return replace(cost, balance=one, sampling_deviations=deviations(count))
    ranks, redundant = np.broadcast_arrays(deployment.expert_ranks, deployment.redundant)
    most = int(redundant.max(initial=0)) + 1
    layouts, where = placed((ranks * most + redundant).ravel())
    each = [divmod(layout, most) for layout in layouts.astype(np.intp).tolist()]
    static = np.array([static_factor(experts, *layout, balance.distribution, balanced) for layout in each])
    noise = np.array([deviations(count) for count, _ in each])
    return replace(cost, balance=static[where], sampling_deviations=noise[where])


@lru_cache(maxsize=4096)
def deviations(ranks: int) -> float:
    """Expected maximum of ``ranks`` standard normals: how far the busiest rank lies above its mean."""
    return float(expected_maximum_normal(ranks)) if ranks > 1 else 0.0


def accepted_tokens(deployment: Deployment, acceptance: Acceptance) -> Number:
    """Tokens of one request in an iteration, of an instance or of each of many."""
    if not isinstance(deployment.drafts, np.ndarray):
        return tokens_per_iteration(int(deployment.drafts), acceptance)
    depths = deployment.drafts.astype(np.intp)
    return np.array([tokens_per_iteration(depth, acceptance) for depth in range(depths.max(initial=0) + 1)])[depths]


def decode_load(deployment: Deployment, batch: Number, kv_tokens: Number, mean_batch: Number | None = None) -> StepLoad:
    """Load of a decode iteration with ``batch`` requests of ``kv_tokens`` each on the busiest DP rank.

    ``mean_batch`` requests are on the mean rank; all ranks alike where it is not given. With PP the
    batch is spread over the stages.
    """
    queries = deployment.queries
    mean = batch if mean_batch is None else mean_batch
    return StepLoad(decode_sequences=batch, decode_kv_tokens=batch * kv_tokens, mean_tokens=mean * queries)


def causal_pairs(new: Number, cached: Number) -> Number:
    """Query-key pairs of ``new`` tokens on top of ``cached`` ones: c·p + c·(c + 1)/2."""
    return new * cached + new * (new + 1) / 2


def prefill_passes(deployment: Deployment, tokens_per_device: float, prompt: float, reuse: float) -> list[Pass]:
    """Loads of the passes that serve prompts of ``prompt`` tokens, of which ``reuse`` are cached.

    A pass holds ``tokens_per_device`` x devices prompt tokens, so each DP group its share of them:
    several whole prompts, or one chunk of a longer prompt.
    """
    strategy = deployment.strategy
    share = float(tokens_per_device * strategy.devices / strategy.attention_dp)
    new, cached = prompt * (1 - reuse), prompt * reuse
    if share >= prompt:
        prompts = share / prompt
        load = StepLoad(
            prefill_tokens=prompts * new,
            prefill_context_tokens=prompts * cached,
            prefill_pairs=prompts * causal_pairs(new, cached),
            finishing_prompts=prompts,
            mean_tokens=prompts * new,
            loaded_tokens=prompts * cached,
        )
        return [Pass(load, share)]
    count = int(np.ceil(prompt / share))
    chunk = new / count
    passes = []
    for number in range(count):
        context = cached + number * chunk
        load = StepLoad(
            prefill_tokens=chunk,
            prefill_context_tokens=context,
            prefill_pairs=causal_pairs(chunk, context),
            finishing_prompts=1.0 if number == count - 1 else 0.0,
            mean_tokens=chunk,
            loaded_tokens=0.0 if number else cached,
        )
        passes.append(Pass(load, prompt / count))
    return passes


PARTS, POINTS = 4096, 24
"""The curve stands at 1, 2, 4, ... of so many parts of a picture, up to 2,048 pictures, more than a pass holds: its
bends, at one picture and at one for each device, are points of it."""


def with_encoder(cost: StepCost, deployment: Deployment) -> StepCost:
    """Return the step cost with the encoder of the deployment's pictures, of an encode instance that alone.

    Decode steps see no pictures, and neither do instances that encode instances stand before. A tower is a dense
    transformer without KV cache, so its kernels are costed as those of such a model. The devices of an attention group
    share the pictures of their prompts, each whole on one device (vLLM's ``--mm-encoder-tp-mode data``), and every
    device holds the tower. A prompt brings its patches evenly over its tokens, though an engine encodes a picture with
    the first chunk that touches it.
    """
    seen = deployment.seen
    if seen is None or deployment.phase == "decode" or seen.encoding == "apart":
        return cost
    term = encoder_term(deployment, seen)
    if seen.encoding == "fused":
        return replace(cost, head_terms=(*cost.head_terms, term))
    return replace(
        cost,
        terms=(),
        head_terms=(term,),
        draft_terms=(),
        dense_layers=0,
        moe_layers=0,
        expert_ranks=1,
        shared_ranks=0,
        experts=0,
        experts_per_token=0,
        slots_per_rank=0.0,
        reach_tokens=0,
        prompt_seconds=0.0,
        loading_seconds=0.0,
    )


def encoder_term(deployment: Deployment, seen: Seen) -> CurveTerm:
    """Seconds of the tower and its projector by the patches of an attention group; a picture stays on one device."""
    pictures, tower = seen.pictures, seen.pictures.tower
    whole = float(pictures.patches / pictures.segments)
    own, tensor = tower_deployment(deployment.hardware, deployment.engine, tower), deployment.strategy.attention_tp
    cost = tower_cost(own, tower, deployment.model.hidden_size)
    given = whole / PARTS * np.exp2(np.arange(POINTS, dtype=np.float64)).reshape(-1, *[1] * np.ndim(tensor))
    patches = larger(given / tensor, smaller(given, whole))
    load = StepLoad(prefill_tokens=patches, prefill_pairs=patches * pictures.keys_per_patch, mean_tokens=patches)
    taken = np.asarray(evaluate(cost, load).seconds)
    per_token = seen.patches_per_token / tensor
    work = 2.0 * tower.parameters + 4.0 * pictures.keys_per_patch * tower.hidden_size * tower.layers
    moved = 2.0 * tower.layers * (6 * tower.hidden_size + 2 * tower.intermediate_size)
    roofline = Roofline.of(own)
    return CurveTerm(
        name="vision_encoder",
        stage="head",
        load={"chunk": seen.patches_per_token * PARTS / whole},
        seconds=tuple(taken.tolist() if taken.ndim == 1 else taken),
        flops={"chunk": work * per_token},
        flops_per_second=roofline.peak("bf16"),
        bytes={"chunk": moved * per_token},
        bytes_per_second=roofline.bandwidth,
        launches=launches(cost, 1),
        residual=max(term.residual for term in cost.terms),
    )


def tower_cost(own: Deployment, tower: VisionTower, hidden_size: int) -> StepCost:
    """Return the step cost of the tower alone on one device, the projector's two products with it."""
    roofline, merged = Roofline.of(own), float(tower.merge**2 * tower.hidden_size)
    rows = {"chunk": 1.0 / tower.merge**2}
    projector = (
        roofline.matmul("projector_up", "head", rows, merged, merged, "bf16"),
        roofline.matmul("projector_down", "head", rows, float(hidden_size), merged, "bf16"),
    )
    return replace(build_step_cost(own), head_terms=projector, prompt_seconds=0.0)


def tower_deployment(hardware: HardwareSpec, engine: str | None, tower: VisionTower) -> Deployment:
    """Return the tower as a dense model on one device, in BF16, as checkpoints ship it."""
    return Deployment(
        model=tower_model(tower), hardware=hardware, strategy=Strategy(), phase="prefill", weights="bf16", engine=engine
    )


@lru_cache(maxsize=16)
def tower_model(tower: VisionTower) -> ModelSpec:
    """Return the tower as a model: two products of a plain feed-forward are three of two thirds the width."""
    width = tower.intermediate_size if tower.gated else round(tower.intermediate_size * 2 / 3)
    return ModelSpec(
        schema_version=1,
        name="vision-tower",
        title="vision tower",
        architecture="vit",
        source="the tower of a multimodal model",
        layers=tower.layers,
        dense_layers=tower.layers,
        hidden_size=tower.hidden_size,
        vocab_size=1,
        tied_embeddings=True,
        attention=GQA(heads=tower.heads, kv_heads=tower.heads, head_dim=tower.hidden_size // tower.heads, bias=True),
        dense_intermediate_size=width,
        moe=None,
        mtp_layers=0,
        max_position=1,
        native_dtype="bf16",
    )
