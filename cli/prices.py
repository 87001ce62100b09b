"""`--price` and `--power`: what the user pays and draws in place of the catalogue's figures."""

import math

from hardware.spec import HardwareSpec
from podplan.errors import BadInput
from podplan.sourced import Sourced

MOST = 1e6


def with_prices(spec: HardwareSpec, price: str | None, power: str | None) -> HardwareSpec:
    """Return a machine at a price in USD per chip and hour, and with the power of a chip; as it is where not given.

    Raises BadInput naming the flag.
    """
    changed: dict[str, Sourced] = {}
    if price is not None:
        value = read_amount(price, "--price", "USD per chip and hour", {"usd": 1.0, "$": 1.0})
        changed["price_usd_per_chip_hour"] = Sourced(value=value, kind="assumed", source="--price", note="given")
    if power is not None:
        value = read_amount(power, "--power", "watts per chip", {"kw": 1000.0, "w": 1.0})
        changed["power_watts_per_chip"] = Sourced(value=value, kind="assumed", source="--power", note="given")
    return spec.model_copy(update=changed) if changed else spec


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
