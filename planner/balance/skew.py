"""How unequally experts are loaded, stated: a distribution over the experts of a layer, or what was measured.

A prediction without measured loads rests on such a distribution; it stands in the assumptions of every answer, and
``--expert-skew`` changes it.
"""

import functools
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats
from ground.errors import BadInput
from ground.names import suggest

_MOST_SIGMA = 3.0
_MOST_EXPONENT = 3.0


_ESFT = "counts of ESFT vanilla-lite, 26 layers x 64 experts, github.com/deepseek-ai/ESFT commit 579a7711"
_DRIFT = (
    "drift from NVIDIA TensorRT-LLM tech blog 4: DeepSeek-R1, EP32 with 32 redundant experts, busiest rank 1.109 at "
    "1024 routed tokens per rank; placement and run saw the same data set, so it is a lower end"
)
_DRIFT_LOG_SIGMA = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDistribution:
    """Popularity of experts over a layer, and how far it moves from what placement saw.

    Log-normal by ``log_sigma``; a power law of the rank where ``exponent`` is above 0; as measured where ``shares`` are
    given, the mean over layers of the loads in falling order.
    """

    name: str
    log_sigma: float = 0.0
    """Standard deviation of the logarithm of expert loads."""
    drift_log_sigma: float = _DRIFT_LOG_SIGMA
    """Standard deviation of the logarithm of present over past load, expert by expert, independent."""
    source: str
    exponent: float = 0.0
    shares: tuple[float, ...] = ()

    @property
    def described(self) -> str:
        """The name with its parameter."""
        if self.shares or self.exponent:
            return self.name
        return f"{self.name} (log sigma {self.log_sigma:g})"


MIXED = LoadDistribution(
    name="mixed-domains",
    log_sigma=0.51,
    drift_log_sigma=0.10,
    source=f"standard deviation of log load, mean over layers, four domains mixed: {_ESFT}; {_DRIFT}",
)
"""Traffic of several domains, the default."""

SINGLE_DOMAIN = LoadDistribution(
    name="single-domain",
    log_sigma=1.04,
    drift_log_sigma=0.10,
    source=f"the same, translation alone: {_ESFT}; {_DRIFT}",
)
"""Traffic of one domain: as skewed as TensorRT-LLM tech blog 4 measured DeepSeek-R1 on a translation data set."""


def parse_skew(text: str) -> LoadDistribution:
    """Read --expert-skew: mixed-domains, single-domain, log-normal=SIGMA or power-law=EXPONENT.

    Raises:
        BadInput: anything else.
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


def expert_loads(distribution: LoadDistribution, experts: int) -> Floats:
    """Typical expert loads of one layer: the mid-point quantiles of the log-normal, hottest first, mean 1.

    w_i proportional to exp(sigma * Phi^-1(1 - (i + 1/2) / experts)); [experts], in units of the mean expert.
    """
    return quantile_loads(distribution, experts).copy()


@functools.lru_cache(maxsize=64)
def quantile_loads(distribution: LoadDistribution, experts: int) -> Floats:
    """The typical loads of ``expert_loads``, read-only, [experts].

    Raises:
        BadInput: the loads were measured on a model with another number of experts.
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
