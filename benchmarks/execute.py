"""Time and memory of the reference runtime's default check at the degrees of the papers, for docs/execute.md.

python benchmarks/execute.py
"""

import resource
import time

from runtime.execute.check import execute
from runtime.execute.run import Settings
from tests.runtime.execute.deployments import deployed

PREFILL = "SP=4 + DP=8, EP=32"
CASES = {
    "CloudMatrix384, EP320": ("DP=320, EP=320", {"decode_redundant": 32, "decode_dedicated": 32, "decode_drafts": 1}),
    "xDeepServe, DP288/EP288": ("DP=288, EP=288", {"decode_dedicated": 32, "decode_drafts": 1}),
    "xDeepServe, 3 x 160 + 288": ("DP=160 x 3, EP=288", {"decode_dedicated": 32}),
}


def main() -> None:
    """Print a line per case."""
    for name, (decode, fields) in CASES.items():
        manifest = deployed("deepseek-r1", PREFILL, decode, prefill_redundant=32, **fields)
        wall, cpu = time.perf_counter(), time.process_time()
        report = execute(manifest, Settings())
        assert report is not None, "all ranks are in this process"
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{name}: equal {report.equal}, {wall:.1f} s, {cpu:.1f} s of CPU, {memory:.2f} GB so far")


if __name__ == "__main__":
    main()
