"""Alternatives of a question: engines, number formats, where pictures are encoded. Each alternative is searched.

Roles share the format of the KV cache, which they exchange. Prefill and decode may have different weight formats, as
they are launched separately. An aggregated instance loads one checkpoint.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple, get_args

from ground.errors import BadInput
from hardware.formats import KvDtype, multiplied, storable
from hardware.spec import Dtype, HardwareSpec
from planner.engines.loader import Needs, load_engine
from planner.engines.rules import broken_drafts
from planner.engines.spec import ShapeName
from planner.instances.encoding import ways_to_encode
from planner.instances.space import Role
from planner.plans.plan import Plan
from planner.question import Encode, Formats, Question


class Tried(NamedTuple):
    """Result of an engine in a format: its plan or the binding limit, and the numbers cut by role and rule."""

    engine: str
    formats: Formats
    plan: Plan | None
    binding_limit: str
    cut: dict[Role, dict[str, int]]
    encode: Encode | None = None  # where pictures are encoded; None without pictures

    @property
    def told(self) -> str:
        """Name of the alternative, such as ``int8 weights, bf16 KV cache``."""
        return format_text(self.formats) + (f", encode {self.encode}" if self.encode else "")


def format_text(formats: Formats) -> str:
    """Return the name of the formats of weights and KV cache; of both roles where their weights differ.

    >>> format_text(Formats(prefill="int8", decode="fp8", kv="bf16"))
    'prefill int8, decode fp8 weights, bf16 KV cache'
    """
    same = formats.prefill == formats.decode
    weights = formats.prefill if same else f"prefill {formats.prefill}, decode {formats.decode}"
    return f"{weights} weights, {formats.kv} KV cache"


def own_formats(question: Question) -> Formats:
    """Return the formats of the question's machines and cache."""
    return Formats(prefill=question.prefill.weights, decode=question.decode.weights, kv=question.kv_dtype)


def in_format(question: Question, formats: Formats) -> Question:
    """Return the question in one format, without alternatives."""
    prefill = replace(question.prefill, weights=formats.prefill)
    decode = prefill if question.decode == question.prefill else question.decode
    decode = decode if decode.weights == formats.decode else replace(decode, weights=formats.decode)
    return replace(question, prefill=prefill, decode=decode, kv_dtype=formats.kv, formats=())


def as_planned(question: Question, plan: Plan) -> Question:
    """Return the question with the engine and formats of a plan, without alternatives."""
    own = replace(question, engine=plan.question.engine, engines=(), encode=plan.question.encode)
    return in_format(own, own_formats(plan.question))


def alternatives(question: Question) -> list[Question]:
    """Return the question with each of its engines in each of its formats; itself where it has no alternatives.

    Where the way to encode pictures is open, each way that the engine supports is an alternative. If only aggregated
    instances are allowed, both roles have the same weight format.
    """
    asked = question.formats
    if question.shape == "aggregated" and question.prefill.budget == question.decode.budget:
        asked = tuple(formats for formats in asked if formats.prefill == formats.decode) or asked
    in_each = [in_format(question, formats) for formats in asked] or [question]
    engines = question.engines or (question.engine,)
    every = [_draftable(replace(each, engine=engine, engines=())) for engine in engines for each in in_each]
    return [choice for each in every for choice in _encoding(each)]


def _encoding(question: Question) -> list[Question]:
    """Return the question with each allowed way to encode pictures that its engine supports."""
    if question.encode != "auto":
        return [question]
    fused, separate = (replace(question, encode=way) for way in ("fused", "separate"))
    able = any(ways_to_encode(separate, shape).shares for shape in get_args(ShapeName))
    return [fused, separate] if able and question.workload.pictures else [fused]


def _draftable(question: Question) -> Question:
    """Return the question without drafts where podplan may choose and the engine has no MTP for the model."""
    broken = 0 in question.drafts and broken_drafts(load_engine(question.engine), question.model.architecture)
    return replace(question, drafts=(0,)) if broken else question


def needs_of(question: Question) -> Needs:
    """Return the features that an engine must support for the question."""
    machines = tuple({part.hardware.name: part.hardware for part in (question.prefill, question.decode)}.values())
    return Needs(machines, question.model.architecture, drafts=0 not in question.drafts)


def check_some(question: Question, check: Callable[[Question], None]) -> None:
    """Raise the BadInput of the first alternative if the check of every alternative raises one."""
    refused = []
    for each in alternatives(question):
        try:
            return check(each)
        except BadInput as error:
            refused.append(error)
    raise refused[0]


def combinations(weights: tuple[Sequence[Dtype], Sequence[Dtype]], caches: Sequence[KvDtype]) -> tuple[Formats, ...]:
    """Return every combination of the weights asked for prefill and decode and the formats of the cache.

    Combinations with one checkpoint come first, so that they win ties.
    """
    pairs = sorted(product(*weights), key=lambda pair: pair[0] != pair[1])
    return tuple(Formats(prefill=own, decode=other, kv=kv) for own, other in pairs for kv in caches)


def usual_weights(hardware: HardwareSpec, native: Dtype) -> list[Dtype]:
    """Return the formats that a device multiplies, and the model's native format where the device can store it."""
    found = list(multiplied(hardware))
    return found if native in found or native not in storable(hardware) else [*found, native]
