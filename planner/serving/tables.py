"""Step times of an instance: one table of the step cost, which the loops of ``planner.loops`` interpolate.

Evaluating a step cost takes tens of microseconds for one load, and a fraction of one per load on arrays. So
``step_table`` evaluates it once on a grid of loads, and loops interpolate linearly between the knots
(``planner.loops.tables_loop``). At a fixed number of tokens the cost is piecewise linear in pairs and in context
(kernels take the longer of compute and memory traffic), so few knots suffice; a linear cost is met exactly.
"""

import pickle
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, distinct
from ground.identity import Kept
from planner.loops.arrays import TableArrays
from planner.manifest.stacks import stacked
from planner.manifest.stepcost import evaluate, evaluate_each, layers_per_stage
from planner.manifest.terms import StepCost, StepLoad
from planner.serving.streams import longest_prompt
from planner.workload import Workload, running_kv_tokens

LARGEST_BATCH, LARGEST_BUDGET = 4096, 16_384
"""Batch slots and prompt tokens a step of a DP rank: the most that are tried."""
_SHARES, _LENGTHS, _LONGER, _PREFIXES = 4, 5, 4, (0.0, 1.0, 2.0, 4.0, 16.0)
_TOKENS, _TOKENS_OF_SEVERAL = 32, 20
"""Knots along the tokens of a rank; fewer in steps of several ranks, whose table has the most axes."""
_LEVELS_PER_OCTAVE = 0.5
_EXACT_COUNTS, _COUNTS_PER_OCTAVE, _MEANS = 8, 6, 14
_MORE_ROWS = 9.0
_BLOCK = 8192  # loads per evaluation: few calls, and temporary arrays that fit the processor's cache


class Loads(NamedTuple):
    """Largest loads of a table."""

    ranks: int
    budget_tokens: float  # most prompt tokens of a rank in a step, with pipeline stages in one of the batches in flight
    longest_prompt: float
    context_tokens: float = 0.0
    """Longest prompt of other traffic, where it is longer: more knots beyond, which change nothing before."""
    most_running: int = 0  # most running requests of all ranks together; 0 in prefill
    kv_tokens_per_request: float = 0.0  # mean cached tokens of a running request
    microbatches: int = 1  # most microbatches; a step takes the quicker number
    fewest_microbatches: int = 1
    stages: int = 1  # pipeline stages: a step is one of so many batches in flight. 1 where they all stand for one step


def step_table(cost: StepCost, loads: Loads) -> TableArrays:
    """Return the seconds of steps up to the largest loads; beyond them the last cell is extrapolated.

    The mean error over random loads is within 1 %, the largest 6.5 % (``tests/planner/serving/test_tables.py``).
    """
    ranks, most, layers = loads.ranks, loads.most_running, max(cost.dense_layers + cost.moe_layers, loads.stages)
    budget = max(loads.budget_tokens, 2.0)
    tokens = _TOKENS_OF_SEVERAL if most and ranks > 1 else _TOKENS
    axes = {
        "levels": _levels(most if loads.budget_tokens else 0),
        "shares": np.geomspace(1 / ranks, 1.0, _SHARES) if ranks > 1 else np.ones(1),
        "tokens": distinct(np.round(np.geomspace(1.0, budget, tokens if loads.budget_tokens else 2))),
        "lengths": _lengths(max(loads.longest_prompt, 2.0), loads.context_tokens, cost.reach_tokens),
        "prefixes": np.array(_PREFIXES),
    }
    running = _counts(most)
    means = distinct(np.append(0.0, np.round(np.geomspace(1.0, budget, _MEANS - 1))))
    shape = tuple(axis.size for axis in axes.values())
    level, share, token, length, prefix = np.meshgrid(*axes.values(), indexing="ij", sparse=True)
    lasts = _Seconds(cost, loads)
    loaded, alone, more = lasts.of(  # in one call, whose time hardly depends on the number of loads
        lasts.columns(shape, level, (token, prefix * length, token * length, 1.0), token * share),
        lasts.columns((running.size, means.size), running[:, None], (0.0, 0.0, 0.0, 0.0), means[None, :]),
        lasts.more(running),
    )
    return TableArrays(
        **axes,
        loaded=loaded,
        running=running,
        means=means,
        alone=alone,
        **lasts.slopes(running, more),
        head_seconds=lasts.heads(running),
        prompt_seconds=float(lasts.heads(running[:1], 1.0)[0] - lasts.heads(running[:1])[0]),
        layers=np.array(layers_per_stage(layers, loads.stages)) / layers,
        ranks=float(loads.ranks),
        loading_seconds=float(np.max(cost.loading_seconds)),
    )


def _lengths(longest: float, context: float, reach: int) -> Floats:
    """Keys of a query; those from which some are out of reach, half of it in a fresh prompt, are among them."""
    usual = np.geomspace(1.0, longest, _LENGTHS)
    beyond = np.geomspace(longest, context, _LONGER)[1:] if context > longest else np.zeros(0)
    bends = [bend for bend in (reach / 2, float(reach)) if 1.0 < bend < max(longest, context)]
    return distinct(np.concatenate([usual, beyond, bends]))


def _levels(most: int) -> Floats:
    """Numbers of running requests beside which loads with prompts are evaluated."""
    if not most:
        return np.zeros(1)
    count = 2 + round(_LEVELS_PER_OCTAVE * np.log2(max(most, 2)))
    return distinct(np.append(0.0, np.round(np.geomspace(1.0, max(most, 2), count))))


def _counts(most: int) -> Floats:
    """Numbers of running requests at which a rank without prompts is evaluated: all small ones, then geometric."""
    few = np.arange(0.0, min(max(most, 1), _EXACT_COUNTS) + 1)
    if most <= _EXACT_COUNTS:
        return few
    count = 2 + round(_COUNTS_PER_OCTAVE * np.log2(most / _EXACT_COUNTS))
    return distinct(np.append(few, np.round(np.geomspace(_EXACT_COUNTS, most, count))))


_TABLES = Kept[TableArrays](most=256)  # step tables by the content of the step cost and by the largest loads


def aggregated_times(
    cost: StepCost,
    workload: Workload,
    budget_tokens: int,
    context_tokens: int,
    microbatches: int,
    *,
    longer: bool = False,
) -> TableArrays:
    """Return the step table of an aggregated instance, one for all slots and all budgets up to the largest.

    A plan and its simulation interpolate in the same cells: close to saturation 0.2 % of a step is a third of TTFT.

    Args: ``longer``: whether prompts longer than the workload's may come, as of a trace.
    """
    ranks, stages = int(cost.attention_groups), int(cost.pipeline_stages)
    loads = Loads(
        ranks=ranks,
        budget_tokens=float(max(budget_tokens, LARGEST_BUDGET)) / stages,
        longest_prompt=min(longest_prompt(workload), float(context_tokens)),
        context_tokens=float(context_tokens) if longer else 0.0,
        most_running=ranks * LARGEST_BATCH,
        kv_tokens_per_request=running_kv_tokens(workload).mean_tokens,
        microbatches=microbatches,
        stages=stages,
    )
    # A refusal tries the same rows on many sizes; a digest of the cost takes a twentieth of its table's time.
    return _TABLES.of((blake2b(pickle.dumps(cost)).digest(), loads), lambda: step_table(stacked(cost), loads))


class _Seconds(NamedTuple):
    """Seconds of a rank's step, by running requests of all ranks and its (tokens, context, pairs, ended prompts)."""

    cost: StepCost
    loads: Loads

    def columns(
        self,
        shape: tuple[int, ...],
        running: Floats,
        prompts: tuple[Floats | float, Floats | float, Floats | float, Floats | float],
        mean_prompts: Floats | float,
        kv_tokens: Floats | None = None,
        more_sequences: Floats | float = 0.0,
    ) -> list[Floats]:
        """Return the columns of loads, each of the broadcast ``shape``.

        Args: ``mean_prompts``: prompt tokens of the mean rank; ``kv_tokens`` cached on the rank, None: the usual
            number; ``more_sequences``: requests of the rank beyond the mean.
        """
        each = running / self.loads.ranks
        kv = each * self.loads.kv_tokens_per_request if kv_tokens is None else kv_tokens
        mean = each * self.cost.queries_per_sequence + mean_prompts
        held = (each + more_sequences, kv, *prompts, mean)  # the step cost is of all parts that stages hold
        return [np.broadcast_to(np.asarray(column, dtype=np.float64) * self.loads.stages, shape) for column in held]

    def of(self, *parts: list[Floats]) -> list[Floats]:
        """Return the seconds of the loads of every part, each in the shape of that part."""
        columns = [np.concatenate([column.ravel() for column in held]) for held in zip(*parts, strict=True)]
        result = np.empty(columns[0].size)
        for start in range(0, result.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            result[part] = self._fastest(
                StepLoad(**dict(zip(_LOAD, (column[part] for column in columns), strict=True)))
            )
        ends = np.cumsum([part[0].size for part in parts])[:-1]
        return [held.reshape(part[0].shape) for held, part in zip(np.split(result, ends), parts, strict=True)]

    def _fastest(self, load: StepLoad) -> Floats:
        """Return the seconds with the quicker number of microbatches; two need a rank with two tokens or requests."""
        fewest = self.loads.fewest_microbatches
        counts = (fewest, 2) if self.loads.microbatches > fewest and self.cost.moe_layers else (fewest,)
        single, *double = (each.seconds for each in evaluate_each(self.cost, load, counts))
        if not double:
            return np.asarray(single)
        splittable = np.maximum(np.maximum(load.prefill_tokens, load.decode_sequences), load.mean_tokens) >= 2
        return np.where(splittable, np.minimum(single, double[0]), single)

    def heads(self, running: Floats, prompt_tokens: float = 0.0) -> Floats:
        """Return what the last pipeline stage takes beyond its layers of a step of so many, [running]."""
        prompts = (prompt_tokens, 0.0, prompt_tokens, 0.0)
        columns = self.columns(running.shape, running, prompts, prompt_tokens)
        load = StepLoad(**dict(zip(_LOAD, columns, strict=True)))
        if self.loads.stages == 1:
            return np.zeros(running.shape)
        return np.full(running.shape, evaluate(self.cost, load, 1).head_seconds)  # a view would be compiled for anew

    def _usual(self, running: Floats) -> tuple[Floats, Floats]:
        """Return the usual cached tokens of a rank, and the step in them over which their slope is taken."""
        usual = running / self.loads.ranks * self.loads.kv_tokens_per_request
        return usual, np.maximum(0.5 * usual, 1.0)

    def more(self, running: Floats) -> list[Floats]:
        """Return the loads of ``slopes``: 0, 1, several ended prompts; bare, more cached tokens, one more request."""
        usual, step = self._usual(running)
        tokens = max(self.loads.budget_tokens / 2, 1.0) * np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])[:, None]
        rows = np.array([0.0, 1.0, 1.0 + _MORE_ROWS, 0.0, 0.0, 0.0])[:, None]
        fuller, wider = np.zeros((6, 1)), np.zeros((6, 1))
        fuller[4] = wider[5] = 1.0
        prompts = (tokens, 0.0, tokens * tokens / 2, rows)
        return self.columns((6, running.size), running, prompts, tokens, usual + fuller * step, wider)

    def slopes(self, running: Floats, seconds: Floats) -> dict[str, Floats]:
        """Return the seconds that an ended prompt, a cached token and a request beyond the mean add, each [running]."""
        usual, step = self._usual(running)
        none, first, more, bare, full, wide = seconds
        return {
            "first_row_seconds": first - none,
            "row_seconds": (more - first) / _MORE_ROWS,
            "usual_kv": usual,
            "kv_seconds": np.where(running > 0, (full - bare) / step, 0.0),
            "sequence_seconds": np.where(running > 0, wide - bare, 0.0),
        }


_LOAD = (
    "decode_sequences",
    "decode_kv_tokens",
    "prefill_tokens",
    "prefill_context_tokens",
    "prefill_pairs",
    "finishing_prompts",
    "mean_tokens",
)
