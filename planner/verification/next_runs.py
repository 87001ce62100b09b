"""`plan verify --next K`: the runs most likely to change the pick among a plan and its runners-up, with their commands.

The logarithm of a contender's measured value is ln(value) + N(0, C), C the covariance of errors given the known runs
(``planner.verification.residuals``). Measuring one contender updates the estimates of all similar ones; the pick
changes if another estimate is then higher. Probability and gain of a change are taken over the distribution of the
measured value.

Ref: P. Frazier, W. Powell, S. Dayanik, The Knowledge-Gradient Policy for Correlated Normal Beliefs, INFORMS Journal on
Computing 21, 2009, Eq. (8) to (13).
"""

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from ground.errors import BadInput
from planner.verification.residuals import EXPERTS, FREEDOM, UNTIMED, Residual, evened, posterior
from planner.verification.runs import METRICS
from planner.verification.verify import deviations

POINTS = 400  # of the measured value's distribution
# objective -> what is the better the larger, of a plan as plan.json has it
VALUES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "throughput": lambda plan: plan["requests_per_second"],
    "chips": lambda plan: plan["tokens_per_second_per_chip"],
    "cost": lambda plan: 1 / plan["cost_per_million_tokens"],
    "latency": lambda plan: 1 / plan["e2e_seconds"]["mean"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """A run worth measuring: ``chance`` that it changes the pick, ``gain`` in the objective if it does."""

    layout: str
    picked: bool
    chance: float
    gain: float
    commands: tuple[str, ...]


def next_runs(folder: Path, count: int, known: Sequence[tuple[str, Residual]]) -> list[NextRun]:
    """Return the ``count`` runs most likely to change the pick, the likeliest first.

    Args: ``folder``: the folder with plan.json and manifest.yaml of ``plan search --out``; ``known``: errors of
    measured runs, each with its metric.
    Raises BadInput: there is no plan.json, or it has no plan.
    """
    typed, question, contenders = _read(folder / "plan.json")
    value = VALUES[str(question["objective"])]
    means = np.log([value(plan) for plan in contenders])
    metric = METRICS[1] if question["objective"] == "latency" else METRICS[2]
    spread = deviations()[metric]
    places = [_place(question, plan) for plan in contenders]
    places = [_flagged(place, [row for _, row in known]) for place in places]
    shift, shared = posterior(spread, [row for name, row in known if name == metric], places)
    means = means + (-shift if question["objective"] == "latency" else shift)
    scores = np.array([NormalDist().inv_cdf((n + 0.5) / POINTS) for n in range(POINTS)])
    own = (spread.own * evened(spread, places)[1][0]) ** 2 * FREEDOM / (FREEDOM - 2)
    found = []
    for number, plan in enumerate(contenders):
        slopes = shared[:, number] / math.sqrt(shared[number, number] + own)
        after = means[:, None] + slopes[:, None] * scores
        best = after.max(axis=0)
        found.append(
            NextRun(
                layout=_layout(plan),
                picked=number == 0,
                chance=float(np.mean(after[0] < best)),
                gain=float(np.mean(np.expm1(best - after[0]))),
                commands=tuple(_commands(typed, question, plan, folder, number)),
            )
        )
    return sorted(found, key=lambda run: (-run.chance, -run.gain))[:count]


def _read(path: Path) -> tuple[dict[str, str], Mapping[str, Any], list[dict[str, Any]]]:
    """Return the typed flags, the question, and the pick followed by the best plan of each other layout."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        question, best = data["question"], data["best"]
        if "flags" not in data:
            raise BadInput(f"--next: {path} is of an earlier podplan; plan once more with --out")
        typed = data["flags"]
        value = VALUES[str(question["objective"])]
        chosen: dict[str, dict[str, Any]] = {}
        for plan in (best, *sorted(data["pareto"], key=value, reverse=True)):
            chosen.setdefault(_layout(plan), plan)
    except OSError:
        raise BadInput(f"--next: {path} is not there; plan with --out, and give its manifest as --manifest") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"--next: {path} is no plan.json of a plan") from None
    return typed, question, list(chosen.values())


def _layout(plan: Mapping[str, Any]) -> str:
    return ", ".join(f"{pool['role']} {pool['instances']} x {pool['strategy']}" for pool in plan["pools"])


def _place(question: Mapping[str, Any], plan: Mapping[str, Any]) -> Residual:
    """Return the features of a plan's decode or aggregated pool that relate it to measured runs."""
    pool, osl = plan["pools"][-1], float(question["output_tokens"]["mean"])
    residence = plan["ttft_seconds"]["mean"] + plan["tpot_seconds"]["mean"] * osl
    running = plan["requests_per_second"] * residence / pool["instances"]
    features = (pool["devices_per_instance"], running, question["input_tokens"]["mean"], osl)
    engine = str(question["engine"]).partition("@")[0]
    labels = {"engine": engine, "hardware": pool["hardware"], "model": question["model"], "weights": pool["weights"]}
    return Residual(labels=labels, features=tuple(math.log(max(float(each), 1.0)) for each in features))


def _flagged(place: Residual, known: Sequence[Residual]) -> Residual:
    """Return a place with the labels that known runs of its model, and of its engine on its machine, have."""
    alike = {EXPERTS: ("model",), UNTIMED: ("engine", "hardware")}
    flags = {
        flag: "yes"
        for flag, names in alike.items()
        if any(flag in row.labels and all(row.labels.get(n) == place.labels[n] for n in names) for row in known)
    }
    return replace(place, labels={**place.labels, **flags})


def _commands(
    typed: Mapping[str, str], question: Mapping[str, Any], plan: Mapping[str, Any], folder: Path, number: int
) -> list[str]:
    """Return the commands that plan the layout (the pick is planned), write its files, send its traffic and compare."""
    where = folder if number == 0 else folder / f"next-{number}"
    engine = str(question["engine"])
    lines = [] if number == 0 else [[*_search(typed, question, plan), "--out", str(where)]]
    lines += [
        ["plan", "deploy", str(where / "manifest.yaml"), "--out", str(where / "deploy"), "--engine", engine],
        ["bash", str(where / "deploy" / "benchmark.sh")],
        ["plan", "verify", "benchmark.json", "--manifest", str(where / "manifest.yaml")],
    ]
    return [shlex.join(words) for words in lines]


def _search(typed: Mapping[str, str], question: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    """Return the typed command with the plan's values in place of the alternatives."""
    pools = {
        key: ",".join(f"{pool['role']}={pool[key]}" for pool in plan["pools"]) for key in ("strategy", "instances")
    }
    weights = ",".join(f"{role}={name}" for role, name in question["weights"].items())
    fixed = {"engine": str(question["engine"]), "weights": weights, "kv_dtype": str(question["kv_dtype"]), **pools}
    flags = {name: text for name, text in {**typed, **fixed}.items() if name != "model"}
    words = [word for name, text in flags.items() for word in (f"--{name.replace('_', '-')}", text)]
    return ["plan", "search", typed["model"], *words]
