"""ServeGen client sets as a stream of requests.

A set is a folder (or a tar file) of pairs: ``chunk-N-trace.csv`` without a header, a row per window of time with start,
rate, coefficient of variation, family, shape and scale of the gaps of client N, and ``chunk-N-dataset.json`` with
distributions of input and output tokens as texts, by the second from which they hold
(github.com/alibaba/ServeGen, Apache-2.0).
"""

import ast
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ground.archives import read_members
from ground.arrays import Floats
from ground.errors import BadInput
from ground.files import csv_rows, files_below, parse_json, read_bytes
from ground.trace_lines import MOST_TOKENS, read_number
from ground.units import GIBI

Integers = NDArray[np.int64]

MOST_REQUESTS = 5_000_000
MOST_BYTES = GIBI
MOST_SECONDS = 1e10
MOST_PER_SECOND = 1e6
_MEMBER = re.compile(r"chunk-(\d+)-(trace\.csv|dataset\.json)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client: start, rate and shape of its windows, [windows] each, and lengths by the second they hold from."""

    name: str
    starts: Floats
    rates: Floats
    shapes: Floats
    weibull: NDArray[np.bool_]
    lengths: dict[float, tuple[tuple[Integers, Floats], tuple[Integers, Floats]]]


def is_client_set(path: Path) -> bool:
    """Whether ``path`` is a folder or a tar file."""
    try:
        return path.is_dir() or (
            path.name.endswith((".tar", ".tgz", ".tar.gz")) and path.is_file() and tarfile.is_tarfile(path)
        )
    except (OSError, ValueError):
        return False


def read_stream(path: Path, seed: int) -> tuple[Floats, Integers, Integers]:
    """Return arrivals in order, inputs and outputs drawn from a client set; the same seed draws the same ones.

    A window of length W at rate r has r·W arrivals (rounded up at random), their gaps of the client's family
    (Gamma or Weibull of its shape) stretched to fill the window: the rate is exact and bursts are the client's.
    Inputs and outputs are drawn apart, for the set has marginals only.

    Raises BadInput naming the file and the line.
    """
    clients = [_client(name, *files) for name, files in sorted(_pairs(path).items())]
    random = np.random.default_rng(seed)
    parts, total = [], 0
    for client in clients:
        for part in _draw(client, random):
            parts.append(part)
            total += part[0].size
            if total > MOST_REQUESTS:
                raise BadInput(f"{path}: has more than {MOST_REQUESTS} requests; leave clients or windows out")
    if not total:
        raise BadInput(f"{path}: no client sends a request")
    arrival, inputs, outputs = (np.concatenate([part[column] for part in parts]) for column in range(3))
    order = np.argsort(arrival, kind="stable")
    return arrival[order] - arrival[order[0]], inputs[order].astype(np.int64), outputs[order].astype(np.int64)


def _draw(client: Client, random: "np.random.Generator") -> Iterator[tuple[Floats, Integers, Integers]]:
    """Yield arrivals, inputs and outputs of each window."""
    steps = np.diff(client.starts)
    width = float(steps.min()) if steps.size else 600.0
    held = sorted(client.lengths)
    for start, rate, shape, weibull in zip(client.starts, client.rates, client.shapes, client.weibull, strict=True):
        count = int(rate * width + random.random())
        if not count:
            continue
        if count > MOST_REQUESTS:
            raise BadInput(f"{client.name}: {count} requests in a window are more than {MOST_REQUESTS}")
        drawn = random.weibull(shape, count + 1) if weibull else random.gamma(shape, size=count + 1)
        total = drawn.sum()
        gaps = drawn / total if 0 < total < np.inf else np.full(count + 1, 1 / (count + 1))
        arrival = start + width * np.cumsum(gaps)[:-1]
        known = [second for second in held if second <= start]
        inputs, outputs = client.lengths[known[-1] if known else held[0]]
        yield arrival, random.choice(inputs[0], count, p=inputs[1]), random.choice(outputs[0], count, p=outputs[1])


def _pairs(path: Path) -> dict[str, tuple[str, str]]:
    """Return the texts of trace and dataset of every client; clients without both are refused."""
    found: dict[str, dict[str, str]] = {}
    for name, text in _members(path):
        match = _MEMBER.search(name)
        if match:
            found.setdefault(name[: match.start()] + f"chunk-{int(match[1]):06d}", {})[match[2]] = text
    if not found:
        raise BadInput(
            f"{path}: has no chunk-N-trace.csv; a ServeGen client set has one beside each chunk-N-dataset.json"
        )
    for name, files in found.items():
        for kind in ("trace.csv", "dataset.json"):
            if kind not in files:
                raise BadInput(f"{path}: {name} has no {kind}")
    return {name: (files["trace.csv"], files["dataset.json"]) for name, files in found.items()}


def _members(path: Path) -> Iterator[tuple[str, str]]:
    if path.is_dir():
        files = [each for each in files_below(path) if _MEMBER.match(each.name) and each.is_file()]
        members = {str(each): read_bytes(each) for each in files}
    else:
        members = read_members(path, lambda name: bool(_MEMBER.search(name)), MOST_BYTES, "is no whole tar file")
    for name, content in members.items():
        try:
            yield name, content.decode("utf-8")
        except UnicodeDecodeError:
            raise BadInput(f"{path}: {name} is not UTF-8 text") from None


def _client(name: str, trace: str, dataset: str) -> Client:
    rows = [_window(cells, where) for where, cells in csv_rows(trace, f"{name}-trace.csv")]
    if not rows:
        raise BadInput(f"{name}-trace.csv: has no window")
    if any(later[0] <= sooner[0] for sooner, later in pairwise(rows)):
        raise BadInput(f"{name}-trace.csv: windows must stand in order of time, each once")
    starts, rates, shapes, weibull = zip(*rows, strict=True)
    return Client(
        name=name,
        starts=np.array(starts),
        rates=np.array(rates),
        shapes=np.array(shapes),
        weibull=np.array(weibull),
        lengths=_lengths(dataset, f"{name}-dataset.json"),
    )


def _window(cells: list[str], where: str) -> tuple[float, float, float, bool]:
    """Return start, rate, shape and whether the family is Weibull."""
    if len(cells) != 6:
        raise BadInput(f"{where}: has {len(cells)} fields; time, rate, cv, pattern, shape and scale are 6")
    start, rate, shape = (
        read_number(cells[index], f"{where}: {name}") for index, name in ((0, "time"), (1, "rate"), (4, "shape"))
    )
    if abs(start) > MOST_SECONDS or rate > MOST_PER_SECOND:
        raise BadInput(f"{where}: needs a time within {MOST_SECONDS:g} s and a rate of {MOST_PER_SECOND:g}/s at most")
    if rate < 0 or (rate > 0 and (cells[3] not in ("Gamma", "Weibull") or shape <= 0)):
        raise BadInput(f"{where}: needs a rate from 0, and with one the pattern Gamma or Weibull and a shape above 0")
    return start, rate, shape or 1.0, cells[3] == "Weibull"


def _lengths(text: str, where: str) -> dict[float, tuple[tuple[Integers, Floats], tuple[Integers, Floats]]]:
    try:
        content = parse_json(text, where)
        found = {
            read_number(second, "time"): (_distribution(held["input_tokens"]), _distribution(held["output_tokens"]))
            for second, held in content.items()
        }
        if not found:
            raise ValueError("it is empty")
        return found
    except (
        *(ArithmeticError, AttributeError, KeyError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError),
        BadInput,
    ) as error:
        raise BadInput(
            f"{where}: must hold input_tokens and output_tokens as texts of a mapping of tokens to chances ({error})"
        ) from None


def _distribution(text: str) -> tuple[Integers, Floats]:
    """Return tokens and chances of a text such as ``{45: 0.25, 46: 0.75}``; lengths below 1 count as 1."""
    mapping = ast.literal_eval(text)
    tokens = np.array([int(key) for key in mapping], dtype=np.int64)
    chances = np.array([float(value) for value in mapping.values()])
    if not tokens.size or tokens.max() > MOST_TOKENS or not (chances >= 0).all() or not 0 < chances.sum() < np.inf:
        raise ValueError("a distribution is empty, negative or not finite")
    return np.maximum(tokens, 1), chances / chances.sum()
