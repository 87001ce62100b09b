"""What GitHub Actions shows of a check: annotations beside the change, and the step's summary."""

import os
from collections.abc import Sequence
from pathlib import Path

from cli.check_view import show_checks
from cli.output import note
from cli.page import Markdown
from ground.errors import BadInput
from podplan.checking import Checked

SUMMARY = "GITHUB_STEP_SUMMARY"


def tell_github(checked: Sequence[Checked], summary: Path | None) -> None:
    """Append the verdicts to the step's summary, or to a file, and annotate what fails, where Actions runs this.

    Raises BadInput where the file cannot be written.
    """
    told = os.environ.get(SUMMARY)
    path = summary or (Path(told) if told else None)
    if path is not None:
        text = Markdown()
        show_checks(text, checked)
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError as error:
            raise BadInput(f"--summary: {path} cannot be written: {error.strerror}") from None
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for each in checked:
            if not each.verdict.holds:
                note(_annotation(each))


def _annotation(checked: Checked) -> str:
    """Return the workflow command that marks a failed question, at its file where it has one."""
    given = {"title": f"plan check: {checked.asked.name}"}
    if checked.asked.where:
        given["file"] = checked.asked.where.partition(":")[0]
    told = ",".join(f"{key}={_escaped(text, ':,')}" for key, text in given.items())
    verdict = checked.verdict
    return f"::error {told}::{_escaped(f'{verdict.binding}: {verdict.explanation}')}"


def _escaped(text: str, more: str = "") -> str:
    """Return a text as workflow commands want it: percent signs first, ends of lines, and what parts a property."""
    for letter in "%\r\n" + more:
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text
