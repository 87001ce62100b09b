"""examples/deploy: every committed file is what plan deploy writes today; scripts/make_examples.sh makes them again."""

import hashlib
from pathlib import Path

import pytest

from deploy.render import render
from deploy.site import Site
from ground.errors import Infeasible
from planner.engines.accelerators import accelerator_of
from planner.engines.loader import all_engines, load_engine
from planner.engines.spec import PlatformKind
from planner.manifest.document import read_manifest

EXAMPLES = Path(__file__).parents[2] / "examples" / "deploy"
OTHERWISE = {("mindie", "bare"), ("mindie", "slurm")}  # of aggregated instances alone
MADE: list[tuple[str, str, PlatformKind]] = [
    ("deepseek-r1-cm384", "vllm-ascend", "bare"),
    ("deepseek-r1-cm384", "sglang", "lws"),
    ("deepseek-r1-cm384", "xllm", "volcano"),
    ("qwen3-235b-h800", "vllm", "lws"),
    ("qwen3-8b-h100", "vllm", "bare"),
]


@pytest.mark.parametrize(("folder", "engine", "kind"), MADE)
def test_committed_files_are_what_is_generated(folder: str, engine: str, kind: PlatformKind) -> None:
    """To the byte; expert maps, which are left out for their size, by the SHA-256 in README.md."""
    path = EXAMPLES / folder / "manifest.yaml"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    files = render(read_manifest(path), load_engine(engine), kind, Site(), digest).files
    committed = {held.name: held.read_text(encoding="utf-8") for held in (EXAMPLES / folder / engine).iterdir()}
    for name in files.keys() - committed.keys():
        assert name.startswith("expert-") and name.endswith(".json"), name
        assert hashlib.sha256(files[name].encode()).hexdigest() in committed["README.md"]
    for name, text in committed.items():
        assert text == files[name], f"{name} differs: run scripts/make_examples.sh"


def test_every_example_is_made() -> None:
    """No folder is left behind."""
    found = {(engine.parent.name, engine.name) for engine in EXAMPLES.glob("*/*") if engine.is_dir()}
    assert found == {(folder, engine) for folder, engine, _ in MADE}


@pytest.mark.parametrize("folder", ["deepseek-r1-cm384", "qwen3-235b-h800"])
def test_every_possible_pair_is_written_for_every_example(folder: str) -> None:
    """All engines and kinds that the profiles mark possible on the example's machine."""
    manifest = read_manifest(EXAMPLES / folder / "manifest.yaml")
    accelerator = accelerator_of(manifest.clusters[manifest.pools[0].hardware].spec)
    written: dict[str, int] = {}
    for profile in all_engines():
        for kind, entry in profile.kinds.items():
            if accelerator not in entry.accelerators or (profile.engine, kind) in OTHERWISE:
                continue
            try:
                assert "README.md" in render(manifest, profile, kind, Site(), "0" * 64).files
            except Infeasible:  # a rule that the engine's own sources state
                continue
            written[profile.engine] = written.get(profile.engine, 0) + 1
    # xLLM over several nodes takes no LeaderWorkerSets; SGLang's own memory rule leaves bf16 weights no room on H800.
    wanted = {"ascend": {"mindie": 1, "sglang": 5, "vllm-ascend": 5, "xllm": 3}, "nvidia": {"vllm": 7}}
    assert written == wanted[accelerator or ""]
