"""`--price` and `--power`: what the user pays and draws in place of the catalogue's figures."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ground.errors import BadInput
from ground.sourced import Sourced
from hardware.spec import HardwareSpec
from planner.question import Question

MOST = 1e6


def with_prices(spec: HardwareSpec, price: str | None, power: str | None) -> HardwareSpec:
    """Return a machine at a price in USD per chip and hour, and with the power of a chip; as it is where not given.

    Raises BadInput naming the flag.
    """
    changed: dict[str, Any] = {}
    if price is not None:
        value = read_amount(price, "--price", "USD per chip and hour", {"usd": 1.0, "$": 1.0})
        changed["price_usd_per_chip_hour"] = Sourced(value=value, kind="assumed", source="--price", note="given")
    if power is not None:
        value = read_amount(power, "--power", "watts per chip", {"kw": 1000.0, "w": 1.0})
        changed["power_watts_per_chip"] = Sourced(value=value, kind="assumed", source="--power", note="given")
    return replace(spec, **changed) if changed else spec


def read_amount(text: str, flag: str, what: str, units: dict[str, float]) -> float:
    """Return a number above 0, with or without one of the units."""
    word, factor = text.strip().lower(), 1.0
    for unit, scale in units.items():
        if word.endswith(unit):
            word, factor = word.removesuffix(unit).strip(), scale
            break
    try:
        value = float(word) * factor
    except ValueError:
        value = math.nan
    if 0 < value <= MOST:
        return value
    example = "1.25" if "usd" in units else "1.4kW"
    raise BadInput(f"{flag}: {text[:40]!r} is not {what}, such as {example}")


def figure_texts(machines: Iterable[HardwareSpec], *, notes: bool = True) -> dict[str, str]:
    """Return what price and power of some machines rest on: kind, date and note of each; nothing where none is stated.

    Prices of different kinds, such as a rental and the hardware alone, or power of chips alone, are no comparison.
    """
    specs = {spec.name: spec for spec in machines}
    prices = {name: spec.price_usd_per_chip_hour for name, spec in specs.items()}
    powers = {name: spec.power_watts_per_chip or spec.chip_power_watts for name, spec in specs.items()}
    found = {}
    if any(prices.values()):
        found["price"] = _told(prices, "USD a chip and hour", 1.0, notes)
    if any(powers.values()):
        found["power"] = _told(powers, "kW a chip", 1000.0, notes)
    return found


def basis_lines(questions: Iterable[Question]) -> list[str]:
    """Return what cost and power of some questions' machines rest on, a line each."""
    machines = [part.hardware for question in questions for part in (question.prefill, question.decode)]
    return [f"{name.capitalize()}: {told}." for name, told in figure_texts(machines).items()]


def _told(figures: Mapping[str, Sourced | None], unit: str, scale: float, notes: bool) -> str:
    """Return each machine's figure with its kind, date and note; that none is stated where there is none."""
    texts = []
    for name, figure in figures.items():
        if figure is None:
            texts.append(f"none stated of {name}")
            continue
        about = ", ".join(part for part in (figure.kind, figure.as_of, notes and figure.note) if part)
        texts.append(f"{figure.value / scale:.3g} {unit} of {name} ({about})")
    return " and ".join(texts)
