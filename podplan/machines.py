"""`--hw`, sizes, `--price`, `--power` and `--electricity`: which devices each role may use, and what they cost."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os.path import isfile  # unlike pathlib's, no error for a name that no file can have

from ground.errors import BadInput
from ground.records import Sourced
from ground.units import number_of, parse_count, parse_power
from hardware.loader import PURCHASE, bought_at, hardware_names, load_hardware, priced
from hardware.spec import HardwareSpec
from models.spec import ModelSpec
from planner.question import Machines, Question
from podplan.options import QuestionFlags
from podplan.readers import ROLES, by_role, read_weight_choices, weights_of

FIGURES = ("--price", "--power", "--electricity")
FIGURE = "ROLE=NUMBER or MACHINE=NUMBER, each once"
# Beyond any published serving cluster; the grid of instance sizes grows with it.
MOST_DEVICES = 16_384
MOST_AMOUNT = 1e6  # of USD or watts
MOST_SHOWN = 10**9  # longer counts are shortened when they are refused


def read_machines(flags: QuestionFlags, weights: str | None, model: ModelSpec) -> tuple[Machines, Machines]:
    """Return the machines of prefill and of decode; one budget for both where nothing was said per role.

    ``weights`` is what ``--weights`` gives; each role has the first format of its own.

    Raises BadInput naming the flag.
    """
    specs = _priced(read_hardware(flags.hw or ""), flags)
    sizes = _sizes(flags, specs)
    shared = specs["prefill"] is specs["decode"] and sizes.keys() == {""}
    prefill, decode = (
        Machines(
            hardware=specs[role],
            devices=sizes[""] if shared else sizes[role],
            weights=read_weight_choices(weights_of(weights, role), model, specs[role])[0],
            budget=specs[role].name if shared else role,
        )
        for role in ROLES
    )
    return prefill, decode


def read_hardware(text: str) -> dict[str, HardwareSpec]:
    """Return the hardware of each role; the same object where both run on the same entry."""
    names = by_role(text, "--hw")
    if "" in names:
        if "," in text and not isfile(text):
            raise BadInput(
                f"--hw: {text[:60]!r} lists machines; plan compare MODEL --hw {text[:60]} sets them side by side"
            )
        spec = load_hardware(names[""])
        return dict.fromkeys(ROLES, spec)
    for role in ROLES:
        if role not in names:
            raise BadInput(f"--hw: {text[:60]!r} names no hardware for {role}; add {role}=NAME")
    prefill, decode = (load_hardware(names[role]) for role in ROLES)
    return {"prefill": prefill, "decode": prefill if decode == prefill else decode}


def _priced(specs: dict[str, HardwareSpec], flags: QuestionFlags) -> dict[str, HardwareSpec]:
    """Return the hardware of each role at the price and power that were given; one object stays one.

    Machines that a question does not have are passed over, for a comparison has some each.
    """
    known = (*ROLES, *hardware_names())
    typed = zip(FIGURES, (flags.price, flags.power, flags.electricity), strict=True)
    given = {flag: by_role(text, flag, known=known, right=FIGURE) for flag, text in typed if text}
    same = specs["prefill"] is specs["decode"]
    for flag, texts in given.items():
        if same and any(role in texts for role in ROLES):
            raise BadInput(f"{flag}: both roles run on {specs['prefill'].name}, whose chips are alike; give one number")

    def of(role: str) -> HardwareSpec:
        named = [given.get(flag, {}) for flag in FIGURES]
        return with_prices(
            specs[role], *(own.get(role, own.get(specs[role].name.lower(), own.get(""))) for own in named)
        )

    prefill = of("prefill")
    return {"prefill": prefill, "decode": prefill if same else of("decode")}


def _sizes(flags: QuestionFlags, specs: dict[str, HardwareSpec]) -> dict[str, int]:
    """Return devices per role, or those of both under ``""``."""
    given = flags.size
    same = specs["prefill"] is specs["decode"]
    if given is None:
        return {"": catalogue_devices(specs["prefill"])} if same else {r: catalogue_devices(specs[r]) for r in ROLES}
    flag, text = given
    texts = by_role(text, flag)
    if "" in texts:
        if same:
            return {"": _devices(flag, texts[""], specs["prefill"])}
        raise BadInput(
            f"{flag}: {text[:40]!r} leaves open whether {specs['prefill'].name} or {specs['decode'].name} is counted; "
            f"write {flag} prefill=N,decode=N"
        )
    absent = [role for role in ROLES if role not in texts]
    if same and absent:
        raise BadInput(f"{flag}: {text[:40]!r} leaves open the size of {absent[0]}; add {absent[0]}=N")
    sizes = {
        role: _devices(flag, texts[role], specs[role]) if role in texts else catalogue_devices(specs[role])
        for role in ROLES
    }
    if same:
        _check_most(flag, f"{sizes['prefill']} + {sizes['decode']}", sum(sizes.values()), specs["prefill"])
    return sizes


def catalogue_devices(spec: HardwareSpec) -> int:
    """Return the devices of the whole entry."""
    return int(spec.nodes.value * spec.devices_per_node.value)


def _devices(flag: str, text: str, spec: HardwareSpec) -> int:
    """Return the devices that a size flag stands for, checked against the machine."""
    count = parse_count(text, flag)
    per_chip, per_node = int(spec.devices_per_chip.value), int(spec.devices_per_node.value)
    if flag == "--devices" and count % per_chip:
        lower = count - count % per_chip
        choices = f"{lower} or {lower + per_chip}" if lower else f"{per_chip}"
        raise BadInput(f"--devices: {count} are not whole chips of {spec.name}, which have {per_chip}; use {choices}")
    devices = count * {"--nodes": per_node, "--chips": per_chip, "--devices": 1}[flag]
    _check_most(flag, str(devices), devices, spec)
    return devices


def _check_most(flag: str, shown: str, devices: int, spec: HardwareSpec) -> None:
    per = {"--nodes": spec.devices_per_node.value, "--chips": spec.devices_per_chip.value, "--devices": 1.0}[flag]
    most = MOST_DEVICES if spec.sold_by_node else catalogue_devices(spec)
    if devices > most:
        why = "more than are planned for" if spec.sold_by_node else f"more than {spec.name} has"
        shown = shown if devices < MOST_SHOWN else f"{devices:.3g}"
        raise BadInput(f"{flag}: {shown} devices are {why}; use at most {most // per:.0f}")


def with_prices(
    spec: HardwareSpec, price: str | None, power: str | None, electricity: str | None = None
) -> HardwareSpec:
    """Return a machine at a price of a chip, with the power of one, and at a price of electricity; as it is without.

    A price is USD an hour, or of a purchase with the years that it is written off over (``25000/4y``), to which
    electricity comes. Raises BadInput naming the flag.
    """
    if power is not None:
        watts = Sourced(value=parse_power(power, FIGURES[1]), kind="assumed", source=FIGURES[1], note="given")
        spec = replace(spec, power_watts_per_chip=watts)
    rate = None if electricity is None else _usd(electricity, FIGURES[2], "USD per kWh, such as 0.08")
    if price is None:
        return priced(spec, rate) if spec.price_basis == PURCHASE and (power or electricity) else spec
    bought, slash, years = price.partition("/")
    told = "USD per chip and hour, such as 1.25, or a purchase over years, such as 25000/4y"
    value = Sourced(value=_usd(bought, FIGURES[0], told), kind="assumed", source=FIGURES[0], note="given")
    if not slash:
        return replace(spec, price_usd_per_chip_hour=value, price_basis="given")
    return bought_at(spec, value, _usd(years.strip().removesuffix("y"), FIGURES[0], told), rate)


def _usd(text: str, flag: str, told: str) -> float:
    value = number_of(text.strip().lower().strip("$").removesuffix("usd").strip())
    if not 0 < value <= MOST_AMOUNT:
        raise BadInput(f"{flag}: {text[:40]!r} is not {told}")
    return value


def figure_texts(machines: Iterable[HardwareSpec], *, notes: bool = True) -> dict[str, str]:
    """Return what price and power of some machines rest on: kind, date and note of each; nothing where none is stated.

    Prices of different kinds, such as a rental and the hardware alone, or power of chips alone, are no comparison.
    """
    specs = {spec.name: spec for spec in machines}
    rates = {name: spec.price_usd_per_chip_hour for name, spec in specs.items()}
    powers = {name: spec.power_watts_per_chip or spec.chip_power_watts for name, spec in specs.items()}
    found = {}
    if any(rates.values()):
        found["price"] = _told(rates, "USD a chip and hour", 1.0, notes)
    if any(powers.values()):
        found["power"] = _told(powers, "kW a chip", 1000.0, notes)
    return found


def unlike_prices(questions: Sequence[Question]) -> str | None:
    """Say that the prices of some questions are no comparison, for they are of different things; None where alike."""
    machines = [part.hardware for question in questions for part in (question.prefill, question.decode)]
    bases = {spec.name: spec.price_basis or "unstated" for spec in machines if spec.price_usd_per_chip_hour}
    if len(set(bases.values())) < 2:
        return None
    told = ", ".join(f"{name} {basis}" for name, basis in bases.items())
    example = ",".join(f"{name}=USD" for name in bases)
    return f"Prices are of different things ({told}), so costs here rank nothing; give --price {example} of one kind."


def basis_lines(questions: Sequence[Question]) -> list[str]:
    """Return what cost and power of some questions' machines rest on, a line each."""
    machines = [part.hardware for question in questions for part in (question.prefill, question.decode)]
    unlike = unlike_prices(questions)
    lines = [f"{name.capitalize()}: {told}." for name, told in figure_texts(machines).items()]
    return [unlike, *lines] if unlike else lines


def _told(figures: Mapping[str, Sourced | None], unit: str, scale: float, notes: bool) -> str:
    """Return each machine's figure with its kind, date and note; that none is stated where there is none."""
    texts, silent = [], [name for name, figure in figures.items() if figure is None]
    for name, figure in ((name, figure) for name, figure in figures.items() if figure is not None):
        parts = (figure.kind, figure.as_of, notes and figure.note)
        about = "given" if figure.note == "given" else ", ".join(part for part in parts if part)
        texts.append(f"{figure.value / scale:.3g} {unit} of {name} ({about})")
    if silent:
        texts.append(f"none stated of {', '.join(silent)}")
    return " and ".join(texts)
