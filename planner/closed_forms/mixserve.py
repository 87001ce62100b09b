"""MixServe's Equations (1) to (3), (7) and (11) to (13), and its queueing on podplan's service times.

To be read beside the paper (arXiv 2601.08800, sections III-B to III-D). The queueing, M/M/1 passes and decode at
the speed of a full batch, is to plan with (``--queueing mixserve``) and to stand beside ``bulk_service`` and
``birth_death``.

Symbols: b requests, s tokens per request in this pass, h hidden size, k experts per token, n_node nodes,
n_proc devices per node. All are numbers or arrays and broadcast. The planner's own cost model is
``operators`` and ``collectives``; these functions are the paper's, for comparison.

The paper gives proportionalities. A ``Line`` makes them costs: alpha per round and beta per element
that one pair of devices exchanges in it. The default counts elements; with the alpha and beta of a
link every function below returns seconds.

Where the paper contradicts itself, the reading here is:

- Eq. (1) is the time of one round in which every pair of the d ranks exchanges its slice of a tensor of
  ``size`` elements at once, over links of its own: size/d. Eq. (2) and (13) write AR as RS(size/d, d) +
  AG(size/d, d) and AG(bshk/n_proc, n_proc): taken literally they divide by d twice. Their argument is
  read as one rank's shard, so that Eq. (1) gets the whole tensor and AR moves 2·size/d.
- A collective over one rank costs nothing.
- Eq. (7) needs passes per second on both sides; the paper's lambda_a is in tokens per second.
- Eq. (12) prints the all-to-all over n_node ranks though its EP group is n_node·n_proc; kept as printed.
- Section III-D2 loops to n where n-1 shards are sent; n-1 is used.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from planner.closed_forms.birth_death import DecodeState
from planner.manifest.terms import Number
from planner.serving.latency import Latency
from planner.workload import Lengths


class Line(NamedTuple):
    """Cost of one round over a link between a pair: alpha + beta·elements. By default it counts elements."""

    alpha_seconds: float = 0.0
    beta_seconds_per_element: float = 1.0


class Links(NamedTuple):
    """The lines inside a node and between nodes."""

    intra: Line
    inter: Line


class Shape(NamedTuple):
    """One pass of a MoE layer: b requests of s tokens, hidden size h, k experts per token."""

    b: Number
    s: Number
    h: Number
    k: Number

    @property
    def bsh(self) -> Number:
        """Elements of the hidden states."""
        return self.b * self.s * self.h

    @property
    def bshk(self) -> Number:
        """Elements of the hidden states, one copy per chosen expert."""
        return self.bsh * self.k


ELEMENTS = Line()
COUNTED = Links(intra=ELEMENTS, inter=ELEMENTS)


def line(latency_seconds: float, pair_bandwidth_bytes_per_second: float, element_bytes: float = 2.0) -> Line:
    """Return the line of a link: its latency, and the rate of one pair while all pairs of the round talk."""
    return Line(alpha_seconds=latency_seconds, beta_seconds_per_element=element_bytes / pair_bandwidth_bytes_per_second)


def port_line(latency_seconds: float, bandwidth_bytes_per_second: float, d: int, element_bytes: float = 2.0) -> Line:
    """Return the line of a pair inside a switched group of d: its port is shared by d - 1 pairs at once."""
    return line(latency_seconds, bandwidth_bytes_per_second / max(d - 1, 1), element_bytes)


def eq1_round(size: Number, d: Number, over: Line = ELEMENTS) -> Number:
    """Cost of a reduce-scatter or an all-gather of ``size`` elements over d ranks: size/d, one round (Eq. (1))."""
    return _plain(np.where(np.asarray(d) > 1, point_to_point(size / d, over), 0.0))


def eq2_all_reduce(size: Number, d: Number, over: Line = ELEMENTS) -> Number:
    """Cost of an all-reduce: RS + AG (Eq. (2)), 2·size/d with its argument size/d read as one rank's shard."""
    return 2 * eq1_round(size, d, over)


def eq3_all_to_all(size: Number, d: Number, over: Line = ELEMENTS) -> Number:
    """Cost of a pairwise all-to-all of the ``size`` elements that each rank holds: (size/d)·(d - 1) (Eq. (3))."""
    return point_to_point(size / d, over) * (d - 1)


def point_to_point(size: Number, over: Line = ELEMENTS) -> Number:
    """Cost of handing ``size`` elements to the next pipeline stage: the P2P of Eq. (6)."""
    return over.alpha_seconds + over.beta_seconds_per_element * size


def eq7_waiting(arrivals_passes_per_second: Number, service_seconds: Number) -> Number:
    """Mean wait of an M/M/1 queue: rho/(mu·(1 - rho)) = lambda_a/(mu·(mu - lambda_a)), mu = 1/service (Eq. (7)).

    Both rates in passes per second, seconds out; infinite for rho >= 1.
    """
    mu = 1.0 / np.asarray(service_seconds, dtype=float)
    rho = arrivals_passes_per_second / mu
    spare = np.where(rho < 1, 1 - rho, 1.0)
    return _plain(np.where(rho < 1, rho / (mu * spare), np.inf))


def eq11_throughput(
    l_in: Number, l_out: Number, waiting_seconds: Number, prefill_seconds: Number, decode_seconds: Number
) -> Number:
    """Tokens per second of one request stream: (L_in + L_out)/(W_q + prefill + L_out·decode) (Eq. (11))."""
    return (l_in + l_out) / (waiting_seconds + prefill_seconds + l_out * decode_seconds)


def eq12_expert_parallel(shape: Shape, n_proc: Number, n_node: Number, links: Links = COUNTED) -> Number:
    """Layer communication of attention TP in the node and experts pure EP (Eq. (12)).

    AR(bsh, n_proc) + 2·A2A(bshk, n_node), the degree as printed; b counts one node's requests.
    """
    reduced = eq2_all_reduce(shape.bsh, n_proc, links.intra)
    return reduced + 2 * eq3_all_to_all(shape.bshk, n_node, links.inter)


def eq13_hybrid(shape: Shape, n_proc: Number, n_node: Number, links: Links = COUNTED) -> Number:
    """Layer communication of the hybrid, experts TP in the node and EP between nodes (Eq. (13)).

    AR(bsh, n_proc) + AG(bshk/n_proc, n_proc) + 2·A2A(bshk/n_proc, n_node), the all-gather's argument
    read as one rank's shard: bshk/n_proc elements per pair.
    """
    reduced = eq2_all_reduce(shape.bsh, n_proc, links.intra)
    gathered = eq1_round(shape.bshk, n_proc, links.intra)
    return reduced + gathered + 2 * eq3_all_to_all(shape.bshk / n_proc, n_node, links.inter)


def fused(inter_round: Number, intra_round: Number, rounds: Number) -> Number:
    """Time of ``rounds`` rounds on each of two links that run at once, each shard crossing one, then the other.

    max(inter, intra) + one round of the other = (rounds - 1)·max + inter_round + intra_round, with
    inter and intra the sums over all rounds (section III-D2).
    """
    overlapped = (rounds - 1) * np.maximum(inter_round, intra_round) + inter_round + intra_round
    return _plain(np.where(np.asarray(rounds) > 0, overlapped, 0.0))


def fused_dispatch(shape: Shape, n_proc: Number, n_node: Number, links: Links = COUNTED) -> Number:
    """Fused AG-Dispatch (Algorithm 2): n - 1 shards to the nodes ahead, each all-gathered as it arrives.

    A shard is this rank's 1/n_proc of the hidden axis of what goes to one node, bshk/(n_proc·n_node)
    elements; gathered it is bshk/n_node over n_proc ranks.
    """
    inter, intra = _rounds(shape, n_proc, n_node, links)
    return fused(inter, intra, n_node - 1)


def fused_combine(shape: Shape, n_proc: Number, n_node: Number, links: Links = COUNTED) -> Number:
    """Fused RS-Combine (Algorithm 1 as RS -> A2A -> AG): the final all-gather of bsh comes on top.

    n reduce-scatters, one per destination node and this node's own last, overlap n - 1 sends:
    intra_round + (n - 1)·max(inter_round, intra_round) + AG(bsh, n_proc).
    """
    inter, intra = _rounds(shape, n_proc, n_node, links)
    exchange = intra + (n_node - 1) * np.maximum(inter, intra)
    return _plain(exchange + eq1_round(shape.bsh, n_proc, links.intra))


def sequential_dispatch(shape: Shape, n_proc: Number, n_node: Number, links: Links = COUNTED) -> Number:
    """The rounds of ``fused_dispatch`` one after another: A2A(bshk/n_proc, n_node) and the all-gathers."""
    inter, intra = _rounds(shape, n_proc, n_node, links)
    return (n_node - 1) * (inter + intra)


def sequential_combine(shape: Shape, n_proc: Number, n_node: Number, links: Links = COUNTED) -> Number:
    """The rounds of ``fused_combine`` one after another: reduce-scatters, A2A, then the all-gather."""
    inter, intra = _rounds(shape, n_proc, n_node, links)
    return n_node * intra + (n_node - 1) * inter + eq1_round(shape.bsh, n_proc, links.intra)


def _rounds(shape: Shape, n_proc: Number, n_node: Number, links: Links) -> tuple[Number, Number]:
    """One inter-node send and one intra-node collective of what goes to one node."""
    inter = point_to_point(shape.bshk / (n_proc * n_node), links.inter)
    return inter, eq1_round(shape.bshk / n_node, n_proc, links.intra)


def _plain(value: ArrayLike) -> Number:
    """Return a float for a single number, the array otherwise."""
    array = np.asarray(value, dtype=float)
    return float(array) if array.ndim == 0 else array


_LEVELS = (*(float(level) for level in range(1, 100)), *(99 + tenth / 10 for tenth in range(1, 10)))


def memoryless_ttft(rate_per_second: float, prompts: int, pass_seconds: float) -> Latency | None:
    """TTFT of an instance whose full passes are the customers of an M/M/1 queue; None from saturation on.

    Eq. (9), wait + service: the mean wait is Eq. (7), and it exceeds t with the chance rho exp(-(1 - rho) t/service)
    (Kleinrock I, section 3.2). The pass itself lasts what a full one does, as the paper takes it.

    Args: prompts per second, prompts of a full pass, and its seconds.
    """
    passes = rate_per_second / prompts
    rho = passes * pass_seconds
    if rho >= 1:
        return None
    above = 1 - np.array(_LEVELS) / 100
    waits = np.maximum(np.log(max(rho, 1e-300) / above), 0.0) * pass_seconds / (1 - rho)
    return Latency(
        mean=float(eq7_waiting(passes, pass_seconds)) + pass_seconds,
        levels=_LEVELS,
        seconds=tuple((waits + pass_seconds).tolist()),
    )


def full_batch_state(
    rate_per_second: float, iterations: Lengths, full: tuple[float, float], transfer_seconds: float, accepted: float
) -> DecodeState | None:
    """Decode as Eq. (10) has it, every iteration as long as one of the full batch; None from saturation on.

    No request waits for admission. The paper has one pool; the KV transfer between two goes into the end-to-end time.

    Args: requests per second; iterations of a request; ``full`` requests per second that a full instance finishes
    and seconds of its iteration; seconds of the KV transfer; tokens per iteration.
    """
    finished, seconds = full
    if rate_per_second >= finished:
        return None
    residence = iterations.mean * seconds
    return DecodeState(
        rate_per_second=rate_per_second,
        mean_requests=rate_per_second * residence,
        utilisation=rate_per_second / finished,
        tpot=_always(seconds / accepted),
        span=_always(transfer_seconds + residence),
    )


def _always(seconds: float) -> Latency:
    return Latency(mean=seconds, levels=_LEVELS, seconds=(seconds,) * len(_LEVELS))


def stream_tokens_per_second(lengths: tuple[float, float], ttft_seconds: float, tpot_seconds: float) -> float:
    """Prompt and output tokens of one request over its whole time, Eq. (11); TTFT is the wait and the prefill.

    Args: mean prompt and output tokens, and mean seconds.
    """
    return float(eq11_throughput(*lengths, 0.0, ttft_seconds, tpot_seconds))
