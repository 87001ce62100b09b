"""The strategies that a search tries: every shape of every instance size, less what a named rule cuts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal

from models.spec import ModelSpec
from planner.strategy import Strategy, model_conflicts
from podplan.records import dataclass

Role = Literal["prefill", "decode", "mixed"]

LARGEST_TENSOR = 16
LARGEST_PIPELINE = 8
# Attention and experts apart: xDeepServe section 5.2 runs three domains of TP 1; wider TP is for tighter TPOT.
# More of both is in planner.apart.
MOST_DOMAINS = 3
APART_TENSOR = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Grid:
    """Strategies in a fixed order, and how many more each rule cut."""

    strategies: tuple[Strategy, ...]
    cut: dict[str, int]


def device_counts(devices: int, devices_per_node: int, extra_step: int | None = None) -> list[int]:
    """Return the instance sizes to try in a pool, ascending: powers of two and multiples of a node.

    ``extra_step`` adds its multiples, such as 32 devices on a supernode whose pools are cut that way.
    """
    counts = set(range(devices_per_node, devices + 1, devices_per_node))
    counts.update(_powers_of_two(devices))
    if extra_step:
        counts.update(range(extra_step, devices + 1, extra_step))
    return sorted(counts)


def smallest_redundancy(experts: int, ranks: int) -> int | None:
    """Return the fewest extra slots with which ``experts`` divide evenly over ``ranks``.

    -E mod G, which is at most one replica of each expert up to G = 2E; None beyond.
    """
    extra = -experts % ranks
    return extra if extra <= experts else None


def enumerate_strategies(
    spec: ModelSpec,
    counts: Sequence[int],
    devices_per_node: int,
    *,
    role: Role,
    largest_pipeline: int = LARGEST_PIPELINE,
) -> list[Strategy]:
    """Return the default grid for instances of ``counts`` devices, in a fixed order; see ``strategy_grid``."""
    grid = strategy_grid(spec, counts, devices_per_node, role=role, largest_pipeline=largest_pipeline)
    return list(grid.strategies)


def strategy_grid(
    spec: ModelSpec,
    counts: Sequence[int],
    devices_per_node: int,
    *,
    role: Role,
    largest_pipeline: int = LARGEST_PIPELINE,
    apart_step: int | None = None,
) -> Grid:
    """Return the default grid for instances of ``counts`` devices, and what was cut for which reason.

    Pipeline stages are powers of two. Attention TP is a power of two inside a node or the whole
    stage, at most 16; its DP is the rest. Prefill of latent attention is tried staged (SP) too.
    Expert TP is chosen like attention TP and EP is the rest, which includes pure EP and pure TP;
    a dense model mirrors its attention. Every pair of both is a candidate (MixServe section
    III-C2); ``_cut`` says which are left out. Order: count, PP, attention TP, SP last, expert TP.

    With ``apart_step`` decode of a model with experts is tried on attention and expert devices apart as well, both
    in multiples of that many (xDeepServe section 5.2); these come after all others. They are the coarse part of what
    ``planner.apart`` looks for once a plan is known.
    """
    kept: list[Strategy] = []
    cut: Counter[str] = Counter()
    sizes = sorted(set(counts))
    tried = [_candidates(spec, count, devices_per_node, role, largest_pipeline) for count in sizes]
    if apart_step and role == "decode" and spec.moe is not None:
        tried += [_apart(count, apart_step) for count in sizes]
    known: dict[tuple[int, ...], bool] = {}
    for strategy in chain.from_iterable(tried):
        reason = _cut(strategy, spec, known)
        if reason is None:
            kept.append(strategy)
        else:
            cut[reason] += 1
    return Grid(tuple(kept), dict(sorted(cut.items())))


def _candidates(spec: ModelSpec, count: int, per_node: int, role: Role, largest_pipeline: int) -> Iterator[Strategy]:
    """Yield every combination for one instance size."""
    may_stage = role == "prefill" and spec.attention.kind == "mla" and spec.attention.indexer is None
    for pp in (n for n in _powers_of_two(largest_pipeline) if count % n == 0):
        stage = count // pp
        degrees = _tensor_degrees(stage, per_node)
        for tp in degrees:
            for staged in (False, True) if may_stage and tp > 1 else (False,):
                for moe_tp in degrees if spec.moe else (tp,):
                    yield Strategy(
                        attention_tp=tp,
                        attention_dp=stage // tp,
                        staged=staged,
                        moe_tp=moe_tp,
                        moe_ep=stage // moe_tp,
                        pp=pp,
                    )


def _apart(count: int, step: int) -> Iterator[Strategy]:
    """Yield attention domains beside pure EP, each domain and the experts in multiples of ``step`` devices.

    Domains are alike, at most ``MOST_DOMAINS``; each holds DP groups of ``APART_TENSOR`` devices.
    """
    if count % step:
        return
    for domains in range(1, MOST_DOMAINS + 1):
        for domain in range(step, (count - step) // domains + 1, step):
            experts = count - domains * domain
            for tp in APART_TENSOR:
                yield Strategy(attention_tp=tp, attention_dp=domain // tp, moe_ep=experts, domains=domains)


def _tensor_degrees(stage: int, per_node: int) -> list[int]:
    """Return the TP degrees of a stage: powers of two that divide it, inside a node or all of it."""
    powers = [n for n in _powers_of_two(min(stage, LARGEST_TENSOR)) if stage % n == 0]
    return [n for n in powers if n <= per_node or n == stage]


def _divides(strategy: Strategy, spec: ModelSpec, known: dict[tuple[int, ...], bool]) -> bool:
    """Whether the model's dimensions divide; ``known`` has the answers so far, by all that they depend on."""
    tp, ep = strategy.attention_tp, strategy.moe_ep
    experts = (min(ep, 2),) if spec.moe else (ep, strategy.attention_dp)
    degrees = (tp, strategy.staged, strategy.moe_tp, strategy.pp, min(strategy.domains, 1), *experts)
    if degrees not in known:
        known[degrees] = next(model_conflicts(strategy, spec), None) is None
    return known[degrees]


def _cut(strategy: Strategy, spec: ModelSpec, known: dict[tuple[int, ...], bool]) -> str | None:
    """Return why a candidate is not tried, None for one that is.

    The model must divide. Beyond that, expert TP stays within a factor of two of attention TP: as
    d_DP and d_EP part, hidden states are replicated d_EP/d_DP times or experts d_DP/d_EP times
    (MixServe section III-B3).
    """
    if not _divides(strategy, spec, known):
        return "the model's dimensions do not divide"
    if spec.moe is None:
        return None
    if smallest_redundancy(spec.moe.experts, strategy.moe_ep) is None:
        return "more than one spare slot per expert"
    tp, moe_tp = strategy.attention_tp, strategy.moe_tp
    if strategy.disaggregated and strategy.expert_devices > strategy.attention_devices:
        return "more devices for experts alone than for attention, which holds the requests"
    if moe_tp == 1:
        return None
    if strategy.staged:
        return "staged attention leaves tokens on every device, as pure EP takes them"
    if strategy.pp > 1 and moe_tp != tp:
        return "pipelines only with pure EP or with the TP of attention"
    if max(tp, moe_tp) > 2 * min(tp, moe_tp) and strategy.moe_ep > 1:
        return "expert TP more than a factor of two from attention TP"
    return None


def _powers_of_two(largest: int) -> list[int]:
    return [1 << exponent for exponent in range(max(largest, 0).bit_length())]
