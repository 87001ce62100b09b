"""README and docs: links lead somewhere, command lines are read, and those with an output print what is shown."""

import math
import re
from pathlib import Path

import pytest

from scripts.refresh_docs import PAGES, ROOT, generated, others, parsed, refreshed, shown

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _anchors(text: str) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"(?m)^#+ (.*)$", text)}


def _alike(now: str, told: str) -> bool:
    """Whether two words differ in a figure only, and by little: a step of accuracy must not wait for the pages."""
    if NUMBER.sub("#", now) != NUMBER.sub("#", told):
        return now.endswith("%") and told.endswith("%")
    pairs = zip(NUMBER.findall(now), NUMBER.findall(told), strict=True)
    return "%" in now or all(math.isclose(float(a), float(b), rel_tol=0.1) for a, b in pairs)


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_links_lead_somewhere(page: Path) -> None:
    """Files are there, or made when the site is built; so is every heading that a link names."""
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        file, _, anchor = link.partition("#")
        if file.startswith(("http:", "https:")):
            continue
        target = page if not file else (page.parent / file).resolve()
        made = generated().get(str(target.relative_to(ROOT / "docs"))) if target.is_relative_to(ROOT / "docs") else None
        assert made is not None or target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in _anchors(made or target.read_text(encoding="utf-8")), f"{link} names no heading"


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_every_command_line_is_one(page: Path) -> None:
    """Those that are too long to run here name commands and flags that there are."""
    for command in others(page.read_text(encoding="utf-8")):
        parsed(command)


def test_the_examples_of_every_help_are_commands() -> None:
    """They stand in the reference, too."""
    lines = list(others(generated()["reference/commands.md"]))
    assert len(lines) > 60
    for command in lines:
        parsed(command)


@pytest.mark.usefixtures("long_streams")
@pytest.mark.parametrize("page", [page for page in PAGES if any(shown(page.read_text("utf-8")))], ids=_named)
def test_commands_print_what_is_shown(page: Path) -> None:
    """`python -m scripts.refresh_docs` brings the pages up to date."""
    text = page.read_text(encoding="utf-8")
    for now, told in zip(refreshed(text).split(), text.split(), strict=True):
        assert _alike(now, told), f"{told} is {now} now: run python -m scripts.refresh_docs"


def test_the_reference_has_every_command_flag_and_function() -> None:
    """It is made from parser and docstrings, so it cannot lag behind; here that nothing is left out."""
    pages = generated()
    commands = pages["reference/commands.md"]
    assert commands.count("\n## plan ") == len(re.findall(r"(?m)^## ", commands))
    assert "`--verbose, -v`" in commands and "`--isl-cv CV`" in commands and "\\[99\\]" in commands
    assert "## simulate_policies\n" in pages["reference/python.md"] and "Raises:" in pages["reference/python.md"]
    assert "`expert-skew`" in pages["reference/question-files.md"]


def test_a_wrong_command_line_is_found() -> None:
    """So that the tests above can fail."""
    (line,) = others("Text.\n\n    plan deepseek-r1 --hw cm384 --no-such-flag 3     what it does\n")
    assert line.endswith("--no-such-flag 3")
    with pytest.raises(Exception, match="--no-such-flag"):
        parsed(line)
    assert not list(others("- a bullet\n    plan is a word here\n"))
