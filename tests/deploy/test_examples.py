"""examples/deploy: every committed file is what plan deploy writes today; scripts/make_examples.sh makes them again."""

import hashlib
from pathlib import Path

import pytest

from deploy.render import render
from deploy.site import Site
from planner.engines.loader import load_engine
from planner.engines.spec import PlatformKind
from planner.manifest.document import read_manifest

EXAMPLES = Path(__file__).parents[2] / "examples" / "deploy"
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
