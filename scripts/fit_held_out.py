"""Measure how far curves of experts are off where others stand for them: python -m scripts.fit_held_out [--write].

Every measured kernel is met as if it had not been measured: by its own engine's other shapes (`alike`), by the same
shape under another engine (`lent`), and by other shapes there (`lent alike`). Writes hardware/operators/held_out.csv.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from ground.arrays import Floats
from hardware import engines
from hardware.engines import ExpertCurves, Shape, with_engine
from hardware.loader import load_hardware
from hardware.spec import Dtype
from models.loader import load_model
from planner.costs.deployment import Deployment
from planner.costs.expert_operators import curve_of, measured_experts
from planner.costs.interval import LEVEL
from planner.strategy import parse_strategy

OUT = engines.OPERATORS / "held_out.csv"
MACHINES = ("a100", "b200", "b300", "gb200", "gb300", "h100", "h200", "l40s", "rtx-pro-6000")
Key = tuple[str, ...]  # engine, number format, shape


def experts(shape: Shape, machine: str, engine: str, weights: Dtype) -> Deployment:
    """Return an instance of one device with experts of a shape."""
    model = load_model("qwen3-235b-a22b")
    assert model.moe is not None
    moe = replace(model.moe, intermediate_size=shape[1], experts_per_token=shape[2], experts=shape[3])
    return Deployment(
        model=replace(model, hidden_size=shape[0], moe=moe),
        hardware=with_engine(load_hardware(machine), engine),
        strategy=parse_strategy("TP=1"),
        phase="mixed",
        weights=weights,
        engine=engine,
    )


def without(machine: str, own: Deployment, gone: Callable[[Key], bool]) -> ExpertCurves | None:
    """Return the curves that an instance is given where some were not measured."""
    lines = engines._lines(machine)
    left_out = {key: lines.pop(key) for key in list(lines) if gone(key)}
    engines._nearest.cache_clear()
    found = measured_experts(own)
    lines.update(left_out)
    engines._nearest.cache_clear()
    return found


def errors(machine: str, engine: str) -> Iterator[tuple[str, Floats]]:
    """Yield, for every measured curve of an engine's own and each case, the logarithms of predicted over measured."""
    for key, line in list(engines._lines(machine).items()):
        known = engines._curves(key[0], line)
        if key[0] != engine or known.lent:
            continue
        own = experts(known.shape, machine, engine, key[1])  # type: ignore[arg-type]
        found = {
            "alike": without(machine, own, lambda other, key=key: other == key),
            "lent": without(machine, own, lambda other, key=key: other[:2] == key[:2]),
            "lent alike": without(machine, own, lambda other, key=key: other[:2] == key[:2] or other[1:] == key[1:]),
        }
        for case, curves in found.items():
            if curves is None or bool(curves.alike) != ("alike" in case):
                continue
            lent = curves.version.split()[0] != engine
            if lent != case.startswith("lent") or (lent and curves.kernel == known.kernel):
                continue
            for degrees in [*((tp, 1) for tp in known.tensor), *((1, ep) for ep in known.expert if ep > 1)]:
                cut = replace(own, strategy=own.strategy._replace(moe_tp=degrees[0]))
                yield case, np.log(np.array(curve_of(cut, curves, degrees[1])) / np.array(known.seconds(*degrees)))


def residuals(engine: str) -> dict[str, tuple[int, float]]:
    """Return the curves of each case and the median of a normal error whose 80 % interval holds 80 % of theirs."""
    found: dict[str, list[Floats]] = {}
    for machine in MACHINES:
        for case, off in errors(machine, engine):
            found.setdefault(case, []).append(off)
    half, median = NormalDist().inv_cdf(0.5 + LEVEL / 2), NormalDist().inv_cdf(0.75)
    return {
        case: (len(off), round(float(np.quantile(np.abs(off), LEVEL)) * median / half, 3))
        for case, off in sorted(found.items())
    }


def write() -> None:
    """Write the residuals of all engines."""
    rows = [[engine, case, *told] for engine in engines.EXPERT_LENDERS for case, told in residuals(engine).items()]
    with OUT.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["engine", "case", "curves", "residual"], *rows])


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
    else:
        print(*((engine, residuals(engine)) for engine in engines.EXPERT_LENDERS), sep="\n")
