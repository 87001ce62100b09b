"""From pydantic's report to one sentence."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ground.errors import BadInput, suggest
from ground.records import NAME

Model = TypeVar("Model")  # a pydantic model or a data class
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
"""Pydantic's words for a key that a model, or a data class, does not have."""
_SUBJECT = re.compile(r"^\w+ should\b")  # pydantic's "Input should", "String should", "List should"
_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def matching(pattern: str, told: str) -> AfterValidator:
    """Return the check that a whole text matches ``pattern``; ``told`` says in words what is right."""
    form = re.compile(pattern)

    def check(text: str) -> str:
        if form.fullmatch(text) is None:
            raise ValueError(f"must be {told}, not {_shown(text)}")
        return text

    return AfterValidator(check)


def validate(model: type[Model], data: object, where: str) -> Model:
    """Return ``data`` as ``model``; ``where`` names the file or flag that it came from.

    Raises BadInput with the dotted path to the first wrong field, what is wrong with it and, for an unknown
    key, the accepted keys near it.
    """
    try:
        return _adapter(model).validate_python(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        # A mistyped key is reported twice, as unknown and as missing: the unknown one is what the user wrote.
        first = next((detail for detail in details if detail["type"] in _UNKNOWN), details[0])
        raise BadInput(f"{where}: {_sentence(first, model, data)}") from None


def plain(one: object, **how: Any) -> dict[str, Any]:
    """Return a data class as plain data; ``how`` is what ``pydantic.BaseModel.model_dump`` takes."""
    return _adapter(type(one)).dump_python(one, **how)


def _adapter(model: type[Model]) -> TypeAdapter[Model]:
    """Return what reads and writes a model; it is built once."""
    if model not in _ADAPTERS:
        _ADAPTERS[model] = TypeAdapter(model)
    return _ADAPTERS[model]


def problems(model: Any, data: object) -> list[str]:
    """Return everything that is wrong with ``data``, a sentence per field in the order of the schema; none if nothing.

    A mistyped key gives one sentence, though it is both unknown and missing.
    """
    try:
        _adapter(model).validate_python(data)
    except ValidationError as error:
        return [_sentence(detail, model, data) for detail in error.errors(include_url=False)]
    return []


def _sentence(detail: ErrorDetails, model: type, data: object) -> str:
    path = _path(detail, data)
    if detail["type"] in _UNKNOWN:
        name = str(detail["loc"][-1])
        accepted = _accepted_keys(model, detail["loc"][:-1])
        near = suggest(name, accepted) or (f"; accepted are {', '.join(accepted)}" if accepted else "")
        return f"{path} is not a known key{near}"
    if detail["type"] == "missing":
        return f"{path} is missing"
    if detail["type"] in {"model_type", "model_attributes_type", "dataclass_type", "dict_type"}:
        problem = f"must be a mapping of keys to values, not {_shown(detail['input'])}"
    elif detail["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        context = detail["ctx"]
        given = f", not {_shown(context['tag'])}" if "tag" in context else ""
        expected = context.get("expected_tags", "")
        problem = f"key {context['discriminator']} must be {expected or 'given'}{given}"
    elif detail["type"] in {"value_error", "assertion_error"}:
        problem = str(detail.get("ctx", {}).get("error", detail["msg"]))
    elif detail.get("ctx", {}).get("pattern") == NAME:
        told = "a name of 1 to 200 printable characters that begins with no hyphen or space"
        problem = f"must be {told}, not {_shown(detail['input'])}"
    else:
        problem = f"{_SUBJECT.sub('must', detail['msg'])}, not {_shown(detail['input'])}"
    return f"{path}: {problem}" if path else problem


def _path(detail: ErrorDetails, data: object) -> str:
    """Return the dotted path as it stands in the file: without the tags that pydantic adds for unions."""
    ends_in_key = detail["type"] in {"missing", *_UNKNOWN}
    path = ""
    for position, part in enumerate(detail["loc"]):
        if isinstance(part, int) and isinstance(data, list | tuple) and part < len(data):
            data = data[part]
            path += f"[{part}]"
        elif isinstance(data, Mapping) and part in data:
            data = data[part]
            path += f".{part}"
        elif ends_in_key and position == len(detail["loc"]) - 1:
            path += f".{part}"
    return path.removeprefix(".")


def _accepted_keys(model: type, path: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are accepted at ``path`` below ``model``, in the order in which they are declared."""
    models = [model]
    for part in path:
        held = [known[part] for known in map(_fields, models) if part in known]
        if held:
            models = [inner for annotation in held for inner in _models_in(annotation)]
        else:  # a place in a list, a key of a dict, or the tag of a union, which names one of its models
            models = [candidate for candidate in models if _has_tag(candidate, part)] or models
    return list(dict.fromkeys(str(name) for candidate in models for name in _fields(candidate)))


def _fields(model: Any) -> dict[int | str, Any]:
    """Return the types of a model's fields by their names."""
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    hints = get_type_hints(model)
    return {field.name: hints[field.name] for field in fields(model)}


def _models_in(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _has_tag(model: type, tag: int | str) -> bool:
    return model.__name__ == tag or any(tag in get_args(annotation) for annotation in _fields(model).values())


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
