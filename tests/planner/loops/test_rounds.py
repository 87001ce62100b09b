"""Rounds of batches that take turns: skipped or played one by one, they end alike."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import numpy as np
from planner.loops import rounds_loop as loop
from planner.loops.batch_loop import CALM, HEAD, ROUNDS, Instances

class Rule:
    stages, overlapped = 2, False

class Times:
    layers = None

def end(case, skip):
    random = np.random.default_rng(case)
    rule, times = Rule(), Times()
    rule.stages, rule.overlapped = int(random.integers(2, 5)), bool(case % 2)
    calm, heads = np.zeros(rule.stages, CALM).view(np.recarray), np.zeros(rule.stages, HEAD).view(np.recarray)
    calm.running = random.random(rule.stages) < 0.9
    calm.running[0] = 1
    calm.seconds = 0.01 * random.uniform(0.9, 1.0 + 10.0 ** -random.integers(1, 6), rule.stages)
    calm.more = random.choice([0.0, 1e-7, 1e-6]) * random.integers(0, 9, rule.stages)
    calm.head = 1e-4 * random.integers(0, 3)
    times.layers = random.dirichlet(np.full(rule.stages, random.choice([30.0, 1e4])))
    calm.end = np.cumsum(random.uniform(0, random.choice([0.01, 0.3]), rule.stages))
    passed = calm.end.max() - 0.01 * (1 - np.cumsum(times.layers))[None, :]
    others = dict.fromkeys(Instances._fields)
    rounds = np.zeros((1, ROUNDS, rule.stages, rule.stages + 1))
    pool = Instances(**others | {"heads": heads, "calm": calm, "passed": passed, "rounds": rounds})
    until = random.choice([np.inf, random.uniform(1, 60)])
    found = loop._skipped
    loop._skipped = found if skip else lambda *_: 0
    n, now = loop.pass_rounds(0, 0, -1e-3, 1500, until, pool, rule, times)
    loop._skipped = found
    assert not n or calm.begin[np.flatnonzero(calm.running)[-1]] == now
    return np.array([n, now, *calm.begin, *calm.end, *passed[0], *heads.busy]), heads.single.sum()

skipped = 0
for case in range(40):
    (quick, left), (slow, _) = end(case, True), end(case, False)
    np.testing.assert_allclose(quick, slow, rtol=0, atol=1e-6, err_msg=str(case))
    skipped += left < 0
print(skipped)
"""

DRAFTED = """
from dataclasses import replace
import numpy as np
from planner.loops import iterations_loop as loop
from planner.serving.aggregated import play_aggregated
from tests.planner.loops.test_iterations import STAGED
from tests.planner.serving.costs import stream_of
from tests.planner.serving.test_aggregated import staged_pool

stream, passed = stream_of([0.0, 0.01, 0.02, 0.1], [64, 200, 90, 40], [400, 500, 300, 450]), loop.pass_rounds
for name in ("need", "estimate"):
    pool = replace(staged_pool(STAGED[name], 2, 1, 100, 40, 900, 5), queries=3, accepted=2.6)
    loop.pass_rounds = passed
    quick = play_aggregated(pool, stream)
    loop.pass_rounds = lambda k, start, now, *_: (0, now)
    slow = play_aggregated(pool, stream)
    np.testing.assert_allclose(quick.left_seconds, slow.left_seconds, rtol=0, atol=1e-7, err_msg=name)
    np.testing.assert_array_equal(quick.preemptions, slow.preemptions)
    print(int(slow.preemptions.sum() > 0) * 100)
"""


@pytest.mark.parametrize("program", [PROGRAM, DRAFTED])
def test_rounds_that_are_skipped_are_those_that_are_played(program: str) -> None:
    """With batches and stages that nearly tie, and with drafts where KV binds; in plain Python."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and all(int(line) > 25 for line in done.stdout.split()), done.stderr
