"""Speed of the simulator: run `python benchmarks/simulate.py [TRACE]` in an environment with podplan installed.

A decode instance of 320 DP ranks (CloudMatrix384, DP=320, EP=320) with as many prefill instances as it takes, under the
lengths and arrivals of a trace such as the Azure conversation window, played over and over at the rate that fills
decode; without a trace, only under Poisson arrivals with the moments of that window. Prints requests per second of
event-loop time, the occupancy that goes with it, and the memory of a long run. Nothing here is a test.
"""

import os
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from ground.traces import Trace, read_trace, repeat, requests_per_second, scale_rate
from ground.units import MEBI
from planner.manifest.schema import Manifest
from planner.plans.assemble import assemble
from planner.search.search import search
from podplan.options import QuestionFlags
from podplan.question import read_question
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import Requests, from_trace, open_stream, with_running

DECODE_RANKS = 320
DECODE_FILL = 0.9
"""Share of the slots of the decode instance that the rate is to fill."""
REQUESTS = 120_000
MILLION = 1_000_000


def made() -> Manifest:
    """Return the plan of one decode instance of so many ranks, with enough prefill for it."""
    flags = QuestionFlags(
        model="deepseek-r1", hw="cm384", strategy=f'decode="DP={DECODE_RANKS}, EP={DECODE_RANKS}"', engine="reference",
        isl="1155", isl_cv=f"{0.92**0.5}", osl="211", osl_cv=f"{0.60**0.5}", mtp="1", shape="disaggregated",
    )  # fmt: skip
    asked = read_question(flags).question
    prefill = replace(asked.prefill, devices=2560, budget="prefill")
    decode = replace(asked.decode, devices=DECODE_RANKS, budget="decode")
    best = search(replace(asked, prefill=prefill, decode=decode), beside=False).best
    assert best is not None, "the strategy fits the machine"
    return assemble(best, {"benchmark": "simulate"})


def told(name: str, manifest: Manifest, parts: Iterable[Requests], warmup: float) -> None:
    """Run and print what it took."""
    cpu = time.process_time()
    result = simulate(manifest, parts, SimulationOptions(warmup_seconds=warmup))
    cpu = time.process_time() - cpu
    occupancy = result.occupancy or {}
    arrived = result.requests + result.failed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEBI
    print(
        f"{name}: {arrived} measured, {result.wall_seconds:.1f} s of event loop ({cpu:.1f} s of processor); "
        f"slots {occupancy.get('slots', 0):.2f}, prefill busy {result.utilisation['prefill']:.2f}, "
        f"decode busy {result.utilisation['decode']:.2f}; {sum(result.steps.values())} steps, {result.events} events; "
        f"peak memory {peak:.0f} MiB"
    )


def main() -> None:
    """Print the figures."""
    manifest = made()
    decode = next(pool for pool in manifest.pools if pool.role == "decode")
    slots = decode.limits.requests_per_dp_rank * DECODE_RANKS
    expected = manifest.predicted.e2e_seconds
    assert expected is not None, "a planned manifest has a prediction"
    rate = DECODE_FILL * slots / expected.mean
    running = int(DECODE_FILL * slots)
    print(f"{len(manifest.pools[0].instances)} prefill instances, {slots} decode slots, {rate:.0f} requests/s")
    if len(sys.argv) > 1:
        trace: Trace = read_trace(Path(sys.argv[1]))
        times = -(-REQUESTS // len(trace))
        factor = rate / requests_per_second(trace)
        played = from_trace(scale_rate(repeat(trace, times), factor), manifest.workload)
        count = len(played) + running
        started = time.perf_counter()
        told(f"trace x {factor:.0f}, {count} requests", manifest, [with_running(played, running)], expected.mean)
        print(f"  {count / (time.perf_counter() - started):.0f} requests/s of wall time")
    drawn = open_stream(manifest.workload, rate, MILLION)
    first = next(drawn)
    told("a million requests", manifest, chain([with_running(first, running)], drawn), expected.mean)


if __name__ == "__main__":
    main()
