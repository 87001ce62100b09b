"""Step cost as terms: what one step of one instance takes, as a function of what it carries.

The planner builds a ``StepCost`` per strategy and evaluates it on arrays of candidates; a manifest
carries the same terms as numbers and the runtime evaluates them step by step. There is one
function, ``stepcost.evaluate``, and no second copy of the model.

A step on one attention rank is described by ``StepLoad``; from it follow the *variables* that the
linear forms of the terms use (all per microbatch):

    one      1                                   tokens   query tokens on the rank
    decode   query tokens of running requests    kv       their cached tokens, each read once
    chunk    new prompt tokens                   context  cached tokens that those attend to
    pairs    causal query-key pairs of prompts   rows     rows of the output head
    mean     tokens per rank, mean over ranks    routed   token copies on the busiest expert rank
    fair     token copies on the mean expert rank   hit   distinct experts hit on a rank
    shared   rows of a dedicated shared-expert rank   keys    pairs/chunk, keys of a query

and, where some layers reach only part of the context (``planner.manifest.curves``), what lies within reach:

    kv_within, context_within, pairs_within      of kv, context and pairs
    kv_beyond                                    the rest of kv

and of prompts, where an indexer has something to choose and where all keys are within reach:

    chunk_chosen, pairs_chosen, picked           chunk, pairs and pairs_within if some key is out of reach, else 0
    chunk_short, context_short, pairs_short      chunk, context and pairs if none is, else 0

A compute term takes ``max(c, m) + serial·min(c, m) + min(slow·m, slow_seconds) + floor`` seconds, with
c = (flops + idle) / rate / cores, m = bytes / bandwidth, ``idle`` the FLOP-equivalent of unfilled
tiles and ``serial`` what the kernel does not overlap; a communication term takes the fastest of
its protocols, latency + bytes / rate; a curve term what was measured at its load (``planner.manifest.curves``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ground.arrays import Floats
from planner.manifest.curves import choices, context_within, curve_seconds, kept_tokens, keys_of_a_query, pairs_within

Number = float | Floats
Form = Mapping[str, Number]
_PLAIN = (float, int)
Stage = Literal["attention", "gate", "dispatch", "experts", "shared", "combine", "dense", "head", "draft"]
EXPERT_STAGES: tuple[Stage, ...] = ("gate", "dispatch", "experts", "shared", "combine")
Rule = Literal["attention_experts", "compute_communication", "disaggregated"]


class Shape(NamedTuple):
    """Which measurements a term's fit rests on, and where on their axis a step puts it: numerator / denominator.

    Rows per group of a product, keys per query of attention, bytes of a transfer; ``ranks`` of the latter.
    """

    family: str
    numerator: Form
    denominator: Form
    ranks: Number = 0.0


class ComputeTerm(NamedTuple):
    """A kernel (or a fused chain) on one device; forms are over the module's variables.

    ``residual``: median relative error of the fit that it rests on. ``share``: part of the layers of its stage that run
    it, of which work and start-up are the mean (``costs.roofline.in_some_layers``); it only counts how often it runs.
    """

    name: str
    stage: Stage
    flops: Form
    idle_flops: Form
    flops_per_second: Number
    bytes: Form
    bytes_per_second: Number
    floor_seconds: Number
    serial: float = 0.0
    slow: float = 0.0
    slow_seconds: Number = 0.0
    launches: int = 1
    residual: float = 0.0
    share: float = 1.0
    shape: Shape | None = None


class CommunicationTerm(NamedTuple):
    """A collective or an exchange: the fastest of (latency, bytes per second) protocols."""

    name: str
    stage: Stage
    bytes: Form
    protocols: tuple[tuple[Number, Number], ...]
    launches: int = 1
    residual: float = 0.0
    shape: Shape | None = None


class CurveTerm(NamedTuple):
    """Kernels of one device timed together: ``seconds`` at loads 1, 2, 4, ... of the form ``load``.

    ``flops`` and ``bytes`` are the work behind them, with the device's peaks; they tell what the kernels are bound by.
    """

    name: str
    stage: Stage
    load: Form
    seconds: tuple[Number, ...]
    flops: Form
    flops_per_second: float
    bytes: Form
    bytes_per_second: float
    launches: int = 1
    residual: float = 0.0
    shape: Shape | None = None


Term = ComputeTerm | CommunicationTerm | CurveTerm


class StepLoad(NamedTuple):
    """What one step carries on the busiest attention rank, all microbatches together.

    ``mean_tokens`` is per attention rank over all ranks of the instance (they share the experts).
    """

    decode_sequences: Number = 0.0
    decode_kv_tokens: Number = 0.0
    prefill_tokens: Number = 0.0
    prefill_context_tokens: Number = 0.0
    prefill_pairs: Number = 0.0
    finishing_prompts: Number = 0.0
    mean_tokens: Number = 0.0
    loaded_tokens: Number = 0.0  # cached tokens that are brought from a pool before the step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Terms of one role and phase, and the rule that composes them.

    ``cores`` is the number of equal partitions of the matrix cores that two streams may split
    (0: the streams are compute and communication), ``communication_share`` the share of cores
    that communication occupies while it runs, ``communication_dilation`` how much longer it takes
    beside compute. ``expert_ranks`` hold routed experts,
    ``shared_ranks`` only a shared one. ``balance`` is the busiest expert rank's expected token copies
    over the mean; ``sampling_deviations`` how many standard deviations of a Poisson count the busiest
    of the ranks lies above its expectation (0: no sampling noise). ``domains`` > 0 with the rule
    ``disaggregated``: attention domains that share the expert ranks in turn; ``attention_ranks`` are
    then those of one domain, and so is all that the variables count. ``prompt_seconds``: the least that a
    step with prompts takes, for the host to launch it. ``runs_ahead``: launches hide behind the kernels that run; eager
    decode, which waits for the tokens of the step before, adds them. ``reach_tokens``: the most keys that a query of a
    windowed or sparse layer attends to (0: there is no such layer). ``loading_seconds`` is what a cached token takes
    to come from the pool of prefixes (0: it is in device memory). A step holds as many equal parts as
    ``pipeline_stages``, of which each stage computes one at a time. Its seconds are those of one part that is alone in
    the pipeline, with ``pipeline_bubble`` of all parts, alone there, with ``pipeline_round`` of all parts that go round
    at the pace of the slowest stage. ``host_seconds`` are those of a part on one stage.
    """

    terms: tuple[Term, ...]
    head_terms: tuple[Term, ...] = ()
    draft_terms: tuple[Term, ...] = ()
    dense_layers: int
    moe_layers: int
    queries_per_sequence: Number
    attention_ranks: Number
    expert_ranks: Number
    shared_ranks: Number
    experts: int
    experts_per_token: int
    slots_per_rank: Number
    balance: Number = 1.0
    sampling_deviations: Number = 0.0
    rule: Rule
    cores: int = 0
    communication_share: float = 0.0
    communication_dilation: float = 1.0
    domains: Number = 0
    pipeline_stages: Number = 1
    pipeline_hop: CommunicationTerm | None = None
    pipeline_bubble: bool = False
    pipeline_round: bool = False
    host_seconds: Number = 0.0
    launch_seconds: float = 0.0
    runs_ahead: bool = True
    prompt_seconds: float = 0.0
    reach_tokens: int = 0
    loading_seconds: Number = 0.0

    @property
    def attention_groups(self) -> Number:
        """Attention ranks of the instance, of all its domains."""
        return self.attention_ranks * larger(self.domains, 1)


def variables(cost: StepCost, load: StepLoad, microbatches: int, experts: bool = True) -> dict[str, Number]:
    """Return the variables of the module docstring for one of ``microbatches`` equal parts.

    The busiest rank's copies are fair + sqrt((fair·(balance - 1))² + z²·balance·fair): its skew and its
    Poisson sampling noise, at most what the tokens can choose. Both are independent over ranks: their variances add,
    not their maxima. Within 5 % of a simulation from 64 tokens per rank on.
    Distinct experts hit on a rank, with N tokens of the whole instance each choosing k of the
    E experts that stand in P slots: slots · (1 - (1 - k/P)^N), uniform routing. Without ``experts`` those of the routed
    experts are left out, as the head has no use for them.
    """
    part = 1.0 / (microbatches * cost.pipeline_stages)
    decode = _times(load.decode_sequences, cost.queries_per_sequence * part)
    chunk = _times(load.prefill_tokens, part)
    mean = load.mean_tokens * part
    values: dict[str, Number] = {
        "one": 1.0,
        "decode": decode,
        "chunk": chunk,
        "tokens": plus(decode, chunk),
        "kv": _times(load.decode_kv_tokens, part),
        "context": _times(load.prefill_context_tokens, part),
        "pairs": (pairs := _times(load.prefill_pairs, part)),
        "keys": keys_of_a_query(pairs, chunk),
        "rows": plus(decode, _times(load.finishing_prompts, part)),
        "mean": mean,
    }
    if cost.reach_tokens:
        # What of the cached tokens and pairs lies within reach, for layers with a window or an indexer
        sequences = load.decode_sequences * part
        reach = cost.reach_tokens
        prompts = values["chunk"], values["context"], values["pairs"]
        values |= {
            "kv_within": _plain(kept_tokens(values["kv"], sequences, reach)),
            "context_within": _plain(context_within(*prompts, reach)),
            "pairs_within": _plain(pairs_within(*prompts, reach)),
        }
        values |= choices(values)
    if cost.experts and experts:
        values |= of_experts(cost, mean * cost.attention_ranks)
    return values


def of_experts(cost: StepCost, tokens: Number) -> dict[str, Number]:
    """Return what ``tokens`` of the whole instance bring to its expert ranks: see ``variables``."""
    fair = tokens * (cost.experts_per_token / cost.expert_ranks)
    skew, noise = (cost.balance - 1.0) ** 2, cost.sampling_deviations**2 * cost.balance
    busiest = fair + np.sqrt(fair * (fair * skew + noise))
    most = tokens * smaller(cost.experts_per_token, cost.slots_per_rank)
    chosen = smaller(cost.experts_per_token / (cost.slots_per_rank * cost.expert_ranks), 1.0 - 1e-12)
    return {
        "fair": fair,
        "routed": _plain(larger(smaller(busiest, most), fair)),
        "hit": _plain(-cost.slots_per_rank * np.expm1(tokens * np.log1p(-chosen))),
        "shared": tokens / cost.shared_ranks if dedicated(cost) else 0.0,
    }


def _times(load: Number, part: Number) -> Number:
    """Return a part of a load; what is plainly not on the step stays a plain 0, which spares arrays of zeros."""
    return load * part if isinstance(load, np.ndarray) or load else 0.0


def plus(one: Number, other: Number) -> Number:
    """Return the sum, and one of both where the other is plainly 0."""
    if isinstance(other, np.ndarray) or other:
        return one + other if isinstance(one, np.ndarray) or one else other
    return one


def dedicated(cost: StepCost) -> bool:
    """Whether the shared expert has ranks of its own."""
    ranks = cost.shared_ranks
    return ranks > 0 if isinstance(ranks, _PLAIN) else bool((ranks > 0).any())


def larger(one: Number, other: Number) -> Number:
    """Return the element-wise maximum; of two plain numbers without what a NumPy call costs."""
    if isinstance(one, _PLAIN) and isinstance(other, _PLAIN):
        return one if one >= other else other
    return np.maximum(one, other)


def smaller(one: Number, other: Number) -> Number:
    """Return the element-wise minimum, likewise."""
    if isinstance(one, _PLAIN) and isinstance(other, _PLAIN):
        return one if one <= other else other
    return np.minimum(one, other)


def _plain(value: Number) -> Number:
    """Return a NumPy scalar as the plain number that it is: arithmetic with it is several times quicker."""
    return value if isinstance(value, np.ndarray) else float(value)


def form(coefficients: Form, values: Mapping[str, Number]) -> Number:
    """Evaluate a linear form; 0 where it has no coefficient."""
    total: Number | None = None
    for name, coefficient in coefficients.items():
        part = coefficient if name == "one" else coefficient * values[name]
        total = part if total is None else total + part
    return 0.0 if total is None else total


@dataclass(slots=True)
class Timing:
    """Compute seconds at all cores, memory seconds at full bandwidth, and what nothing shortens.

    ``flops`` and ``bytes`` are the work behind them; for a transfer ``bytes`` is its payload.
    """

    compute: Number
    memory: Number
    fixed: Number
    serial: float = 0.0
    flops: Number = 0.0
    bytes: Number = 0.0

    def seconds(self, cores: Number = 1.0, dilation: Number = 1.0) -> Number:
        """Duration on a share of the cores with memory slowed by ``dilation``."""
        compute, memory = self.compute / cores, self.memory * dilation
        if compute.__class__ is float and memory.__class__ is float:  # the inner loop of every prediction
            longer: Number = compute if compute >= memory else memory
        else:
            longer = np.maximum(compute, memory)
        if not self.serial:
            return longer + self.fixed
        # serial·min(c, m) = serial·(c + m - max(c, m))
        return (1.0 - self.serial) * longer + self.serial * (compute + memory) + self.fixed


def timing(term: Term, values: Mapping[str, Number]) -> Timing:
    """Return the seconds of a term, by cause. A kernel without work (FLOP, or bytes where it has none) is not launched.

    So a mixed step without prompts pays neither for their kernels' start-up nor for the weights of those.
    """
    if isinstance(term, ComputeTerm):
        flops, moved = form(term.flops, values), form(term.bytes, values)
        compute, memory = (flops + form(term.idle_flops, values)) / term.flops_per_second, moved / term.bytes_per_second
        fixed = term.floor_seconds + (smaller(term.slow * memory, term.slow_seconds) if term.slow else 0.0)
        work = flops if term.flops else moved
        if work.all() if isinstance(work, np.ndarray) else work > 0:
            return Timing(compute, memory, fixed, term.serial, flops, moved)
        runs: Number = np.asarray(np.asarray(work) > 0, dtype=np.float64)
        return Timing(runs * compute, runs * memory, runs * fixed, term.serial, flops, moved)
    if isinstance(term, CurveTerm):
        flops, moved = form(term.flops, values), form(term.bytes, values)
        return Timing(0.0, 0.0, curve_seconds(term.seconds, form(term.load, values)), flops=flops, bytes=moved)
    payload = form(term.bytes, values)
    return Timing(0.0, 0.0, protocol_seconds(term, payload), bytes=payload)


def communication_seconds(term: CommunicationTerm, values: Mapping[str, Number]) -> Number:
    """Seconds of a transfer at the variables of a step."""
    return protocol_seconds(term, form(term.bytes, values))


def protocol_seconds(term: CommunicationTerm, payload: Number) -> Number:
    """Seconds of the fastest protocol: min over (latency, rate) of latency + bytes / rate."""
    best: Number | None = None
    for latency, rate in term.protocols:
        seconds = latency + payload / rate
        best = seconds if best is None else smaller(best, seconds)
    return 0.0 if best is None else best


@dataclass(slots=True)
class StageTiming:
    """All terms of one stage, those that only move memory or only wait added up."""

    terms: list[tuple[Term, Timing]]
    mixed: list[Timing]
    memory: Number
    fixed: Number
    demand: Number  # seconds for which the stage would keep the memory busy

    @property
    def work(self) -> Number:
        """Seconds that the stage computes on all cores."""
        return sum(own.compute for own in self.mixed)

    @property
    def rest(self) -> Number:
        """Seconds that no cores shorten and no compute hides."""
        return self.memory + self.fixed + sum(own.fixed + own.serial * own.memory for own in self.mixed)

    def on(self, cores: Number) -> "StageTiming":
        """Return the stage on a share of the cores."""
        mixed = [Timing(own.compute / cores, own.memory, own.fixed, own.serial) for own in self.mixed]
        return StageTiming(self.terms, mixed, self.memory, self.fixed, self.demand)

    def seconds(self, cores: Number = 1.0, dilation: Number = 1.0) -> Number:
        """Duration of the stage's terms one after the other."""
        total = self.memory * dilation + self.fixed
        for timing in self.mixed:
            total = total + timing.seconds(cores, dilation)
        return total


Timings = Mapping[Stage, StageTiming]


def timings(terms: tuple[Term, ...], values: Mapping[str, Number]) -> Timings:
    """Return the timing of every stage, in the order of ``terms``."""
    result: dict[Stage, StageTiming] = {}
    for term in terms:
        stage = result.setdefault(term.stage, StageTiming([], [], 0.0, 0.0, 0.0))
        own = timing(term, values)
        stage.terms.append((term, own))
        stage.demand = stage.demand + own.memory
        if isinstance(term, ComputeTerm) and term.flops:
            stage.mixed.append(own)
        else:
            stage.memory = stage.memory + own.memory
            stage.fixed = stage.fixed + own.fixed
    return result


def layer_share(term: Term) -> float:
    """Part of the layers of its stage that run a term."""
    return term.share if isinstance(term, ComputeTerm) else 1.0


def launches_per_layer(terms: tuple[Term, ...]) -> dict[Stage, float]:
    """Return the kernels launched per layer of each stage."""
    result: dict[Stage, float] = {}
    for term in terms:
        result[term.stage] = result.get(term.stage, 0.0) + term.launches * layer_share(term)
    return result
