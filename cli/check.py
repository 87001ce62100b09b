"""`plan check`: do the limits hold? For CI: a table, JSON, JUnit, exit code 0 or 3."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from cli.check_input import OWN_KEYS, AskedCheck, Checked, Windows, read_entry
from cli.check_render import as_json, junit, render
from cli.exit_codes import ExitCode
from cli.options import Json, Text, option, switch
from cli.output import check_force, print_json, stdout_console
from cli.parallel import spread
from cli.progress import bar
from cli.question_file import Entry, names_questions, read_questions
from cli.question_options import asks_a_question
from ground.errors import BadInput
from ground.files import check_file, write_files
from planner.checks.check import Verdict
from planner.question import Question
from planner.search.search import Answer, search

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@asks_a_question(
    optional=True, metavar="QUESTION.yaml | MODEL", told="A question file, or with --hw a model as for plan search."
)
def check(
    given: Mapping[str, str | None],
    manifest: Annotated[Text, option("--manifest", "FILE", "Weigh this deployment instead of searching one.")] = None,
    confidence: Annotated[
        Text, option("--confidence", "C", "Hold with this confidence in the predicted times, such as 0.9 [0.5].")
    ] = None,
    junit_file: Annotated[Text, option("--junit", "FILE", "Write the verdicts as JUnit XML, too.")] = None,
    force: Annotated[bool, switch("--force", "Replace the JUnit file where it exists.")] = False,
    json: Json = False,
) -> int:
    """Say whether limits hold, by how much, with which confidence, and after a loss.

    \b
    Examples:
      plan check questions.yaml --junit report.xml
      plan check deepseek-r1 --hw cm384 --rate 200/s --ttft 2s --tpot 50ms --confidence 0.9 --survive node
      plan check --manifest out/manifest.yaml --rate 120/s

    The keys of a question file are the long flags; `questions:` holds several, and what stands beside it holds for
    all of them. Exit code 0: every limit of every question holds; 3: one does not.
    """
    entries = _entries(given, manifest=manifest, confidence=confidence)
    report = _junit_path(junit_file, force)
    asked = [read_entry(entry) for entry in entries]
    groups = _alike(asked)
    found = chain.from_iterable(bar(spread(_verdicts, groups), "checking", len(groups)))
    checked = [
        Checked(asked=asked[number], verdict=verdict, windows=windows, seconds=took)
        for number, verdict, windows, took in sorted(found, key=_first)
    ]
    if report is not None:
        write_files({report: junit(checked)}, force=force)
    print_json(as_json(checked)) if json else render(stdout_console(), checked)
    return ExitCode.DONE if all(each.verdict.holds for each in checked) else ExitCode.INFEASIBLE


def _alike(asked: Sequence[AskedCheck]) -> list[list[tuple[int, AskedCheck]]]:
    """Return questions with their places, those together that one search answers: they differ in their rate only."""
    groups: list[tuple[Question | None, list[tuple[int, AskedCheck]]]] = []
    for number, one in enumerate(asked):
        question = None
        if one.searched is not None:
            question = replace(one.searched.question, rate_per_second=None, objective="throughput")
        own = next((members for known, members in groups if question is not None and known == question), None)
        if own is None:
            groups.append((question, own := []))
        own.append((number, one))
    return [members for _, members in groups]


Found = tuple[int, Verdict, Windows, float]
"""Place, verdict, windows of the day and seconds of a question."""


def _verdicts(group: Sequence[tuple[int, AskedCheck]]) -> list[Found]:
    """Return what each question comes to."""
    searches, found = Searches(), list[Found]()
    for number, one in group:
        begin = perf_counter()
        verdict = one.verdict(searches)
        found.append((number, verdict, one.windows(verdict), perf_counter() - begin))
    return found


def _first(found: Found) -> int:
    return found[0]


class Searches:
    """Searches of alike questions: what differs in the rate only is searched once."""

    def __init__(self) -> None:
        self._known: list[tuple[Question, Answer]] = []

    def __call__(self, question: Question) -> Answer:
        """Return the answer, from the searches done so far where it is among them."""
        for known, answer in self._known:
            if known == question:
                return answer
        answer = search(question, beside=False)
        self._known.append((question, answer))
        return answer


def _entries(given: Mapping[str, str | None], **own: str | None) -> list[Entry]:
    """Return the questions that flags ask, or those of the file that stands in place of a model."""
    typed = {key: value for key, value in {**given, **own}.items() if value is not None}
    model = typed.get("model")
    if model is None and "manifest" not in typed:
        raise BadInput("give a question file, MODEL with --hw HW, or --manifest FILE; see plan check --help")
    if model is None or "hw" in typed or "manifest" in typed:
        return [Entry(name=model or typed["manifest"], where="", values=typed)]
    if not names_questions(model):
        raise BadInput(
            f"--hw: {model[:60]!r} is no question file, and a model needs a machine; add for example --hw cm384"
        )
    others = sorted(typed.keys() - {"model", *OWN_KEYS})
    if others:
        raise BadInput(f"--{others[0].replace('_', '-')}: a question file states its own flags; write it there")
    entries = read_questions(Path(model), OWN_KEYS)
    shared = {key: typed[key] for key in OWN_KEYS if key in typed}
    return [Entry(name=one.name, where=one.where, values={**one.values, **shared}) for one in entries]


def _junit_path(text: str | None, force: bool) -> Path | None:
    """Return where the report goes; BadInput before any search where it cannot."""
    check_force(force, {"--junit FILE": text})
    if text is None:
        return None
    check_file(Path(text), force=force, flag="--junit")
    return Path(text)
