"""`plan check`: do the limits hold? For CI: a table, JSON, JUnit, exit code 0 or 3."""

import os
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from cli.exit_codes import ExitCode
from cli.options import JSON, WORKERS, File, Given, Text, takes_question
from cli.output import Outputs, Screen, note, print_json, with_bar
from cli.page import Markdown
from ground.errors import BadInput
from ground.files import write_files
from ground.units import format_duration, format_rate, rounded_down
from ground.workers import executor_of
from planner.checks.check import Verdict
from planner.checks.margins import Margin
from podplan.checking import STATIONARY, Checked, after_text, lost_text, spares_text
from podplan.checking import check as verdicts
from podplan.day import span_text
from podplan.options import flag, switch
from podplan.plan_data import bounded_text
from podplan.question_files import question_schema


@takes_question("QUESTION.yaml | MODEL", "A question file, or with --hw a model as for plan search.")
def command(
    given: Given,
    manifest: Text = flag("FILE", "Weigh this deployment instead of searching one."),
    junit_file: Text = flag("FILE", "Write the verdicts as JUnit XML, too.", "--junit"),
    summary: File = flag("FILE", "Append the verdicts as Markdown [GITHUB_STEP_SUMMARY, where that is set]."),
    schema: bool = switch("Print the JSON Schema of question files."),
    workers: Text = WORKERS,
    force: bool = switch("Replace the JUnit file where it exists."),
    json: bool = JSON,
) -> int:
    """Say whether limits hold, by how much, with which confidence, and after a loss.

    \b
    Examples:
      plan check questions.yaml --junit report.xml
      plan check deepseek-r1 --hw cm384 --rate 200/s --ttft 2s --tpot 50ms --confidence 0.9 --survive node
      plan check --manifest out/manifest.yaml --rate 120/s
      plan check --schema > question-file.json

    The keys of a question file are the long flags; `questions:` holds several, and what stands beside it holds for
    all of them. In GitHub Actions what fails is annotated, and the table stands in the step's summary. Exit code 0:
    every limit of every question holds; 3: one does not.
    """
    if schema:
        print_json(question_schema())
        return ExitCode.DONE
    typed = given if manifest is None else {**given, "manifest": manifest}
    Outputs(force, {"--junit FILE": junit_file})
    found = verdicts(**typed, workers=with_bar("checking", executor_of(workers)))
    if junit_file is not None:
        write_files({Path(junit_file): junit(found.questions)}, force=force)
    tell_github(found.questions, summary)
    print_json(found.to_dict()) if json else show_checks(Screen(), found.questions)
    return ExitCode.DONE if found.feasible else ExitCode.INFEASIBLE


_COLUMNS = ["question", "holds", "requests", "TTFT", "TPOT", "confidence"]


def show_checks(screen: Screen, checked: Sequence[Checked]) -> None:
    """Write a row for every question, then what fails and why."""
    lossy = any(each.verdict.after_loss for each in checked)
    columns = [*_COLUMNS, *(["after a loss", "spare"] if lossy else [])]
    screen.table(columns, [_row(each, lossy) for each in checked])
    for each in checked:
        if each.windows:
            _show_windows(screen, each)
    based = [each for each in checked if each.basis != STATIONARY]
    screen.text(*(f"{each.asked.name}: figures are of {each.basis}." for each in based))
    told = [(each.asked.name, each.verdict) for each in checked if not each.verdict.holds]
    screen.text(*(f"{name}: no ({verdict.binding}): {verdict.explanation}." for name, verdict in told))


def _show_windows(screen: Screen, checked: Checked) -> None:
    """Write what every window of a question's day sees, the margins beside."""
    rows = []
    for window, margins in checked.windows:
        cells = {margin.name: margin_text(margin) for margin in margins}
        latencies = [cells.get("ttft", ""), cells.get("tpot", "")]
        rows.append([span_text(window), format_rate(window.rate_per_second), *latencies])
    title = f"{checked.asked.name}: the day, sized for its worst window"
    screen.table(["window", "requests", "TTFT", "TPOT"], rows, title=title, right=["requests"])


def _row(checked: Checked, lossy: bool) -> list[str]:
    verdict = checked.verdict
    cells = {margin.name: margin_text(margin) for margin in verdict.margins}
    row = [
        checked.asked.name,
        "yes" if verdict.holds else "no",
        cells.get("rate", "" if verdict.rate_per_second is None else format_rate(verdict.rate_per_second)),
        cells.get("ttft", ""),
        cells.get("tpot", ""),
        _confidence(verdict),
    ]
    return [*row, after_text(verdict.after_loss), spares_text(verdict.plan, verdict)] if lossy else row


def margin_text(margin: Margin) -> str:
    """Return what is reached, of what, and the room left."""
    if margin.share is None or margin.value is None:
        return "cannot keep up"
    if margin.name == "rate":
        return f"{format_rate(rounded_down(margin.value))} of {format_rate(margin.limit)} ({margin.share:+.1%})"
    return f"{format_duration(margin.value)} of {format_duration(margin.limit)} ({margin.share:+.1%})"


def _confidence(verdict: Verdict) -> str:
    asked = "" if verdict.confidence is None else f" of {verdict.confidence:g}"
    return "" if verdict.held_confidence is None else f"{bounded_text(verdict.held_confidence)}{asked}"


def junit(checked: Sequence[Checked]) -> str:
    """Return JUnit XML: a test case per question, a failure where a limit does not hold; no times, for equal bytes."""
    failures = sum(not each.verdict.holds for each in checked)
    counts = {"tests": str(len(checked)), "failures": str(failures), "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": "plan check", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "plan check", **counts})
    for each in checked:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "plan.check", "name": _printable(each.asked.name)}
        )
        told = "\n".join(_junit_lines(each))
        if not each.verdict.holds:
            why = _printable(each.verdict.explanation)
            ElementTree.SubElement(case, "failure", {"type": each.verdict.binding, "message": why}).text = told
        else:
            ElementTree.SubElement(case, "system-out").text = told
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _junit_lines(checked: Checked) -> list[str]:
    """Return every margin, those after a loss and of the windows of a day too."""
    after = checked.verdict.after_loss
    lines = [f"{margin.name}: {margin_text(margin)}" for margin in checked.verdict.margins]
    lines += [f"figures are of {checked.basis}"] if checked.basis != STATIONARY else []
    if after is not None:
        lines += [f"{lost_text(after)}, {margin.name}: {margin_text(margin)}" for margin in after.margins]
    for window, margins in checked.windows:
        lines += [f"{span_text(window)} {margin.name}: {margin_text(margin)}" for margin in margins]
    return lines


def _printable(text: str) -> str:
    """Return a text without characters that XML 1.0 does not have."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


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
