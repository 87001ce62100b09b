"""What arrives: requests from the manifest's workload, at a rate or in a closed loop, or from a trace."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ground.arrays import Floats, Ints
from ground.errors import BadInput
from ground.traces import Trace
from planner.manifest.schema import ManifestWorkload
from runtime.simulate.engine import generator

_AT_ONCE = 1 << 16
Row = tuple[float, int, int, int]  # arrival, input, output and reused tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Offered requests, one element each. ``concurrency`` > 0: a closed loop, arrivals follow completions.

    The first ones, as many as ``begun_tokens`` has elements, are in decode when the run begins: so many tokens are
    out, which count as their input, and ``output_tokens`` are the rest. ``blocks`` are the identifiers of a prompt's
    blocks of ``block_tokens``. A request with a ``session`` and a ``delay_seconds`` that is a number is sent so long
    after the end of the one before it in its session.
    """

    arrival_seconds: Floats
    input_tokens: Ints
    output_tokens: Ints
    reused_tokens: Ints
    concurrency: int = 0
    begun_tokens: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    blocks: tuple[Ints, ...] | None = None
    block_tokens: int = 0
    session: Ints | None = None
    delay_seconds: Floats | None = None

    def __len__(self) -> int:
        return len(self.input_tokens)

    def rows(self) -> Iterator[Row]:
        """Return the requests one by one."""
        columns = (self.arrival_seconds, self.input_tokens, self.output_tokens, self.reused_tokens)
        return zip(*(column.tolist() for column in columns), strict=True)

    def piece(self, first: int, last: int) -> "Requests":
        """Return the requests from ``first`` up to ``last``, of which as many as before are in decode already."""
        chosen = slice(first, last)
        return replace(
            self,
            arrival_seconds=self.arrival_seconds[chosen],
            input_tokens=self.input_tokens[chosen],
            output_tokens=self.output_tokens[chosen],
            reused_tokens=self.reused_tokens[chosen],
            begun_tokens=self.begun_tokens[chosen],
        )

    def within(self, most_tokens: int) -> "Requests":
        """Return the same requests, prompt and answer together ending at a model's context, as those of a plan do."""
        inputs = np.minimum(self.input_tokens, max(most_tokens - 1, 1))
        return replace(
            self,
            input_tokens=inputs,
            output_tokens=np.clip(self.output_tokens, 1, np.maximum(most_tokens - inputs, 1)),
            reused_tokens=np.minimum(self.reused_tokens, inputs - 1),
        )

    @property
    def under_way(self) -> int:
        """Requests that are in decode when the run begins."""
        return len(self.begun_tokens)


def open_loop(workload: ManifestWorkload, requests_per_second: float, count: int, seed: int = 0) -> Requests:
    """Return ``count`` requests at a mean rate; gaps are Gamma with the workload's squared coefficient of variation.

    A squared coefficient of variation of 1 is Poisson, 0 is a constant gap; shape = 1/CV².
    """
    drawn = _at_once(workload, count, seed)
    cv2, mean = workload.arrival_cv2, 1.0 / requests_per_second
    random = generator(seed, "arrivals")
    gaps = random.gamma(1.0 / cv2, mean * cv2, count) if cv2 > 0 else np.full(count, mean)
    return replace(drawn, arrival_seconds=np.cumsum(gaps))


def open_stream(
    workload: ManifestWorkload, requests_per_second: float, count: int, seed: int = 0
) -> Iterator[Requests]:
    """Yield the requests of an open loop in parts of 65,536, so that memory does not grow with their number.

    The parts of a stream are not those of ``open_loop`` with the same seed: each part draws anew.
    """
    start = 0.0
    for part, first in enumerate(range(0, count, _AT_ONCE)):
        drawn = open_loop(workload, requests_per_second, min(_AT_ONCE, count - first), seed=seed * 100_003 + part)
        yield replace(drawn, arrival_seconds=drawn.arrival_seconds + start)
        start += float(drawn.arrival_seconds[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulation:
    """Two states of a Markov-modulated Poisson process: ``burst`` times the rate of calm, that share of the time."""

    burst: float
    share: float
    mean_burst_seconds: float


def modulated(
    workload: ManifestWorkload, requests_per_second: float, count: int, modulation: Modulation, seed: int = 0
) -> Requests:
    """Return requests of a two-state Markov-modulated Poisson process with the given mean rate.

    Calm rate c and burst rate b·c alternate with exponential stays; c = rate / (1 - p + b·p) with p the share of time
    in bursts (W. Fischer and K. Meier-Hellstern, The Markov-modulated Poisson process cookbook, 1993).
    """
    if not (modulation.burst >= 1 and 0 < modulation.share < 1 and modulation.mean_burst_seconds > 0):
        raise BadInput("--bursts: needs a factor from 1, a share between 0 and 1 and a positive duration")
    drawn = _at_once(workload, count, seed)
    calm = requests_per_second / (1 - modulation.share + modulation.burst * modulation.share)
    stays = modulation.mean_burst_seconds * np.array([(1 - modulation.share) / modulation.share, 1.0])
    random = generator(seed, "arrivals")
    # Unit exponentials are the integral of the rate between arrivals: a walk over the stays turns them into times.
    marks = np.cumsum(random.exponential(1.0, count))
    edges, mass = [0.0], [0.0]
    state = int(random.random() < modulation.share)
    while mass[-1] <= marks[-1]:
        length = random.exponential(stays[state])
        edges.append(edges[-1] + length)
        mass.append(mass[-1] + length * calm * (modulation.burst if state else 1.0))
        state = 1 - state
    return replace(drawn, arrival_seconds=np.interp(marks, mass, edges))


def closed_loop(workload: ManifestWorkload, concurrency: int, count: int, seed: int = 0) -> Requests:
    """Return ``count`` requests of which ``concurrency`` are always under way, the first of them at once."""
    return replace(_at_once(workload, count, seed), concurrency=concurrency)


def backlog(workload: ManifestWorkload, count: int, seed: int = 0, per_second: float | None = None) -> Requests:
    """Return ``count`` requests of offline work: all there at time 0, or one by one."""
    made = _at_once(workload, count, seed + 1_000_003)
    return made if per_second is None else replace(made, arrival_seconds=np.arange(count) / per_second)


def with_running(requests: Requests, count: int, seed: int = 0, drafts: int = 0) -> Requests:
    """Return ``requests`` with ``count`` more that are in decode when the run begins, as in a stationary stream.

    Running ones are those of the stream weighted by the tokens that they decode, all but the first, each at a uniform
    point of its own (D. R. Cox, Renewal Theory, section 5.4), in the order in which they came; they spare a run the
    many residences in which a decode pool near saturation fills up. A stream of one-token answers decodes nothing: it
    is returned as it is.
    """
    random = generator(seed, "running")
    decoded = requests.output_tokens - 1
    if not decoded.any():
        return requests
    chosen = random.choice(len(requests), count, p=decoded / decoded.sum())
    done = (random.random(count) * decoded[chosen]).astype(np.int64)
    # Tokens of all take about as long, so who has most done came first, unless drafts shuffle those who leave.
    came = random.permutation(count) if drafts else np.argsort(-done, kind="stable")
    chosen, done = chosen[came], done[came]
    outputs = requests.output_tokens[chosen]
    return Requests(
        arrival_seconds=np.concatenate([np.zeros(count), requests.arrival_seconds]),
        input_tokens=np.concatenate([requests.input_tokens[chosen] + done, requests.input_tokens]),
        output_tokens=np.concatenate([outputs - done, requests.output_tokens]),
        reused_tokens=np.concatenate([np.zeros(count, dtype=np.int64), requests.reused_tokens]),
        begun_tokens=done,
    )


def from_trace(trace: Trace, workload: ManifestWorkload, seed: int = 0) -> Requests:
    """Return the requests of a trace; reuse follows its block identifiers in the run's cache, else the workload's."""
    reused = np.zeros(len(trace), dtype=np.int64)
    return Requests(
        arrival_seconds=trace.arrival_seconds,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        reused_tokens=_reused(workload, trace.input_tokens, seed) if trace.hash_ids is None else reused,
        blocks=trace.hash_ids,
        block_tokens=trace.block_tokens,
        session=trace.session,
        delay_seconds=trace.delay_seconds,
    )


def _at_once(workload: ManifestWorkload, count: int, seed: int) -> Requests:
    """Return drawn requests that are all there at time 0."""
    if workload.answer_kinds is not None:
        answers = workload.answer_kinds
        outputs = _whole(answers.tokens, _drawn(answers.weights, count, generator(seed, "outputs")))
    else:
        outputs = _lengths(workload.output_tokens, workload.output_cv2, count, generator(seed, "outputs"))
    if workload.prompt_kinds is not None:
        prompts = workload.prompt_kinds
        chosen = _drawn(prompts.weights, count, generator(seed, "inputs"))
        inputs = _whole(prompts.tokens, chosen)
        reused = np.minimum(np.array(prompts.reused)[chosen].astype(np.int64), inputs - 1)
    else:
        inputs = _lengths(workload.input_tokens, workload.input_cv2, count, generator(seed, "inputs"))
        reused = _reused(workload, inputs, seed)
    return Requests(arrival_seconds=np.zeros(count), input_tokens=inputs, output_tokens=outputs, reused_tokens=reused)


def _drawn(weights: list[float], count: int, random: np.random.Generator) -> Ints:
    """Return so many kinds, each as likely as its weight says."""
    likely = np.array(weights)
    return random.choice(likely.size, count, p=likely / likely.sum()).astype(np.int64)


def _whole(tokens: list[float], chosen: Ints) -> Ints:
    lengths: Ints = np.maximum(np.rint(np.array(tokens)), 1).astype(np.int64)
    return lengths[chosen]


def _lengths(mean: float, cv2: float, count: int, random: np.random.Generator) -> Ints:
    """Return lengths of at least 1: all equal, or log-normal with sigma² = ln(1 + CV²)."""
    if cv2 == 0:
        return np.full(count, max(round(mean), 1), dtype=np.int64)
    variance = np.log1p(cv2)
    drawn = random.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)


def _reused(workload: ManifestWorkload, inputs: Ints, seed: int) -> Ints:
    """Return reused prompt tokens: a request hits with the chance reuse / share of hits, or not at all.

    Per-request reuse in Mooncake's conversation trace is bimodal (many near 0, a tenth above 0.95);
    at least one token of each prompt is computed.
    """
    share = max(workload.prefix_reuse_of_hits, workload.prefix_reuse)
    hits = generator(seed, "reuse").random(len(inputs)) < workload.prefix_reuse / share
    return np.minimum((inputs * np.where(hits, share, 0.0)).astype(np.int64), inputs - 1)
