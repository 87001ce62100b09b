"""The JSON Schema of question files, made from the flags; editors complete and check with it."""

import dataclasses
from typing import Any, get_args

from planner.objective import ObjectiveName
from planner.question import Queueing, Shape
from planner.survival import Loss
from podplan.options import QuestionFlags
from podplan.question_files import CHECK_KEYS, MOST_NAME, MOST_QUESTIONS

_WORDS = {"objective": ObjectiveName, "queueing": Queueing, "survive": Loss, "shape": Shape}
_PATTERNS = {
    "s": (r"^\s*[0-9.,eE+-]+\s*(ns|us|µs|μs|ms|s|sec|min|h|d)\s*$", "such as 50ms or 2s"),
    "/s": (r"^\s*[0-9.,eE+-]+\s*/\s*(s|sec|min|m|h|hour|d|day)\s*$", "such as 12.5/s or 600/min"),
}
_OWN = {
    "name": "What the question is called in tables, JUnit and annotations.",
    "manifest": "Weigh this deployment instead of searching one.",
}


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
        return told | {
            "type": "string",
            "pattern": pattern,
            "examples": [example.removeprefix("such as ").split(" or ")[0]],
        }
    return told | {"type": ["string", "number"]}
