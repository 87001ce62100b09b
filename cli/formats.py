"""`--weights` and `--kv-dtype`: one number format, several to choose from, or all that the machines and engine run."""

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from cli.flags import Word, read_choice, read_weights
from ground.errors import BadInput
from ground.names import suggest
from hardware.formats import KvDtype
from hardware.spec import Dtype, HardwareSpec
from models.spec import ModelSpec
from planner.costs.deployment import default_weights
from planner.instances.reachable import REFERENCE
from planner.plans.quantised import combinations, usual_weights
from planner.question import Question

if TYPE_CHECKING:
    from planner.engines.spec import CacheTypes

AUTO = "auto"
ROLES = ("prefill", "decode")


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


def weights_of(text: str | None, role: str) -> str | None:
    """Return what ``prefill=fp8,bf16,decode=int8`` gives a role; a text without roles gives it to both.

    Raises BadInput where a role has nothing, or stands twice, or is none.
    """
    if text is None or "=" not in text:
        return text
    found: dict[str, list[str]] = {}
    own: list[str] = []
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.rpartition("="))
        if equals:
            if not value:
                raise BadInput(f"--weights: {part.strip()[:40]!r} names no format; write for example {name}=bf16")
            own = found.setdefault(_role(name.lower(), part.strip(), found), [])
        elif not found:
            raise BadInput(f"--weights: {part.strip()[:40]!r} is of no role; begin with prefill= or decode=")
        own.append(value)
    for absent in (each for each in ROLES if each not in found):
        raise BadInput(f"--weights: {text[:60]!r} leaves open the format of {absent}; add {absent}=auto")
    return ",".join(found[role])


def _role(name: str, part: str, known: Container[str]) -> str:
    if name not in ROLES:
        raise BadInput(f"--weights: {part[:40]!r} is not prefill=... or decode=...{suggest(name, ROLES)}")
    if name in known:
        raise BadInput(f"--weights: {name} stands twice; name it once")
    return name


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
    runs = _engine_types(question.engine)
    caches = read_caches(kv_dtype)
    if runs is not None and _is_auto(kv_dtype):
        caches = _left(caches, runs.kv.value)
    own = []
    for role, machines in (("prefill", question.prefill), ("decode", question.decode)):
        text = weights_of(weights, role)
        words = read_weight_choices(text, question.model, machines.hardware)
        own.append(_left(words, runs.weights.value) if runs is not None and _is_auto(text) else words)
    prefill, decode = (
        replace(machines, weights=words[0])
        for machines, words in zip((question.prefill, question.decode), own, strict=True)
    )
    found = combinations((own[0], own[1]), caches)
    one_pool = prefill.budget == decode.budget
    if question.shape == "aggregated" and one_pool and not any(each.prefill == each.decode for each in found):
        raise BadInput("--weights: aggregated instances load one checkpoint; give both roles a common format")
    question = replace(question, prefill=prefill, decode=decode, kv_dtype=caches[0])
    return replace(question, formats=found) if len(found) > 1 else question


def _is_auto(text: str | None) -> bool:
    return text is not None and text.strip().lower() == AUTO


def _left(words: Sequence[Word], known: Sequence[str]) -> list[Word]:
    """Return the words that are known, all where none is."""
    return [word for word in words if word in known] or list(words)


def _engine_types(engine: str) -> "CacheTypes | None":
    """Return the formats that an engine runs; None for the reference engine, which runs all."""
    if engine == REFERENCE:
        return None
    from planner.engines.loader import load_engine

    return load_engine(engine).cache
