"""Load a ModelSpec by name or path."""

import os
from functools import cache
from pathlib import Path

from ground.errors import BadInput, suggest
from ground.files import read_yaml
from ground.records import from_dict
from models.spec import ModelSpec

CATALOGUE = Path(__file__).parent / "catalog"
FORMS = ("-instruct", "-chat", "-base", "-it", "-pt")  # ends of names that say how a model was trained
ACCEPTED = "a catalogue name, a Hugging Face config.json or a model YAML"


def load_model(name_or_path: str) -> ModelSpec:
    """Return the spec of a catalogue name or alias (in any case), a ``config.json`` or its directory, or a model YAML.

    A bare name of the catalogue wins over a file of that name (write ``./name`` for the file); a Hugging Face
    repository id (``deepseek-ai/DeepSeek-R1``) is an alias that yields to a path that exists. Raises BadInput
    naming the file, or the names that ``name_or_path`` may have meant.
    """
    catalogue = None if "\0" in name_or_path else _catalogue_name(name_or_path.strip().lower())
    if catalogue and "/" not in name_or_path:
        return _read_catalogue(catalogue)
    path = Path(name_or_path)
    if name_or_path.strip() and "\0" not in name_or_path and os.path.exists(path):
        return _read_path(path)
    if catalogue:
        return _read_catalogue(catalogue)
    raise _unknown(name_or_path)


def is_stand_in(name_or_path: str, spec: ModelSpec) -> bool:
    """Whether a spec is loaded by the name of another model, of the same shapes, not by a short form of its own."""
    return not os.path.exists(name_or_path) and _bare(name_or_path.strip().lower()) not in spec.name


def model_names() -> list[str]:
    """Return the names of the catalogue, sorted."""
    return list(_names())


def catalogue_path(name: str) -> Path:
    """Return the file of the catalogue entry ``name``."""
    return CATALOGUE / f"{name}.yaml"


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in CATALOGUE.glob("*.yaml")))


def _catalogue_name(name: str) -> str | None:
    """Return the catalogue entry of ``name``, in lower case; for another than an entry's own all entries are read."""
    return name if name in _names() else _aliases().get(name) or _bare_names().get(_bare(name))


@cache
def _aliases() -> dict[str, str]:
    return {alias.lower(): name for name in _names() for alias in _read_catalogue(name).aliases}


@cache
def _bare_names() -> dict[str, str]:
    """Return entries by names without owner and form of training, where these are of one entry."""
    bare: dict[str, set[str]] = {}
    for name, entry in [*zip(_names(), _names(), strict=True), *_aliases().items()]:
        bare.setdefault(_bare(name), set()).add(entry)
    return {name: entries.pop() for name, entries in bare.items() if len(entries) == 1}


def _bare(name: str) -> str:
    """Return a name without the owner of its repository, and without how it was trained: its shapes are the same."""
    name = name.rpartition("/")[2]
    return next((name.removesuffix(form) for form in FORMS if name.endswith(form)), name)


@cache
def _read_catalogue(name: str) -> ModelSpec:
    data = read_yaml(catalogue_path(name))
    assert isinstance(data, dict)
    return from_dict(ModelSpec, data)


def _read_path(path: Path) -> ModelSpec:
    if path.is_dir():
        config = path / "config.json"
        if not config.is_file():
            raise BadInput(f"{path}: holds no config.json; give {ACCEPTED}")
        return _read_huggingface(config)
    if path.suffix.lower() == ".json":
        return _read_huggingface(path)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _read_yaml(path)
    raise BadInput(f"{path}: a model file ends in .json (a Hugging Face config.json) or .yaml (a podplan model)")


def _read_yaml(path: Path) -> ModelSpec:
    from ground.validation import validate  # the catalogue is checked by its tests

    return validate(ModelSpec, read_yaml(path), str(path))


def _read_huggingface(path: Path) -> ModelSpec:
    from models.huggingface.config import read_config  # the catalogue needs none of the adapters
    from models.huggingface.families import model_from_config
    from models.huggingface.quantisation import with_modelopt

    config, beside = read_config(path), path.with_name("hf_quant_config.json")
    if beside.exists():
        config = with_modelopt(config, read_config(beside))
    return model_from_config(config, _name_of(path))


def _name_of(path: Path) -> str:
    """Return what to call a model: its file or, for a config.json, the folder; in the hub's cache the repository."""
    if path.stem.lower() != "config":
        return path.stem.lower()
    folders = [path.resolve().parent, *path.resolve().parents]
    cached = next((folder.name for folder in folders if folder.name.startswith("models--")), None)
    return (cached.rsplit("--", 1)[-1] if cached else folders[0].name).lower() or "config"


def _unknown(name_or_path: str) -> BadInput:
    shown = repr(name_or_path if len(name_or_path) <= 60 else name_or_path[:57] + "...")
    if name_or_path.endswith((".json", ".yaml", ".yml")):
        return BadInput(f"model {shown}: there is no such file")
    near = suggest(name_or_path, [*_names(), *_aliases()])
    return BadInput(f"model {shown} is neither in the catalogue nor a file; give {ACCEPTED}{near}")
