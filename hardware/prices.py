"""What a chip costs an hour: rented, or bought and written off with the electricity that its machine draws."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ground.files import read_yaml
from ground.from_dict import from_dict
from ground.sourced import Sourced, Stated
from ground.units import HOUR_SECONDS, YEAR_SECONDS
from hardware.derive import spelt_out
from hardware.spec import HardwareSpec

TABLE = Path(__file__).parent / "prices.yaml"
PURCHASE, RENTAL = "purchase", "rental"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices(Stated):
    """The one table of prices, by machine."""

    electricity_usd_per_kwh: Sourced
    amortisation_years: Sourced
    rental_usd_per_chip_hour: dict[str, Sourced]
    purchase_usd_per_chip: dict[str, Sourced]


@cache
def prices() -> Prices:
    """Return the table, read once."""
    data = read_yaml(TABLE)
    assert isinstance(data, dict), "the table is a mapping"
    return from_dict(Prices, spelt_out(data, str(TABLE)))


def priced(spec: HardwareSpec, electricity_usd_per_kwh: float | None = None) -> HardwareSpec:
    """Return a machine at its price in the table; as it is where the table has none."""
    table = prices()
    if (rental := table.rental_usd_per_chip_hour.get(spec.name)) is not None:
        return replace(spec, price_usd_per_chip_hour=rental, price_basis=RENTAL)
    if (bought := table.purchase_usd_per_chip.get(spec.name)) is not None:
        return bought_at(spec, bought, table.amortisation_years.value, electricity_usd_per_kwh)
    return spec


def bought_at(
    spec: HardwareSpec, price: Sourced, years: float, electricity_usd_per_kwh: float | None = None
) -> HardwareSpec:
    """Return a machine whose chips are bought: price / (years x 8760 h) + kW x USD/kWh, at full power all the time.

    The power is that of a chip with its share of the machine, of the chip alone where no more is stated.
    """
    rate = prices().electricity_usd_per_kwh.value if electricity_usd_per_kwh is None else electricity_usd_per_kwh
    power = spec.power_watts_per_chip or spec.chip_power_watts
    drawn = power.value / 1000 * rate if power else 0.0
    counted = "no power stated" if power is None else f"{drawn:.3g} USD/h of electricity at {rate:g} USD/kWh"
    hourly = replace(
        price,
        value=price.value / (years * YEAR_SECONDS / HOUR_SECONDS) + drawn,
        note=f"bought for {price.value:,.0f} USD over {years:g} years, {counted}, no building or margin; {price.note}",
    )
    return replace(spec, price_usd_per_chip_hour=hourly, price_basis=PURCHASE)
