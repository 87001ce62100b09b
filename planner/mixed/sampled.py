"""TTFT at an aggregated instance by a fixed sample of its steps, where prompts that differ are cut over several.

A long prompt keeps its DP rank from others for dozens of steps, each longer than the one before it, and all ranks
leave a step together: so it delays those behind it on its own rank, and those on all other ranks as well. A chain over
what waits does not carry whose parts are under way. Here the steps themselves are made (``mixed.step_recursion``) for
streams that are the same for every question, and running requests come and go with them:

- lengths and gaps are even over their distributions (``queues.even_streams``);
- each rank begins with what a line of one server finds in the long run, known as a distribution: that of
  ``mixed.rank_line``, with the mean of each kind's services, for that is what the sample feeds it;
- that line, fed by the same prompts, is a control variate, as are the mean and the square of its services: streams are
  weighted so that all three have their known means.

While a long prompt is computed fewer requests begin to run, more of them at once when it is done, and what it has
cached lengthens the steps of its own answer. With running requests held at their mean TTFT was 1 to 4 % short at half
load, and 6 to 24 % at 85 % of saturation (350-token answers; docs/queueing.md).

Ref: P. Glasserman, Monte Carlo Methods in Financial Engineering, 2004, sections 4.1 (control variates), 4.4 (Latin
hypercubes); T. Hesterberg and B. Nelson, Control variates for probability and quantile estimation, Manage. Sci.
44:1295, 1998.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.mixed.rank_line import RankLine, Steps, rank_line
from planner.mixed.step_recursion import Instance, Played, Streams, play
from planner.mixed.steps import Aggregate, bare_seconds, loaded_seconds, part_slopes, without_prompts_seconds
from planner.queues.even_streams import even_gaps, even_levels, without_rarest
from planner.queues.machine import Loads, Machine
from planner.queues.pass_surface import PassSurface
from planner.queues.prompts import Prompts
from planner.queues.queueing import Array, gamma_quantiles
from planner.queues.waiting_line import Wait, stationary_wait, waits_in_line
from planner.serving.latency import Latency
from planner.workload import running_kv_tokens

Ints = NDArray[np.int64]
_CUT = 1e-3
"""Share of prompts that are cut, from which on steps are sampled."""
_PROMPTS, _FEWEST_LANES, _MOST_LANES = 20_000, 8, 256
_COUNTED, _LEAST, _BEFORE, _AFTER = 40, 8, 100, 60
"""Prompts of a rank: that are counted, on few ranks and at least, whose line is known before, and that come behind."""
_BUSY, _SETTLE = (0.5, 0.7), (20, 80)
"""Prompts of a rank that settle, by how busy its line is: what waits comes and goes ever slower."""
_KNOTS, _FINER = 16, 4
_RARE = 1e-4
_SEED = 0
_LEAST_CV = 1e-3
_BESIDE = np.array([0.3, 0.8, 1.3, 2.2])
"""Running requests over their mean at which steps are tabulated."""
_LIVES, _FINE = 256, 8192
"""Levels of the lengths of answers: of those that run at the begin, and of those that come."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Prompts at one rate."""

    ttft: Latency
    step_seconds: float
    """Mean over steps."""
    prompt_steps: float
    """Share of steps that compute prompts."""
    error: float
    """Standard error of the mean TTFT as the streams differ, relative."""
    settled: float
    """Answers that fit into the steps before those that are counted."""


def differ_and_are_cut(aggregate: Aggregate) -> bool:
    """Whether prompts differ and more than one in a thousand takes several steps."""
    new = aggregate.new_tokens
    return bool(np.ptp(new) > 0 and float((new > aggregate.budget_tokens) @ aggregate.prompts.weights) > _CUT)


class SampledPrompts:
    """An instance with about so many running requests."""

    def __init__(self, aggregate: Aggregate, running: float) -> None:
        """Tabulate its steps with just so many; nothing is played yet."""
        self._aggregate, self._running = aggregate, running
        kinds = _finer(aggregate)
        self._prompts = without_rarest(kinds, np.maximum(kinds.tokens - kinds.reused, 1.0))
        self._room = float(aggregate.room(np.array(running)))
        machine = Machine(aggregate.cost, aggregate.ranks, self._room, aggregate.microbatches)
        self._surface = PassSurface(machine, float(self._prompts.tokens.max()), self._with_prompts)
        self._alone = float(bare_seconds(aggregate, np.array([running]), np.zeros(1))[0])

    def _with_prompts(self, load: Loads, mean_tokens: Array) -> Array:
        return loaded_seconds(self._aggregate, np.full(mean_tokens.shape, self._running), load, mean_tokens)

    def _instance(self, running: float) -> Instance:
        """Return what plays streams: steps tabulated over running requests, which begin as many."""
        aggregate, about = self._aggregate, _BESIDE * self._running
        of_token, of_pair, of_held = self._marginal()

        def with_prompts(load: Loads, mean_tokens: Array, beside: Array) -> Array:
            return loaded_seconds(aggregate, beside, load, mean_tokens)

        knots = np.append(0.0, np.geomspace(1.0, max(aggregate.budget_tokens, 2.0), _KNOTS))
        bare = without_prompts_seconds(aggregate, *np.meshgrid(about, knots, indexing="ij"))
        machine = Machine(aggregate.cost, aggregate.ranks, aggregate.budget_tokens, aggregate.microbatches)
        surface = PassSurface(machine, float(self._prompts.tokens.max()), with_prompts, about)
        return Instance(
            ranks=aggregate.ranks,
            room=lambda on_rank: aggregate.room(on_rank * aggregate.ranks),
            with_prompts=surface.seconds,
            without=partial(_between, bare, about, knots),
            pair_tokens=of_pair / of_token if of_token > 0 else 0.0,
            token_seconds=of_token,
            held_seconds=of_held,
            held_tokens=self._held_tokens,
            answer_tokens=self._held_tokens - aggregate.prompts.mean_tokens,
            running=running,
            lives=self._lives((np.arange(_LIVES) + 0.5) / _LIVES),
            most=aggregate.most,
        )

    def _lives(self, levels: Array) -> Ints:
        """Steps of answers after their first token, at levels of their distribution."""
        iterations = self._aggregate.iterations
        if self._aggregate.workload.output_tokens.mean <= 1:
            return np.zeros(levels.shape, dtype=np.int64)
        lives = iterations.mean * gamma_quantiles(iterations.squared_cv, levels)
        return np.maximum(np.rint(lives), 1.0).astype(np.int64)

    def _marginal(self) -> tuple[float, float, float]:
        """Seconds that a token, a query-key pair and a token of what is held add to parts, where these are usual."""
        room, depth = self._room, float(self._prompts.tokens @ self._prompts.weights) / 2
        usual = np.full(2, 0.8 * room)

        def seconds(tokens: float, pairs: float) -> float:
            load = np.array([tokens]), np.array([depth]), np.array([pairs]), np.zeros(1)
            return float(self._surface.seconds(load, usual[:1])[0])

        of_token, of_pair = part_slopes(seconds, room, depth)
        held = np.array([0.5, 1.5]) * self._held_tokens * max(self._running / self._aggregate.ranks, 1.0)
        load = usual, np.full(2, depth), np.full(2, room * depth), np.zeros(2)
        of_held = np.diff(loaded_seconds(self._aggregate, np.full(2, self._running), load, usual, held))[0]
        return of_token, of_pair, max(float(of_held / (held[1] - held[0])), 0.0)

    @property
    def _held_tokens(self) -> float:
        """Of a running request on average."""
        return float(running_kv_tokens(self._aggregate.workload).mean_tokens)

    def line(self, arrivals: tuple[float, float], mean_seconds: float, prompt_steps: float) -> RankLine:
        """One rank alone, given the mean step and the share of steps with prompts.

        Args: ``arrivals`` of the instance, rate and squared CV of the gaps.
        """
        steps = Steps(mean_seconds=mean_seconds, alone_seconds=self._alone, prompt_share=prompt_steps)
        return rank_line(self._aggregate, self._room, self._surface, self._prompts, steps, arrivals)

    def found(self, arrivals: tuple[float, float], line: RankLine, running: float) -> Sampled:
        """TTFT of a sample, controlled by the line of the same ``arrivals``; so many requests run at its begin."""
        ranks = self._aggregate.ranks
        counted = max(min(_COUNTED, _PROMPTS // (_FEWEST_LANES * ranks)), _LEAST, _PROMPTS // (_MOST_LANES * ranks))
        lanes = int(np.clip(_PROMPTS // (counted * ranks), _FEWEST_LANES, _MOST_LANES))
        settle = math.ceil(np.interp(arrivals[0] / ranks * float(line.usual @ line.weights), _BUSY, _SETTLE))
        each = _BEFORE + _SETTLE[-1] + counted + _AFTER
        below = np.cumsum(self._prompts.weights)
        kinds = np.minimum(np.searchsorted(below, even_levels(_SEED, lanes, each * ranks)), below.size - 1)
        gaps = even_gaps(_SEED + 1, max(arrivals[1], _LEAST_CV), lanes, each * ranks)
        times = np.cumsum(gaps, axis=1) / arrivals[0]
        first = (_BEFORE + _SETTLE[-1]) * ranks  # the same prompts are counted at each rate
        begin = first - settle * ranks
        asked = slice(first, first + counted * ranks)
        law = stationary_wait(line.usual, line.weights, arrivals[0] / ranks, max(arrivals[1] / ranks, _LEAST_CV))
        waits, heads, done = _on_line(law, times, line.usual[kinds], (begin, ranks))
        instance, reused = self._instance(running), self._prompts.reused[kinds]
        played = play(
            instance,
            Streams(
                arrivals=times,
                tokens=np.maximum(self._prompts.tokens[kinds] - reused, 1.0),
                reused=reused,
                lives=self._answers(lanes, each * ranks),
                begin_seconds=times[:, begin],
                heads=heads,
                done=done,
                first=asked.start,
                last=asked.stop,
            ),
        )
        services = line.usual[kinds[:, asked]]
        controls = np.stack([waits[:, asked].mean(axis=1), services.mean(axis=1), (services**2).mean(axis=1)])
        powers = np.stack([line.usual, line.usual**2]) @ line.weights
        told = _told(played, played.ends - times[:, asked], controls, np.append(law.mean_seconds, powers))
        residence = max(float(instance.lives.mean()), 1.0) * told.step_seconds
        return replace(told, settled=settle * ranks / arrivals[0] / residence)

    def _answers(self, lanes: int, places: int) -> Ints:
        """Steps of answers, [lanes, places]."""
        if not self._aggregate.iterations.squared_cv:
            return np.broadcast_to(self._lives(np.full(1, 0.5)), (lanes, places))
        levels = (np.arange(_FINE) + 0.5) / _FINE
        return self._lives(levels)[(even_levels(_SEED + 3, lanes, places) * _FINE).astype(np.int64)]


def _finer(aggregate: Aggregate) -> Prompts:
    """Kinds of prompts, each cut into four of the same mean where lengths are of a distribution that has no steps.

    The longest of 10,000 stay one: twice as long ones every 20,000 prompts would double the 99th percentile of a line
    that no run of some thousand requests sees.
    """
    prompts, weights = aggregate.prompts, aggregate.prompts.weights
    if aggregate.workload.prompts is not None or prompts.reused.any():
        return prompts
    middles, usual = np.cumsum(weights) - weights / 2, weights > _RARE
    levels = middles[:, None] + weights[:, None] * ((np.arange(_FINER) + 0.5) / _FINER - 0.5)
    tokens = np.interp(levels, middles, prompts.tokens)
    tokens *= (prompts.tokens / tokens.mean(axis=1))[:, None]
    tokens, masses = tokens[usual].ravel(), np.repeat(weights[usual] / _FINER, _FINER)
    tokens, masses = np.append(tokens, prompts.tokens[~usual]), np.append(masses, weights[~usual])
    return Prompts(tokens, np.zeros(tokens.size), masses)


def _between(seconds: Array, running: Array, tokens: Array, mean_tokens: Array, beside: Array) -> Array:
    """Read a table of [running, tokens] at ``beside`` and ``mean_tokens``, linear between its knots and beyond them."""
    row = running[1:-1].searchsorted(beside, side="right")
    column = tokens[1:-1].searchsorted(mean_tokens, side="right")
    right = (mean_tokens - tokens[column]) / (tokens[column + 1] - tokens[column])
    low, high = (seconds[place, column] * (1 - right) + seconds[place, column + 1] * right for place in (row, row + 1))
    below = (beside - running[row]) / (running[row + 1] - running[row])
    return np.asarray(low + (high - low) * below, dtype=np.float64)


def _on_line(law: Wait, times: Array, services: Array, since: tuple[int, int]) -> tuple[Array, Ints, Array]:
    """Waits in the lines, [lanes, prompts]; and where these stand when lanes begin: the prompt under way or next, and
    what is done of it, [lanes, ranks].

    Args: ``law`` of the waits; ``times`` and ``services`` of prompts, [lanes, prompts]; ``since``: the prompt with
    which lanes begin, and the ranks.
    """
    (begin, ranks), (lanes, prompts) = since, times.shape
    arrivals, services = (each.reshape(lanes, prompts // ranks, ranks).transpose(0, 2, 1) for each in (times, services))
    waits = waits_in_line(law, services, np.diff(arrivals, axis=-1, prepend=0.0), _SEED + 2)
    starts, now = arrivals + waits, times[:, begin, None]
    heads = np.minimum((starts + services <= now[..., None]).sum(axis=-1), prompts // ranks - 1)
    started, lasts = (np.take_along_axis(each, heads[..., None], axis=-1)[..., 0] for each in (starts, services))
    done = np.clip((now - started) / lasts, 0.0, 1.0)
    return waits.transpose(0, 2, 1).reshape(lanes, prompts), heads, done


def _told(played: Played, seconds: Array, controls: Array, known: Array) -> Sampled:
    """Weight the lanes so that ``controls`` [controls, lanes] have ``known`` means; ``seconds`` [lanes, prompts]."""
    off = controls - controls.mean(axis=1, keepdims=True)
    inverse = np.linalg.pinv(off @ off.T)
    weights = np.maximum(1 / off.shape[1] + off.T @ (inverse @ (known - controls.mean(axis=1))), 0.0)
    weights /= weights.sum()
    each = seconds.mean(axis=1)
    left = each - each.mean() - off.T @ (inverse @ (off @ each))
    found = float(weights @ each)
    masses, order = np.repeat(weights / seconds.shape[1], seconds.shape[1]), np.argsort(seconds, axis=None)
    steps = float(weights @ played.steps)
    return Sampled(
        ttft=Latency.from_masses(seconds.ravel()[order], masses[order], found),
        step_seconds=float(weights @ played.step_seconds) / max(steps, 1e-12),
        prompt_steps=float(weights @ played.prompt_steps) / max(steps, 1e-12),
        error=float(left.std(ddof=1 + known.size)) / math.sqrt(left.size) / found,
        settled=0.0,
    )
