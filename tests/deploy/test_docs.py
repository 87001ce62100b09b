"""docs/deploy.md says what the profiles say: its tables are made from them and compared."""

from pathlib import Path
from typing import get_args

from deploy.site import read_site
from planner.engines.loader import all_engines, load_orchestrator
from planner.engines.spec import EngineProfile, PlatformKind

DOCUMENT = Path(__file__).parents[2] / "docs" / "deploy.md"
YES = {True: "yes", False: "no"}


def strategies() -> list[str]:
    """Return the rows of the table of strategies."""
    rows = []
    for profile in all_engines():
        facts = profile.parallelism
        degrees = {"stage": "EP = stage", "one": "TP = stage", "divisor": "any EP x TP"}
        modes = "; ".join(dict.fromkeys(f"{degrees[mode.ep]} ({mode.exchange})" for mode in facts.experts))
        unit = {"total": "in all", "per_device": "per device", "map": "by the map"}[profile.redundancy.unit.value]
        roles = ", ".join(profile.microbatching.roles.value) or "none"
        cells = (
            f"{profile.title} {profile.versions.pinned}",
            modes,
            YES[facts.pipeline.value],
            unit,
            profile.redundancy.placement.value.replace("_", " "),
            roles,
            f"{profile.batch.sequences.value}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def kinds() -> list[str]:
    """Return the rows of the table of kinds: the accelerators on which each is possible."""
    names: tuple[PlatformKind, ...] = get_args(PlatformKind)
    return [
        f"| {profile.title} | {' | '.join(_possible(profile, name) for name in names)} |"
        for profile in all_engines()
        if profile.kinds
    ]


def _possible(profile: EngineProfile, kind: PlatformKind) -> str:
    entry = profile.kinds.get(kind)
    return ", ".join(entry.accelerators) if entry and entry.accelerators else "no"


def test_the_tables_are_the_profiles() -> None:
    """A profile that changes changes the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for row in [*strategies(), *kinds()]:
        assert row in text, row
    for name in ("dynamo", "llm-d"):
        held = load_orchestrator(name)
        assert f"{held.title} {held.version}" in text


def test_it_says_that_nothing_was_launched() -> None:
    """The reader must know what was validated and what was not."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert "Nothing here was launched on hardware" in text
    for heading in ("## What is validated", "## What is not", "## How to add a version"):
        assert heading in text


def test_the_example_of_site_values_is_read(tmp_path: Path) -> None:
    """What a reader copies must be accepted."""
    block = DOCUMENT.read_text(encoding="utf-8").partition("keeps it apart from the plan:\n\n")[2].partition("\n\n")[0]
    path = tmp_path / "site.yaml"
    path.write_text(block.replace("    ", "", 1).replace("\n    ", "\n"), encoding="utf-8")
    site = read_site(path)
    assert site.node_selectors.over({}, "decode") == {"pool": "inference", "rack": "b"}
    assert site.inventory == str(tmp_path / "hosts.yaml")
