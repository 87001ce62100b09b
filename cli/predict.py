"""`plan predict`: one configuration, every operator."""

import typer

from cli.options import Json, takes
from cli.output import print_json, print_lines, print_table
from cli.predict_flags import PredictFlags, read_configuration
from cli.predict_render import (
    as_json,
    assumption_lines,
    headline,
    memory_rows,
    operator_rows,
)
from planner.costs.predict import Prediction
from planner.costs.predict import predict as predict_configuration

app = typer.Typer(rich_markup_mode=None)

OPERATOR_COLUMNS = ["operator", "stream", "count", "busy", "exposed", "share", "work", "memory", "message", "bound"]


@app.command()
@takes(PredictFlags)
def predict(
    flags: PredictFlags,
    json: Json = False,
) -> None:
    """Predict one configuration, with every operator.

    \b
    Examples:
      plan predict deepseek-r1 --hw cm384 --phase decode --strategy "DP=320, EP=320" --batch 48 --mtp 1
      plan predict deepseek-r1 --hw h800 --phase prefill --strategy "DP=32, EP=32" --tokens 16k
      plan predict qwen3-32b --hw h100 --phase mixed --strategy TP=4 --concurrency 64 --isl 2048 --osl 512

    Decode and prefill are service times: no waiting for arrivals, no KV transfer. Counts take k and M.
    """
    answer = predict_configuration(read_configuration(flags))
    if json:
        print_json(as_json(flags, answer))
    else:
        _print(flags, answer)


def _print(flags: PredictFlags, answer: Prediction) -> None:
    print_lines(headline(flags, answer))
    print_table(
        OPERATOR_COLUMNS,
        operator_rows(answer),
        title="Operators of one iteration on one device",
        right=["count", "busy", "exposed", "share", "work", "memory", "message"],
    )
    print_table(["memory per device", "bytes", "share"], memory_rows(answer.memory), right=["bytes", "share"])
    print_lines(["Assumed, for it was not given:", *assumption_lines(flags, answer)])
