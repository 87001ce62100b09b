"""The fullest DP rank, against requests that are dealt one by one."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planner.closed_forms.fullest import FullestRank
from planner.serving.streams import stationary
from planner.workload import Lengths, Workload, histogram_lengths, running_kv_tokens


def _workload(prompt_cv: float, answer_cv: float) -> Workload:
    return Workload(
        input_tokens=Lengths(mean=400.0, squared_cv=prompt_cv**2),
        output_tokens=Lengths(mean=100.0, squared_cv=answer_cv**2),
    )


def dealt(
    workload: Workload, ranks: int, running: float, request_tokens: float, iterations: int = 2500
) -> tuple[float, float, float]:
    """Return mean requests of a rank, the KV of the fullest beyond the mean, and the work of the slowest beyond it.

    Requests are dealt to the least reserved; each is as much work as its KV and so many tokens more.
    """
    random = np.random.default_rng(2)
    come = random.poisson(ranks * running / workload.output_tokens.mean, iterations)
    stream = stationary(workload, int(come.sum()))
    order = random.permutation(len(stream))[: come.sum()]
    prompts, answers = stream.prompt_tokens[order], stream.answer_tokens[order]
    reserved, held, count = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
    where, left = np.zeros(order.size, dtype=int), answers.copy()
    fullest, slowest, requests, first, last = [], [], [], 0, 0
    for now, more in enumerate(come):
        for new in range(last, last + more):
            rank = where[new] = int(reserved.argmin())
            reserved[rank] += prompts[new] + answers[new]
            held[rank] += prompts[new]
            count[rank] += 1
        last += more
        there = np.flatnonzero(left[first:last] > 0) + first
        held += np.bincount(where[there], minlength=ranks)
        left[there] -= 1
        gone = there[left[there] == 0]
        sizes = np.bincount(where[gone], weights=(prompts + answers)[gone], minlength=ranks)
        reserved, held, count = reserved - sizes, held - sizes, count - np.bincount(where[gone], minlength=ranks)
        first = int(there[0]) if there.size else last
        if now > iterations // 3:
            work = held + request_tokens * count
            fullest.append(held.max() - held.mean())
            slowest.append(work.max() - work.mean())
            requests.append(count.mean())
    return float(np.mean(requests)), float(np.mean(fullest)), float(np.mean(slowest))


@pytest.mark.parametrize(("ranks", "running"), [(8, 40), (32, 20)])
@pytest.mark.parametrize(("prompt_cv", "answer_cv"), [(0.5, 0.5), (1.0, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_ranks_are_as_uneven_as_dealing_by_reserved_kv_leaves_them(
    ranks: int, running: int, prompt_cv: float, answer_cv: float
) -> None:
    """The excess of the fullest and of the slowest rank is told within a fifth."""
    workload = _workload(prompt_cv, answer_cv)
    each = running_kv_tokens(workload).mean_tokens  # as much work for a request as for its KV
    requests, excess, slower = dealt(workload, ranks, running, each)
    fullest = FullestRank.of(workload, float(ranks))
    ended = requests / workload.output_tokens.mean  # since the last were dealt: ``Decoding.busiest``
    there = requests + min(ended, fullest.deviations * ended**0.5)
    assert fullest.kv_tokens(there) - requests * each == pytest.approx(excess, rel=0.2)
    told = fullest.slowest(np.array(there), np.inf, lambda sequences, kv: each * sequences + kv)
    assert told - 2 * requests * each == pytest.approx(slower, rel=0.2)


def test_a_few_long_prompts_are_as_uneven_as_dealing_leaves_them() -> None:
    """One prompt in a hundred that is as long as 17 others: independent ranks would be half as uneven."""
    prompts = ((200.0, 0.0, 0.5), (900.0, 0.0, 0.3), (6000.0, 0.0, 0.19), (30000.0, 0.0, 0.01))
    lengths = histogram_lengths(*np.array(prompts).T[[0, 2]])
    workload = replace(_workload(0.0, 0.5), input_tokens=lengths, prompts=prompts)
    requests, excess, _ = dealt(workload, 8, 40, 0.0)
    told = FullestRank.of(workload, 8.0).kv_tokens(requests)
    assert told - requests * running_kv_tokens(workload).mean_tokens == pytest.approx(excess, rel=0.1)


def test_equal_requests_differ_by_their_progress_alone() -> None:
    """Equal sizes are even but for their number, and a single rank is the mean one."""
    equal = FullestRank.of(_workload(0.0, 0.0), np.array([1.0, 8.0, 64.0]))
    assert equal.uneven_tokens.tolist() == [0.0, 0.0, 0.0]
    assert FullestRank.of(_workload(1.0, 1.0), 1.0).kv_tokens(10.0) == pytest.approx(10 * 500)


def test_more_ranks_and_wider_lengths_are_less_even() -> None:
    """The excess grows with the number of ranks and with the spread of the sizes."""
    ranks = np.array([2.0, 8.0, 64.0, 320.0])
    narrow, wide = (FullestRank.of(_workload(cv, 0.5), ranks) for cv in (0.5, 1.5))
    assert all(low < high for low, high in pairwise(wide.uneven_tokens.tolist()))
    assert (narrow.uneven_tokens < wide.uneven_tokens).all()
    assert wide.at(np.array([1, 3])).uneven_tokens.tolist() == wide.uneven_tokens[[1, 3]].tolist()
