"""`plan compare`: the best plans of several models, machines or questions side by side."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cli.answer_output import read_outputs, write_answers
from cli.answer_rows import Row, answer_row, front_rows
from cli.check_input import OWN_KEYS
from cli.exit_codes import ExitCode
from cli.options import Json, Text, option, switch
from cli.output import check_force, print_lines
from cli.parallel import spread
from cli.plots import Curve, Plot
from cli.prices import basis_lines
from cli.progress import bar
from cli.question_file import Entry, names_questions, read_questions
from cli.question_options import asks_a_question, search_flags
from cli.search_flags import SearchInput, read_search
from ground.errors import BadInput
from planner.search.search import search

app = typer.Typer(add_completion=False, rich_markup_mode=None)

MOST_COMPARED = 200
MEASURES = {
    "requests": ("requests_per_second", "requests/s"),
    "tokens-per-chip": ("tokens_per_second_per_chip", "output tokens/s per chip"),
    "cost": ("cost_per_million_tokens", "USD per million output tokens"),
    "chips": ("chips", "chips"),
    "power": ("power_watts", "W"),
}


@app.command()
@asks_a_question(
    optional=True, metavar="QUESTIONS.yaml | MODEL,...", told="A question file, or models with --hw, each by commas."
)
def compare(
    given: Mapping[str, str | None],
    front: Annotated[bool, switch("--front", "All plans of each Pareto front, not only the best.")] = False,
    measure: Annotated[
        Text, option("--measure", "NAME", "What --plot shows: requests, tokens-per-chip, cost, ...")
    ] = None,
    csv: Annotated[Text, option("--csv", "FILE", "Write the rows as CSV, every figure in SI units.")] = None,
    plot: Annotated[Text, option("--plot", "FILE", "Draw a bar for each row as .png or .svg.")] = None,
    force: Annotated[bool, switch("--force", "Replace files that are there.")] = False,
    json: Json = False,
) -> int:
    """Set the best plans of several models and machines, or of the questions of a file, side by side.

    \b
    Examples:
      plan compare deepseek-r1 --hw cm384,h800,h200 --devices 64
      plan compare qwen3-32b,llama-3.3-70b --hw h100 --nodes 1 --csv compared.csv
      plan compare examples/questions/capacity.yaml --plot compared.svg --measure cost

    Exit code 3 where no question has a plan.
    """
    check_force(force, {"--csv FILE": csv, "--plot FILE": plot})
    outputs = read_outputs(csv, plot, force)
    key, label = _measure(measure)
    asked = [(entry.name, _read(entry)) for entry in _entries(given)]
    rows: list[Row] = []
    for found in bar(spread(partial(_rows, front), asked), "comparing", len(asked)):
        rows += found
    values = [row.get(key) for row in rows]
    heights = [float(value) if isinstance(value, int | float) else None for value in values]
    drawn = Plot(label, "", label, [Curve(label, [], heights)], [str(row["question"]) for row in rows])
    write_answers(rows, outputs, drawn, ["question"], json=json)
    if not json:
        print_lines(["", *basis_lines(one.question for _, one in asked)])
    return ExitCode.DONE if any(row["feasible"] for row in rows) else ExitCode.INFEASIBLE


def _rows(front: bool, asked: tuple[str, SearchInput]) -> list[Row]:
    """Return the best plan of a named question as a row, or its front."""
    name, one = asked
    answer = search(one.question, explain=False, beside=front)
    found = front_rows(one, answer) if front and answer.best is not None else [answer_row(one, answer)]
    return [{"question": name, **row} for row in found]


def _measure(text: str | None) -> tuple[str, str]:
    word = "tokens-per-chip" if text is None else text.strip().lower()
    if word not in MEASURES:
        raise BadInput(f"--measure: {word[:40]!r} is not one of {', '.join(MEASURES)}")
    return MEASURES[word]


def _read(entry: Entry) -> SearchInput:
    """Return the question of an entry; BadInput names where it stands."""
    try:
        for needed in ("model", "hw"):
            if entry.get(needed) is None:
                raise BadInput(f"{needed} is missing; a question needs model and hw")
        return read_search(search_flags(entry.values))
    except BadInput as error:
        raise BadInput(f"{entry.where}: {error}" if entry.where else str(error)) from None


def _entries(given: Mapping[str, str | None]) -> list[Entry]:
    """Return the questions of a file, or of every model on every machine that flags name."""
    typed = {key: value for key, value in given.items() if value is not None}
    model = typed.get("model")
    if model is None:
        raise BadInput("give a question file, or MODEL,... with --hw HW,...; see plan compare --help")
    if "hw" not in typed:
        if not names_questions(model):
            raise BadInput(f"--hw: {model[:60]!r} is no question file, and models need machines; add --hw h800,h200")
        others = sorted(typed.keys() - {"model"})
        if others:
            raise BadInput(f"--{others[0].replace('_', '-')}: a question file states its own flags; write it there")
        return read_questions(Path(model), OWN_KEYS)
    models, machines = _listed(model), [typed["hw"]] if "=" in typed["hw"] else _listed(typed["hw"])
    if len(models) * len(machines) > MOST_COMPARED:
        raise BadInput(f"--hw: {len(models) * len(machines)} pairs are more than the {MOST_COMPARED} that are compared")
    return [
        Entry(name=f"{one} on {machine}", where="", values={**typed, "model": one, "hw": machine})
        for one in models
        for machine in machines
    ]


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip())) or [text]
