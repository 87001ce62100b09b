"""The layouts that the asked engine can run: what a search keeps, and what it cuts by which rule."""

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from models.spec import MLA
from planner.question import Question, Role
from planner.strategy import Strategy

if TYPE_CHECKING:  # the schema of profiles takes time to build, and the reference engine needs none
    from planner.engines.rules import Broken, Setup
    from planner.engines.spec import EngineProfile

REFERENCE = "reference"
Layers = tuple[int, int]
"""Attention TP and pipeline stages."""


def most_microbatches(question: Question, role: Role, strategy: Strategy, redundant: int, dedicated: int) -> int:
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


def cut_by(question: Question, role: Role, strategy: Strategy, redundant: int, dedicated: int) -> "Broken | None":
    """Return the rule that keeps the engine from a layout at its fewest microbatches, None where nothing does."""
    if question.engine == REFERENCE:
        return None
    return _broken(question, role, strategy, (redundant, dedicated, min(question.microbatches)))


def _broken(question: Question, role: Role, strategy: Strategy, layout: tuple[int, int, int]) -> "Broken | None":
    """Return the rule that a layout of (redundant, dedicated, microbatches) breaks with any of the drafts asked."""
    from planner.engines.rules import Broken, Setup, broken_rule

    profile, model = _profile(question.engine), question.model
    machines = question.prefill if role == "prefill" else question.decode
    redundant, dedicated, microbatches = layout
    staged = profile.prefill_decode.pipeline
    if strategy.pp > 1 and role != "mixed" and not staged.value:
        return Broken("pair-pipeline", "prefill and decode instances take no pipeline stages", staged.source)
    for drafts in (0,) if role == "prefill" else question.drafts:
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
            weights=machines.weights,
        )
        broken = broken_rule(profile, setup)
        if broken is not None:
            return broken
    return None


@cache
def _profile(engine: str) -> "EngineProfile":
    from planner.engines.loader import load_engine

    return load_engine(engine)


def summary(kept: int, cut: Counter[str]) -> str:
    """Say how many layouts an engine leaves, and how many each rule cut."""
    rules = ", ".join(f"{rule} {count}" for rule, count in cut.most_common())
    return f"{kept} layouts kept" + (f", {sum(cut.values())} cut ({rules})" if cut else "")


def pairs(question: Question, prefill: set[Layers], decode: set[Layers]) -> list[tuple[set[Layers], set[Layers]]]:
    """Return sets of prefill and of decode layers that the engine lets share KV, each with each; largest first.

    One pair of all where no rule of ``engines.rules.broken_pair`` stands between any two.
    """
    if question.engine == REFERENCE:
        return [(prefill, decode)]
    from planner.engines.rules import broken_pair

    profile, found = _profile(question.engine), dict[frozenset[Layers], set[Layers]]()
    for theirs in sorted(decode):
        other = _bare(question, "decode", theirs)
        fitting = frozenset(
            ours for ours in prefill if broken_pair(profile, _bare(question, "prefill", ours), other) is None
        )
        if fitting:
            found.setdefault(fitting, set()).add(theirs)
    return [(set(ours), theirs) for ours, theirs in sorted(found.items(), key=lambda pair: -len(pair[0]))]


def _bare(question: Question, role: Role, layers: Layers) -> "Setup":
    """Return what a pair's rules read of an instance."""
    from planner.engines.rules import Setup

    machines, tp, pp = question.prefill if role == "prefill" else question.decode, *layers
    return Setup(
        strategy=Strategy(attention_tp=tp, pp=pp),
        role=role,
        devices_per_node=machines.devices_per_node,
        experts=question.model.moe.experts if question.model.moe else 0,
        device=machines.hardware.device.title,
        latent=isinstance(question.model.attention, MLA),
        kv_dtype=question.kv_dtype,
    )


def most_instances(question: Question) -> int | None:
    """Return the most instances of a role in one deployment of the engine; None where it sets no limit."""
    if question.engine == REFERENCE:
        return None
    fact = _profile(question.engine).prefill_decode.most_instances
    return None if fact is None else fact.value
