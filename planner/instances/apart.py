"""AFD decode (attention and experts on separate devices): every split of whole nodes, every number of domains.

The grid holds a coarse part of these rows (``instances.grid``). The others are ten times as many and seldom win. So the
best choice without them is found first, and only rows that may beat it are costed in full. Bounds decide, at the
requests that an instance would have to run:

    n = needed rate x TPOT limit x tokens of an answer / (attention groups x tokens per step),   T(n) <= TPOT limit

for n/T(n) rises with n. The bounds are, in turn: attention alone at each TP and experts alone at each EP, with all
requests in one microbatch; both of a split, without the round trip and with the fewest domains (more domains read
weights more often and shorten no step); then every number of domains and microbatches exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, Ints
from planner.closed_forms.fullest import FullestRank
from planner.costs.deployment import Deployment
from planner.costs.latency import accepted_tokens, balanced_cost
from planner.instances.brackets import largest
from planner.instances.candidates import Count, iteration
from planner.instances.grid import LARGEST_TENSOR, smallest_redundancy
from planner.instances.space import COLUMNS, Row, groups, layouts, pool_counts, table_deployment
from planner.manifest.stacks import stacked, stage_timings
from planner.manifest.stepcost import draft_seconds, passage, stage_sum
from planner.manifest.terms import Number, StepCost, StepLoad, larger, variables
from planner.question import Question
from planner.serving.tables import LARGEST_BATCH
from planner.strategy import Strategy, model_conflicts

MOST_DOMAINS = 16
"""Most attention domains. They take turns on the expert devices: each of 16 waits for fifteen others in every layer."""
_COLUMN = {name: place for place, name in enumerate(COLUMNS)}
_SLACK = 1e-9
_MOST_RATE = 1e12
Layout = tuple[int, int, int]  # EP, redundant slots, dedicated shared ranks


class Apart(NamedTuple):
    """Rows that may carry the needed rate, and the number of rows that a bound prunes, each with a number of drafts."""

    rows: list[Row]
    dropped: int


class Alone(NamedTuple):
    """The most requests that keep the limit with attention alone or experts alone, of layouts of one structure."""

    layouts: list["Layout"]
    attention: Floats  # requests of each attention group, [drafts, TP]
    experts: Floats  # requests of the whole instance, [drafts, layouts]


def _most_alone(question: Question, count: Count) -> list[Alone]:
    """Return the most requests of attention alone and of experts alone, which do not depend on other rows."""
    machines, moe = question.decode, question.model.moe
    assert moe is not None, "asked of a model with experts"
    step = machines.devices_per_node
    held = [
        (count, redundant, dedicated)
        for count in range(step, machines.devices, step)
        if count > 1 and smallest_redundancy(moe.experts, count) is not None
        for redundant, dedicated in layouts(
            question, Strategy(moe_ep=count, domains=1), "decode", question.pin("decode")
        )
    ]
    structures = ([layout for layout in held if (layout[2] > 0) == apart] for apart in (False, True))
    return [
        _Bounds(question, lambda sizes: np.zeros(sizes.shape), count, _base(question, own[0])).alone(own)
        for own in structures
        if own
    ]


def apart_rows(question: Question, needed: Callable[[Ints], Floats], count: Count) -> Apart:
    """Return the rows whose bounds reach the rate ``needed`` of one instance of so many devices."""
    found: dict[Row, None] = {}
    dropped = 0
    for own in _most_alone(question, count):
        bounds = _Bounds(question, needed, count, _base(question, own.layouts[0]))
        every, able = bounds.splits(own)
        splits = every[able]
        splits = splits[bounds.relaxed(splits)] if len(splits) else splits
        wide = with_domains(splits)
        passed = wide[bounds.exact(wide)] if len(wide) else wide
        dropped += len(every) - len(splits) + len(wide) - len(passed)
        found |= dict.fromkeys(_row(line) for line in passed)
    return Apart(rows=list(found), dropped=dropped)


def with_domains(splits: Floats) -> Floats:
    """Return every whole number of domains that divides the attention groups of each split."""
    tp, experts, groups_of_all = splits[:, 0], splits[:, _COLUMN["moe_ep"]], _groups(splits)
    found = []
    for domains in range(1, MOST_DOMAINS + 1):
        each = groups_of_all / domains
        able = (np.abs(each - np.round(each)) < _SLACK) & (np.round(each) > 1) & (each * tp <= experts * (1 + _SLACK))
        table = splits[able].copy()
        table[:, _COLUMN["attention_dp"]], table[:, _COLUMN["domains"]] = np.round(each[able]), domains
        found.append(table)
    return np.concatenate(found)


def _groups(table: Floats) -> Floats:
    return np.round(table[:, _COLUMN["attention_dp"]] * table[:, _COLUMN["domains"]], 6)


def _row(line: Floats) -> Row:
    tp, dp, _, experts, _, domains, redundant, dedicated, _ = (int(value) for value in line)
    strategy = Strategy(attention_tp=tp, attention_dp=dp, moe_ep=experts, domains=domains)
    return Row(strategy, redundant, dedicated)


def _base(question: Question, layout: Layout) -> Deployment:
    """Return the deployment that represents rows of a structure."""
    experts, redundant, dedicated = layout
    row = Row(Strategy(attention_dp=2, moe_ep=experts, domains=1), redundant, dedicated)
    return groups(question, "decode", [row], 0)[0].deployment


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds on rows of one structure; tables are [rows, columns of COLUMNS]."""

    question: Question
    needed: Callable[[Ints], Floats]
    count: Count
    base: Deployment

    def alone(self, held: list[Layout]) -> Alone:
        """Return the most requests of attention alone at each TP, and of experts alone in each layout."""
        depths, layout = len(self.question.drafts), np.array(held, dtype=np.float64)
        attention = self._most_running(self._attention(self._degrees, layout[0]), attention=True)
        experts = self._most_running(self._experts(layout), attention=False).reshape(depths, -1)
        return Alone(held, attention.reshape(depths, -1), experts * layout[:, 0])

    @property
    def _degrees(self) -> Floats:
        step = self.question.decode.devices_per_node
        powers = [1 << power for power in range(min(step, LARGEST_TENSOR).bit_length())]
        tried = (Strategy(attention_tp=tp, attention_dp=2, moe_ep=2, domains=1) for tp in powers if tp <= step)
        return np.array(
            [each.attention_tp for each in tried if next(model_conflicts(each, self.question.model), None) is None],
            dtype=np.float64,
        )

    def splits(self, own: Alone) -> tuple[Floats, NDArray[np.bool_]]:
        """Return every split of every size, [splits], and whether attention alone and experts alone keep the limit.

        A domain has at most as many devices as the experts, which hold its trampolines (xDeepServe section 3). So the
        fewest domains are attention devices over expert devices, a fraction in this table of bounds.
        """
        machines, depths = self.question.decode, self.question.drafts
        step = machines.devices_per_node
        degrees, attention, experts = self._degrees, own.attention, own.experts
        most = self.question.max_instance_devices or machines.devices
        sizes = np.array(
            [size for size in pool_counts(machines) if size % step == 0 and size <= most], dtype=np.float64
        )
        layout = np.array(own.layouts, dtype=np.float64)
        total = self._running(sizes)
        depth, size, place, degree = (
            each.ravel() for each in np.indices((len(depths), sizes.size, len(own.layouts), degrees.size))
        )
        devices, tp, held = sizes[size] - layout[place, 0], degrees[degree], layout[place, 0]
        domains = np.maximum(devices / held, 1.0)
        exists = devices > np.maximum(tp * domains, 0)  # several groups in a domain
        able = total[size] * tp <= attention[depth, degree] * np.maximum(devices, 1)
        able &= total[size] <= experts[depth, place]
        one = np.ones_like(tp)
        drafts = np.array(depths, dtype=np.float64)[depth]
        dp = devices / (tp * domains)
        table = np.column_stack([tp, dp, one, held, one, domains, layout[place, 1], layout[place, 2], drafts])
        return table[exists], able[exists]

    def relaxed(self, table: Floats) -> NDArray[np.bool_]:
        """Whether attention and experts keep the limit with the fewest domains and microbatches, [splits]."""
        cost, running = self._cost(table), self._running_of(table)
        took = least_seconds(cost, self._load(cost, table, running))
        self.count.evaluated += running.size
        return np.asarray(took <= self._limit(table) * (1 + _SLACK))

    def exact(self, table: Floats) -> NDArray[np.bool_]:
        """Whether steps keep the limit with some number of microbatches, [rows]."""
        cost, running = self._cost(table), self._running_of(table)
        fullest = FullestRank.of(self.question.workload, _groups(table))
        parts = self.question.microbatches
        self.count.evaluated += running.size * len(parts)
        took = [np.asarray(iteration(cost, fullest, np.maximum(running, each), each)) for each in parts]
        return np.asarray(np.minimum.reduce(took) <= self._limit(table) * (1 + _SLACK))

    def _attention(self, degrees: Floats, layout: Floats) -> Floats:
        """Return a row of each attention TP with each number of drafts, in the smallest domain."""
        experts, redundant, dedicated = layout
        lines = [
            (tp, 2, 1, experts, 1, 1, redundant, dedicated, drafts) for drafts in self.question.drafts for tp in degrees
        ]
        return np.array(lines, dtype=np.float64)

    def _experts(self, held: Floats) -> Floats:
        """Return a row of each layout with each number of drafts, with as many attention as expert devices."""
        lines = [
            (1, experts, 1, experts, 1, 1, redundant, dedicated, drafts)
            for drafts in self.question.drafts
            for experts, redundant, dedicated in held
        ]
        return np.array(lines, dtype=np.float64)

    def _most_running(self, table: Floats, *, attention: bool) -> Floats:
        """Return the most requests per group at which attention alone, or experts alone, keep the limit, [rows]."""
        cost = self._cost(table)

        def seconds(running: Number) -> Number:
            self.count.evaluated += int(np.size(running))
            load = self._load(cost, table, running, 1.0 if attention else _groups(table))
            return least_seconds(cost, load, attention, not attention)

        least, most = np.ones(len(table)), np.full(len(table), float(LARGEST_BATCH * LARGEST_TENSOR))
        found = largest(seconds, self._limit(table), least, most)
        return np.asarray(found + 1.0)  # integers are tried, but the requests that an instance must run are no integer

    def _cost(self, table: Floats) -> StepCost:
        return stacked(balanced_cost(table_deployment(self.base, table), self.question.balance))

    def _limit(self, table: Floats) -> Floats:
        """Longest step within the limit, in seconds, [rows]."""
        accepted = accepted_tokens(table_deployment(self.base, table), self.question.acceptance)
        return np.broadcast_to(self.question.tpot_seconds * np.asarray(accepted), (len(table),))

    def _running(self, sizes: Floats) -> Floats:
        """Return the requests that an instance of so many devices has to run, [instances]."""
        rate = np.minimum(self.needed(np.round(sizes).astype(np.int64)), _MOST_RATE)
        return np.asarray(rate * self.question.tpot_seconds * self.question.workload.decoded_tokens)

    def _running_of(self, table: Floats) -> Floats:
        """Return the requests that each group of a row has to run, [rows]."""
        groups_of_all = _groups(table)
        sizes = table[:, 0] * groups_of_all + table[:, _COLUMN["moe_ep"]]
        return np.maximum(self._running(sizes) / groups_of_all, 1.0)

    def _load(self, cost: StepCost, table: Floats, running: Number, ranks: Number | None = None) -> StepLoad:
        fullest = FullestRank.of(self.question.workload, _groups(table) if ranks is None else ranks)
        return StepLoad(
            decode_sequences=running,
            decode_kv_tokens=fullest.kv_tokens(running),
            mean_tokens=running * cost.queries_per_sequence,
        )


def least_seconds(cost: StepCost, load: StepLoad, attention: bool = True, experts: bool = True) -> Number:
    """Return the least seconds of a step: the longer of attention and of all domains on the expert devices, or of one.

    Work in parts takes no less than at once; the round trip and the last microbatch only add time.
    """
    values = variables(cost, load, 1)
    stages = stage_timings(cost.terms, values)
    parts = passage(cost, stages)
    layer: Number = cost.domains * parts.occupied if experts else 0.0
    if not attention:
        return cost.moe_layers * layer + cost.host_seconds
    layer = larger(parts.attention, layer)
    once = {**stage_timings(cost.head_terms, values), **stage_timings(cost.draft_terms, values)}
    dense = cost.dense_layers * stage_sum(stages, ("attention", "dense"))
    drafts = draft_seconds(cost, stages, once, layer, 1)
    return dense + cost.moe_layers * layer + drafts + stage_sum(once, ("head",)) + cost.host_seconds
