"""What traffic looks like: lengths, burstiness, reuse; from figures or from the rows of a trace."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ground.errors import BadInput
from models.parameters import Encoding, Pictures, Seen
from planner.manifest.terms import Number

LengthShape = Literal["lognormal", "gamma"]

EDGES = np.concatenate(  # levels between which prompts are taken as one: finer where long ones hold the others up
    [np.linspace(0.0, 0.9, 25), [0.925, 0.95, 0.965, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 0.99999, 1.0]]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Distribution of a length in tokens over requests, by two moments; fixed lengths have squared CV 0."""

    mean: float
    squared_cv: float = 0.0  # squared coefficient of variation: variance over squared mean
    shape: LengthShape = "lognormal"  # shape of the distribution with these moments, where more than moments count

    def __post_init__(self) -> None:
        if not 0 < self.mean < np.inf:
            raise BadInput(f"A mean length of {self.mean:g} tokens must be positive and finite.")
        if not 0 <= self.squared_cv < np.inf:
            raise BadInput(f"A squared coefficient of variation of {self.squared_cv:g} must be 0 or more.")

    @property
    def variance(self) -> float:
        """Var[L] = mean^2 c^2, in squared tokens."""
        return self.mean**2 * self.squared_cv

    @property
    def second_moment(self) -> float:
        """E[L^2] = mean^2 (1 + c^2), in squared tokens."""
        return self.mean**2 * (1 + self.squared_cv)

    @property
    def third_moment(self) -> float:
        """E[L^3] = mean^3 (1 + c^2)(1 + 2 c^2), in cubic tokens, as if the lengths were gamma distributed."""
        return self.mean**3 * (1 + self.squared_cv) * (1 + 2 * self.squared_cv)


class Sessions(NamedTuple):
    """Requests that follow each other: turns of a conversation, or steps of an agent with tools and joins."""

    turns: int
    new_tokens: Lengths  # new tokens of a prompt, after the conversation so far
    think_seconds: float = 0.0  # mean pause between an answer and the next turn
    branches: int = 1  # requests of a turn, sent at once; the next turn waits for all
    keeps_answers: bool = True  # whether the KV of answers goes to the pool; of reasoning models it normally does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Traffic of one model: lengths of prompts and answers, how bursty arrivals are, how much of prompts is reused."""

    input_tokens: Lengths
    output_tokens: Lengths
    prefix_reuse: float = 0.0  # mean share of prompt tokens whose KV is there; by request from none to nearly all
    arrival_squared_cv: float = 1.0  # squared coefficient of variation of the gaps between arrivals; 1 is Poisson
    length_covariance: float = 0.0  # covariance of prompt and answer length, in squared tokens
    prompts: tuple[tuple[float, float, float], ...] | None = None
    """Kinds of prompts as (tokens, reused tokens, weight), as a trace has them; None: by the moments."""
    answers: tuple[tuple[float, float], ...] | None = None
    """Kinds of answers as (tokens, weight), as a histogram has them; queues take their moments."""
    sessions: Sessions | None = None  # where prompts follow each other; their kinds and reuse are the fields above
    trace: "TraceRows | None" = field(default=None, repr=False)
    """The requests themselves, which are played as they came instead of a stationary stream; only gaps are scaled."""
    beams: int = 1  # beams of a request (beam search); each takes a token of every iteration and KV for its own answer
    pictures: Pictures | None = None  # pictures of every request; their tokens are part of the prompt
    encoding: Encoding = "fused"  # what the instances that take these requests do with their pictures

    def __post_init__(self) -> None:
        if not 0 <= self.prefix_reuse < 1:
            raise BadInput(f"--prefix-reuse {self.prefix_reuse:g} must be at least 0 and below 1.")
        if self.arrival_squared_cv < 0:
            raise BadInput(f"An arrival squared CV of {self.arrival_squared_cv:g} must be 0 or more (1 is Poisson).")
        spread = self.input_tokens.squared_cv * self.output_tokens.squared_cv
        most = self.input_tokens.mean * self.output_tokens.mean * float(np.sqrt(spread))
        if abs(self.length_covariance) > most * (1 + 1e-9):
            raise BadInput(
                f"A length covariance of {self.length_covariance:g} must not exceed {most:g}, the product of the "
                "standard deviations of prompt and answer lengths."
            )

    @property
    def seen(self) -> Seen | None:
        """The pictures and the prompt that they are part of."""
        if self.pictures is None:
            return None
        return Seen(pictures=self.pictures, prompt_tokens=self.input_tokens.mean, encoding=self.encoding)

    @property
    def varied(self) -> bool:
        """Whether prompts differ in length or in reused tokens."""
        return bool(self.prompts is not None or self.input_tokens.squared_cv or self.prefix_reuse)

    @property
    def decoded_tokens(self) -> float:
        """Mean tokens of an answer after the first, which prefill gives; at least 1."""
        return max(self.output_tokens.mean - 1, 1.0)

    @property
    def decodes(self) -> bool:
        """Whether any answer goes on after the token that prefill gives: else no KV is sent, and there is no TPOT."""
        return self.output_tokens.mean > 1 or self.output_tokens.squared_cv > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """Requests for whose answers nobody waits, so many for each online one; lengths are fixed."""

    per_request: float
    input_tokens: float
    output_tokens: float

    def beside_rate(self, online_per_second: float) -> dict[str, float]:
        """Return rate and lengths beside so many online requests per second."""
        rate = self.per_request * online_per_second
        return {"requests_per_second": rate, "input_tokens": self.input_tokens, "output_tokens": self.output_tokens}

    def beside(self, online: Workload) -> Workload:
        """Return the traffic of online and offline requests together, by its moments."""
        weights = np.array([1.0, self.per_request]) / (1.0 + self.per_request)
        sides = (online.input_tokens, self.input_tokens), (online.output_tokens, self.output_tokens)
        means = np.array([[own.mean, other] for own, other in sides])  # [prompts and answers, online and offline]
        spreads = np.array([own.variance * weights[0] for own, _ in sides])
        both = means @ weights
        apart = means - both[:, None]
        variance = spreads + apart**2 @ weights
        prompt, answer = (
            Lengths(mean=float(mean), squared_cv=float(square) if (square := own / mean**2) > _EQUAL else 0.0)
            for mean, own in zip(both, variance, strict=True)
        )
        shared = weights[0] * online.length_covariance + float(apart[0] * apart[1] @ weights)
        covariance = shared if prompt.squared_cv and answer.squared_cv else 0.0
        return Workload(input_tokens=prompt, output_tokens=answer, length_covariance=covariance, beams=online.beams)


_EQUAL = 1e-12  # squared coefficient of variation below which lengths are equal


class KvLoad(NamedTuple):
    """KV tokens that one running request holds, over running requests and moments."""

    mean_tokens: float
    variance_squared_tokens: float


def running_kv_tokens(workload: Workload) -> KvLoad:
    """KV tokens of a running request in decode: its prompt and what it has answered so far.

    A request runs for as many iterations as it answers tokens, so running requests are those of the trace weighted by
    L_out, each at a uniform point U of its answer: X = L_in + U L_out.

        E[X]         = E[L_in L_out]/E[L_out] + E[L_out^2]/(2 E[L_out])
        Var[U L_out] = E[L_out^3]/(3 E[L_out]) - (E[L_out^2]/(2 E[L_out]))^2

    The third moment is that of a gamma distribution. Fixed lengths give L_in + L_out/2 and L_out^2/12.

    Returns the mean in tokens and the variance of what is answered so far, in squared tokens; it is that of what is
    still to come, too.

    Ref: length bias of renewal processes, D. R. Cox, Renewal Theory, section 5.4; derived here.
    """
    prompt, answer = workload.input_tokens, workload.output_tokens
    half = answer.second_moment / (2 * answer.mean)
    mean = prompt.mean + workload.length_covariance / answer.mean + half
    phase = answer.third_moment / (3 * answer.mean) - half**2
    return KvLoad(mean_tokens=mean, variance_squared_tokens=max(phase, 0.0))


def total_kv_tokens(load: KvLoad, requests: Number, standard_deviations: Number) -> Number:
    """KV tokens of ``requests`` requests, that many standard deviations above the mean: n E + z sqrt(n Var).

    What memory n requests need if they may outgrow it only rarely.
    """
    return requests * load.mean_tokens + standard_deviations * np.sqrt(requests * load.variance_squared_tokens)


def reserved_kv_tokens(workload: Workload) -> KvLoad:
    """KV tokens that admission reserves for one running request: its prompt and its whole answer.

    Running requests are those of the trace weighted by L_out, so with X = L_in + L_out

        E[X]   = E[L_in L_out]/E[L_out] + E[L_out^2]/E[L_out]
        Var[X] = Var[L_in] + Var[L_out] (1 + c_out^2), lengths taken as independent for the variance

    Returns the mean in tokens, variance in squared tokens. Fixed lengths give L_in + L_out and 0.

    Ref: xDeepServe (arXiv 2508.02520) section 4.3, decode placement counts the space reserved for long outputs;
    derived here.
    """
    prompt, answer = workload.input_tokens, workload.output_tokens
    beams = workload.beams
    mean = prompt.mean + workload.length_covariance / answer.mean + beams * answer.second_moment / answer.mean
    own = beams**2 * answer.variance * (1 + answer.squared_cv)
    return KvLoad(mean_tokens=mean, variance_squared_tokens=prompt.variance + own)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceRows:
    """Rows of a trace: one entry per request in every array; one equals itself alone."""

    arrival_seconds: ArrayLike  # not falling
    input_tokens: ArrayLike
    output_tokens: ArrayLike
    reused_tokens: ArrayLike | None = None  # prompt tokens whose KV was already there

    @classmethod
    def of(cls, requests: Any, reused_tokens: ArrayLike | None) -> Self:
        """Return the rows of anything with the other three columns, each with the prompt tokens that it reuses."""
        arrivals, prompts, answers = requests.arrival_seconds, requests.input_tokens, requests.output_tokens
        return cls(arrival_seconds=arrivals, input_tokens=prompts, output_tokens=answers, reused_tokens=reused_tokens)

    def scaled(self, prompts: float, answers: float) -> "TraceRows":
        """Return the requests with lengths so many times as long, of at least a token."""
        tokens = np.maximum(np.rint(np.asarray(self.input_tokens) * prompts), 1)
        reused = None if self.reused_tokens is None else np.minimum(np.asarray(self.reused_tokens) * prompts, tokens)
        output = np.maximum(np.rint(np.asarray(self.output_tokens) * answers), 1)
        return replace(self, input_tokens=tokens, output_tokens=output, reused_tokens=reused)


class Traffic(NamedTuple):
    """A workload and the mean rate at which it came."""

    workload: Workload
    rate_per_second: float

    @classmethod
    def from_trace(cls, trace: TraceRows) -> Self:
        """Moments of a trace. Gaps of zero are kept: time stamps on a coarse grid read as bursts.

        Raises BadInput for a trace that ``trace_arrays`` refuses.
        """
        arrivals, prompts, answers, reused = trace_arrays(trace)
        gaps = np.diff(arrivals)
        workload = Workload(
            input_tokens=_moments(prompts),
            output_tokens=_moments(answers),
            prefix_reuse=float(np.minimum(reused, prompts).sum() / prompts.sum()),
            arrival_squared_cv=float(gaps.var() / gaps.mean() ** 2),
            length_covariance=float(np.mean((prompts - prompts.mean()) * (answers - answers.mean()))),
            prompts=kinds_of_rows(prompts, np.minimum(reused, prompts - 1)),
        )
        return cls(workload=workload, rate_per_second=float(1 / gaps.mean()))


def trace_arrays(trace: TraceRows) -> tuple[NDArray[np.float64], ...]:
    """Return arrivals in seconds, prompt, answer and reused tokens of a trace, each [requests].

    Raises BadInput: fewer than 2 requests, arrays of unequal length, a request without tokens, or arrivals that fall or
    all coincide.
    """
    arrivals = np.asarray(trace.arrival_seconds, dtype=np.float64)
    prompts = np.asarray(trace.input_tokens, dtype=np.float64)
    answers = np.asarray(trace.output_tokens, dtype=np.float64)
    reused = np.zeros_like(prompts) if trace.reused_tokens is None else np.asarray(trace.reused_tokens, float)
    if not (arrivals.shape == prompts.shape == answers.shape == reused.shape) or arrivals.ndim != 1:
        raise BadInput("A trace must hold one arrival, prompt length and answer length for every request.")
    if arrivals.size < 2:
        raise BadInput(f"A trace of {arrivals.size} requests must hold at least 2 to tell a rate.")
    if min(prompts.min(), answers.min()) < 1 or reused.min() < 0:
        raise BadInput("Every request of a trace must have a prompt and an answer of at least 1 token.")
    gaps = np.diff(arrivals)
    if gaps.min() < 0 or gaps.sum() <= 0:
        raise BadInput("The arrival times of a trace must not fall and must span more than one instant.")
    return arrivals, prompts, answers, reused


def _moments(lengths: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Lengths:
    return Lengths(mean=float(lengths.mean()), squared_cv=float(lengths.var() / max(lengths.mean(), 1e-9) ** 2))


def histogram_lengths(tokens: NDArray[np.float64], weights: NDArray[np.float64]) -> Lengths:
    """Return the moments of lengths with those weights, [rows] each; the weights sum to 1."""
    mean = float(tokens @ weights)
    return Lengths(mean=mean, squared_cv=float((tokens - mean) ** 2 @ weights) / mean**2)


def kinds_of_rows(tokens: NDArray[np.float64], reused: NDArray[np.float64]) -> tuple[tuple[float, float, float], ...]:
    """Return (tokens, reused, weight) of the requests of a trace, grouped by what is left to compute."""
    order = np.argsort(tokens - reused, kind="stable")
    cuts = np.unique(np.round(EDGES * order.size).astype(np.int64))
    return tuple(
        (float(tokens[part].mean()), float(reused[part].mean()), part.size / order.size)
        for first, last in pairwise(cuts)
        for part in (order[first:last],)
    )
