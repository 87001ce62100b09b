"""What tests of several commands begin with."""

from pathlib import Path

import pytest

from planner.manifest.document import dump_manifest
from podplan.options import QuestionFlags
from podplan.planning import PlanResult
from podplan.question import read_question
from tests.plans import small_manifest
from tests.questions import small_answer


@pytest.fixture
def planned(tmp_path: Path) -> str:
    """A planned manifest as a file."""
    path = tmp_path / "manifest.yaml"
    path.write_text(dump_manifest(small_manifest()), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def found() -> PlanResult:
    """A small plan of two pools, with runners-up."""
    flags = QuestionFlags(model="qwen3-8b", hw="h100", devices="4", shape="disaggregated")
    return PlanResult(asked=read_question(flags), answer=small_answer(), seconds=0.5)
