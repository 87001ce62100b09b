"""The strategies that a search tries: every shape of every instance size that no named rule cuts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from ground.identity import Same
from models.spec import ModelSpec
from planner.question import Role
from planner.strategy import Strategy, model_conflicts

LARGEST_TENSOR = 16
LARGEST_PIPELINE = 8
# Attention and experts apart: xDeepServe section 5.2 runs three domains of TP 1; wider TP is for tighter TPOT.
# More of both is in planner.instances.apart.
MOST_DOMAINS = 3
APART_TENSOR = (1, 2, 4)


class Grid(NamedTuple):
    """Strategies in a fixed order, and the number that each rule cut."""

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


def strategy_grid(
    spec: ModelSpec,
    counts: Sequence[int],
    devices_per_node: int,
    *,
    role: Role,
    apart_step: int | None = None,
) -> Grid:
    """Return the default grid for instances of ``counts`` devices, and the number cut by each rule.

    Pipeline stages are powers of two. Attention TP is a power of two inside a node or the whole
    stage, at most 16; its DP is the rest. Prefill of latent attention is tried staged (SP) too.
    Expert TP is chosen like attention TP and EP is the rest, which includes pure EP and pure TP;
    a dense model mirrors its attention. Every pair of both is a candidate (MixServe section
    III-C2); ``_cut`` says which are left out. Order: count, PP, attention TP, SP last, expert TP.

    With ``apart_step`` decode of a model with experts is tried on attention and expert devices apart as well, both
    in multiples of that many (xDeepServe section 5.2); these come after all others. They are the coarse part of what
    ``instances.apart`` looks for once a plan is known.
    """
    sizes = tuple(sorted(set(counts)))
    return _grid(Same(spec), _Sizes(sizes, devices_per_node, apart_step), role)


class _Sizes(NamedTuple):
    """The properties of machines that decide the strategies."""

    counts: tuple[int, ...]
    devices_per_node: int
    apart_step: int | None


@lru_cache(maxsize=16)
def _grid(same: Same[ModelSpec], sizes: _Sizes, role: Role) -> Grid:
    """Return the grid of a role."""
    spec, step = same.value, sizes.apart_step
    together = _together(same, sizes)
    kept = [strategy for strategy in together.kept if role == "prefill" or not strategy.staged]
    cut = together.cut + together.cut_staged if role == "prefill" else together.cut
    if step and role == "decode" and spec.moe is not None:
        apart, more, _ = _sorted_out((_apart(count, step) for count in sizes.counts), spec)
        kept, cut = kept + apart, cut + more
    return Grid(tuple(kept), dict(sorted(cut.items())))


class _Together(NamedTuple):
    """Strategies with attention and experts on the same devices, staged ones included, and the number cut."""

    kept: list[Strategy]
    cut: Counter[str]
    cut_staged: Counter[str]


@lru_cache(maxsize=8)
def _together(same: Same[ModelSpec], sizes: _Sizes) -> _Together:
    """Return the strategies that all roles share, filtered once for all roles."""
    spec = same.value
    return _Together(*_sorted_out((_candidates(spec, count, sizes) for count in sizes.counts), spec))


def _sorted_out(
    tried: Iterable[Iterable[Strategy]], spec: ModelSpec
) -> tuple[list[Strategy], Counter[str], Counter[str]]:
    """Return the strategies that no rule cuts, and the number cut by each rule, first not staged, then staged."""
    kept: list[Strategy] = []
    cut: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    known: dict[tuple[int, ...], bool] = {}
    for strategy in chain.from_iterable(tried):
        reason = _cut(strategy, spec, known)
        if reason is None:
            kept.append(strategy)
        else:
            cut[strategy.staged][reason] += 1
    return kept, *cut


def _candidates(spec: ModelSpec, count: int, sizes: _Sizes) -> Iterator[Strategy]:
    """Yield every combination for one instance size."""
    may_stage = spec.attention.kind == "mla" and spec.attention.indexer is None
    for pp in (n for n in _powers_of_two(LARGEST_PIPELINE) if count % n == 0):
        stage = count // pp
        # TP degrees of a stage: powers of two that divide the stage, within a node or equal to the stage
        powers = [n for n in _powers_of_two(min(stage, LARGEST_TENSOR)) if stage % n == 0]
        degrees = [n for n in powers if n <= sizes.devices_per_node or n == stage]
        for tp in degrees:
            for staged in (False, True) if may_stage and tp > 1 else (False,):
                for moe_tp in degrees if spec.moe else (tp,):
                    yield Strategy(tp, stage // tp, staged, moe_tp, stage // moe_tp, pp)


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
                yield Strategy(tp, domain // tp, False, 1, experts, domains=domains)


def _divides(strategy: Strategy, spec: ModelSpec, known: dict[tuple[int, ...], bool]) -> bool:
    """Whether the model's dimensions divide by the degrees; ``known`` keeps earlier answers by degrees."""
    tp, dp, staged, moe_tp, ep, pp, domains = strategy
    key = (tp, staged, moe_tp, pp, domains > 0, ep > 1) if spec.moe else (tp, staged, moe_tp, pp, domains > 0, ep, dp)
    if key not in known:
        known[key] = next(model_conflicts(strategy, spec), None) is None
    return known[key]


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
    tp, dp, staged, moe_tp, ep, pp, domains = strategy
    if smallest_redundancy(spec.moe.experts, ep) is None:
        return "more than one spare slot per expert"
    if domains and moe_tp * ep > tp * dp * domains:
        return "more devices for experts alone than for attention, which holds the requests"
    if moe_tp == 1:
        return None
    if staged:
        return "staged attention leaves tokens on every device, as pure EP takes them"
    if pp > 1 and moe_tp != tp:
        return "pipelines only with pure EP or with the TP of attention"
    if max(tp, moe_tp) > 2 * min(tp, moe_tp) and ep > 1:
        return "expert TP more than a factor of two from attention TP"
    return None


def _powers_of_two(largest: int) -> list[int]:
    return [1 << exponent for exponent in range(max(largest, 0).bit_length())]
