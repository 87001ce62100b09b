"""Read one catalogue entry, by name, alias or path, with what it takes over from its siblings and what it costs.

An entry with ``based_on: {name, why}`` takes over whatever of the sibling's scopes, planes, kernel fits, collectives,
exchanges, streams and host costs it does not state. What is measured as a share of a peak (kernels) travels as it is,
for peaks and bandwidths are the entry's own; a rate in bytes per second (collectives, exchanges) is multiplied by the
ratio of the two machines' bandwidths over the scope that it was measured in; start-up times travel unchanged. Every
value taken over becomes ``assumed``, loses its residual and says in its note whose it is. Peaks, memory, prices and
power are never taken over.

With ``same_device: true`` the entry is the sibling itself with some values measured anew (``plan calibrate`` writes
such overlays): everything that it does not state keeps the sibling's value, kind and residual.

The merge works on plain data, before the schema is checked, so it knows of the schema only the names below.

Missing fields of an entry are listed with the values that replace them (``plan hardware``).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args

from ground.errors import BadInput, suggest
from ground.files import read_yaml
from ground.records import Limits, Sourced, Stated, from_dict
from ground.units import HOUR_SECONDS, YEAR_SECONDS
from hardware.formats import multiplied
from hardware.spec import CollectiveOp, HardwareSpec, Scope

Data = dict[str, Any]
Read = Callable[[str], HardwareSpec]

SINGLE = ("devices_per_chip", "devices_per_node", "nodes", "sold_by_node", "kv_plane")
# What makes two items of a list the same one.
KEYS = {
    "collectives": ("op", "scope", "in_graph"),
    "exchanges": ("direction", "mode"),
    "scopes": ("name",),
    "planes": ("name",),
}
TABLE = Path(__file__).parent / "prices.yaml"
PURCHASE, RENTAL = "purchase", "rental"
CATALOG = Path(__file__).parent / "catalog"

_ALIASES = re.compile(r"^aliases: \[(.*)\]$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scopes(Stated):
    scopes: Annotated[list[Scope], Limits(min_length=1)]


def resolve(entry: object, where: str, read: Read, *, trusted: bool = False) -> object:
    """Return the entry with its sources spelt out and all that it takes over filled in; ``read`` loads a sibling.

    What is no mapping, or has a ``based_on`` of another form than the schema's, is returned for the schema to refuse.
    Raises BadInput naming the file where ``sources`` or the entry's own scopes break the schema; scopes of a
    ``trusted`` entry are known to keep it.
    """
    if not isinstance(entry, dict):
        return entry
    entry = with_int8(spelt_out(entry, where))
    based_on = entry.get("based_on")
    if not isinstance(based_on, dict) or not isinstance(based_on.get("name"), str):
        return entry
    base = read(based_on["name"])
    data = _without_none(asdict(base))
    data.pop("based_on", None)
    if based_on.get("same_device") is True:
        return filled(data, entry)
    if "scopes" in entry and not trusted:
        from ground.validation import validate  # the catalogue is read without it

        entry |= _without_none(asdict(validate(_Scopes, {"scopes": entry["scopes"]}, where)))
    return taken_over(entry, data, base.name)


def _without_none(node: Any) -> Any:
    """Return plain data without what is not there."""
    if isinstance(node, dict):
        return {key: _without_none(value) for key, value in node.items() if value is not None}
    return [_without_none(value) for value in node] if isinstance(node, list) else node


def with_int8(entry: Data) -> Data:
    """Return the entry with the FP8 fits of products standing in for INT8's, where it states INT8's peak and no fit.

    Elements of both have one byte, and a fit is a share of the peak and of the bandwidth, so it travels.
    """
    kernels, peaks = entry.get("kernels"), entry.get("device")
    peaks = peaks.get("peak_flops_per_second") if isinstance(peaks, dict) else None
    if not (isinstance(kernels, dict) and isinstance(peaks, dict) and "int8" in peaks):
        return entry
    instead = {
        family: {"int8": _marked(fits["fp8"], "FP8")} | fits
        for family in ("gemm", "grouped_gemm")
        if isinstance(fits := kernels.get(family), dict) and "fp8" in fits
    }
    return entry | {"kernels": kernels | instead}


def spelt_out(entry: Data, where: str) -> Data:
    """Return the entry without its ``sources``; a ``source`` that is a name among them becomes what it names."""
    sources = entry.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise BadInput(f"{where}: sources: must map short names to addresses, as in sources: {{aic: https://...}}")

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: _named(sources, key, walk(value)) for key, value in node.items()}
        return [walk(value) for value in node] if isinstance(node, list) else node

    return walk({key: value for key, value in entry.items() if key != "sources"})


def _named(sources: Data, key: str, value: Any) -> Any:
    return sources.get(value, value) if key == "source" and isinstance(value, str) else value


def filled(base: Any, own: Any, section: str = "") -> Any:
    """Return ``own`` over ``base``: mappings key by key, lists item by item where items have an identity.

    A value with its source, and a fit, is one thing: taken whole from one of the two.
    """
    if isinstance(base, dict) and isinstance(own, dict) and "source" not in own:
        return base | {key: filled(base[key], value, key) if key in base else value for key, value in own.items()}
    if section in KEYS and isinstance(base, list) and isinstance(own, list):
        stated = [[item.get(key) for key in KEYS[section]] for item in own if isinstance(item, dict)]
        return [*own, *(item for item in base if [item.get(key) for key in KEYS[section]] not in stated)]
    return own


def taken_over(entry: Data, base: Data, name: str) -> Data:
    """Return the entry with what it does not state of a sibling, scaled, marked and cut to its peaks and scopes."""
    result = {key: _marked(value, name) for key, value in base.items() if key in SINGLE} | entry
    for section in ("scopes", "planes"):
        result[section] = entry.get(section, _marked(base[section], name))
    for section in ("kernels", "streams", "host"):
        result[section] = filled(_marked(base[section], name), entry.get(section, {}), section)
    result["kernels"] = _of_own_peaks(result["kernels"], entry)
    for section, rescale in (("collectives", _scaled_collective), ("exchanges", _scaled_exchange)):
        items = [rescale(item, result["scopes"], base["scopes"]) for item in base[section]]
        kept = [_marked(item, name) for item in items if item is not None]
        result[section] = filled(kept, entry.get(section, []), section)
    if isinstance(device := entry.get("device"), dict):
        result["device"] = {"reserve_bytes": _marked(base["device"]["reserve_bytes"], name)} | device
    return result


def _marked(node: Any, name: str) -> Any:
    """Return the node with every value and fit in it marked as another machine's."""
    if isinstance(node, list):
        return [_marked(item, name) for item in node]
    if not isinstance(node, dict):
        return node
    inner = {key: _marked(value, name) for key, value in node.items()}
    if "source" in node and "kind" in node:
        inner["kind"] = "assumed"
        inner["note"] = f"of {name}" + (f": {node['note']}" if node.get("note") else "")
        inner.pop("median_residual", None)
    return inner


def _of_own_peaks(kernels: Any, entry: Data) -> Any:
    """Drop the matrix products of types for which the entry states no peak."""
    peaks = entry.get("device", {}).get("peak_flops_per_second", {}) if isinstance(entry.get("device"), dict) else {}
    if not isinstance(kernels, dict) or not isinstance(peaks, dict):
        return kernels
    own = entry.get("kernels", {}) if isinstance(entry.get("kernels"), dict) else {}
    return {
        family: {dtype: fit for dtype, fit in fits.items() if dtype in peaks or dtype in own.get(family, {})}
        if family in ("gemm", "grouped_gemm") and isinstance(fits, dict) and isinstance(own.get(family, {}), dict)
        else fits
        for family, fits in kernels.items()
    }


def _scaled_collective(fit: Data, own: list[Data], base: list[Data]) -> Data | None:
    """Return a collective at the entry's bandwidth over the fit's scope; None where the entry has no such scope."""
    rates = {scope["name"]: _rate(scope) for scope in own}
    if fit["scope"] not in rates:
        return None
    ratio = rates[fit["scope"]] / next(_rate(scope) for scope in base if scope["name"] == fit["scope"])
    return _noted(fit, [ratio]) | {"protocols": [_faster(protocol, ratio) for protocol in fit["protocols"]]}


def _scaled_exchange(fit: Data, own: list[Data], base: list[Data]) -> Data:
    """Return an exchange with every degree at the ratio of the bandwidths that a group of that degree crosses.

    A rate over servers stands for no group inside one, and one inside for none larger than the entry's server.
    """
    points: dict[int, Data] = {}
    ratios: list[float] = []
    for point in fit["points"]:
        over, degree = _scope_at(base, point["degree"])["name"], point["degree"]
        if over != "cluster" and len(own) > 1 and own[-1]["name"] == "cluster":
            degree = min(degree, int(own[-2]["devices"]["value"]))
        here = _scope_at(own, degree)
        if (here["name"] == "cluster") == (over == "cluster"):
            ratios.append(_rate(here) / _rate(_scope_at(base, point["degree"])))
            points.setdefault(degree, _faster(point | {"degree": degree}, ratios[-1]))
    return _noted(fit, ratios) | {"points": list(points.values())}


def _noted(fit: Data, ratios: list[float]) -> Data:
    """Return a fit with a note of the factor on its rates."""
    told = ", ".join(f"{ratio:.3g}" for ratio in dict.fromkeys(ratios))
    if told == "1":
        return fit
    note = f"; {fit['note']}" if fit.get("note") else ""
    return fit | {"note": f"rates times {told} as the links{note}"}


def _faster(item: Data, ratio: float) -> Data:
    """Return a protocol or a point at ``ratio`` times its rate; a ratio of one changes no bit."""
    return item | {"bandwidth_bytes_per_second": item["bandwidth_bytes_per_second"] * ratio}


def _rate(scope: Data) -> float:
    return float(scope["bandwidth_bytes_per_second"]["value"])


def _scope_at(scopes: list[Data], degree: int) -> Data:
    """Return the smallest scope that holds so many devices, else the largest scope."""
    return next((each for each in scopes if degree <= (each["devices"]["value"] or float("inf"))), scopes[-1])


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


@cache
def hardware_names() -> tuple[str, ...]:
    """Return the names of the catalogue's entries, sorted, without their aliases."""
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


@cache
def hardware_aliases() -> dict[str, str]:
    """Return the entry of each alias; only the aliases line of each entry is read."""
    stated = {path.stem: _ALIASES.search(path.read_text(encoding="utf-8")) for path in CATALOG.glob("*.yaml")}
    texts = {name: found[1].split(",") if found else [] for name, found in stated.items()}
    return {alias.strip(" \"'"): name for name, own in texts.items() for alias in own if alias.strip()}


def load_hardware(name_or_path: str) -> HardwareSpec:
    """Return the entry of that name or alias (any case), or the one in a YAML file.

    A text that ends in .yaml or .yml or holds a slash is a path. Reads only the one file asked for and those that it
    is based on. Raises BadInput for an unknown name, a missing file and an entry that breaks the schema.
    """
    path = _resolve(name_or_path)
    return catalogue_entry(path) if path.parent == CATALOG else _load(path, ())


@cache
def catalogue_entry(path: Path) -> HardwareSpec:
    """Return an entry of the catalogue, read once: questions of one file mostly name the same machine."""
    return _load(path, ())


def problems_of(name_or_path: str) -> list[str]:
    """Return everything that keeps an entry from loading, a sentence each; none for one that loads.

    Raises BadInput where there is no entry to look at: an unknown name, a missing file, or text that is not YAML.
    """
    from ground.validation import problems  # the catalogue is read without it

    path = _resolve(name_or_path)
    entry = read_yaml(path)
    try:
        return problems(HardwareSpec, _filled(path, entry, ()))
    except BadInput as error:  # what is taken over cannot be found or scaled
        return [str(error).removeprefix(f"{path}: ")]


def _load(path: Path, above: tuple[Path, ...]) -> HardwareSpec:
    """Return the entry in ``path``; ``above`` are the entries that are based on it."""
    data = _filled(path, read_yaml(path), above)
    if path.parent == CATALOG and isinstance(data, dict):
        return priced(from_dict(HardwareSpec, data))
    from ground.validation import validate  # the catalogue is checked by its tests

    spec = validate(HardwareSpec, data, str(path))
    return spec if spec.price_usd_per_chip_hour is not None else priced(spec)


def _filled(path: Path, entry: object, above: tuple[Path, ...]) -> object:
    """Return plain data with what the entry takes over from its siblings."""
    if path in above:
        raise BadInput(f"{above[0]}: based_on leads in a circle over {path}; base one of them on nothing")

    def sibling(name: str) -> HardwareSpec:
        found = _resolve(name)
        return _load(found if found.is_relative_to(CATALOG) else path.parent / found, (*above, path))

    return resolve(entry, str(path), sibling, trusted=path.parent == CATALOG)


def _resolve(name_or_path: str) -> Path:
    if name_or_path.lower().endswith((".yaml", ".yml")) or "/" in name_or_path:
        return Path(name_or_path)
    key = name_or_path.strip().lower()
    names = hardware_names()
    name = key if key in names else hardware_aliases().get(key)
    if name is not None:
        return CATALOG / f"{name}.yaml"
    hint = suggest(key, [*names, *hardware_aliases()])
    raise BadInput(f"hardware {name_or_path!r} is neither one of {', '.join(names)} nor a path to a YAML file{hint}")


@dataclass(frozen=True, slots=True)
class Gap:
    """A field that is not stated, and what is done without it."""

    field: str
    instead: str


def gaps(spec: HardwareSpec) -> list[Gap]:
    """Return what the entry lacks, in the order of its schema. What the schema requires cannot be lacking."""
    return [*_kernel_gaps(spec), *_collective_gaps(spec), *_exchange_gaps(spec), *_cost_gaps(spec)]


def _kernel_gaps(spec: HardwareSpec) -> Iterator[Gap]:
    usable = multiplied(spec)
    for dtype in spec.device.peak_flops_per_second:
        for family in ("gemm", "grouped_gemm"):
            if dtype not in getattr(spec.kernels, family):
                yield Gap(f"kernels.{family}.{dtype}", f"its peak is not used; --weights takes {' or '.join(usable)}")
    for name in ("sparse_decode", "sparse_prefill"):
        if getattr(spec.kernels, name) is None:
            yield Gap(f"kernels.{name}", "models with sparse attention (DSA) are costed with the fit of mla_decode")
    if "fp8" in spec.device.peak_flops_per_second and spec.kernels.mla_decode_fp8 is None:
        yield Gap("kernels.mla_decode_fp8", "MLA with a KV cache in FP8 is costed as if its products were in BF16")


def _collective_gaps(spec: HardwareSpec) -> Iterator[Gap]:
    order = [scope.name for scope in spec.scopes]
    for op in get_args(CollectiveOp):
        stated = {fit.scope for fit in spec.collectives if fit.op == op and not fit.in_graph}
        for position, scope in enumerate(order):
            if scope in stated:
                continue
            wider = [name for name in order[position + 1 :] if name in stated]
            narrower = [name for name in reversed(order[:position]) if name in stated]
            other = [*wider, *narrower]
            instead = f"the fit of the scope {other[0]} stands in" if other else "strategies that need it are refused"
            yield Gap(f"collectives[{op} {scope}]", instead)
    if not any(fit.in_graph for fit in spec.collectives):
        instead = "decode pays the start-up of collectives outside a captured graph"
        yield Gap(f"collectives[all_reduce {order[0]}, in_graph]", instead)


def _exchange_gaps(spec: HardwareSpec) -> Iterator[Gap]:
    stated = {(fit.direction, fit.mode) for fit in spec.exchanges}
    modes = {"low_latency": "normal", "normal": "low_latency"}
    for direction in ("dispatch", "combine"):
        for mode, other in modes.items():
            if (direction, mode) not in stated:
                known = (direction, other) in stated
                instead = f"the fit of the mode {other} stands in" if known else "expert parallelism is refused"
                yield Gap(f"exchanges[{direction} {mode}]", instead)


def _cost_gaps(spec: HardwareSpec) -> Iterator[Gap]:
    if spec.power_watts_per_chip is None:
        instead = "plans state the power of the chips alone" if spec.chip_power_watts else "plans state no power"
        yield Gap("power_watts_per_chip", instead)
    if spec.price_usd_per_chip_hour is None:
        yield Gap("price_usd_per_chip_hour", "plans state no cost, and cost cannot be the objective")
