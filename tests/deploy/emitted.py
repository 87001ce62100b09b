"""Every command line that plan deploy writes over the plans and pairs of the tests, by the parser that reads it."""

import shlex
from collections.abc import Iterator, Mapping
from functools import cache

from deploy.reading.check import all_texts
from deploy.reading.flags import table_key
from deploy.reading.nodes import read_nodes
from ground.errors import Infeasible
from planner.engines.spec import PlatformKind
from planner.manifest.schema import ShownPictures
from tests.deploy.cases import files_of, made, pairs, plan

PROGRAMMES = {
    "vllm-router": "vllm-router", "sglang_router.launch_router": "sglang-router", "vllm bench serve": "vllm-bench",
    "sglang.bench_serving": "sglang-bench", "aiperf profile": "aiperf",
}  # fmt: skip


def possible() -> list[tuple[str, str, PlatformKind]]:
    """Return the (plan, engine, kind) that render; the others break a rule."""
    found = []
    for pair in pairs():
        try:
            made(*pair)
        except Infeasible:
            continue
        found.append(pair)
    return found


def commands(kind: PlatformKind, files: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the arguments of every engine process of a deployment."""
    for node in read_nodes(kind, files):
        for process in node.processes:
            yield arguments(process.words)


def renderings(name: str, engine: str, kind: PlatformKind) -> Iterator[dict[str, str]]:
    """Yield the files of a deployment, for a site that says more, and with a video for its pictures."""
    yield made(name, engine, kind).files
    if kind == "lws":  # whose routers watch pods where an autoscaler is asked for
        yield files_of(name, engine, kind, prometheus="http://prometheus:9090")
    if kind in ("lws", "statefulset", "volcano", "slurm"):  # whose scripts are those of bare
        return
    yield files_of(name, engine, kind, trust_remote_code=True, infiniband_device="mlx5_0", kv_transfer="mooncake")
    seen = plan(name)
    if seen.workload.pictures:
        video = seen.workload.model_copy(update={"pictures": ShownPictures(count=1, width=640, height=360, frames=16)})
        yield files_of(seen.model_copy(update={"workload": video}), engine, kind)


def arguments(words: tuple[str, ...] | list[str]) -> list[str]:
    """Return words from the first flag on."""
    return list(words[next((n for n, word in enumerate(words) if word.startswith("--")), len(words)) :])


@cache
def emitted() -> dict[str, list[list[str]]]:
    """Return parser -> distinct argument lists: of engines, routers and benchmarks."""
    found: dict[str, dict[tuple[str, ...], None]] = {}
    for name, engine, kind in possible():
        for files in renderings(name, engine, kind):
            for words in commands(kind, files):
                if words:
                    found.setdefault(table_key(engine, kind, words), {})[tuple(words)] = None
            for file, text in all_texts(files).items():
                if file in ("router.sh", "benchmark.sh"):
                    line = text.replace("\\\n", " ").rpartition("\nexec ")[2].partition("\n")[0]
                    for programme, parser in PROGRAMMES.items():
                        if programme in line:
                            found.setdefault(parser, {})[tuple(arguments(shlex.split(line)))] = None
    return {parser: [list(words) for words in held] for parser, held in sorted(found.items())}
