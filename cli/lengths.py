"""`--isl`, `--isl-cv`, `--isl-histogram` and the same of outputs: how long requests are."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cli.flags import MOST_TOKENS, flag_name, read_choice, read_tokens
from ground.errors import BadInput
from ground.pairs import read_pairs
from ground.units import parse_count
from models.spec import ModelSpec
from planner.workload import Lengths, LengthShape, histogram_lengths

MOST_CV = 100.0
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Lengths of prompts or of outputs, and the histogram that they are from: tokens and weights, [rows] each."""

    lengths: Lengths
    histogram: tuple[Floats, Floats] | None = None

    @property
    def longest(self) -> float:
        """Tokens of the longest that are known to occur."""
        return self.lengths.mean if self.histogram is None else float(self.histogram[0].max())


def read_lengths(side: Literal["isl", "osl"], values: Mapping[str, str | None], known: Lengths) -> Stated:
    """Return the lengths that the flags of one side give; what none of them gives is as ``known``.

    Raises BadInput naming the flag, or file and line of a histogram.
    """
    file = values.get(f"{side}_histogram")
    if file is not None:
        for field in (side, f"{side}_cv", f"{side}_distribution"):
            if values.get(field) is not None:
                raise BadInput(f"{flag_name(field)} and --{side}-histogram both tell lengths; leave one of them out")
        if not file:
            raise BadInput(f"--{side}-histogram: give a CSV file with the columns tokens,weight")
        tokens, weights = read_histogram(Path(file))
        return Stated(lengths=histogram_lengths(tokens, weights), histogram=(tokens, weights))
    mean, cv, shape = (values.get(field) for field in (side, f"{side}_cv", f"{side}_distribution"))
    lengths = Lengths(
        mean=known.mean if mean is None else read_tokens(mean, f"--{side}", 1),
        squared_cv=known.squared_cv if cv is None else read_cv(cv, f"--{side}-cv") ** 2,
        shape=known.shape if shape is None else read_choice(shape, f"--{side}-distribution", get_args(LengthShape)),
    )
    if shape is not None and not lengths.squared_cv:
        raise BadInput(f"--{side}-distribution: lengths without spread have none; add --{side}-cv, such as 0.5")
    return Stated(lengths=lengths)


def read_cv(text: str, flag: str) -> float:
    """Return a coefficient of variation: standard deviation over mean."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST_CV:
        raise BadInput(f"{flag}: {text[:40]!r} is not a standard deviation over a mean, such as 0.5")
    return value


def read_histogram(path: Path) -> tuple[Floats, Floats]:
    """Return tokens, rising, and weights of a CSV file with the columns tokens,weight; weights sum to 1.

    Raises BadInput naming file and line: a length that is no count from 1 on or stands twice, a weight below 0, or
    weights that are all 0.
    """
    weights: dict[int, float] = {}
    for where, length, weight in read_pairs(path, "tokens", "weight"):
        tokens = parse_count(length, where)
        if tokens > MOST_TOKENS:
            raise BadInput(f"{where}: {tokens} tokens are more than can be meant; use at most {MOST_TOKENS}")
        if tokens in weights:
            raise BadInput(f"{where}: {tokens} tokens stand twice; give each length one weight")
        weights[tokens] = _weight(weight, where)
    total = sum(weights.values())
    if not 0 < total < math.inf:
        raise BadInput(f"{path}: the weights must sum to more than 0, and to a finite number")
    kept = sorted(tokens for tokens, weight in weights.items() if weight / total > 0)
    return np.array(kept, dtype=np.float64), np.array([weights[tokens] / total for tokens in kept])


def _weight(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise BadInput(f"{where}: {text[:40]!r} is not a weight of 0 or more, such as 12 or 0.25")
    return value


def check_positions(prompt: Stated, answer: Stated, model: ModelSpec) -> None:
    """Raise BadInput where requests are longer than the model's positions, which hold prompt and answer."""
    first, second = prompt.lengths.mean, answer.lengths.mean
    if first + second > model.max_position:
        raise BadInput(
            f"--isl plus --osl: {first:.10g} + {second:.10g} tokens exceed the {model.max_position} positions of "
            f"{model.name}, which hold both"
        )
    for side, stated in (("isl", prompt), ("osl", answer)):
        if stated.longest > model.max_position:
            raise BadInput(
                f"--{side}-histogram: its longest of {stated.longest:.10g} tokens exceeds the {model.max_position} "
                f"positions of {model.name}"
            )
