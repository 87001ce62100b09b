"""`--weights` and `--kv-dtype`: one number format, several to choose from, or all that the machines and engine run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from cli.flags import Word, read_choice, read_weights
from hardware.formats import KvDtype
from hardware.spec import Dtype, HardwareSpec
from models.spec import ModelSpec
from planner.deployment import default_weights
from planner.quantised import combinations, usual_weights
from planner.question import Question
from planner.reachable import REFERENCE
from podplan.errors import BadInput

if TYPE_CHECKING:
    from planner.engines.spec import CacheTypes

AUTO = "auto"


def read_weight_choices(text: str | None, model: ModelSpec, hardware: HardwareSpec) -> list[Dtype]:
    """Return the formats that weights may have on a machine, the usual one first where all are meant."""
    if text is None:
        return [default_weights(hardware, model)]
    if text.strip().lower() == AUTO:
        usual = default_weights(hardware, model)
        return [usual, *(dtype for dtype in usual_weights(hardware, model.native_dtype) if dtype != usual)]
    return [read_weights(word, model, hardware) for word in _words(text, "--weights")]


def read_caches(text: str | None) -> list[KvDtype]:
    """Return the formats that the KV cache may have."""
    if text is None:
        return ["bf16"]
    known = get_args(KvDtype)
    if text.strip().lower() == AUTO:
        return list(known)
    return [read_choice(word, "--kv-dtype", known) for word in _words(text, "--kv-dtype")]


def _words(text: str, flag: str) -> list[str]:
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if not word:
            raise BadInput(f"{flag}: {text[:40]!r} has an empty place between its commas; leave it out")
        if words.count(word) > 1:
            raise BadInput(f"{flag}: {word[:20]} stands twice in {text[:40]!r}; name it once")
    return words


def with_formats(question: Question, weights: str | None, kv_dtype: str | None) -> Question:
    """Return the question in the formats of the flags: the only ones, or as alternatives of which one is chosen.

    Of ``auto`` the engine's profile leaves what it runs; formats that are named are searched whatever it says, and
    then cut by its rules.
    """
    machines = (question.prefill.hardware, question.decode.hardware)
    own = [read_weight_choices(weights, question.model, hardware) for hardware in machines]
    caches = read_caches(kv_dtype)
    runs = _engine_types(question.engine)
    if runs is not None and weights is not None and weights.strip().lower() == AUTO:
        own = [_left(each, runs.weights.value) for each in own]
    if runs is not None and kv_dtype is not None and kv_dtype.strip().lower() == AUTO:
        caches = _left(caches, runs.kv.value)
    question = replace(question, kv_dtype=caches[0])
    found = combinations(machines, (own[0], own[1]), caches)
    return replace(question, formats=found) if len(found) > 1 else question


def _left(words: Sequence[Word], known: Sequence[str]) -> list[Word]:
    """Return the words that are known, all where none is."""
    return [word for word in words if word in known] or list(words)


def _engine_types(engine: str) -> "CacheTypes | None":
    """Return the formats that an engine runs; None for the reference engine, which runs all."""
    if engine == REFERENCE:
        return None
    from planner.engines.loader import load_engine

    return load_engine(engine).cache
