"""A plan that was searched for an engine is written for that engine, without a refusal in between."""

import pytest

from deploy.render import render
from deploy.site import Site
from planner.engines.loader import load_engine
from planner.plans.assemble import assemble
from tests.deploy.cases import DIGEST
from tests.questions import small_answer


@pytest.mark.parametrize(
    ("engine", "hardware"), [("vllm@0.33.0", "h100"), ("sglang@0.5.23", "h100"), ("xllm@0.9.0", "cm384")]
)
def test_what_was_planned_for_an_engine_deploys(engine: str, hardware: str) -> None:
    """Search, assemble, render and read back."""
    best = small_answer(hardware=hardware, devices=32, engine=engine).best
    assert best is not None
    manifest = assemble(best, {})
    made = render(manifest, load_engine(engine), "bare", Site(), DIGEST)
    planned = sum(pool.devices_per_instance * len(pool.instances) for pool in manifest.pools)
    assert f"together: {planned} devices" in made.files["README.md"]
