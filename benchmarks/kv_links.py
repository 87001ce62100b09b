"""How far the predicted wait for KV links is from the reference runtime, on planes made slow.

    python benchmarks/kv_links.py [--cases NAME,...] [--utilisations 0.5,0.85] [--loads 0.3,0.6,0.85]

Cases are those of benchmarks/queueing.py. A load is the share of time in which the links of the busier side carry KV;
the plane is made so slow that a plan at that utilisation reaches it.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from queueing import plan_of, saturation

from planner.manifest.schema import Manifest
from planner.plans.assemble import assemble
from planner.plans.expectation import pool_links, pool_pair, workload_of
from podplan.offered import read_offered
from podplan.options import SimulateFlags
from runtime.simulate.run import simulate

CASES = "qwen3-30b-h100,llama-70b-h200,qwen3-235b-h800,qwen3-30b-cm384-varied"


def slowed(manifest: Manifest, rate: float, load: float) -> Manifest:
    """Return the manifest on a plane so slow that the busier side's links carry KV for that share of time."""
    pools, kv = pool_pair(manifest), manifest.kv_transfer
    assert not isinstance(pools, str)
    assert kv is not None
    links = pool_links(manifest, pools, workload_of(manifest.workload), rate)
    assert links is not None
    slower = kv.bandwidth_bytes_per_second * max(links.utilisation.values()) / load
    return manifest.model_copy(update={"kv_transfer": kv.model_copy(update={"bandwidth_bytes_per_second": slower})})


def rows(name: str, utilisations: list[float], loads: list[float], requests: str) -> Iterator[str]:
    """Yield a row of the table for each utilisation and load."""
    plan = plan_of(name)
    manifest = assemble(plan, {})
    for utilisation in utilisations:
        rate = utilisation * saturation(plan)
        for load in loads:
            slow = slowed(manifest, rate, load)
            offered = read_offered(SimulateFlags(manifest=Path(), rate=f"{rate:.6g}/s", requests=requests), slow, 0)
            found = simulate(slow, offered.requests(), offered.options)
            pools = pool_pair(slow)
            assert not isinstance(pools, str)
            links = pool_links(slow, pools, workload_of(slow.workload), rate)
            assert links is not None
            times = (links.transfer_seconds, links.wait_seconds, found.mean_transfer_wait_seconds)
            busy = max(found.link_utilisation.values())
            cells = " | ".join(f"{seconds * 1e3:.1f} ms" for seconds in times)
            yield f"| {name} | {utilisation:.2f} | {load:.2f} | {busy:.2f} | {cells} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--utilisations", default="0.5,0.85")
    parser.add_argument("--loads", default="0.3,0.6,0.85")
    parser.add_argument("--requests", default="4000")
    asked = parser.parse_args()
    utilisations, loads = ([float(text) for text in part.split(",")] for part in (asked.utilisations, asked.loads))
    print("| case | utilisation | links busy, predicted | simulated | transfer | wait predicted | wait simulated |")
    print("|---|---|---|---|---|---|---|")
    for name in asked.cases.split(","):
        for row in rows(name, utilisations, loads, asked.requests):
            print(row, flush=True)


if __name__ == "__main__":
    main()
