"""The vision encoder of a multimodal model as one term of a step with prompts, and its bytes.

A tower is a dense transformer without KV cache, so its kernels are costed as those of such a model. The devices of an
attention group share the pictures of their prompts, each whole on one device (vLLM's ``--mm-encoder-tp-mode data``),
and every device holds the tower. A prompt brings its patches evenly over its tokens, though an engine encodes a
picture with the first chunk that touches it.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from hardware.spec import HardwareSpec
from models.parameters import Seen
from models.spec import GQA, ModelSpec, VisionTower
from planner.costs.deployment import Deployment
from planner.costs.operators import build_step_cost
from planner.costs.roofline import Roofline
from planner.manifest.stepcost import evaluate, launches
from planner.manifest.terms import CurveTerm, StepCost, StepLoad, larger, smaller
from planner.strategy import Strategy

PARTS, POINTS = 4096, 24
"""The curve stands at 1, 2, 4, ... of so many parts of a picture, up to 2,048 pictures, more than a pass holds: its
bends, at one picture and at one for each device, are points of it."""


def with_encoder(cost: StepCost, deployment: Deployment) -> StepCost:
    """Return the step cost with the encoder of the deployment's pictures, of an encode instance that alone.

    Decode steps see no pictures, and neither do instances that encode instances stand before.
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
