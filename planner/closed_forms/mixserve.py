"""MixServe's queueing on podplan's service times: M/M/1 passes, and decode at the speed of a full batch.

To plan with (``--queueing mixserve``) and to stand beside ``bulk_service`` and ``birth_death``.

Ref: MixServe (arXiv 2601.08800), Eq. (7) and (9) to (11), which ``mixserve_equations`` writes out.
"""

import numpy as np

from planner.closed_forms.birth_death import DecodeState
from planner.closed_forms.mixserve_equations import eq7_waiting, eq11_throughput
from planner.serving.latency import Latency
from planner.workload import Lengths

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
        waiting_probability=0.0,
        mean_wait_seconds=0.0,
        residence_seconds=residence,
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
