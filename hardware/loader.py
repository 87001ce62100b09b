"""Read one catalogue entry, by name, alias or path."""

import re
from functools import cache
from pathlib import Path

from ground.errors import BadInput
from ground.files import read_yaml
from ground.from_dict import from_dict
from ground.names import suggest
from hardware.derive import resolve
from hardware.prices import priced
from hardware.spec import HardwareSpec

CATALOG = Path(__file__).parent / "catalog"

_ALIASES = re.compile(r"^aliases: \[(.*)\]$", re.MULTILINE)


@cache
def hardware_names() -> tuple[str, ...]:
    """Return the names of the catalogue's entries, sorted, without their aliases."""
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


@cache
def hardware_aliases() -> dict[str, str]:
    """Return which entry each alias stands for; the line of each entry that states its aliases is all that is read."""
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
