"""`plan predict`: one configuration, every operator."""

import typer

from cli.options import Json, takes
from cli.output import Screen, print_json
from cli.predict_view import show_prediction
from podplan.options import PredictFlags
from podplan.prediction import predicted

app = typer.Typer(rich_markup_mode=None)


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
    found = predicted(flags)
    print_json(found.to_dict()) if json else show_prediction(Screen(), found)
