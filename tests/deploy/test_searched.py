"""A plan that was searched for an engine is written for that engine, without a refusal in between."""

import re

import pytest

from deploy.memory import holding, memory_of
from deploy.render import render
from deploy.roles import read_roles
from deploy.site import Site
from planner.engines.loader import load_engine
from planner.engines.memory import kept_bytes
from planner.plans.assemble import assemble
from tests.deploy.cases import DIGEST
from tests.questions import best_of


@pytest.mark.parametrize(
    ("engine", "hardware"),
    [
        ("vllm@0.33.0", "h100"),
        ("sglang@0.5.23", "h100"),
        ("trtllm@1.2.1", "h100"),
        ("xllm@0.9.0", "cm384"),
        ("vllm-ascend@0.23.0", "cm384"),
    ],
)
def test_what_was_planned_for_an_engine_deploys(engine: str, hardware: str) -> None:
    """Search, assemble, render and read back; the buffers planned are those told, and every planned request fits."""
    best = best_of(hardware=hardware, devices=32, engine=engine)
    manifest = assemble(best, {})
    profile = load_engine(engine)
    for role in read_roles(manifest, profile, None):
        given, held = role.memory, memory_of(profile, role)
        sizes = {name: getattr(given, name) for name in ("weights", "activations", "reserve", "capacity")}
        kept = kept_bytes(profile, holding(profile.engine, role), **sizes)
        assert kept == pytest.approx(given.buffers, rel=1e-3)
        assert held.requests == role.sequences
    made = render(manifest, profile, "bare", Site(), DIGEST)
    planned = sum(pool.devices_per_instance * len(pool.instances) for pool in manifest.pools)
    assert f"together: {planned} devices" in made.files["README.md"]


def test_pods_spread_as_the_plan_survives_the_loss_of_a_node() -> None:
    """Kubernetes may put no more instances on a node than the plan does; a plan without losses lets it choose."""
    rules = {}
    for survive in (None, "node"):
        best = best_of(model="qwen3-8b", engine="vllm@0.33.0", survive=survive)
        manifest = assemble(best, {"survive": survive})
        made = render(manifest, load_engine("vllm@0.33.0"), "lws", Site(), DIGEST)
        every = [rule for text in made.files.values() for rule in re.findall(r"maxSkew: (\d+)\n.*?hostname", text)]
        rules[survive] = [int(rule) for rule in every]
    assert rules[None] == []
    assert len(rules["node"]) == sum(pool.devices_per_instance < 8 for pool in manifest.pools) > 0
    assert set(rules["node"]) == {1}
