"""Question files: YAML whose keys are the long flags of a question, ``questions`` for several; their JSON Schema."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ground.errors import BadInput, naming, suggest
from ground.files import read_yaml
from planner.objective import ObjectiveName
from planner.question import Encode, Loss, Queueing, Shape
from podplan.options import SIZES, UNITS, QuestionFlags, check_keywords, flag_name, names_of, text_of
from podplan.question import Asked, read_question
from podplan.traffic import LENGTH_FIELDS

QUESTION_KEYS = names_of(QuestionFlags)
RATES = {"rate", "rate_profile", "growth", "job"}
CHECK_KEYS = ("manifest",)  # keys of a question beside its flags, for ``plan check``
CHECKED = ("confidence", "headroom")  # flags that may stand beside a file of questions and hold for all of them
# Keys that name files or may do so: a path in a question file is read from the file's own folder.
PATHS = ("model", "hw", "isl_histogram", "osl_histogram", "rate_profile", "trace", "manifest")
MOST_QUESTIONS = 1000
MOST_NAME = 120
_PATH_ENDS = (".json", ".yaml", ".yml")
_WORDS = {"objective": ObjectiveName, "queueing": Queueing, "survive": Loss, "shape": Shape, "encode": Encode}
_PATTERNS = {
    "s": (r"^\s*[0-9.,eE+-]+\s*(ns|us|µs|μs|ms|s|sec|min|h|d)\s*$", "50ms"),
    "/s": (r"^\s*[0-9.,eE+-]+\s*/\s*(s|sec|min|m|h|hour|d|day)\s*$", "12.5/s"),
}
_OWN = {
    "name": "What the question is called in tables, JUnit and annotations.",
    "manifest": "Weigh this deployment instead of searching one.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One question of a file: its name, where it stands for messages, and the text of each flag that it gives."""

    name: str
    where: str
    values: Mapping[str, str]

    @property
    def ignored(self) -> str | None:
        """Say which keys are for ``plan check`` alone; None where there are none."""
        keys = ", ".join(key for key in CHECK_KEYS if key in self.values)
        return f"{self.where}: {keys} is for plan check and is not used" if keys else None

    def get(self, field: str) -> str | None:
        """Return what the question gives for a flag."""
        return self.values.get(field)


def asked_of(entry: Entry) -> Asked:
    """Return the question of an entry; BadInput names where it stands, and the key or flag."""
    with naming(entry.where):
        return read_question(QuestionFlags(**{name: entry.get(name) for name in QUESTION_KEYS}))


def typed_of(given: Mapping[str, object], *more: str) -> dict[str, str]:
    """Return keywords that are flags of a question, ``name`` or one ``more``, as they would be typed.

    Raises BadInput for a keyword that is none.
    """
    check_keywords(given, (*QUESTION_KEYS, "name", *more))
    return {name: text_of(value, UNITS.get(name, "")) for name, value in given.items() if value is not None}


def questions_in_place(typed: Mapping[str, str], command: str, machines: str) -> list[Entry] | None:
    """Return the questions of the file that stands in place of a model; None where flags ask one.

    ``machines`` is an example for who names a model only. Raises BadInput where there is neither, and for flags
    beside a file.
    """
    model = typed.get("model")
    if model is None:
        raise BadInput(f"give a question file, or MODEL with --hw HW; see plan {command} --help")
    if "hw" in typed:
        return None
    if not (model.lower().endswith((".yaml", ".yml")) or os.path.isfile(model)):
        needs = f"a model needs a machine; add for example {machines}"
        raise BadInput(f"--hw: {model[:60]!r} is no question file, and {needs}")
    others = sorted(typed.keys() - {"model", *CHECK_KEYS, *CHECKED})
    if others:
        raise BadInput(f"{flag_name(others[0])}: a question file states its own flags; write it there")
    return read_questions(Path(model), CHECK_KEYS)


def single_question(given: Mapping[str, str], command: str) -> Entry:
    """Return the one question that flags or a file ask; of several in a file the one that ``name`` names."""
    typed = dict(given)
    name = typed.pop("name", None)
    entries = questions_in_place(typed, command, "--hw h800")
    if entries is None:
        if name is not None:
            raise BadInput("--name picks a question of a file; leave it out where flags ask the question")
        return Entry(name=typed["model"], where="", values=typed)
    chosen = [entry for entry in entries if name in (None, entry.name)]
    if len(chosen) != 1:
        what = "holds several questions" if name is None else f"holds {len(chosen)} questions named {name[:40]!r}"
        listed = ", ".join(entry.name for entry in entries[:12])
        raise BadInput(f"--name: {typed['model']} {what}; pick one of {listed}")
    return chosen[0]


def read_questions(
    path: Path, own_keys: Sequence[str] = (), list_key: str = "questions", blocks: Sequence[str] = ()
) -> list[Entry]:
    """Return the questions of a file, in order; keys beside their list hold for all that do not give their own.

    Args: ``path``: the YAML file; ``own_keys``: keys of the command beside those of a question; ``list_key``: key of
    the list of questions; ``blocks``: keys beside that list which the command reads itself.
    Raises BadInput: no readable YAML, an unknown key, or a value that no flag could have, with its place.
    """
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise BadInput(f"{path}: a question file is a mapping of flags to values, such as model: deepseek-r1")
    known = (*QUESTION_KEYS, "name", *own_keys)
    beside = {key: value for key, value in data.items() if key not in (list_key, *blocks)}
    shared = _flags(beside, known, str(path), path.parent)
    if list_key not in data:
        return [_entry(shared, str(path), path.stem)]
    rows = _rows(data[list_key], f"{path}: {list_key}", MOST_QUESTIONS, "rate: 100/s")
    return [
        _entry(merged_flags(shared, _flags(row, known, where, path.parent)), where, f"{path.stem}-{number}")
        for number, (where, row) in enumerate(rows, start=1)
    ]


def read_rows(path: Path, list_key: str, known: Sequence[str], most: int) -> list[tuple[str, dict[str, str]]]:
    """Return where each row of a list stands, and the text of its flags; none where the file has no such list.

    Raises BadInput as ``read_questions``.
    """
    data = read_yaml(path)
    if not isinstance(data, dict) or list_key not in data:
        return []
    rows = _rows(data[list_key], f"{path}: {list_key}", most, "hw: cm384")
    return [(where, _flags(row, known, where, path.parent)) for where, row in rows]


def _rows(rows: object, where: str, most: int, example: str) -> Iterator[tuple[str, dict[object, object]]]:
    """Yield each mapping of a list and its place; BadInput where there is no list, or something else in its place."""
    if not isinstance(rows, list) or not rows or len(rows) > most:
        raise BadInput(f"{where} must be a list of 1 to {most} mappings of flags to values")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise BadInput(f"{where}[{number}] must be a mapping of flags to values, such as {example}")
        yield f"{where}[{number}]", row


def merged_flags(shared: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return shared flags with a question's own over them; its size replaces the shared one, however each is given."""
    sizes, lengths = set(SIZES), set(LENGTH_FIELDS)
    dropped = set(sizes) if sizes & own.keys() else set()
    dropped |= lengths if "trace" in own else set()
    dropped |= {"trace", "format"} if lengths & own.keys() else set()
    for side in ("isl", "osl"):
        moments, histogram = {side, f"{side}_cv", f"{side}_distribution"}, {f"{side}_histogram"}
        dropped |= moments if histogram & own.keys() else histogram if moments & own.keys() else set()
    dropped |= RATES if RATES & own.keys() else set()
    return {key: value for key, value in shared.items() if key not in dropped} | dict(own)


def _entry(values: Mapping[str, str], where: str, name: str) -> Entry:
    given = {key: value for key, value in values.items() if key != "name"}
    return Entry(name=values.get("name", name)[:MOST_NAME], where=where, values=given)


def _flags(data: Mapping[object, object], known: Sequence[str], where: str, folder: Path) -> dict[str, str]:
    """Return the text of each flag by field, as it would have been typed."""
    found: dict[str, str] = {}
    spellings = {key.replace("_", "-"): key for key in known}
    for key, value in data.items():
        field = spellings.get(str(key).replace("_", "-"))
        if field is None:
            hint = suggest(str(key), spellings) or f"; accepted are {', '.join(spellings)}"
            raise BadInput(f"{where}: {str(key)[:40]} is not a known key{hint}")
        if field in found:
            raise BadInput(f"{where}: {flag_name(field).strip('-')} stands twice; give it once")
        text = _text(value)
        if text is None:
            raise BadInput(f"{where}: {key} must be a text or a number, as behind {flag_name(field)}")
        found[field] = _located(text, folder) if field in PATHS else text
    return found


def _text(value: object) -> str | None:
    """Return what would be typed; None for what cannot be."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict) and value and all(_text(own) is not None for own in value.values()):
        return text_of(value)  # one for each role
    return text_of(value) if isinstance(value, str | int | float) else None


def _located(text: str, folder: Path) -> str:
    """Return a path of the file as seen from the working directory; names of the catalogues as they are."""
    if "=" in text or not ("/" in text or text.lower().endswith((*_PATH_ENDS, ".csv", ".jsonl", ".gz"))):
        return text
    return text if Path(text).is_absolute() else str(folder / text)


def question_schema() -> dict[str, Any]:
    """Return the schema: a question, or several under ``questions`` with what they share beside them."""
    keys = {each.name: _property(each) for each in dataclasses.fields(QuestionFlags)}
    keys |= {name: {"description": told, "type": ["string", "number"]} for name, told in _OWN.items()}
    keys["name"] |= {"maxLength": MOST_NAME}
    assert set(CHECK_KEYS) <= keys.keys(), "every key of a check is in its schema"
    spelt = {spelling: held for name, held in keys.items() for spelling in (name.replace("_", "-"), name)}
    listed = {
        "type": "array",
        "minItems": 1,
        "maxItems": MOST_QUESTIONS,
        "items": {"type": "object", "properties": spelt, "additionalProperties": False},
        "description": "Several questions; keys beside the list hold for each that does not give its own.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "podplan question file",
        "description": "The keys are the long flags of plan, whose help tells more.",
        "type": "object",
        "properties": spelt | {"questions": listed},
        "additionalProperties": False,
    }


def _property(each: "dataclasses.Field[Any]") -> dict[str, Any]:
    """Return what a flag's key may hold: one of its words, a text with its unit, or any text or number."""
    told = {"description": each.metadata["help"]}
    if each.name in _WORDS:
        return told | {"enum": list(get_args(_WORDS[each.name]))}
    if each.metadata.get("unit"):
        pattern, example = _PATTERNS[each.metadata["unit"]]
        return told | {"type": "string", "pattern": pattern, "examples": [example]}
    return told | {"type": ["string", "number"]}
