"""Words that a user may type: right ones for each flag, and wrong ones of every class that ever broke something."""

from hypothesis import strategies as st

PAYLOADS = [
    text.replace("X", "echo>PWNED")
    for text in ("$(X)", "`X`", ";X;", "a|X", "'$(X)'", '"$(X)"', "a\nX\n", "a&&X", "fe80::1%`X`", "{{X}}", "a;X #")
]
"""Each leaves the file PWNED where a shell runs it; redirection is the shell's own, so no programme is needed."""

NUMBERS = ["0", "-0", "-1", "1", "2", "3.5", "1e3", "1e999", "-1e308", "5e-324", "nan", "inf", "1_0", "１０", "²", "٣"]
NUMBERS += ["0x10", "1,000", "1,5", "+7", "007", "9" * 20, "9" * 5000, "1" + "0" * 30, ".", "1e", "--1", "50%", "1/3"]
UNITS = ["", "s", "ms", "us", "µs", "min", "h", "d", "/s", "/min", "/h", "/0", "k", "M", "G", "W", "kW", "x", "%", " s"]
ODD = ["", " ", "\t", "\n", "a b", "a\nb", "\x1b[31m", "\udcff", "é", "日本", "\u202e", "\ufeff", "null", "true", "{}"]
ODD += ["[]", "=", "==", ",", ",,", "a=", "=a", "prefill=", "prefill=1,prefill=2", "auto", "any", "-", "--", "--help"]
ODD += ["-rf", "../x", "/", ".", "..", "~", "/dev/null", "/dev/full", "folder", "absent/x", "pipe", "link", "x" * 254]
ODD += ["x" * 5000, "../" * 2000, "a/" * 300, "%s%n", "(((((", "*", "a..b", "1..2", "1..", "..1", "1s..2s:3:log"]

RIGHT: dict[str, list[str]] = {
    "hw": ["h100", "h100", "h100", "h800", "l40s", "prefill=h100,decode=h800", "hardware.yaml", "./hardware.yaml"],
    "nodes": ["1", "1", "2", "prefill=1,decode=1"],
    "chips": ["8", "2"],
    "devices": ["8", "4", "2", "16"],
    "price": ["2.5", "$2.5", "25000/4y", "prefill=1,decode=2"],
    "electricity": ["0.1", "h100=0.05"],
    "power": ["700W", "1.4kW"],
    "isl": ["128", "512", "1k", "1"],
    "osl": ["16", "64", "1", "2"],
    "isl_cv": ["0", "0.5", "1"],
    "osl_cv": ["0", "0.5", "1"],
    "isl_distribution": ["gamma", "lognormal"],
    "isl_histogram": ["lengths.csv"],
    "osl_histogram": ["lengths.csv"],
    "prefix_reuse": ["0", "0.5", "0.9", "50%"],
    "rate": ["1/s", "5/s", "600/min", "0.1/s", "1000/s"],
    "rate_profile": ["0:00=1/s,8:00=2/s", "day.csv"],
    "growth": ["1/s..4/s:3", "1/s..9/s:2:log"],
    "job": ["100k requests in 6h", "1000 in 1min", "5k requests"],
    "trace": ["trace", "trace.gz"],
    "format": ["mooncake", "azure", "weka", "guidellm", "sharegpt", "servegen"],
    "ttft": ["1s", "200ms", "10s"],
    "tpot": ["50ms", "20ms", "1s"],
    "percentile": ["99", "50", "p99", "99.9"],
    "objective": ["chips", "cost", "throughput", "latency", "max", "mean"],
    "queueing": ["bulk", "mixserve"],
    "survive": ["node", "instance"],
    "shape": ["aggregated", "disaggregated", "any"],
    "weights": ["bf16", "fp8", "auto", "bf16,fp8", "prefill=fp8,decode=bf16"],
    "kv_dtype": ["bf16", "fp8", "auto"],
    "mtp": ["0", "1", "0..1"],
    "mtp_acceptance": ["0.7", "1"],
    "microbatches": ["1", "2"],
    "expert_balance": ["perfect", "none", "1.3", "measured"],
    "expert_skew": ["mixed-domains", "single-domain", "log-normal=0.5", "power-law=1", "loads.csv", "loads.npz"],
    "redundant_experts": ["0", "8", "auto"],
    "shared_experts": ["local", "dedicated=1", "auto"],
    "engine": ["vllm", "sglang", "reference", "vllm@0.11.0"],
    "pareto": ["3", "2,4"],
    "confidence": ["0.5", "0.9"],
    "csv": ["out.csv", "new/out.csv"],
    "plot": ["out.svg", "out.png"],
    "out": ["out", "new/out"],
    "junit": ["out.xml"],
    "over": ["isl=128,256", "rate=1/s..3/s:2", "tpot=20ms..50ms:2:log"],
    "measure": ["chips", "requests", "ttft", "power"],
    "phase": ["decode", "prefill", "mixed"],
    "sizes": ["64,128", "384"],
    "blocks": ["mean=10,largest=32", "1:50,8:30"],
    "beams": ["4"],
    "images": ["2@1280x720", "1@224x224"],
    "video": ["32@640x360", "4@224x224"],
    "graphs": ["on", "off"],
    "host_jitter": ["0s", "50us", "1ms"],
    "cache": ["ib=1TB", "ib=1GB,ssd=10TB", "ub=8TB"],
    "sessions": ["turns=4,think=30s", "turns=2,think=1s,branches=3,answers=dropped"],
    "model_cache": ["ib", "ub"],
    "max_instance_devices": ["1", "2", "8"],
    "without_nodes": ["1", "0,1"],
    "instances": ["1", "prefill=1,decode=1"],
    "autoscale": ["keda", "least=1,begin=2"],
    "migration": ["migration.yaml"],
    "scenarios": ["scenarios.yaml"],
    "spare_nodes": ["1"],
    "max_concurrent": ["1"],
    "load_from": ["peers", "storage=2.5GB/s", "host=10GB/s"],
    "startup": ["1s"],
    "hold": ["1h"],
    "headroom": ["0.1", "10%"],
    "strategy": ["TP=1", "TP=8", "DP=8, EP=8", "TP=2 + DP=4, EP=8", "PP=2, TP=4"],
    "batch": ["1", "8"],
    "kv_len": ["512"],
    "tokens": ["512"],
    "concurrency": ["4", "64"],
    "requests": ["5", "20"],
    "platform": ["bare", "kubernetes"],
    "kind": ["lws", "statefulset", "volcano", "dynamo", "llm-d", "motor"],
    "values": ["site.yaml"],
    "scale_rate": ["2x", "0.5"],
    "window": ["0s..10s", "1s.."],
    "repeat": ["2"],
    "bursts": ["5x,0.1,30s"],
    "warmup": ["1s"],
    "prefix_routing": ["prefix_aware", "round_robin"],
    "policies": ["round_robin", "least_load,dynamic", "decode=least_kv", "collaborative", "prefill_first"],
    "offline": ["3", "3,64+8@2/s", "2/s", "1/s,64+8"],
    "fail": ["device decode-0/0 at 1s for 1s", "node 0 at 0s for 1000d", "link prefill-0 at 10s for 2s"],
    "expert_loads": ["loads.csv", "lognormal:0.5", "zipf:1"],
    "timeseries_step": ["1s"],
    "groups": ["1", "2"],
    "slots_per_device": ["4"],
    "method": ["eplb", "joint", "milp", "auto"],
    "holdout": ["0.5"],
    "model": ["qwen3-8b", "qwen3-30b-a3b", "config.json", "model.yaml", "QUESTION"],
    "current": ["map.json", "map.yaml"],
    "max_moves": ["3", "0"],
    "traffic_weight": ["0.5"],
    "iterations": ["1"],
    "seed": ["0", "1"],
    "drop": ["0@1"],
    "recover": ["shrink", "rollback"],
    "transport": ["local"],
    "timeout": ["10s"],
}


RIGHT |= {
    "place.objective": ["slices", "mean"],
    "place.holdout": ["alternate", "later", "none"],
    "place.method": ["auto", "eplb", "joint"],
    "place.devices": ["8", "4", "2"],
    "place.nodes": ["1", "2"],
    "place.redundant_experts": ["0", "8", "16"],
    "place.hw": ["h800"],
    "place.model": ["qwen3-30b-a3b"],
    "search.objective": ["throughput", "chips", "cost", "latency"],
    "calibrate.out": ["out.yaml"],
    "calibrate.hw": ["h100", "h800"],
    "calibrate.name": ["mine"],
    "compare.model": ["qwen3-8b,qwen3-30b-a3b"],
    "simulate.format": ["mooncake", "azure", "guidellm"],
    "predict.tokens": ["512"],
    "verify.level": ["0.8"],
    "verify.next": ["2"],
    "verify.calibrate": ["out.yaml"],
    "verify.calibration": ["runs.csv"],
    "manifest": ["GPUS"],
    "layout": ["kustomize", "helm"],
    "workers": ["1", "2"],
}


def wrong() -> st.SearchStrategy[str]:
    """Return words that are right nowhere, or by chance."""
    numbers = st.builds(str.__add__, st.sampled_from(NUMBERS), st.sampled_from(UNITS))
    lists = st.lists(st.sampled_from(NUMBERS + ODD + ["a=1", "prefill=1"]), min_size=2, max_size=4).map(",".join)
    noise = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
    return st.one_of(numbers, st.sampled_from(ODD), st.sampled_from(PAYLOADS), lists, noise)


def words(command: str, field: str, right: bool) -> st.SearchStrategy[str]:
    """Return words behind a command's flag, right ones or wrong and nearly right ones."""
    known = st.sampled_from(RIGHT.get(f"{command}.{field}") or RIGHT.get(field, ["1"]))
    if right:
        return known
    return st.one_of(wrong(), st.builds(str.__add__, known, st.sampled_from(UNITS + ODD[:12])))
