"""The layouts that the question's engine can run, and how many each rule of the engine cuts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ground.identity import Kept
from models.spec import MLA
from planner.engines.loader import accelerator_of, broken_prefixes, is_blackwell, load_engine, on_pcie
from planner.engines.rules import (
    LAYOUT_CHECKS,
    ROLE_CHECKS,
    SHARED_CHECKS,
    STRATEGY_CHECKS,
    Broken,
    Check,
    Setup,
    broken_pair,
    broken_rule,
)
from planner.engines.spec import EngineProfile
from planner.question import Question, Role
from planner.strategy import Strategy

REFERENCE = "reference"
Layers = tuple[int, int]  # attention TP and pipeline stages
_SHARED = Kept[dict[Strategy, Broken | None]](most=8)
"""Results by engine, shared by its three roles, which have most strategies in common."""


@dataclass(frozen=True)
class Reach:
    """The layouts of one role that an engine runs; the reference engine runs all."""

    question: Question
    role: Role

    def cut(self, strategy: Strategy) -> Broken | None:
        """Return the rule that every layout of a strategy breaks; None where some may run."""
        if self.question.engine == REFERENCE:
            return None
        if self.apart:
            return self.apart
        if strategy.pp > 1:  # drafts matter beside pipeline stages alone
            return self._unpaired or self._broken(strategy, (0, 0, 1), STRATEGY_CHECKS, self._drafts)
        if strategy not in self._known:
            self._known[strategy] = self._broken(strategy, (0, 0, 1), SHARED_CHECKS, (0,))
        return self._known[strategy] or self._broken(strategy, (0, 0, 1), ROLE_CHECKS, (0,))

    @cached_property
    def apart(self) -> Broken | None:
        """The rule that every layout of a role of a prefill and decode pair breaks."""
        return broken_prefixes(self._profile, self.role, self.question.workload.prefix_reuse > 0)

    @cached_property
    def _unpaired(self) -> Broken | None:
        """The rule that a role of a prefill and decode pair breaks with pipeline stages."""
        staged = self._profile.prefill_decode.pipeline
        if self.role == "mixed" or staged.value:
            return None
        return Broken("pair-pipeline", "prefill and decode instances take no pipeline stages", staged.source)

    @cached_property
    def _known(self) -> "dict[Strategy, Broken | None]":
        """Results, by strategy without pipeline stages, of the rules that are the same for every role."""
        own = {name: value for name, value in self.asked.items() if name != "role"}
        return _SHARED.of((self.question.engine, *own.values()), dict)

    def most_microbatches(self, strategy: Strategy, redundant: int, dedicated: int) -> tuple[int, Broken | None]:
        """Return the most microbatches, 1 or 2, with which a layout runs at every number of drafts asked.

        Where it runs with neither: 0 and the rule that the fewest microbatches break. The strategy must not be cut.
        """
        if self.question.engine == REFERENCE:
            return 2, None
        first = None
        for parts in sorted(self.question.microbatches, reverse=True):
            first = self._broken(strategy, (redundant, dedicated, parts), LAYOUT_CHECKS, self._drafts)
            if first is None:
                return parts, None
        return 0, first

    @cached_property
    def _drafts(self) -> tuple[int, ...]:
        """Numbers of drafts of the role; a layout must run with each."""
        return (0,) if self.role == "prefill" else self.question.drafts

    @cached_property
    def _profile(self) -> EngineProfile:
        return load_engine(self.question.engine)

    def _broken(
        self, strategy: Strategy, experts: tuple[int, int, int], checks: Sequence[Check], depths: Sequence[int]
    ) -> Broken | None:
        """Return the first rule that (redundant, dedicated, microbatches) breaks at some number of drafts."""
        setup = self._setup
        setup.strategy, (setup.redundant, setup.dedicated, setup.microbatches) = strategy, experts
        for setup.drafts in depths:
            broken = broken_rule(self._profile, setup, checks)
            if broken is not None:
                return broken
        return None

    @cached_property
    def _setup(self) -> Setup:
        """The one setup that each layout writes its degrees into: a search asks about thousands."""
        return Setup(strategy=Strategy(), **self.asked)

    @cached_property
    def asked(self) -> dict[str, Any]:
        """The fields of a setup that are the same for all strategies and layouts."""
        model = self.question.model
        machines = self.question.prefill if self.role == "prefill" else self.question.decode
        return {
            "role": self.role,
            "devices_per_node": machines.devices_per_node,
            "experts": model.moe.experts if model.moe else 0,
            "accelerator": accelerator_of(machines.hardware),
            "blackwell": is_blackwell(machines.hardware),
            "pcie": on_pcie(machines.hardware),
            "architecture": model.architecture,
            "scaled_columns": model.scaled_columns(machines.weights),
            "latent": isinstance(model.attention, MLA),
            "kv_dtype": self.question.kv_dtype,
            "weights": machines.weights,
        }


def summary(kept: int, cut: Counter[str]) -> str:
    """Return a sentence with the layouts that an engine runs and the number that each rule cut."""
    rules = ", ".join(f"{rule} {count}" for rule, count in cut.most_common())
    return f"{kept} layouts kept" + (f", {sum(cut.values())} cut ({rules})" if cut else "")


def pairs(question: Question, prefill: set[Layers], decode: set[Layers]) -> list[tuple[set[Layers], set[Layers]]]:
    """Return pairs of sets of prefill and decode layers; within a pair the engine can send KV between any two.

    Largest first; one pair of all layers where no rule of ``engines.rules.broken_pair`` excludes any two.
    """
    if question.engine == REFERENCE:
        return [(prefill, decode)]
    profile, found = load_engine(question.engine), dict[frozenset[Layers], set[Layers]]()
    for theirs in sorted(decode):
        other = _bare(question, "decode", theirs)
        fitting = frozenset(
            ours for ours in prefill if broken_pair(profile, _bare(question, "prefill", ours), other) is None
        )
        if fitting:
            found.setdefault(fitting, set()).add(theirs)
    return [(set(ours), theirs) for ours, theirs in sorted(found.items(), key=lambda pair: -len(pair[0]))]


def _bare(question: Question, role: Role, layers: Layers) -> Setup:
    """Return the setup of an instance as the rules of pairs read it."""
    machines, tp, pp = question.prefill if role == "prefill" else question.decode, *layers
    strategy, device = Strategy(attention_tp=tp, pp=pp), machines.hardware.device.title
    return Setup(strategy=strategy, device=device, **Reach(question, role).asked)


def most_instances(question: Question) -> int | None:
    """Return the most instances of a role in one deployment of the engine; None for no limit."""
    if question.engine == REFERENCE:
        return None
    fact = load_engine(question.engine).prefill_decode.most_instances
    return None if fact is None else fact.value
