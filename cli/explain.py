"""`plan explain`: what binds as arithmetic, what more of each resource buys, and what would be feasible."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from cli.check_input import OWN_KEYS
from cli.exit_codes import ExitCode
from cli.explain_render import Explained, as_json, render
from cli.options import Json, Text, option
from cli.output import print_json, stderr_console, stdout_console
from cli.parallel import spread
from cli.progress import bar, progress
from cli.question_file import Entry, names_questions, read_questions
from cli.question_options import asks_a_question, search_flags
from cli.search_flags import SearchInput, read_search
from ground.aside import helped
from ground.errors import BadInput
from planner.search.nearest import nearest_changes
from planner.search.resources import Each, bought
from planner.search.search import search

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@asks_a_question(
    optional=True, metavar="QUESTION.yaml | MODEL", told="A question file, or with --hw a model as for plan search."
)
def explain(
    given: Mapping[str, str | None],
    name: Annotated[Text, option("--name", "NAME", "Which question of the file.")] = None,
    json: Json = False,
) -> int:
    """Show the bottleneck as arithmetic, and what a little more of each resource would buy.

    \b
    Examples:
      plan explain deepseek-r1 --hw cm384
      plan explain examples/questions/supernode.yaml
      plan explain examples/questions/capacity.yaml --name chat --json

    Every figure of a changed machine or question comes from solving it again. Exit code 3: no plan keeps the limits;
    then the nearest change in each direction is told, each solved as printed.
    """
    explained = explain_question(read_search(search_flags(_entry(given, name).values)))
    print_json(as_json(explained)) if json else render(stdout_console(), explained)
    return ExitCode.DONE if explained.answer.best is not None else ExitCode.INFEASIBLE


def explain_question(asked: SearchInput) -> Explained:
    """Return what is to be told of a question; one search for each resource or direction, and more for the latter."""
    with progress(f"searching deployments of {asked.question.model.name} ..."), helped():
        answer = search(asked.question, beside=False)
    best = answer.best
    if best is None:
        changes = nearest_changes(asked.question, each=_shown("nearest changes"))
        return Explained(asked=asked, answer=answer, changes=tuple(changes))
    return Explained(asked=asked, answer=answer, resources=tuple(bought(best, each=_shown("resources"))))


def _shown(what: str) -> Each:
    """Return a map over several processes, with a progress bar."""
    return lambda work, items: bar(spread(work, items), what, len(items))


def _entry(given: Mapping[str, str | None], name: str | None) -> Entry:
    """Return the one question that flags or a file ask."""
    typed = {key: value for key, value in given.items() if value is not None}
    model = typed.get("model")
    if model is None:
        raise BadInput("give a question file, or MODEL with --hw HW; see plan explain --help")
    if "hw" in typed:
        if name is not None:
            raise BadInput("--name picks a question of a file; leave it out where flags ask the question")
        return Entry(name=model, where="", values=typed)
    if not names_questions(model):
        raise BadInput(
            f"--hw: {model[:60]!r} is no question file, and a model needs a machine; add for example --hw h800"
        )
    others = sorted(typed.keys() - {"model"})
    if others:
        raise BadInput(f"--{others[0].replace('_', '-')}: a question file states its own flags; write it there")
    entries = read_questions(Path(model), OWN_KEYS)
    chosen = [entry for entry in entries if name in (None, entry.name)]
    listed = ", ".join(entry.name for entry in entries[:12])
    if len(chosen) != 1:
        what = "holds several questions" if name is None else f"holds {len(chosen)} questions named {name[:40]!r}"
        raise BadInput(f"--name: {model} {what}; pick one of {listed}")
    entry = chosen[0]
    for key in ("model", "hw"):
        if entry.get(key) is None:
            raise BadInput(f"{entry.where}: {key} is missing; plan explain needs model and hw")
    ignored = [key for key in OWN_KEYS if entry.get(key) is not None]
    if ignored:
        stderr_console().print(f"{entry.where}: {', '.join(ignored)} is for plan check and is not used", soft_wrap=True)
    return entry
