"""The layouts that the asked engine can run: what a search keeps, and what it cuts by which rule."""

from collections import Counter
from functools import cache
from typing import Literal

from models.spec import MLA
from planner.engines.loader import load_engine
from planner.engines.rules import Setup, broken_rule
from planner.engines.spec import EngineProfile
from planner.question import Question
from planner.strategy import Strategy

REFERENCE = "reference"


def most_microbatches(
    question: Question, role: Literal["prefill", "decode"], strategy: Strategy, redundant: int, dedicated: int
) -> int:
    """Return the most microbatches, 1 or 2, with which the engine runs a layout at every depth of drafts asked.

    0 where it cannot run the layout, or not with the microbatches that were asked. The reference engine runs all.
    """
    if question.engine == REFERENCE:
        return 2
    possible = [
        parts
        for parts in question.microbatches
        if _broken(question, role, strategy, (redundant, dedicated, parts)) is None
    ]
    return max(possible, default=0)


def cut_reason(
    question: Question, role: Literal["prefill", "decode"], strategy: Strategy, redundant: int, dedicated: int
) -> str | None:
    """Return the rule that keeps the engine from a layout at its fewest microbatches, None where nothing does."""
    if question.engine == REFERENCE:
        return None
    return _broken(question, role, strategy, (redundant, dedicated, min(question.microbatches)))


def _broken(
    question: Question, role: Literal["prefill", "decode"], strategy: Strategy, layout: tuple[int, int, int]
) -> str | None:
    """Return the rule that a layout of (redundant, dedicated, microbatches) breaks with any of the drafts asked."""
    profile, model = _profile(question.engine), question.model
    machines = question.prefill if role == "prefill" else question.decode
    redundant, dedicated, microbatches = layout
    if strategy.pp > 1 and not profile.prefill_decode.pipeline.value:
        return "pair-pipeline"
    for drafts in question.drafts if role == "decode" else (0,):
        setup = Setup(
            strategy=strategy,
            role=role,
            devices_per_node=machines.devices_per_node,
            experts=model.moe.experts if model.moe else 0,
            architecture=model.architecture,
            latent=isinstance(model.attention, MLA),
            redundant=redundant,
            dedicated=dedicated,
            drafts=drafts,
            microbatches=microbatches,
            kv_dtype=question.kv_dtype,
        )
        broken = broken_rule(profile, setup)
        if broken is not None:
            return broken.rule
    return None


@cache
def _profile(engine: str) -> EngineProfile:
    return load_engine(engine)


def summary(kept: int, cut: Counter[str]) -> str:
    """Say how many layouts an engine leaves, and how many each rule cut."""
    rules = ", ".join(f"{rule} {count}" for rule, count in cut.most_common())
    return f"{kept} layouts kept" + (f", {sum(cut.values())} cut ({rules})" if cut else "")
