"""How unequally experts are loaded, and how much longer the busiest expert-parallel rank takes than the mean one.

Loads are a distribution over the experts of a layer, or what was measured; it stands in the assumptions of every
answer, and ``--expert-skew`` changes it.

Stragglers have three causes, each an expected maximum over ranks: experts differ in popularity (the static part,
which placement removes), popularity moves after the placement was computed (drift), and an iteration routes
finitely many tokens (sampling). The first two depend on the deployment only and are one number; the third depends
on the batch and broadcasts.
"""

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, Ints, by_value
from ground.errors import BadInput, suggest
from ground.units import number_of
from planner.balance.counts import check_redundancy, longest_first, replica_counts, replicated
from planner.manifest.terms import Number

_MOST_SIGMA = 3.0
_MOST_EXPONENT = 3.0


_ESFT = "counts of ESFT vanilla-lite, 26 layers x 64 experts, github.com/deepseek-ai/ESFT commit 579a7711"
_DRIFT = (
    "drift from NVIDIA TensorRT-LLM tech blog 4: DeepSeek-R1, EP32 with 32 redundant experts, busiest rank 1.109 at "
    "1024 routed tokens per rank; placement and run saw the same data set, so it is a lower end"
)
_DRIFT_LOG_SIGMA = 0.10
_SEED = 20251
_SHUFFLES = 256
_DRIFTS = 64
_FEW_SLOTS = 7  # slots of a rank up to which loads are added slot by slot: NumPy's sums of few neighbours are slow


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDistribution:
    """Popularity of experts over a layer, and how far it moves from what placement saw.

    Log-normal by ``log_sigma``; a power law of the rank where ``exponent`` is above 0; as measured where ``shares`` are
    given, the mean over layers of the loads in falling order.
    """

    name: str
    log_sigma: float = 0.0  # standard deviation of the logarithm of expert loads
    drift_log_sigma: float = _DRIFT_LOG_SIGMA
    """Standard deviation of the logarithm of present over past load, expert by expert, independent."""
    source: str
    exponent: float = 0.0
    shares: tuple[float, ...] = ()

    @property
    def described(self) -> str:
        """The name with its parameter."""
        return self.name if self.shares or self.exponent else f"{self.name} (log sigma {self.log_sigma:g})"


MIXED = LoadDistribution(  # traffic of several domains, the default
    name="mixed-domains",
    log_sigma=0.51,
    drift_log_sigma=0.10,
    source=f"standard deviation of log load, mean over layers, four domains mixed: {_ESFT}; {_DRIFT}",
)

SINGLE_DOMAIN = LoadDistribution(
    name="single-domain", log_sigma=1.04, drift_log_sigma=0.10, source=f"the same, translation alone: {_ESFT}; {_DRIFT}"
)
"""Traffic of one domain: as skewed as TensorRT-LLM tech blog 4 measured DeepSeek-R1 on a translation data set."""


def parse_skew(text: str) -> LoadDistribution:
    """Read --expert-skew: mixed-domains, single-domain, log-normal=SIGMA or power-law=EXPONENT.

    Raises BadInput: anything else.
    """
    named = {distribution.name: distribution for distribution in (MIXED, SINGLE_DOMAIN)}
    word = text.strip().lower()
    if word in named:
        return named[word]
    kind, _, value = word.partition("=")
    if kind not in ("log-normal", "power-law"):
        known = [*named, "log-normal=SIGMA", "power-law=EXPONENT"]
        raise BadInput(
            f"--expert-skew: {text[:40]!r} is not {', '.join(known)} or a file of loads{suggest(word, known)}"
        )
    most = _MOST_SIGMA if kind == "log-normal" else _MOST_EXPONENT
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not 0 <= number <= most:
        raise BadInput(f"--expert-skew: {kind}={value[:20]} must be a number from 0 to {most:g}, such as {kind}=0.8")
    source = f"stated with --expert-skew; {_DRIFT}"
    if kind == "log-normal":
        return LoadDistribution(name="log-normal", log_sigma=number, source=source)
    return LoadDistribution(name=f"power law {number:g}", exponent=number, source=source)


def measured_distribution(loads: NDArray[Any], name: str) -> LoadDistribution:
    """Return the typical layer of measured loads [layers, experts]: the mean over layers, experts in falling order."""
    shares = np.sort(loads / loads.mean(axis=1, keepdims=True), axis=1)[:, ::-1].mean(axis=0)
    source = f"measured, {len(loads)} layers of {name}; {_DRIFT}"
    return LoadDistribution(name=f"measured in {name}", shares=tuple(shares.tolist()), source=source)


@functools.lru_cache(maxsize=64)
def quantile_loads(distribution: LoadDistribution, experts: int) -> Floats:
    """Typical expert loads of one layer: the mid-point quantiles of the log-normal, hottest first, mean 1; read-only.

    w_i proportional to exp(sigma * Phi^-1(1 - (i + 1/2) / experts)); [experts], in units of the mean expert.

    Raises BadInput: the loads were measured on a model with another number of experts.
    """
    if distribution.shares:
        if len(distribution.shares) != experts:
            raise BadInput(
                f"--expert-skew: the loads are of {len(distribution.shares)} experts per layer, the model has {experts}"
            )
        loads = np.array(distribution.shares)
    elif distribution.exponent:
        loads = np.arange(1.0, experts + 1) ** -distribution.exponent
    else:
        normal = NormalDist()
        scores = np.array([-normal.inv_cdf((i + 0.5) / experts) for i in range(experts)])
        loads = np.exp(distribution.log_sigma * scores)
    loads /= loads.mean()
    loads.setflags(write=False)
    return loads


def sample_expert_loads(distribution: LoadDistribution, layers: int, experts: int, seed: int) -> Floats:
    """Random expert loads, [layers, experts], every layer drawn on its own and scaled to mean 1.

    Log-normal loads are drawn; of the other distributions the typical loads are put in a random order.
    """
    rng = np.random.default_rng(seed)
    if distribution.shares or distribution.exponent:
        return rng.permuted(np.tile(quantile_loads(distribution, experts), (layers, 1)), axis=1)
    scores = rng.standard_normal((layers, experts))
    loads: Floats = np.exp(distribution.log_sigma * scores)
    loads /= loads.mean(axis=1, keepdims=True)
    return loads


@functools.lru_cache(maxsize=4096)
def static_factor(experts: int, ranks: int, redundant: int, distribution: LoadDistribution, balanced: bool) -> float:
    """Expected load of the busiest rank over the mean rank, for infinitely many tokens; from 1 to ``ranks``.

    Balanced: experts are placed for the typical loads by water-filling and LPT, as the engines' balancers do, then
    every expert drifts on its own: the mean over fixed draws of the busiest rank. Not balanced: slot s holds expert s
    modulo ``experts``, the layout that engines start from, and popularity is assigned to experts at random: the mean
    over fixed permutations.

    Args: ``experts``: routed experts per layer; ``ranks``: expert-parallel degree; ``redundant``: slots beyond one per
    expert, in all; ``distribution``: popularity and its drift; ``balanced``: whether the placement knows the loads.
    Raises BadInput: the slots do not fit the ranks, see ``check_redundancy``.

    Ref: derived here. Reproduces NVIDIA TensorRT-LLM tech blog 4 (2.56 without, 1.109 with balancing at EP32) and, not
    fitted, the 1.115 at EP36 of its examples/wide_ep/ep_load_balancer/README.md. Standard error below 1 %.
    """
    slots_per_rank = check_redundancy(experts, ranks, redundant)
    if balanced:
        past = quantile_loads(distribution, experts)
        counts = np.bincount(_replicated(distribution, experts)[:redundant], minlength=experts) + 1
        if redundant > experts or counts.max() > ranks:
            counts = replica_counts(past, experts + redundant, ranks)
        held = longest_first(past, counts, ranks)
        present = drifted_loads(distribution, experts)
    else:
        slots = np.arange(experts + redundant) % experts
        held, counts = slots.reshape(ranks, slots_per_rank), np.bincount(slots, minlength=experts)
        present = _shuffled_loads(distribution, experts)
    if slots_per_rank > _FEW_SLOTS:
        busiest = (present / counts)[:, held.ravel()].reshape(-1, *held.shape).sum(axis=2).max(axis=1)
    else:
        loads = present.T / counts[:, None]  # [experts, draws]
        busiest = functools.reduce(np.add, (loads[slot] for slot in held.T)).max(axis=0)
    return float(busiest.mean()) * ranks / experts


@functools.lru_cache(maxsize=8)
def _shuffled_loads(distribution: LoadDistribution, experts: int) -> Floats:
    """The typical loads in random orders, [draws, experts]; fixed seed."""
    rows = np.tile(quantile_loads(distribution, experts), (_SHUFFLES, 1))
    return np.random.default_rng(_SEED).permuted(rows, axis=1)


@functools.lru_cache(maxsize=8)
def _replicated(distribution: LoadDistribution, experts: int) -> Ints:
    """The experts that get one further slot each in turn, for up to twice as many slots as experts on many ranks."""
    return replicated(quantile_loads(distribution, experts), experts, experts)


@functools.lru_cache(maxsize=8)
def drifted_loads(distribution: LoadDistribution, experts: int) -> Floats:
    """The typical loads after drift, [draws, experts], every draw with mean 1; fixed seed."""
    scores = np.random.default_rng(_SEED).standard_normal((_DRIFTS, experts))
    loads = quantile_loads(distribution, experts) * np.exp(distribution.drift_log_sigma * scores)
    even = loads / loads.mean(axis=1, keepdims=True)
    return np.asfortranarray(even, dtype=np.float64)  # the draws of an expert together


@functools.lru_cache(maxsize=1)
def _half_line() -> tuple[Floats, float]:
    """Phi on a grid over x >= 0 and the grid's step."""
    step = 0.05
    return np.array([0.5 * (1 + math.erf(step * i / math.sqrt(2))) for i in range(201)]), step


def expected_maximum_normal(count: Number) -> Number:
    """Expected maximum of ``count`` independent standard normals.

    E = integral over x > 0 of 1 - Phi(x)^n - (1 - Phi(x))^n.

    The integrand is even and smooth, so the trapezoid rule is exact to 1e-9; valid for 1 <= n <= 1e6; any shape.
    Example: n = 2 gives 1 / sqrt(pi) = 0.5642.

    Ref: order statistics, H. A. David, Order Statistics, section 3.1; values in Tippett 1925, Biometrika 17:364.
    """
    return by_value(_expected_maximum, count)


@functools.lru_cache(maxsize=8192)
def _expected_maximum(count: float) -> float:
    """The integral for one count; a search asks again and again for the same few hundred."""
    cdf, step = _half_line()
    tail = 1.0 - cdf**count - (1.0 - cdf) ** count
    tail[0] /= 2
    return float(tail.sum() * step)


class Balance(NamedTuple):
    """What --expert-balance asked for; ``factor`` only with the kind of that name."""

    kind: Literal["perfect", "measured", "none", "factor"]
    factor: float = 1.0
    distribution: LoadDistribution = MIXED  # what the kinds measured and none rest on (``--expert-skew``)


def parse_balance(text: str) -> Balance:
    """Read --expert-balance: perfect, measured, none, or a factor from 1 on, the busiest rank over the mean.

    Raises BadInput: anything else.
    """
    word = text.strip().lower()
    for kind in ("perfect", "measured", "none"):
        if word == kind:
            return Balance(kind=kind)
    factor = number_of(word)
    if not factor >= 1.0:
        raise BadInput(
            f"--expert-balance {text!r} must be perfect, measured, none, or a factor of at least 1, the "
            "busiest rank over the mean."
        )
    return Balance(kind="factor", factor=factor)
