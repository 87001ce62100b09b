"""Iterations of decode alone, passed over quickly or added up, against a plain scheduler that plays each of them.

Few long answers with nobody beside them: what is left to the general rule is little, so that a fault shows. Small
enough for plain Python (``NUMBA_DISABLE_JIT=1``), in which faults can be put into the loops without compiling them.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.manifest.stepcost import layers_per_stage
from planner.serving.rules import SchedulingRule
from planner.serving.streams import Stream
from tests.planner.serving.costs import stream_of
from tests.planner.serving.plain_scheduler import PlainScheduler
from tests.planner.serving.test_aggregated import HEAD_SECONDS, RULES, SGLANG, both_serve_alike, pool_of, staged_pool

SECONDS = (5e-3, 20e-6, 1e-4, 1e-6)
"""Of a step, and of each prompt token, running request and cached token: the slowest rank depends on all of them."""
ROOT = Path(__file__).parents[3]

STAGED = {
    "reserve": SchedulingRule(),
    "part of the slots": SchedulingRule(batch_slots=True),
    "balanced": SchedulingRule(balance_steps=1, dealing="least_kv"),
    "patient": SchedulingRule(admission="estimate", estimate=SGLANG, batch_slots=True, receive_interval=2),
    "need": SchedulingRule(admission="need", block_tokens=16, kept_blocks=1),
    "a batch more": SchedulingRule(
        admission="need", block_tokens=16, kept_blocks=1, overlapped=True, overlapped_stages=True
    ),
    "estimate": SchedulingRule(order="prompts_first", admission="estimate", estimate=SGLANG, batch_slots=True),
    "estimate beside decode": SchedulingRule(order="mixed_chunk", admission="estimate", estimate=SGLANG),
}
STREAMS = {
    "one after the other": stream_of([0.0, 0.9, 2.0], [40, 90, 30], [60, 45, 50]),
    "batches side by side": stream_of([0.0, 0.0, 0.02, 0.03, 0.3], [90, 30, 70, 150, 40], [70, 44, 65, 61, 30]),
    "equal answers": stream_of([0.0, 0.0, 0.0, 0.01, 0.02], [64] * 5, [48, 48, 48, 48, 33]),
    "somebody waits": stream_of([0.0, 0.0, 0.0, 0.01, 0.01, 0.02], [30, 60, 20, 90, 40, 50], [52, 49, 60, 58, 31, 47]),
}


def _copy(stream: Stream) -> Stream:
    return replace(stream, prompt_tokens=stream.prompt_tokens.copy(), answer_tokens=stream.answer_tokens.copy())


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(
    ("stages", "ranks", "slots", "capacity"), [(2, 1, 40, 100_000), (3, 2, 4, 100_000), (2, 1, 3, 240)]
)
def test_turns_that_are_passed_are_those_of_a_plain_scheduler(
    name: str, stream: str, stages: int, ranks: int, slots: int, capacity: int
) -> None:
    """With ample places, with few of them, and with memory for about two requests."""
    rule = STAGED[name]
    shares = tuple(count / 5 for count in layers_per_stage(5, stages))
    plain = PlainScheduler(rule, ranks, 100, slots, capacity, SECONDS, (shares, HEAD_SECONDS))
    both_serve_alike(plain, staged_pool(rule, stages, ranks, 100, slots, capacity, 5, SECONDS), _copy(STREAMS[stream]))


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize(
    ("stages", "ranks", "per_kv", "capacity"),
    [(1, 4, 1e-6, 100_000), (2, 1, 1e-6, 2_500), (3, 1, 1e-7, 100_000), (3, 2, 1e-7, 100_000), (5, 4, 1e-6, 1_500)],
)
def test_rounds_that_are_skipped_are_those_of_a_plain_scheduler(
    name: str, stages: int, ranks: int, per_kv: float, capacity: int
) -> None:
    """Long answers, so that another batch, stage or rank becomes the slowest while nobody comes or leaves."""
    random = np.random.default_rng(stages // 5)
    arrivals, prompts = np.cumsum(random.exponential(0.4 if ranks == 1 else 0.2, 16)), random.integers(20, 400, 16)
    stream = stream_of(arrivals.tolist(), prompts.tolist(), random.integers(300, 900, 16).tolist())
    cost = (*SECONDS[:2], 1e-5, per_kv)
    shares = tuple(count / 5 for count in layers_per_stage(5, stages))
    plain = PlainScheduler(STAGED[name], ranks, 100, 20, capacity, cost, (shares, HEAD_SECONDS))
    both_serve_alike(plain, staged_pool(STAGED[name], stages, ranks, 100, 20, capacity, 5, cost), stream, most=900)


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("waiting", "balanced")])
@pytest.mark.parametrize(("ranks", "slots", "capacity"), [(1, 40, 100_000), (2, 2, 100_000), (1, 3, 191)])
def test_iterations_that_are_added_up_are_those_of_a_plain_scheduler(
    name: str, ranks: int, slots: int, capacity: int
) -> None:
    """Until somebody leaves, comes or lacks a block; with memory for just the first two whole answers."""
    plain = PlainScheduler(RULES[name], ranks, 100, slots, capacity, SECONDS)
    both_serve_alike(
        plain, pool_of(RULES[name], ranks, 100, slots, capacity, SECONDS), _copy(STREAMS["somebody waits"])
    )


COUNTED = """
from planner.loops import aggregated_loop as loop
from planner.serving.aggregated import play_aggregated
from tests.planner.loops.test_iterations import STAGED, STREAMS
from tests.planner.serving.test_aggregated import staged_pool
turns, turn = [], loop._turn
loop._turn = lambda *arguments: (turns.append(1), turn(*arguments))[1]
played = play_aggregated(staged_pool(STAGED[NAME], 2, 1, 100, 40, 100_000, 5), STREAMS["batches side by side"])
print(len(turns), played.steps)
"""


@pytest.mark.parametrize("name", ["reserve", "a batch more"])
def test_turns_are_passed(name: str) -> None:
    """Of those of two batches side by side nearly all; counted in plain Python, into which one can look."""
    program, environment = COUNTED.replace("NAME", repr(name)), os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    turns, steps = map(int, done.stdout.split())
    assert steps > 100 and turns < steps / 2
