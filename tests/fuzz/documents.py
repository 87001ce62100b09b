"""Contents of files: right ones with a leaf, a line or a byte changed."""

import copy
import gzip
import io
import json
from collections.abc import Callable, Iterator
from functools import cache, reduce
from operator import getitem
from typing import Any

import numpy as np
from hypothesis import strategies as st

from deploy.render import render
from deploy.site import Site
from ground.files import parse_yaml, read_yaml, to_yaml
from hardware.loader import CATALOG
from models.loader import catalogue_path
from planner.engines.loader import load_engine
from planner.manifest.document import dump_manifest
from planner.manifest.mapformats import WRITERS, MoeMap
from podplan.migrating import MIGRATION, migrate
from tests.changes import tight
from tests.deploy.plans import deployed
from tests.fuzz.words import NUMBERS, ODD, PAYLOADS
from tests.manifests import manifest
from tests.models.configurations import config

VALUES: list[Any] = [None, True, False, 0, -1, 1, 10**30, 2**63, 1.5, -0.0, 1e308, 5e-324, float("inf"), float("nan")]
VALUES += [
    [],
    {},
    "",
    [[[]]],
    {"a": {"b": []}},
    [None],
    {"": 1},
    *PAYLOADS,
    *NUMBERS,
    *(text for text in ODD if text != "\udcff"),
]
CHANGES = 9
ANYWHERE = st.integers(0, 2**16).map(lambda number: number * 40503 % 2**16)
"""Numbers without the liking for small ones that Hypothesis has."""
CHANGE = st.tuples(ANYWHERE, st.integers(0, CHANGES - 1), st.sampled_from(VALUES))


BOMB = "\n".join([f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}" if n else "x"] * 9) + "]" for n in range(9)])
YAML = [
    *(BOMB, "x: !!python/object/apply:os.system ['echo>PWNED']", "x: !!python/name:os.system", "<<: *a", "&a a: *a"),
    *(
        "x: !include /etc/passwd",
        "? [a, b]\n: c",
        "%YAML 9.9\n---",
        "---\n---",
        "...",
        "\t- x",
        "x: |2\n   y",
        "- a\nb: c",
    ),
    *("x: 1:30:00", "x: 0o17", "x: .inf", "x: .NaN", "x: 2026-13-45", "x: !!binary $$", "no: yes", "~: 1", "1.5: 2"),
    *("? " * 3000 + "x", "- " * 3000 + "x", "{a: " * 3000, "x: '" + "'" * 9999, "\0", "\x85x: 1", "x: \ud800"),
]
"""Lines of YAML that mean more, or other things, than a stranger thinks."""
_ZIPPED = gzip.compress(bytes(10**8), 1)
"""A hundred million bytes in half a million."""
QUESTION = {
    "model": "qwen3-8b",
    "hw": "h100",
    "nodes": 1,
    "isl": 512,
    "osl": 64,
    "rate": "2/s",
    "ttft": "2s",
    "tpot": "50ms",
}
FLEET = {
    "pools": [{"hw": "h100", "nodes": 1, "name": "new"}, {"hw": "l40s", "nodes": 1, "price": 1.2, "power": "300W"}],
    "ttft": "2s",
    "models": [
        {"name": "a", "model": "qwen3-8b", "rate": "2/s", "isl": 512, "osl": 64},
        {"name": "b", "model": "qwen3-8b", "hw": "new", "rate": "1/s", "isl": 512, "osl": 64},
    ],
}
SCENARIOS = {
    "scenarios": [{"name": "night", "rate": "1/s", "lasts": "6h"}, {"name": "day", "rate": "4/s", "lasts": "9h"}]
}
PROMETHEUS = """# TYPE vllm:request_success_total counter
process_start_time_seconds 1000
vllm:request_success_total{model="m"} 600
vllm:request_prompt_tokens_sum 307200
vllm:request_prompt_tokens_count 600
vllm:request_generation_tokens_sum 38400
vllm:request_generation_tokens_count 600
vllm:request_time_per_output_token_seconds_bucket{le="0.02"} 300
vllm:request_time_per_output_token_seconds_bucket{le="+Inf"} 600
vllm:request_time_per_output_token_seconds_sum 12
vllm:request_time_per_output_token_seconds_count 600
"""
SITE = {
    "name": "chat",
    "namespace": "default",
    "image": "a/b:1",
    "model_path": "/models/m",
    "node_selectors": {"all": {"a": "b"}},
    "shared_memory": "64Gi",
    "inventory": "inventory.yaml",
    "http_port": 8000,
    "environment": {"NCCL_DEBUG": "INFO"},
    "patches": [
        {"target": {"kind": "LeaderWorkerSet"}, "merge": {"spec": {"replicas": 3}, "metadata": {"labels": {"a": "b"}}}}
    ],
}
INVENTORY = {"hosts": [{"name": f"host-{n}", "address": f"10.1.0.{n + 1}"} for n in range(64)]}
MAP = MoeMap(slots=np.arange(16).reshape(1, 16).repeat(3, axis=0), experts=16, ranks=8)
MAPS = ("sglang", "vllm_ascend", "eplb")
DENSE = {
    **{"model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512, "vocab_size": 1000},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096},
    **{"torch_dtype": "bfloat16", "tie_word_embeddings": False},
}


SERVE = "export SEQS=64\nexec vllm serve Qwen/Qwen3-8B -tp 1 --max-num-seqs $SEQS --max-model-len $((2 * 2048))\n"
CONTAINER = {"name": "vllm", "command": ["vllm", "serve", "Qwen/Qwen3-8B"], "args": ["--max-num-seqs", "64"]}
POD = {"spec": {"containers": [{**CONTAINER, "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
KINDS = {
    "LeaderWorkerSet": {"leaderWorkerTemplate": {"size": 1, "workerTemplate": POD}},
    "Deployment": {"template": POD},
}
OBJECTS = [{"kind": kind, "metadata": {"name": "a"}, "spec": {"replicas": 2, **own}} for kind, own in KINDS.items()]
REPORT = {
    **{"mean_ttft_ms": 30.0, "mean_tpot_ms": 9.0, "request_throughput": 2.0, "output_throughput": 128.0},
    **{"max_concurrency": 4, "total_input_tokens": 51200, "total_output_tokens": 6400, "completed": 100},
}
_MEANS = {"time_to_first_token": 30, "inter_token_latency": 9, "request_count": 100, "request_throughput": 2}
_MEANS |= {"output_token_throughput": 128, "input_sequence_length": 512, "output_sequence_length": 64}
_TIMED = {"time_to_first_token": {"units": "s", "mean": 0.03}, "inter_token_latency": {"units": "ms", "mean": 9}}
_ASKED = {"load": {"standardized": {"concurrency": 4, "input_seq_len": {"value": 512}}}}
REPORTS: list[Any] = [
    REPORT,
    {**REPORT, "mean_e2e_latency_ms": 600, "server_info": {}, "request_rate": "inf"},
    {name: {"unit": "ms", "avg": mean} for name, mean in _MEANS.items()}
    | {"input_config": {"phases": [{"kind": "profiling", "type": "concurrency", "concurrency": 4}]}},
    {
        "metadata": {},
        "benchmarks": [{"metrics": {f"{name}_ms": {"successful": {"mean": mean}} for name, mean in _MEANS.items()}}]
        * 2,
    },
    {"scenario": _ASKED, "results": {"request_performance": {"aggregate": {"latency": _TIMED}}}},
    {"conc": 4, "isl": 512, "osl": 64, "metrics": {"mean_ttft": 0.03, "mean_tpot": 0.009}},
]
"""What load generators write: vLLM, SGLang, AIPerf, guidellm, llm-d and InferenceX."""
SETTINGS = {
    **{"tensor_parallel_size": 2, "max_batch_size": 16, "max_num_tokens": 4096, "enable_attention_dp": True},
    **{"kv_cache_config": {"free_gpu_memory_fraction": 0.8, "dtype": "fp8"}, "disable_overlap_scheduler": True},
    **{"speculative_config": {"decoding_type": "MTP"}, "cache_transceiver_config": {"backend": "UCX"}},
    **{"moe_config": {"backend": "CUTLASS", "load_balancer": {"num_slots": 16}}},
}
TRTLLM = "trtllm-serve Qwen/Qwen3-8B --extra_llm_api_options settings.yaml --max_batch_size ${A:-8}\n"
RUNS = "id,model,hardware,engine,weights,strategy,isl,osl,concurrency,ttft_seconds,tpot_seconds"
TRACES: list[list[Any]] = [
    [{"timestamp": 100 * n, "input_length": 9 + n, "output_length": 2 + n, "hash_ids": [n]} for n in range(30)],
    [{"session_id": f"{n % 3}", "input_length": 9, "output_length": 2, "delay": 10, "timestamp": n} for n in range(9)],
    [{"id": "a", "requests": [{"t": float(n), "type": "n", "in": 9, "out": 2, "hash_ids": [1]} for n in range(5)]}],
    [{"conversations": [{"value": "a question"}, {"value": "an answer"}]}] * 3,
    [{"prompt": "text", "output_tokens": 5}] * 3,
    [
        {
            "spans": [
                {
                    "startTimeUnixNano": "17",
                    "attributes": {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 2},
                }
            ]
        }
    ],
    [{"input_toks": 9, "output_toks": 2, "arrival_time_ns": 10**9 * n} for n in range(4)],
]
SERVEGEN = {"0": {"input_tokens": "{45: 0.25, 46: 0.75}", "output_tokens": "{5: 1}"}}


def changed(data: Any, number: int, how: int, value: Any) -> Any:
    """Return plain data with one part dropped, negated, scaled, of another type, doubled, renamed or replaced."""
    places = list(_places(data))
    if not places:
        return value
    data = copy.deepcopy(data)
    *path, key = places[number % len(places)]
    parent = reduce(getitem, path, data)
    here = parent[key]
    if how == 0:
        del parent[key]
    elif how == 1 and isinstance(parent, dict):
        parent[f"{key}x"] = parent.pop(key)
    elif how in (2, 3, 4) and isinstance(here, int | float):
        parent[key] = here * {2: -1, 3: 10**9, 4: 1e-9}[how]
    elif how in (5, 6):
        parent[key] = str(here) if how == 5 else [here, here]
    else:
        parent[key] = value
    return data


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of plain data."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from _places(value, (*path, key))


def trees(*bases: Any, sound: bool) -> st.SearchStrategy[Any]:
    """Return plain data like one of the bases, mostly with a part or two changed unless it is to be sound."""
    if sound:
        return st.sampled_from(bases)
    changes = st.sampled_from([0, 0, 1, 1, 1, 1, 2]).flatmap(
        lambda size: st.lists(CHANGE, min_size=size, max_size=size)
    )
    return st.builds(
        lambda base, all: reduce(lambda data, one: changed(data, *one), all, base), st.sampled_from(bases), changes
    )


def spoiled(contents: st.SearchStrategy[bytes], sound: bool) -> st.SearchStrategy[bytes]:
    """Return mostly the contents, else cut short, with bytes overwritten, lines doubled, or other line ends."""
    if sound:
        return contents

    def spoil(content: bytes, how: int, place: int, byte: int) -> bytes:
        at, line = place % (len(content) + 1), _text(YAML[place % len(YAML)])
        changes: list[Callable[[], bytes]] = [
            lambda: content[:at],
            lambda: content[:at] + bytes([byte]) + content[at + 1 :],
            lambda: content[:at] + b"\xff\xfe\0" + content[at:],
            lambda: content.replace(b"\n", b"\r"),
            lambda: content.replace(b"\n", b"\r\n"),
            lambda: b"\xef\xbb\xbf" + content,
            lambda: _doubled(content.split(b"\n"), place),
            lambda: content[:at] + b"9" * 200_000 + content[at:],
            lambda: content[:at] + b"[" * 20_000 + content[at:],
            lambda: b"",
            lambda: content.replace(b'": "', b'": "\\ud800', 1),
            lambda: content + line + b"\n",
            lambda: line + b"\n" + content,
            lambda: content.decode(errors="replace").encode("utf-16"),
            lambda: gzip.compress(content, 1),
            lambda: _ZIPPED,
            lambda: content * 300,
            lambda: content.replace(b"0", b"1e400").replace(b"5", b"-5"),
            lambda: content.replace(b",", b";"),
        ]
        return changes[how]() if how < len(changes) else content

    return st.builds(spoil, contents, st.sampled_from(range(60)), ANYWHERE, st.integers(0, 255))


def _doubled(lines: list[bytes], place: int) -> bytes:
    return b"\n".join([*lines[: place % len(lines)], lines[place % len(lines)], *lines[place % len(lines) :]])


def _text(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _yaml(data: Any) -> bytes:
    return _text(to_yaml(data))


def _json(data: Any) -> bytes:
    return _text(json.dumps(data))


def tables(header: str, *rows: str, sound: bool) -> st.SearchStrategy[bytes]:
    """Return CSV like the rows, with cells changed."""
    cells = st.sampled_from([*NUMBERS, *ODD, *PAYLOADS, '"', '"a,b"', '"a\nb"'])
    changes = st.lists(st.tuples(ANYWHERE, ANYWHERE, cells), max_size=0 if sound else 2)

    def made(changes: list[tuple[int, int, str]]) -> bytes:
        table = [line.split(",") for line in (header, *rows) if line]
        for row, column, cell in changes:
            line = table[row % len(table)]
            line[column % len(line)] = cell
        return _text("\n".join(",".join(line) for line in table) + "\n")

    return spoiled(st.builds(made, changes), sound)


@cache
def manifests() -> dict[str, Any]:
    """Return small manifests as plain data: made by hand, with faults to shrink by, and for engines."""
    redundant = [*range(16), *((expert + 5) % 16 for expert in range(16))]
    asked = {"strategy": "TP=1", "instances": 2, "tokens": 2048, "requests": 16}
    made = {
        "toy": manifest(prefill=1, decode=1, slots=redundant),
        "dense": deployed("qwen3-8b", "h100", mixed=asked),
        "apart": deployed("qwen3-8b", "h100", prefill=asked, decode=asked),
        "ascend": deployed("qwen3-8b", "910b", prefill=asked, decode=asked),
    }
    return {name: parse_yaml(dump_manifest(one), name) for name, one in made.items()}


@cache
def changes() -> dict[str, Any]:
    """Return the files of `plan migrate` between two manifests, the first of which runs."""
    found = migrate(tight(2, 1), tight(1, 2), rate="5/s", startup="1s")
    return {name: parse_yaml(text, name) for name, text in found.files().items()}


@cache
def folder() -> dict[str, str]:
    """Return the files that `plan deploy` writes for a manifest."""
    asked = {"strategy": "TP=1", "instances": 2, "tokens": 2048, "requests": 16}
    made = deployed("qwen3-8b", "h100", mixed=asked)
    return dict(render(made, load_engine("vllm"), "bare", Site(), "0" * 64).files)


@cache
def machines() -> list[Any]:
    """Return catalogue entries as plain data."""
    return [read_yaml(CATALOG / f"{name}.yaml") for name in ("h100", "l40s", "cm384")]


def _lines(rows: list[Any]) -> bytes:
    return b"\n".join(map(_json, rows))


def traces(sound: bool) -> st.SearchStrategy[bytes]:
    """Return request traces of several formats."""
    stamps = [f"2023-11-16 18:00:{n:02d}.5,{n + 9},2" for n in range(30)]
    rows = trees(*TRACES, sound=sound)
    return st.one_of(
        spoiled(rows.map(lambda data: _lines(data) if isinstance(data, list) else _json(data)), sound),
        spoiled(rows.map(_json), sound),
        tables("TIMESTAMP,ContextTokens,GeneratedTokens", *stamps, sound=sound),
        tables("timestamp,input_length,output_length", *(f"{n},9,2" for n in range(30)), sound=sound),
        *([] if sound else [st.just(b"PAR1" + bytes(60) + b"PAR1")]),
    )


def arrays(ending: str, sound: bool) -> st.SearchStrategy[bytes]:
    """Return expert loads as NPY or NPZ."""

    def made(shape: tuple[int, ...], kind: str, name: str) -> bytes:
        file, values = io.BytesIO(), np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(kind)
        np.save(file, values) if ending == ".npy" else np.savez_compressed(file, **{name: values})
        return file.getvalue()

    shapes = st.sampled_from([(3, 16), (3, 16, 2), *([] if sound else [(16,), (0, 16), (1, 1), ()])])
    kinds = st.sampled_from(["f8", "i8", "f4", *([] if sound else ["?", "c16", "S3", "O"])])
    return spoiled(
        st.builds(made, shapes, kinds, st.sampled_from(["loads", "counts", *([] if sound else ["topk"])])), sound
    )


@cache
def files(sound: bool) -> dict[str, st.SearchStrategy[bytes]]:
    """Return a strategy for the content of every file that a command line names."""

    def data(write: Callable[[Any], bytes], *bases: Any) -> st.SearchStrategy[bytes]:
        return spoiled(trees(*bases, sound=sound).map(write), sound)

    def table(header: str, *rows: str) -> st.SearchStrategy[bytes]:
        return tables(header, *rows, sound=sound)

    layers = [",".join(str(layer + expert + 1) for expert in range(16)) for layer in range(3)]
    keyed = [f"{layer},{part},{row}" for part in "ab" for layer, row in enumerate(layers)]
    head = ",".join(f"e{n}" for n in range(16))
    models = [read_yaml(catalogue_path(name)) for name in ("qwen3-8b", "qwen3-30b-a3b")]
    plans, stages = manifests(), changes()
    return {
        "QUESTION": data(_yaml, QUESTION, {**QUESTION, "questions": [{"name": "a"}, {"isl": 128}]}),
        "FLEET.yaml": data(_yaml, FLEET, {**QUESTION, "models": FLEET["models"][:1]}),
        "site.yaml": data(_yaml, SITE),
        "inventory.yaml": data(_yaml, INVENTORY),
        "hardware.yaml": data(_yaml, *machines()),
        "model.yaml": data(_yaml, *models),
        "config.json": data(_json, DENSE, DENSE, config("deepseek_v3"), config("kimi_k2")),
        "MANIFEST": data(_yaml, *plans.values()),
        "MOVED": data(_yaml, stages[max(stages)]),
        "RUNS": data(_yaml, stages[min(set(stages) - {MIGRATION})]),
        "migration.yaml": data(_yaml, stages[MIGRATION]),
        **{name: st.just(_yaml(stage)) for name, stage in stages.items() if name != MIGRATION},
        "scenarios.yaml": data(_yaml, SCENARIOS),
        "run.prom": spoiled(st.just(_text(PROMETHEUS)), sound),
        "GPUS": data(_yaml, plans["dense"], plans["apart"]),
        "NPUS": data(_yaml, plans["ascend"]),
        "trace": traces(sound),
        "trace.gz": spoiled(traces(sound).map(gzip.compress), sound),
        "lengths.csv": table("tokens,weight", "128,1", "512,3", "1000,0.5"),
        "day.csv": table("time,rate", "0:00,1/s", "8:00,3/s"),
        "loads.csv": st.one_of(table("", *layers), table(head, *layers), table(f"layer,slice,{head}", *keyed)),
        "loads.json": data(_json, {"logical_count": [[[1] * 16] * 3] * 2}, [[1.0] * 16] * 3),
        "loads.npy": arrays(".npy", sound),
        "loads.npz": arrays(".npz", sound),
        "map.json": data(_json, *(json.loads(WRITERS[f"{name}.json"](MAP)) for name in MAPS)),
        "map.yaml": data(_yaml, parse_yaml(WRITERS["expert_map.yaml"](MAP), "map")),
        "MEASUREMENTS.csv": table(
            "kernel,seconds,bytes,dtype,groups,rows,columns,depth,version,source",
            *(f"gemm,{n}e-5,0,bf16,1,{2**n},4096,4096,1,own measurement" for n in range(1, 9)),
            "memory_copy,1e-5,1000000,,,,,,1,own measurement",
        ),
        "start.sh": spoiled(st.just(_text(SERVE)), sound),
        "objects.yaml": data(_yaml, *OBJECTS),
        "report.json": data(_json, *REPORTS, REPORTS[:2]),
        "settings.yaml": data(_yaml, SETTINGS),
        "trtllm.sh": spoiled(st.just(_text(TRTLLM)), sound),
        **{name: spoiled(st.just(_text(text)), sound) for name, text in folder().items()},
        "runs.csv": table(RUNS, *(f"{n},qwen3-8b,h100,vllm,bf16,TP=1,1024,{n + 9},8,,0.009" for n in range(6))),
        "chunk-0-trace.csv": table("", *(f"{600 * n},0.1,1,Gamma,1,1" for n in range(4))),
        "chunk-0-dataset.json": data(_json, SERVEGEN),
    }
