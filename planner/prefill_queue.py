"""Time to first token of a prefill instance: elastic bulk service.

A pass takes the prompts that wait, up to a cap, and lasts the longer the more it took. The number of prompts at pass
starts is a Markov chain; a prompt that arrives waits for the rest of the running pass, for whole passes when more
prompts than the cap stand before it, and for its own pass, which it shares with whoever came before that pass began.

Ref: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16:80, 1954; elastic batching of LLM
inference in arXiv 2407.05347, section IV. The distribution of the sojourn is derived here.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.dealt_queue import chain_states, dealt_sojourn
from planner.prefill_service import PassSeconds, Service, by_share, with_rest
from planner.queueing import Array, Latency, largest_rate
from podplan.errors import BadInput

Policy = Literal["random", "round_robin", "least_load"]

_MOST_LEVELS = 96
"""States at or under the cap; more prompts than that are counted in steps."""
_MOST_QUEUED = 256
"""States above the cap."""
_RESIDUAL_CELLS = 64
_TIME_CELLS = 1024
MOST_UTILISATION = 0.98
_REGULAR = 0.6
"""Dispersion of arrivals below which they count as dealt in turn."""
_SMALLEST_DISPERSION = 0.05
_FEW, _MANY = 2.0, 6.0
"""Prompts of a usual pass up to which dealt arrivals are followed phase by phase, and from which only their dispersion
is: in large passes nothing else tells."""
MOST_STATES = 480
"""Of the chain in phases; from half of it on their dispersion counts, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """The stationary chain at one rate; counts are in steps of ``step`` prompts."""

    rate: float
    step: float
    dispersion: float
    durations: Array
    """[sizes, nodes]: durations of passes that took 1..sizes steps."""
    weights: Array
    """[nodes]: how likely each duration is."""
    arrivals: Array
    """[sizes, nodes, counts]: distribution of the arrivals during each."""
    starts: Array
    """[sizes + queued]: distribution of what waits when a pass starts, from 1 on."""

    @property
    def sizes(self) -> int:
        return int(self.durations.shape[0])


def prefill_latency(
    *,
    arrival_rate_per_second: float,
    pass_seconds: PassSeconds,
    most_prompts: int,
    extra_seconds: float = 0.0,
    service_squared_cv: float = 0.0,
    arrival_squared_cv: float = 1.0,
) -> Latency | None:
    """Time to first token of one instance, scheduled arrival to the end of the prompt's own pass; None if unstable.

    Exact for Poisson arrivals, fixed lengths and passes that reach 96 prompts (more are counted in steps: 1 % of p99),
    but for the size of the own pass of prompts that wait whole passes (``_rest``; at a cap of 1 this is M/D/1).
    Arrivals dealt in turn, which a small squared CV stands for, are followed phase by phase where passes are small
    (``planner.dealt_queue``). Of others the counts during a pass get the variance ``arrival_squared_cv`` times
    the mean, the asymptotic dispersion of a renewal process, so pessimistic for bursts longer than a pass. Variable
    lengths: a pass of n prompts has variance n c^2 share^2 with the share the slope of the pass time, gamma
    distributed; own pass and own length are taken as independent.

    Args:
        arrival_rate_per_second: prompts per second at this instance.
        pass_seconds: duration of passes with n prompts, array to array, not falling in n.
        most_prompts: the cap of a pass; 1 for prompts longer than a pass, with all their passes as one.
        extra_seconds: added after the own pass, such as the other stages of a pipeline.
        service_squared_cv: squared coefficient of variation of one prompt's share of a pass.
        arrival_squared_cv: squared coefficient of variation of the gaps between arrivals.

    Raises:
        BadInput: a rate below 0 or a cap below 1.
    """
    service = by_share(pass_seconds, most_prompts, service_squared_cv, extra_seconds)
    return latency_of(service, arrival_rate_per_second, arrival_squared_cv)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCapacity:
    """What a pool of prefill instances carries within its limit."""

    rate_per_second: float
    """Of the whole pool."""
    ttft: Latency


def prefill_capacity(
    *,
    pass_seconds: PassSeconds,
    most_prompts: int,
    limit_seconds: float,
    percentile: float,
    instances: int = 1,
    policy: Policy = "round_robin",
    extra_seconds: float = 0.0,
    service_squared_cv: float = 0.0,
) -> PrefillCapacity | None:
    """Largest Poisson rate of a pool whose TTFT at ``percentile`` keeps the limit; None where no rate does.

    Each of c instances is a queue of its own, with gaps of squared CV 1 at random and 1/c round robin (every c-th
    arrival of a renewal process). ``least_load`` is counted as round robin, which it is at least as good as. At most 98
    % of the saturation rate, beyond which no plan should run. Within 1 % of the limit, see ``largest_rate``.

    Raises:
        BadInput: fewer than one instance, or as ``prefill_latency``.
    """
    if instances < 1:
        raise BadInput(f"A pool of {instances} prefill instances must have at least 1.")
    service = by_share(pass_seconds, most_prompts, service_squared_cv, extra_seconds)
    return capacity_of(service, limit_seconds, percentile, instances, policy=policy)


def capacity_of(
    service: Service,
    limit_seconds: float,
    percentile: float,
    instances: int = 1,
    *,
    policy: Policy = "round_robin",
    arrival_squared_cv: float = 1.0,
) -> PrefillCapacity | None:
    """Largest rate of a pool of instances of a service, as ``prefill_capacity``."""
    squared_cv = thinned_squared_cv(arrival_squared_cv, instances, policy)
    found: dict[float, Latency] = {}

    def seconds(rate: float) -> float:
        if rate not in found:
            latency = latency_of(service, rate, squared_cv)
            if latency is None:
                return math.inf
            found[rate] = latency
        return found[rate].at(percentile)

    rate = largest_rate(seconds, limit_seconds, MOST_UTILISATION * service.saturation_per_second)
    return None if rate is None else PrefillCapacity(rate_per_second=rate * instances, ttft=found[rate])


def thinned_squared_cv(arrival_squared_cv: float, instances: int, policy: Policy) -> float:
    """Squared CV of the gaps at one of c instances: c2/c round robin, 1 + (c2 - 1)/c at random.

    Ref: W. Whitt, The Queueing Network Analyzer, Bell Syst. Tech. J. 62:2779, 1983, Eq. (36) for the split at random.
    """
    if policy == "random":
        return 1 + (arrival_squared_cv - 1) / instances
    return arrival_squared_cv / instances


def latency_of(service: Service, rate: float, arrival_squared_cv: float = 1.0) -> Latency | None:
    """TTFT of one instance at its rate of prompts, as ``prefill_latency``; None if unstable.

    Arrivals that are dealt in turn, which a small squared CV stands for, are followed phase by phase where the chain
    stays small (``planner.dealt_queue``); otherwise counts during a pass have the dispersion of the gaps.
    """
    if rate < 0:
        raise BadInput(f"An arrival rate of {rate:g} prompts per second must not be negative.")
    rate *= service.units_per_prompt
    if rate * service.seconds[-1] >= service.most:
        return None
    rate, dispersion = max(rate, 1e-12), max(arrival_squared_cv, _SMALLEST_DISPERSION)
    phases, most = _phases(service, dispersion), int(min(_reach(service, rate, dispersion), service.most))
    part = _by_dispersion(service, rate, dispersion, phases, most)
    found: list[tuple[Array, Array]] = []
    pass_seconds = float(service.seconds[0])
    if part < 1:
        seconds, masses = dealt_sojourn(service, rate, phases, most)
        found.append((seconds, masses * (1 - part)))
    if part > 0:
        chain = _solve(service, rate, dispersion)
        seconds, masses = _sojourn(service, chain)
        found.append((seconds, masses * (part / masses.sum())))
        taken = np.append(chain.starts[: chain.sizes - 1], chain.starts[chain.sizes - 1 :].sum())
        pass_seconds = float(taken @ (chain.durations @ chain.weights))
    seconds, masses = (np.concatenate(column) for column in zip(*found, strict=True))
    return _histogram(*_with_further(service, pass_seconds, seconds, masses))


def _phases(service: Service, dispersion: float) -> int:
    """Phases of dealt arrivals; fewer where lengths spread, beside which arrivals that are more even tell nothing."""
    one = np.array([1.0])
    spread = float(service.variance(one)[0] / service.mean(one)[0] ** 2)
    return min(round(1 / dispersion), max(math.ceil(2 / max(spread, 1e-3)), 3))


def _by_dispersion(service: Service, rate: float, dispersion: float, phases: int, most: int) -> float:
    """Share in which arrivals are told by their dispersion, 0 where phase by phase; continuous in the rate.

    Phases tell where passes hold a few prompts and the chain is small. From one to the other the rate changes latency
    by much more than the way of counting does, so that latency rises with the rate throughout.
    """
    if dispersion > _REGULAR or phases < 2:
        return 1.0
    full = (_settled(service, rate) - _FEW) / (_MANY - _FEW)
    large = chain_states(service, rate, phases, most) / MOST_STATES * 2 - 1
    return min(max(full, large, 0.0), 1.0)


def _with_further(service: Service, pass_seconds: float, seconds: Array, masses: Array) -> tuple[Array, Array]:
    """Add the passes that long prompts take after their first, each as long as passes are on average."""
    if service.further.size == 1:
        return seconds + service.extra_seconds + service.further[0] * pass_seconds, masses
    later = service.further * pass_seconds + service.extra_seconds
    return (seconds[:, None] + later).ravel(), (masses[:, None] * service.further_weights).ravel()


def count_distribution(means: Array, dispersion: float, counts: int) -> Array:
    """Probabilities of 0..counts-1 arrivals, [..., counts]: given mean, and variance ``dispersion`` times the mean.

    p(k)/p(k-1) = (d - 1)/d + (mean - d + 1)/(d k): Poisson for d = 1, negative binomial above, binomial below (cut at
    zero where its number of trials is not whole, then scaled). Beyond the last count nothing is kept.

    Ref: H. H. Panjer, Recursive Evaluation of a Family of Compound Distributions, ASTIN Bulletin 12:22, 1981.
    """
    k = np.arange(1, counts)
    ratios = (dispersion - 1) / dispersion + (means[..., None] - dispersion + 1) / (dispersion * k)
    logs = np.zeros((*means.shape, counts))
    np.cumsum(np.log(np.maximum(ratios, 1e-30)), axis=-1, out=logs[..., 1:])
    probabilities = np.exp(logs - logs.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    return np.asarray(probabilities, dtype=np.float64)


def _settled(service: Service, rate: float) -> float:
    """Prompts of the pass whose arrivals fill the next; between nodes linear, so continuous in the rate."""
    beyond = service.prompts - rate * service.seconds
    first = int(np.argmax(beyond >= 0))
    if first == 0:
        return float(service.prompts[0])
    low, high = beyond[first - 1], beyond[first]
    return float(np.interp(0.0, [low, high], service.prompts[first - 1 : first + 1]))


def _reach(service: Service, rate: float, dispersion: float) -> float:
    """Prompts that a pass all but never exceeds: 8 standard deviations above where arrivals of a pass fill the next.

    Linearised there, with f the arrivals that one more prompt brings: variance = arrivals' variance / (1 - f^2).
    """
    settled = int(np.searchsorted(service.prompts, _settled(service, rate)))
    size = service.prompts[settled : settled + 1]
    slope = np.diff(service.seconds, append=service.seconds[-1])[settled]
    share = float(service.seconds[-1] - service.seconds[0]) / max(service.most - 1, 1)
    gain = min(rate * max(share, float(slope)), 0.99)
    noise = dispersion * float(size[0]) + rate**2 * float(service.variance(size)[0])
    return float(math.ceil(float(size[0]) + 8 * math.sqrt(noise / (1 - gain**2)) + 8))


def _solve(service: Service, rate: float, dispersion: float) -> _Chain:
    """Stationary distribution of what waits at pass starts: next = max(1, max(0, now - cap) + arrivals)."""
    cap = min(_reach(service, rate, dispersion), service.most)
    sizes: int = math.ceil(cap / math.ceil(cap / _MOST_LEVELS))
    step = cap / sizes
    prompts = step * np.arange(1.0, sizes + 1)
    means, variances = service.mean(prompts), service.variance(prompts)
    durations, weights = service.durations(prompts, int(np.clip(256 // sizes, 3, 16)))  # [sizes, nodes]
    queued = 0
    if cap >= service.most:
        slack = sizes - rate * means[-1] / step
        noise = dispersion * rate * means[-1] / step**2 + (rate / step) ** 2 * variances[-1]
        queued = min(_MOST_QUEUED, 2 + math.ceil(math.log(1e7) * noise / (2 * slack)))
    arrivals = count_distribution(rate * durations / step, dispersion / step, sizes + queued + 1)
    mixed = np.einsum("snk,n->sk", arrivals, weights)  # [sizes, counts]
    states = sizes + queued
    moves = np.zeros((states, states + 1))
    moves[:sizes] = mixed
    shift = np.arange(states + 1)[None, :] - np.arange(1, queued + 1)[:, None]  # [queued, counts]
    moves[sizes:] = np.where(shift >= 0, mixed[-1][np.maximum(shift, 0)], 0.0)
    moves[:, -1] += 1 - moves.sum(axis=1)
    moves[:, 1] += moves[:, 0]
    return _Chain(
        rate=rate,
        step=step,
        dispersion=dispersion / step,
        durations=durations,
        weights=weights,
        arrivals=arrivals,
        starts=_stationary(moves[:, 1:]),
    )


def _stationary(moves: Array) -> Array:
    """Left eigenvector of a stochastic matrix, [states]."""
    states = moves.shape[0]
    balance = moves.T - np.eye(states)
    balance[-1] = 1.0
    right = np.zeros(states)
    right[-1] = 1.0
    solved = np.maximum(np.linalg.solve(balance, right), 0.0)
    return np.asarray(solved / solved.sum(), dtype=np.float64)


def _sojourn(service: Service, chain: _Chain) -> tuple[Array, Array]:
    """Distribution over arrivals of residual pass + passes ahead + own pass, as seconds and masses.

    By the elapsed time y of the running pass: ahead of the arrival stand the leftover and the arrivals of [0, y], which
    decide how many whole passes come first; the size of the own pass, when none comes first, is the leftover plus all
    arrivals of the running pass as an arrival sees them (weighted by their number).
    """
    sizes = chain.sizes
    full = chain.starts[sizes - 1 :]
    leftover = full / full.sum() if full.sum() > 0 else np.eye(1, full.size)[0]  # [queued + 1]
    pass_share = np.append(chain.starts[: sizes - 1], full.sum())
    # By arrivals, not by time: only Poisson arrivals see time averages.
    counts = np.arange(chain.arrivals.shape[2])
    busy = pass_share[:, None] * chain.weights * (chain.arrivals @ counts)  # [sizes, nodes]: arrivals during passes
    empty = chain.arrivals[:, :, 0] @ chain.weights
    idle = pass_share[:-1] @ empty[:-1] + full[0] * empty[-1]  # arrivals that end an idle time
    total = float(busy.sum() + idle)
    grid = np.linspace(0.0, float(chain.durations.max()), _RESIDUAL_CELLS + 1)
    own, later = _residuals(chain, busy / total, leftover, grid)
    rests, weights = _rest(service, chain, own.shape[0], later.shape[0])  # [classes, nodes]
    rows = np.diff(np.concatenate([own, later]), axis=1)  # [classes, residual cells]
    middles = (grid[1:] + grid[:-1]) / 2
    seconds = middles[None, None, :] + rests[:, :, None]
    masses = rows[:, None, :] * weights[None, :, None]
    alone = rests[0]
    return np.append(seconds, alone), np.append(masses, weights * idle / total)


def _residuals(chain: _Chain, busy: Array, leftover: Array, grid: Array) -> tuple[Array, Array]:
    """Probability that the residual of the running pass is at most ``grid``, by what follows.

    Returns:
        [sizes, grid] by the size of the own pass when it comes next; [passes, grid] by whole passes ahead, from 1 on.
    """
    sizes, nodes = chain.durations.shape
    durations = chain.durations.ravel()  # [kinds = sizes x nodes]
    counts = chain.arrivals.shape[2]
    seen = chain.arrivals * np.arange(counts)
    seen /= np.maximum(seen.sum(axis=2, keepdims=True), 1e-300)  # the arrivals of a pass, as an arrival sees them
    if leftover.size > 1:
        seen[-1] = np.stack([np.convolve(row, leftover)[:counts] for row in seen[-1]])
    seen = seen.reshape(-1, counts)[:, 1:sizes]  # [kinds, sizes - 1]: own passes under the cap
    uniform = np.minimum(grid[None, :] / durations[:, None], 1.0)  # [kinds, grid]
    share = busy.reshape(-1, 1)
    own = np.zeros((sizes, grid.size))
    own[:-1] = (share * seen).T @ uniform

    ahead_new, ahead_full = _passes_ahead(chain, leftover, grid)
    partial = _elapsed(ahead_new, grid, durations[:-nodes])  # [passes, kinds, grid]
    final = _elapsed(ahead_full, grid, durations[-nodes:])
    next_pass = np.concatenate([partial[0], final[0]])
    filled = np.maximum(next_pass - seen.sum(axis=1)[:, None] * uniform, 0.0)
    own[-1] = (share * filled).sum(axis=0)
    later = np.einsum("pkg,k->pg", final[1:], share[-nodes:, 0])
    first = np.einsum("pkg,k->pg", partial[1:], share[:-nodes, 0])
    later[: first.shape[0]] += first
    return own, later


def _passes_ahead(chain: _Chain, leftover: Array, elapsed: Array) -> tuple[Array, Array]:
    """Probability of 0, 1, ... whole passes ahead by elapsed time, [passes, elapsed]: after a partial, a full pass."""
    sizes = chain.sizes
    counts = sizes * math.ceil(chain.arrivals.shape[2] / sizes + 1)
    new = count_distribution(chain.rate * elapsed / chain.step, chain.dispersion, counts)  # [elapsed, counts]
    length = 1 << (counts + leftover.size).bit_length()
    both = np.fft.irfft(np.fft.rfft(new, length) * np.fft.rfft(leftover, length), length)[:, :counts]
    blocks = [rows.reshape(elapsed.size, -1, sizes).sum(axis=2).T for rows in (new, np.maximum(both, 0.0))]
    return blocks[0], blocks[1]


def _elapsed(densities: Array, elapsed: Array, durations: Array) -> Array:
    """Integral of each density over the last ``grid`` seconds of a pass, over its duration; [passes, kinds, grid]."""
    width = elapsed[1] - elapsed[0]
    integral = np.zeros_like(densities)
    integral[:, 1:] = np.cumsum((densities[:, 1:] + densities[:, :-1]) / 2, axis=1) * width
    since = np.maximum(durations[:, None] - elapsed[None, :], 0.0)  # [kinds, grid]
    place = np.minimum(since / width, elapsed.size - 1.000001)
    cell = place.astype(np.intp)
    part = place - cell
    started = integral[:, cell] * (1 - part) + integral[:, cell + 1] * part
    return np.asarray((started[:, :, :1] - started) / durations[:, None], dtype=np.float64)


def _rest(service: Service, chain: _Chain, sizes: int, passes: int) -> tuple[Array, Array]:
    """What follows the residual, [classes, nodes], and how likely: the own pass, or 1, 2, ... full passes and then it.

    After one full pass the own pass takes what was left beyond the cap, as a waiting prompt sees it, and the arrivals
    of that pass; after more it is full.
    """
    prompts = chain.step * np.arange(1.0, sizes + 1)
    ahead = np.arange(1.0, passes + 1)
    own = np.full(passes, prompts[-1])
    beyond = chain.starts[sizes:] * np.minimum(np.arange(1, chain.starts.size - sizes + 1), sizes)
    if beyond.sum() > 0 and passes:
        taken = np.convolve(np.append(0.0, beyond), chain.arrivals[-1].T @ chain.weights)
        taken /= taken.sum()
        own[0] = taken @ prompts[np.clip(np.arange(taken.size), 1, sizes) - 1]
    alone, weights = with_rest(service, prompts, np.zeros(sizes), 12)
    behind, _ = with_rest(service, own, ahead, 12)
    return np.concatenate([alone, behind]), weights


def _histogram(seconds: Array, masses: Array) -> Latency:
    """Bin point masses up to where only 1e-5 of them is left, and keep their exact mean."""
    masses = masses / masses.sum()
    mean = float(seconds @ masses)
    coarse = np.bincount((seconds * (256 / seconds.max())).astype(np.intp), masses)
    last = int(np.searchsorted(np.cumsum(coarse), 1 - 1e-5)) + 1
    top = float(seconds.max()) * min(last / 256, 1.0)
    cells = np.minimum((seconds * (_TIME_CELLS / top)).astype(np.intp), _TIME_CELLS - 1)
    binned = np.bincount(cells, masses, minlength=_TIME_CELLS).astype(np.float64)
    edges = np.arange(1.0, _TIME_CELLS + 1) * (top / _TIME_CELLS)
    return Latency.from_masses(edges, binned, mean)
