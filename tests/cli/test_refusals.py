"""What a user can mend is refused: exit code 2, nothing written, and one sentence that names the flag or the file."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from planner.manifest.document import dump_manifest
from tests.changes import tight
from tests.deploy.cases import plan
from tests.expert_loads import power_law
from tests.manifests import manifest
from tests.shell import refused

TYPED = {
    "": """
        --version=3 → --version
        models --jsn → --jsn
        models deepseek-r1 more → (more); see plan models --help
        models depseek-r1 → did you mean deepseek-r1
        hardware cm386 → did you mean cm384
        check {LONG} → is no question file
        predict {LONG} --hw h100 --phase decode --strategy TP=1 → nnn
        qwen3-8b --hw= --devices 1 → --hw is followed by an empty word
        search qwen3-8b --hw ' ' → --hw is followed by an empty word
        accuracy --kind decoed → --kind
        accuracy --max-mape little → --max-mape
        accuracy --max-mape -1 → --max-mape
    """,
    "search deepseek-r1": """
        → a model needs a machine; add for example --hw h800
        --hw cm348 → did you mean cm384?
        --hardware cm384 → no such option: --hardware; did you mean --hw?
        --hw cm384,h800 → plan compare MODEL --hw cm384,h800 sets them side by side
        --hw prefill=910b → add decode=NAME
        --hw prefil=910b,decode=cm384 → did you mean prefill?
        --hw prefill=910b,decode=cm384 --nodes 4 → write --nodes prefill=N,decode=N
        --hw h800 --mtp 3..1 → must rise, such as 0..3
    """,
    "search deepseek-r1 --hw cm384": """
        --nodes 1e30 → --nodes: '1e30' is too large to be meant
        --nodes 1e15 → --nodes: 1.6e+16 devices are more than cm384 has
        --nodes 0 → --nodes: '0' is zero
        --nodes 49 → use at most 48
        --devices 5 → use 4 or 6
        --nodes prefill=40,decode=9 → 640 + 144 devices are more than cm384
        --nodes prefill=4 → add decode=N
        --weights fp8 → --weights: cm384 does not multiply 'fp8'
        --isl 160k --osl 10k → 163840 positions of deepseek-r1
    """,
    "search qwen3-30b-a3b --hw h800 --nodes 1": """
        --trace nofile → --trace: nofile: no such file
        --tpot 50 → --tpot: '50' has no unit; write for example 50ms
        --tpot -5ms → --tpot: '-5ms' is negative
        --tpot 1e-300s → --tpot: '1e-300s' is shorter than any machine can keep
        --ttft '' → --ttft is followed by an empty word
        --chips 8 → --nodes and --chips both give the size
        --mtp 1 → --mtp: qwen3-30b-a3b ships no layer that drafts
        --objective latency → latency needs the rate to serve
        --objective throughput --rate 5/s → leave one out
        --rate 5 → --rate: '5' is not a rate
        --rate 5/s --rate-profile 0:00=5/s → --rate-profile
        --rate-profile 0:00=5/s --objective throughput → --rate-profile
        --percentile 100 → --percentile: '100'
        --engine xllm → xLLM runs here on Ascend devices
        --format azure → --trace FILE
        --isl-cv x → --isl-cv: 'x'
        --prefix-reuse 1 → --prefix-reuse: '1'
        --queueing mm1 → --queueing: 'mm1' is not bulk or mixserve
        --shape round → --shape
        --shape aggregated --queueing mixserve → --queueing mixserve knows
        --force → --out, --csv and --plot
        --expert-skew {LONG} → --expert-skew
        --price 0 → --price: '0' is not USD per chip and hour, such as 1.25
        --power prefill=1kW → --power: both roles run on h800
        --pareto 1 → --pareto: 1 is not from 2 to 8 levels
    """,
    "search qwen3-8b --hw h200 --devices 2": """
        --weights bf16,bf16 → --weights: bf16 stands twice
        --weights bf16, → --weights: 'bf16,' has an empty place
        --weights bf16,fp5 → h200 does not multiply 'fp5'
        --weights prefill=fp8 → leaves open the format of decode; add decode=auto
        --weights prefill=fp8,decod=int4 → or decode=...; did you mean decode?
        --weights fp8,decode=int4 → --weights: 'fp8' is not prefill=... or decode=...
        --weights prefill=fp8,prefill=bf16,decode=fp8 → --weights: prefill stands twice
        --weights prefill=fp8,decode= → --weights: 'decode=' is not prefill=... or decode=...
        --weights prefill=fp8,decode=int4 --shape aggregated → --weights: aggregated instances load one
        --kv-dtype bf16,fp4 → --kv-dtype: 'fp4' is not
    """,
    "predict": """
        depseek-r1 --hw cm384 --phase decode --strategy 'DP=32, EP=32' → depseek-r1 … deepseek-r1
        deepseek-r1 --hw cm385 --phase decode --strategy 'DP=32, EP=32' → cm385 … cm384
        deepseek-r1 --hw prefill=910b,decode=cm384 --phase decode --strategy TP=1 → --hw … one
        deepseek-r1 --hw cm384 --phase deocde --strategy 'DP=32, EP=32' → --phase … decode
        deepseek-r1 --hw cm384 --phase decode --strategy 'DP=32, EP=32' → --batch … decode
        deepseek-r1 --hw h800 --phase prefill --strategy 'DP=32, EP=32' → --tokens … prefill
        qwen3-32b --hw h100 --phase mixed --strategy TP=4 → --concurrency … mixed
    """,
    "predict deepseek-r1 --hw cm384 --phase decode --strategy 'DP=32, EP=32'": """
        --batch 0 → --batch … above zero
        --batch -3 → --batch … negative
        --batch 2.5 → --batch … whole number
        --batch many → --batch
        --batch 1 --microbatches 2 → --microbatches … --batch
    """,
    "predict deepseek-r1 --hw cm384 --phase decode --strategy 'DP=32, EP=32' --batch 8": """
        --tokens 8k → --tokens … prefill
        --requests 100 → --requests … --batch
        --kv-len 4x → --kv-len … unit
        --kv-len 1M → --kv-len … 163840
        --mtp 9 → --mtp … 8
        --mtp 1 --mtp-acceptance 1.2 → --mtp-acceptance … from 0 to 1
        --devices 64 → --devices … 64 … 32
        --nodes 1 → --strategy … 16
        --nodes 49 → --nodes … 48
        --weights fp8 → --weights … int8 … bf16
        --kv-dtype fp4 → --kv-dtype … fp8
        --expert-balance 0.5 → --expert-balance … at least 1
        --redundant-experts 7 → --redundant-experts … 0 or 32
        --shared-experts dedicated → --shared-experts … dedicated=N
        --shared-experts dedicated=32 → --shared-experts … dedicated=32
        --microbatches 3 → --microbatches … auto
        --engine vllm@newest → --engine … newest
        --engine vlm → --engine … vllm
        --length-spread 0.1 → --length-spread … mixed
        --colour → --colour
    """,
    "predict deepseek-r1 --hw cm384 --phase decode --batch 8": """
        --strategy 'DP=32, EP=33' → --strategy
        --strategy 'TP=3 + DP=8, EP=24' → --strategy … 128 heads
        --strategy 'DP=1024, EP=1024' → --strategy … 768
        --strategy 'SP=4 + DP=8, EP=32' → --strategy … SP … TP=4
        --strategy 'DP=160 x 5, EP=288' → --strategy … 1088 … 768
    """,
    "predict deepseek-r1 --hw h800 --phase prefill": """
        --strategy 'DP=32, EP=32' --tokens 16k --isl 200k → --isl … 163840
        --strategy 'DP=32, EP=32' --tokens 1 --isl 128k → --tokens … passes
        --strategy 'DP=32, EP=32' --tokens 16k --prefix-reuse 0.5 --cache-plane vpc → --cache-plane … nvlink
        --strategy 'DP=32, EP=32' --tokens 16k --prefix-reuse 1 → --prefix-reuse … not including, 1
        --strategy 'DP=16 x 2, EP=16' --tokens 16k → --strategy … decode … leave out the domains
    """,
    "predict qwen3-32b --hw h100 --phase mixed --strategy TP=4 --isl 2048": """
        --concurrency 1M → --concurrency … at most 100000
        --concurrency 64 --osl 100k → --osl … positions
        --concurrency 64 --mtp 1 --out never → --mtp … qwen3-32b
        --concurrency 64 --expert-balance 1.2 → --expert-balance … qwen3-32b has no experts
        --concurrency 64 --expert-balance none → --expert-balance … qwen3-32b has no experts
        --concurrency 64 --expert-skew log-normal=0.5 → --expert-skew … qwen3-32b has no experts
        --concurrency 64 --shared-experts dedicated=2 → --shared-experts … qwen3-32b has no shared expert
        --concurrency 64 --redundant-experts 8 → --redundant-experts … qwen3-32b
        --concurrency 64 --microbatches 2 → --microbatches … qwen3-32b
        --concurrency 64 --length-spread 1 → --length-spread … 1
    """,
    "check": """
        → give a question file, MODEL with --hw HW, or --manifest FILE
        qwen3-30b-a3b → --hw: 'qwen3-30b-a3b' is no question file
        gone.yaml → gone.yaml: no such file
        qwen3-8b --hw h100 --confidence 0.2 → --confidence: '0.2' must be from 0.5
        qwen3-8b --hw h100 --confidence x → --confidence: 'x' must be from 0.5
        qwen3-8b --hw h100 --survive rack → --survive: 'rack' is not node or instance
        qwen3-8b --hw h100 --force → --junit FILE
        qwen3-8b --hw h100 --junit . → --junit: . is a folder
    """,
    "compare": """
        → give a question file, or MODEL with --hw HW; see plan compare
        qwen3-8b → is no question file, and a model needs a machine; add for example --hw h800,h200
        qwen3-8b --hw h101 → h101
        qwen3-8b --hw h100 --force → --force replaces files of --csv and --plot
        qwen3-8b --hw h100 --csv . → --csv: . is a folder
    """,
    "sweep": """
        qwen3-8b → give MODEL, --hw HW and --over
        qwen3-8b --hw h100 → --over: sweep one or two flags
        qwen3-8b --hw h100 --devices 2 --over devices=2,4 → --devices and --over devices both give it
    """,
    "sweep qwen3-8b --hw h100 --over": """
        rat=1/s → 'rat' is no flag to sweep; did you mean rate
        osl → is not FLAG=VALUES
        tpot=1ms..9s:3 → has two units
        isl=0..1k:3:log → a logarithmic range from 0 to 1 must have ends above zero
        tpot=1ms..9ms → is not a range like
        tpot=1ms..9ms:1 → must have from 2 to
        osl=64,128 --over osl=9 → osl is swept twice
        osl=64,x → --osl: 'x'
        osl=64,128 --plot a.pdf → must end in .png or .svg
        osl=64,128 --measure joy → --measure: 'joy' is not requests, … tokens-per-chip
    """,
    "explain": """
        → give a question file, or MODEL with --hw HW
        qwen3-30b-a3b → --hw: 'qwen3-30b-a3b' is no question file
        qwen3-8b --hw h100 --name x → --name picks a question of a file
        two.yaml → --name:
        two.yaml --name c → holds 0 questions named 'c'; pick one of a, b
        two.yaml --rate 5/s → --rate: a question file states its own flags
    """,
    "simulate manifest.yaml": """
        → --rate: the manifest's workload states no requests_per_second
        --rate 1/s --concurrency 1 → --rate and --concurrency
        --format azure → --trace-format belongs to a trace
        --scale-rate 2 → --scale-rate belongs to a trace
        --repeat 2 → --repeat belongs to a trace
        --rate -1/s → --rate: '-1/s' is negative
        --requests 0 → --requests: '0' is zero
        --concurrency 1 --cold → --cold
        --concurrency 1 --warmup 1000h → --warmup
        --seed 1e12 → --seed
        --rats 1/s → no such option
        --rate 1/s --policies least_load → --policies: give at least two
        --rate 1/s --policies least_load,best → --policies: 'best' is not a policy
        --rate 1/s --policies fixed,dynamic --timeline x → --policies: compares several runs
        --rate 1/s --fail 'node 99 at 1s for 1s' → --fail: no node '99'
        --rate 1/s --bursts 5x → --bursts: '5x' must be FACTOR,SHARE,LENGTH
        --rate 1/s --bursts 0.5,2,1s → --bursts: needs a factor from 1
        --rate 1/s --expert-loads zipf:x → --expert-loads: 'zipf:x' needs a number
        --rate 1/s --expert-loads zipf:1@now → --expert-loads
        --rate 1/s --expert-loads zipf:1@1min --fail 'node 0 at 1s for 1s' → leave --fail out
        --rate 1/s --expert-loads absent.csv → absent.csv: no such file
        --rate 1/s --rebalance 1min → --rebalance: maps follow --expert-loads
        --rate 1/s --offline -1 → --offline
        --rate 1/s --offline 5,100 → --offline
        --rate 1/s --offline 5,100+1M → --offline
        --rate 1/s --timeseries-step 1s → --timeseries-step: belongs to --timeseries
        --rate 1/s --timeseries a.csv --requests-csv ./a.csv → --timeseries both name a.csv
        --migration nowhere.yaml → nowhere.yaml
        --migrate-at 3s → --migrate-at: belongs to --migration
        --rate 1/s --autoscale most=3 → --autoscale: 'most=3' is not keda
        --rate 1/s --autoscale fill=2 → --autoscale: fill
        --force → --requests-csv, --timeseries and --timeline
    """,
    "execute manifest.yaml": """
        --force → --timeline; give --timeline FILE
        --recover shrink → give --drop RANK@ITERATION with it
        --drop 0@1 --timeline t.json → leave it or --drop out
    """,
    "migrate old.yaml new.yaml": """
        --max-concurrent none → --max-concurrent
        --load-from air → --load-from: 'air' is not peers
        --load-from storage=fast → --load-from: 'storage=fast' is not peers, storage=RATE
        --confidence 2 → --confidence
        --traffic theirs → --traffic: 'theirs' is not old, new or both
        --spare-nodes -1 → --spare-nodes
        --startup soon → --startup
    """,
    "deploy r1.yaml": """
        --out files → give one of mindie, sglang, trtllm, vllm, vllm-ascend, xllm
        --engine sglang → --out: give the folder
        --engine vllm-ascend@0.9 --out files → known are 0.23.0 up to (not including) 0.24
        --engine vlm --out files → did you mean vllm
        --engine reference --out files → plan simulate
        --engine sglang --out files --platform k8s → is not bare, slurm or kubernetes
        --engine sglang --out files --kind lws → add --platform kubernetes
        --engine sglang --out files --platform kubernetes --kind lwss → did you mean lws
        --engine xllm --out files --platform kubernetes --kind dynamo → not xLLM
        --engine sglang --out files --values none.yaml → none.yaml: no such file
        --engine sglang --diff . → has no README.md of plan deploy
    """,
    "place loads.csv": """
        --devices 0 → --devices
        --devices 100000 → --devices
        --devices 4 --out '' → --out is followed by an empty word
        --devices 4 --out {LONG} → cannot be written
        --devices 4 --force → --out and --plot; give one of them
        --devices 8 --nodes 3 → --nodes 3 must divide the 8 devices
        --devices 8 --redundant-experts 3 → 0 or 8 would do
        --devices 8 --redundant-experts 300 → between 0 and 224
        --devices 8 --slots-per-device 3 → from 4, where 32 experts fit, to 32
        --devices 8 --slots-per-device 5 --redundant-experts 8 → leave one of them out
        --devices 8 --groups 3 → --groups 3 must divide the 32 experts
        --devices 8 --nodes 2 --keep-groups → --keep-groups: 1 groups
        --devices 8 --nodes 2 --traffic-weight 1 → --traffic-weight
        --devices 8 --nodes 2 --groups 4 --traffic-weight x → --traffic-weight
        --devices 8 --certify --traffic-weight 1 → leave it or --traffic-weight out
        --devices 8 --max-moves 3 → needs --current
        --devices 8 --method jiont → did you mean joint
        --devices 8 --phase prefill → --phase is for timing the experts; give --model and --hw
        --devices 8 --kv-len 0 → --kv-len is for timing the experts
        --devices 8 --model deepseek-r1 → 58 layers of 256 experts, the loads 3 of 32
        --devices 8 --redundant-experts auto → needs --model and --hw
        --devices 8 --objective seconds → needs --model and --hw
        --devices 8 --objective slices → needs loads of several time slices
        --devices 8 --hw h800 → --hw: needs --model
        --devices 8 --holdout half → --holdout
    """,
    "watch": """
        nowhere.prom --manifest manifest.yaml --once → nowhere.prom
        nowhere.csv --manifest manifest.yaml --once → nowhere.csv
        http://127.0.0.1:1/metrics --manifest manifest.yaml --once --window 1ms → does not answer
        results --manifest manifest.yaml --once → results: holds no results; CSV and JSON files are read
    """,
    "verify": """
        nothing.csv → nothing.csv
        runs.csv --level 2 → --level
        report.json → --manifest
    """,
    "calibrate": """
        absent.csv --hw h800 → absent.csv
        good.csv --hw a101 → did you mean a100
        times.csv --hw h800 --out mine.txt → --out
        times.csv --hw h800 --name ' ' → --name
        times.csv --hw h800 --out {LONG}.yaml → cannot be written
        times.csv --hw h800 --force → --out; give --out FILE
        times.csv --hw h800 --out mine.yaml → times.csv, line 2: source is 'x'
    """,
    "fleet fleet.yaml --force": "→ --out and --csv; give one of them",
    "search qwen3-8b --hw h100 --scenarios day.yaml --pareto 3": "→ --scenarios: goes with MODEL",
}
"""Beginnings of commands, and what follows on each with what is then told, all of it that stands between dots."""

WRITTEN = {
    ("check q.yaml", ""): r"""
        model: qwen3-30b-a3b\nhw: h800\nrat: 5/s → rat is not a known key; did you mean rate
        model: qwen3-30b-a3b → hw is missing
        - a → a question file is a mapping
        questions: [] → questions must be a list of 1 to
        questions: [5] → questions[0] must be a mapping
        model: [a] → model must be a text or a number
        model: qwen3-30b-a3b\nhw: h800\nquestions: [{rate: 5}] → questions[0]: --rate: '5' is not a rate
        model: qwen3-30b-a3b\nhw: h800\nobjective: chips → --objective: a check asks whether
        model: qwen3-30b-a3b\nhw: h800\nkv-dtype: fp8\nkv_dtype: fp8 → kv-dtype stands twice
        manifest: gone.yaml → gone.yaml: no such file
        manifest: gone.yaml\nmodel: qwen3-30b-a3b → --model: a manifest fixes the deployment
        model: &a x → the anchor or alias
    """,
    ("fleet f.yaml", "hw: h100\nnodes: 1\n"): r"""
        models: [{model: qwen3-8b, isl: 512}] → models[0]: rate is missing
        model_list: [{model: qwen3-8b, rate: 1/s}] → model_list is not a known key
        models: 5\nx: 5 → x is not a known key
        objective: joy\nmodels: [{model: qwen3-8b, rate: 1/s}] → objective: 'joy' is not
        models: [{model: qwen3-8b, rate: 1/s, hw: any}] → hw: any stands for the pools of the file
    """,
    ("fleet f.yaml", "hw: h100\nnodes: 1\nmodels:\n- {name: a, model: qwen3-8b, rate: 1/s}\n"): r"""
        - {name: a, model: qwen3-8b, rate: 1/s} → 'a' stands twice in the fleet
        - {model: qwen3-8b, rate: 1/s, nodes: 2} → h100 has another size than above
        - {model: qwen3-8b, rate: 1/s, objective: cost} → objective stands beside models
    """,
    ("fleet f.yaml", "pools: [{hw: h100, nodes: 1}, {hw: h20, nodes: 1, name: old}]\n"): r"""
        models: [{model: qwen3-8b, rate: 1/s, hw: older}] → hw: 'older' is not one of the pools h100, old
        models: [{model: qwen3-8b, rate: 1/s, nodes: 3}] → nodes stands with the pools
        models: [{model: qwen3-8b, rate: 1/s, shape: round}] → --shape: 'round' is not auto
        models: [{model: qwen3-8b, rate: 1/s, weights: 'bf16,fp8'}] → weights: a model on pools of the file has one
        models: [{model: qwen3-8b, rate: 1/s, shape: aggregated, queueing: mixserve}] → knows prefill and decode
        confidence: 2\nmodels: [{model: qwen3-8b, rate: 1/s}] → --confidence: '2' must be from 0.5
        survive: rack\nmodels: [{model: qwen3-8b, rate: 1/s}] → --survive: 'rack' is not node or instance
        share_nodes: some\nmodels: [{model: qwen3-8b, rate: 1/s}] → share_nodes: 'some' is not yes or no
    """,
    ("fleet f.yaml", "models: [{model: qwen3-8b, rate: 1/s}]\n"): r"""
        pools: 3 → pools must be a list of 1 to 8
        pools: [{hw: h100}, {nodes: 1}] → pools[1]: hw is missing
        pools: [{hw: h100}, {hw: h20, name: h100}] → 'h100' is taken
        pools: [{hw: h100, price: dear}] → --price: 'dear' is not USD per chip and hour
        pools: [{hw: h100, rank: 1}] → rank is not a known key
    """,
    ("search qwen3-8b --hw h100 --scenarios s.yaml", ""): r"""
        scenarios: [{name: a, rate: 5/s}, {name: a, rate: 9/s}] → stands twice
        scenarios: [] → must be a list
        rate: 5/s → list of scenarios
        scenarios: [{rate: 5/s}]\nshares: 1 → shares is not a known key
        scenarios: [{name: night}] → rate is missing
        scenarios: [{rate: 5/s, weight: none}] → weight
        scenarios: [{rate: 5/s, lasts: 1h}, {rate: 5/s}] → to all or none
        scenarios: [{rate: 5/s, engine: vllm}] → engine is not a known key
        scenarios: [{rate: 5/s}]\ngrowth: less → growth
    """,
    ("deploy r1.yaml --engine sglang --dry-run --values site.yaml", ""): r"""
        namespace: "a b" → namespace: must be 1 to 30 lower-case letters, digits and inner hyphens, not 'a b'
        namespace: "ab\x0a" → namespace: must be 1 to 30 lower-case letters
        image: "x; reboot" → image: must be 1 to 256 letters, digits and . _ / @ : + -
        model_path: weights → model_path: must be a path from / on
        shared_memory: 64GB → shared_memory: must be a number or a size such as 64Gi
        node_selectors: {all: {a b: c}} → must be a label
    """,
    ("watch scraped.prom --manifest manifest.yaml --window 10min --once", ""): r"""
        # nothing → has no TTFT of vLLM, SGLang or Dynamo
        # bad\nname two → is no sample
    """,
    ("verify run.json", ""): r"""
        {"mean_ttft_ms": [], "benchmarks": []} → run.json
        {"mean_ttft_ms": "x", "benchmarks": "x"} → run.json
        {"mean_ttft_ms": 1e999, "benchmarks": 1e999} → run.json
        {"mean_ttft_ms": {}, "benchmarks": {}} → run.json
    """,
}
"""Commands whose last file is wrong, how it begins, and how it goes on with what is then told."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that commands are given, and one of them that measured another source."""
    made = tmp_path_factory.mktemp("refused")
    plans = {"manifest": manifest(), "old": tight(4, 2), "new": tight(2, 4), "r1": plan("r1-cm384")}
    texts = {f"{name}.yaml": dump_manifest(each) for name, each in plans.items()} | {
        "two.yaml": "model: x\nhw: h800\nquestions: [{name: a}, {name: b}]\n",
        "day.yaml": "scenarios:\n- {rate: 5/s}\n",
        "report.json": '{"mean_ttft_ms": 3.0}',
        "runs.csv": "id,model,hardware,engine,weights,strategy,isl,osl,concurrency,ttft_seconds,tpot_seconds\n"
        "a,qwen3-8b,h100,vllm,bf16,TP=1,1024,128,8,,0.01\n",
        "good.csv": "kernel,seconds,source\ngraph_launch,2e-4,timed here\n",
        "times.csv": "kernel,seconds,source\ngraph_launch,2e-4,x\n",
    }
    for name, text in texts.items():
        (made / name).write_text(text, encoding="utf-8")
    np.savetxt(made / "loads.csv", power_law(3, 32, 0.8), fmt="%d", delimiter=",")
    (made / "results").mkdir()
    return made


def _rows(blocks: Mapping[str, str] | Mapping[tuple[str, str], str]) -> list[object]:
    """Return what each block begins with and each of its lines, cut at the arrow."""
    rows: list[object] = []
    for start, block in blocks.items():
        for line in block.strip().splitlines():
            more, told = line.split("→")
            name = " ".join([start if isinstance(start, str) else start[0], more.strip()])
            rows.append(pytest.param(start, more.strip(), told.strip(), id=name.strip()))
    return rows


@pytest.mark.parametrize(("start", "more", "told"), _rows(TYPED))
def test_what_is_typed_wrong(
    start: str, more: str, told: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The flag, or the word that was meant; no file comes of it."""
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    refused(capsys, told, *shlex.split(f"{start} {more}".replace("{LONG}", "n" * 5000)))
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("start", "more", "told"), _rows(WRITTEN))
def test_what_a_file_has_wrong(
    start: tuple[str, str],
    more: str,
    told: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The key, the line or the file, and what would be right."""
    monkeypatch.chdir(folder)
    command, text = shlex.split(start[0]), start[1] + more.replace(r"\n", "\n")
    name = next(word for word in reversed(command) if Path(word).suffix and word != "manifest.yaml")
    Path(name).write_text(f"{text}\n", encoding="utf-8")
    refused(capsys, told, *command)
