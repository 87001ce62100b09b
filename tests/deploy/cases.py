"""Plans that every exporter is tried on, and every pair of them with an engine and a kind that is possible."""

from functools import cache
from typing import Any

from deploy.render import Deployment, render
from deploy.site import Site
from planner.engines.loader import accelerator_of, all_engines, load_engine
from planner.engines.spec import PlatformKind
from planner.manifest.schema import Manifest
from tests.deploy.plans import deployed

SEEN: dict[str, Any] = {"picture_tokens": 2392, "pictures": {"count": 2, "width": 1280, "height": 720}}
DIGEST = "0123456789abcdef" * 4
INT8, FP8, SHARED = {"weights": "int8"}, {"weights": "fp8"}, {"strategy": "TP=4", "instances": 2, "tokens": 4096}
RARE = {"prefix_reuse": 0.5, "requests_per_second": 2.0, "arrival_cv2": 2.0, "input_cv2": 0.3}
PLANS: dict[str, tuple[str, str, dict[str, Any], dict[str, dict[str, Any]]]] = {
    "r1-cm384": (  # what vLLM-Ascend, SGLang, xLLM and MindIE all reach
        *("deepseek-r1", "cm384", {}),
        {
            "prefill": {"strategy": "TP=2 + DP=16, EP=32", "instances": 2, "tokens": 2048, **INT8},
            "decode": {"strategy": "DP=64, EP=64", "redundant": 64, "drafts": 1, "requests": 48, **INT8},
        },
    ),
    "r1-h800": (  # DP ranks as wide as a node, and as narrow as a device
        *("deepseek-r1", "h800", {}),
        {
            "prefill": {"strategy": "TP=8 + DP=2, EP=16", "tokens": 2048, **FP8},
            "decode": {
                "strategy": "DP=32, EP=32",
                "redundant": 32,
                "drafts": 1,
                "microbatches": 2,
                "instances": 2,
                **FP8,
            },
        },
    ),
    "r1-gb200": (  # decode over three trays of a rack, whose NVLink joins them
        *("deepseek-r1", "gb200", {}),
        {
            "prefill": {"strategy": "DP=4, EP=4", "instances": 2, "tokens": 4096, **FP8},
            "decode": {"strategy": "DP=16, EP=16", "drafts": 1, "requests": 64, **FP8},
        },
    ),
    "qwen-h800": (  # prefill instances that share a node, on 2 nodes
        *("qwen3-235b-a22b", "h800", {}),
        {"prefill": SHARED, "decode": {"strategy": "DP=8, EP=8", "requests": 64}},
    ),
    "qwen-mi300x": (  # the same under ROCm, decode over two nodes
        *("qwen3-235b-a22b", "mi300x", {}),
        {"prefill": SHARED, "decode": {"strategy": "DP=16, EP=16", "requests": 64}},
    ),
    "seen-h800": (  # pictures of every prompt, encoded by instances that do nothing else
        *("qwen2.5-vl-7b-instruct", "h800", SEEN),
        {"encode": {"strategy": "TP=1", "instances": 2}, "mixed": {"strategy": "TP=1", "instances": 3}},
    ),
    "rare-h800": (  # what few plans have: stages, FP8 caches, prefixes, bursts, pictures over a TP group, no graphs
        *("qwen2.5-vl-7b-instruct", "h800", SEEN | RARE),
        {"mixed": {"strategy": "TP=2 [PP=2]", "kv_dtype": "fp8", "eager": True}},
    ),
    "dense-mixed": (  # one wide rank over two nodes
        *("llama-3.1-70b", "h100", {}),
        {"mixed": {"strategy": "TP=16", "tokens": 512, "requests": 128, "instances": 2}},
    ),
    "r1-mixed": ("deepseek-r1", "910c", {}, {"mixed": {"strategy": "DP=16, EP=16", "drafts": 1, **INT8}}),
}


@cache
def plan(name: str) -> Manifest:
    """Return one of the plans by name."""
    model, hardware, workload, roles = PLANS[name]
    return deployed(model, hardware, workload, **roles)


def pairs() -> list[tuple[str, str, PlatformKind]]:
    """Return every (plan, engine, kind) that the profiles mark possible."""
    found: list[tuple[str, str, PlatformKind]] = []
    for name in PLANS:
        manifest = plan(name)
        accelerator = accelerator_of(manifest.clusters[manifest.pools[0].hardware].spec)
        for profile in all_engines():
            for kind, entry in profile.kinds.items():
                motor = profile.engine == "mindie" and (kind == "motor") != (manifest.kv_transfer is not None)
                again = kind == "slurm" and name not in ("qwen-h800", "r1-mixed")  # its scripts are those of bare
                again |= name == "seen-h800" and kind in ("dynamo", "llm-d")  # which refuse encode instances
                again |= name == "r1-gb200" and kind not in ("lws", "dynamo")  # what is its own is in every pod
                if accelerator in entry.accelerators and not motor and not again:
                    found.append((name, profile.engine, kind))
    return found


@cache
def made(name: str, engine: str, kind: PlatformKind) -> Deployment:
    """Return the deployment of a plan."""
    return render(plan(name), load_engine(engine), kind, Site(), DIGEST)


def files_of(manifest: Manifest | str, engine: str, kind: PlatformKind = "bare", **site: Any) -> dict[str, str]:
    """Return the files of a manifest, or of one of the plans by its name, for a site."""
    if isinstance(manifest, str):
        if not site:
            return made(manifest, engine, kind).files
        manifest = plan(manifest)
    return render(manifest, load_engine(engine), kind, Site(**site), DIGEST).files
