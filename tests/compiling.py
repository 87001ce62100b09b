"""Loops of the serving core, each compiled by one of several processes: on a new machine that takes 40 s altogether."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from planner.manifest.layout import Degrees, Instance
from planner.manifest.schema import Manifest
from runtime.simulate.run import simulate
from runtime.simulate.workload import open_loop
from tests.manifests import build, manifest, pool
from tests.questions import best_of


def _mixed() -> Manifest:
    alone = pool("mixed", Degrees(attention_tp=1, attention_dp=1), [Instance(name="a", nodes=[0])])
    return build([alone], {"input_tokens": 150, "output_tokens": 20})


PLAYS: dict[str, Callable[[], object]] = {
    "aggregated": lambda: best_of(model="qwen3-8b", devices=1, shape="aggregated"),
    "driven": lambda: simulate(_mixed(), open_loop(_mixed().workload, 5.0, 20, 1)),
    "prefill": lambda: best_of(model="qwen3-8b", devices=2, squared_cv=1.0),
    "decode": lambda: best_of(model="qwen3-8b", devices=2, lengths=(512.0, 8.0)),
    "roles": lambda: simulate(manifest(), open_loop(manifest().workload, 5.0, 20, 1)),
}
"""What plays them; the first takes as long as all the others."""


def compile_apart() -> None:
    """Compile what no other process does, then wait for what they do."""
    from planner.loops import compiled  # noqa: F401 - chooses the folder

    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    for wait in (fcntl.LOCK_NB, 0):
        for name, play in PLAYS.items():
            with (folder / f"{name}.done").open("a+") as known:
                try:
                    fcntl.flock(known, fcntl.LOCK_EX | wait)
                except BlockingIOError:
                    continue
                if not known.tell():
                    play()
                    known.write("compiled\n")
