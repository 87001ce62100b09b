"""`plan check`: do the limits hold? For CI: a table, JSON, JUnit, exit code 0 or 3."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from cli.options import JSON, WORKERS, File, Given, Text, takes_question
from cli.output import Outputs, Screen, note, print_json, with_bar
from cli.page import Markdown
from ground.errors import BadInput, ExitCode
from ground.files import write_files
from ground.units import carried_rate, format_duration, format_rate
from ground.workers import executor_of
from planner.checks.check import Verdict
from planner.checks.margins import Margin
from planner.plans.day import Window
from podplan.checking import STATIONARY, Checked, after_text, check as verdicts, lost_text, spares_text
from podplan.day import span_text
from podplan.options import flag, switch
from podplan.plan_data import bounded_text
from podplan.question_files import question_schema

SUMMARY = "GITHUB_STEP_SUMMARY"


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


Seen = tuple[Window, tuple[Margin, ...]]

COLUMNS: dict[str, Callable[[Checked], str]] = {
    "question": lambda each: each.asked.name,
    "holds": lambda each: "yes" if each.verdict.holds else "no",
    "requests": lambda each: (
        _margin(each.verdict.margins, "rate") or (format_rate(rate) if (rate := each.verdict.rate_per_second) else "")
    ),
    "TTFT": lambda each: _margin(each.verdict.margins, "ttft"),
    "TPOT": lambda each: _margin(each.verdict.margins, "tpot"),
    "confidence": lambda each: _confidence(each.verdict),
}
AFTER_LOSS: dict[str, Callable[[Checked], str]] = {
    "after a loss": lambda each: after_text(each.verdict.after_loss),
    "spare": lambda each: spares_text(each.verdict.plan, each.verdict),
}
WINDOWS: dict[str, Callable[[Seen], str]] = {
    "window": lambda at: span_text(at[0]),
    ">requests": lambda at: format_rate(at[0].rate_per_second),
    "TTFT": lambda at: _margin(at[1], "ttft"),
    "TPOT": lambda at: _margin(at[1], "tpot"),
}


def show_checks(screen: Screen, checked: Sequence[Checked]) -> None:
    """Write a row for every question, then what fails and why."""
    lossy = {name: tell for name, tell in AFTER_LOSS.items() if any(map(tell, checked))}
    screen.grid(checked, COLUMNS | lossy)
    for each in checked:
        if each.windows:
            screen.grid(each.windows, WINDOWS, f"{each.asked.name}: the day, sized for its worst window")
    based = [each for each in checked if each.basis != STATIONARY]
    screen.text(*(f"{each.asked.name}: figures are of {each.basis}." for each in based))
    told = [(each.asked.name, each.verdict) for each in checked if not each.verdict.holds]
    screen.text(*(f"{name}: no ({verdict.binding}): {verdict.explanation}." for name, verdict in told))


def _margin(margins: Sequence[Margin], name: str) -> str:
    return next((margin_text(margin) for margin in margins if margin.name == name), "")


def margin_text(margin: Margin) -> str:
    """Return what is reached, of what, and the room left."""
    if margin.share is None or margin.value is None:
        return "cannot keep up"
    if margin.name == "rate":
        return f"{carried_rate(margin.value)} of {format_rate(margin.limit)} ({margin.share:+.1%})"
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
        named = {"classname": "plan.check", "name": _printable(each.asked.name)}
        why = {"type": each.verdict.binding, "message": _printable(each.verdict.explanation)}
        tag, told = ("system-out", {}) if each.verdict.holds else ("failure", why)
        case = ElementTree.SubElement(suite, "testcase", named)
        after = each.verdict.after_loss
        lines = [f"{margin.name}: {margin_text(margin)}" for margin in each.verdict.margins]
        lines += [f"figures are of {each.basis}"] if each.basis != STATIONARY else []
        if after is not None:
            lines += [f"{lost_text(after)}, {margin.name}: {margin_text(margin)}" for margin in after.margins]
        for window, margins in each.windows:
            lines += [f"{span_text(window)} {margin.name}: {margin_text(margin)}" for margin in margins]
        ElementTree.SubElement(case, tag, told).text = "\n".join(lines)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _printable(text: str) -> str:
    """Return a text without characters that XML 1.0 does not have."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


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
