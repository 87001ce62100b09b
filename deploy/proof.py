"""Tests of a running deployment: one request through every role, and a benchmark of the plan's traffic.

``plan verify`` reads what the benchmark writes and sets it beside the manifest's prediction.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from deploy.commands.launch import Launch, Target
from deploy.reading.benchmark import EVEN, spread_line
from deploy.routers import Address, endpoints
from deploy.templates import script_of
from deploy.words import Flag, Shell, command, compact_json, given, quoted
from ground.units import MILLI
from planner.manifest.schema import Manifest, ManifestWorkload

LEAST_REQUESTS, MOST_REQUESTS, SECONDS = 200, 20_000, 180.0
RESULT = "benchmark.json"
ROUTER, OUT = Shell('"$ROUTER"'), Shell('"$OUT"')
PICTURE = (  # grey, 64 x 64 pixels
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAAAAACPAi4CAAAAKUlEQVR42u"
    "3MQREAAAwCIKMb3RD77SAA6VEEAoFAIBAIBAKBQCAQfA8G320AeXC6efoAAAAASUVORK5CYII="
)
Command = tuple[list[str], list[Flag]]


class Load(NamedTuple):
    """The traffic of the plan: its lengths and gaps, requests per second, in flight and in all."""

    traffic: ManifestWorkload
    rate_per_second: float | None
    concurrency: int
    requests: int

    @property
    def prefix_tokens(self) -> int:
        """Tokens that every prompt begins with, as many as the plan finds cached."""
        return round(self.traffic.input_tokens * self.traffic.prefix_reuse)

    @property
    def text_tokens(self) -> float:
        """Tokens of a prompt behind that prefix and beside its pictures, where these are sent."""
        shown = self.traffic.picture_tokens if self.traffic.pictures else 0.0
        return max(self.traffic.input_tokens - shown - self.prefix_tokens, 1.0)

    @property
    def text_cv2(self) -> float:
        """Squared variation of those tokens: pictures and prefixes are of one size, so that all spread is theirs."""
        return self.traffic.input_cv2 * (self.traffic.input_tokens / self.text_tokens) ** 2

    @property
    def spread(self) -> tuple[float, float]:
        """Variation of prompts, common prefixes included and pictures not, and of answers, over their means."""
        part = self.text_tokens / (self.text_tokens + self.prefix_tokens)
        return part * math.sqrt(self.text_cv2), math.sqrt(self.traffic.output_cv2)


def load_of(manifest: Manifest, target: Target) -> Load:
    """Return the load of a manifest: its rate, else the one that it predicts; in flight, what its batches hold."""
    rate = manifest.workload.requests_per_second or manifest.predicted.requests_per_second
    holding = [role for role in target.roles if role.role in ("decode", "mixed")]
    slots = sum(role.requests for role in holding)
    wanted = math.ceil(rate * SECONDS) if rate else 10 * slots
    return Load(manifest.workload, rate, slots, min(max(wanted, LEAST_REQUESTS), MOST_REQUESTS))


def router_url(target: Target, address: Address | None) -> str:
    """Return where requests go, from a host of the site or a pod of the namespace; hosts have the router themselves."""
    name, port = target.name, target.site.router_port
    names = {
        "llm-d": f"http://{name}",
        "dynamo": f"http://{name}-frontend:8000",
        "motor": "http://127.0.0.1:31015",  # mindie-ms-coordinator-infer, on every node
    }
    if target.bare:
        here = address(target.roles[-1], 0, 0) if address and target.kind == "slurm" else "127.0.0.1"
        return f"http://{here}:{port}"
    return names.get(target.kind, f"http://{name}-router:{port}")


def smoke(target: Target, launches: Mapping[str, Launch], address: Address | None) -> str:
    """Return the script that sends one request and sees each role's counter move; ``address`` where roles have one."""
    before, after, names = [], [], target.metrics
    for launch in (launch for launch in launches.values() if launch.role.role != "encode" and names and address):
        assert names and address
        role = launch.role
        series = names.prompt_tokens if role.role == "prefill" else names.output_tokens
        held = endpoints(launch, address, shifted=target.bare)
        pages = " ".join(quoted(f"http://{host}:{port}{names.path}") for host, port in held)
        shown = role.name.replace("-", "_")
        before += [f"{shown}() {{ sum {quoted(series)} {pages}; }}", f'BEFORE_{shown}="$({shown})"']
        said = f'{{ echo "nothing went through {role.name}" >&2; exit 1; }}'
        after.append(f'[ "$({shown})" -gt "$BEFORE_{shown}" ] || {said}')
    pictured = any(role.encodes for role in target.roles)
    asked: dict[str, object] = {"prompt": "The capital of France is"}
    if pictured:
        picture = {"type": "image_url", "image_url": {"url": PICTURE}}
        asked = {"messages": [{"role": "user", "content": [picture, {"type": "text", "text": "What is this?"}]}]}
    body = compact_json({"model": target.name_of_model, **asked, "max_tokens": 16, "temperature": 0})
    return script_of(
        "smoke.sh",
        head=target.head("One request through every role. ROUTER=http://host:port names another way in."),
        router=router_url(target, address),
        before="\n".join(before),
        body=quoted(body),
        endpoint="chat/completions" if pictured else "completions",
        after="\n".join(after),
        through=" and ".join(launch.role.name for launch in launches.values()) if before else "the router",
    )


def benchmark(target: Target, load: Load, address: Address | None) -> str:
    """Return the script that sends the plan's traffic with the engine's own tool and writes a result file."""
    programme, flags = _tool(target, load.traffic)(target, load)
    lines = [
        "#!/usr/bin/env bash",
        target.head(f"The traffic of the plan; plan verify reads its {result_name(target, load)}."),
        *([spread_line(*load.spread)] if any(load.spread) and programme[0] != "aiperf" else []),
        "set -euo pipefail",
        f'ROUTER="${{ROUTER:-{router_url(target, address)}}}"',
        'OUT="${OUT:-.}"',
    ]
    if programme[0] == "aiperf":
        lines.append("command -v aiperf > /dev/null || pip install --quiet aiperf==0.13.0")
    return "\n".join([*lines, command([Shell(word) for word in programme], flags)]) + "\n"


def _tool(target: Target, traffic: ManifestWorkload) -> Callable[[Target, Load], Command]:
    """Return the command of the engine's own tool, AIPerf's where it has none or none that sends such prompts.

    SGLang's has no videos, and its prefixes differ in length where prompts do.
    """
    videos = traffic.pictures is not None and traffic.pictures.frames > 1
    if target.profile.engine == "sglang" and (videos or traffic.prefix_reuse):
        return _aiperf
    return {"vllm": _vllm, "vllm-ascend": _vllm, "sglang": _sglang}.get(target.profile.engine, _aiperf)


def result_name(target: Target, load: Load) -> str:
    """Return the file that the benchmark writes."""
    return "profile_export_aiperf.json" if _tool(target, load.traffic) is _aiperf else RESULT


def _rate(load: Load) -> list[Flag]:
    return [("--request-rate", f"{load.rate_per_second:.4g}")] if load.rate_per_second else []


def _spread(cv2: float) -> float:
    """Return the half width of a uniform length over its mean that has this squared variation, below 1."""
    return math.sqrt(3) * min(math.sqrt(cv2), EVEN)


def _vllm(target: Target, load: Load) -> Command:
    shown, levels = load.traffic.pictures, target.levels
    spread = {"input": round(_spread(load.text_cv2), 3), "output": round(_spread(load.traffic.output_cv2), 3)}
    bursts = load.traffic.arrival_cv2 if load.rate_per_second else 0.0
    pictures: list[Flag] = []
    if shown:
        sizes = f"{{({shown.height}, {shown.width}, {shown.frames}): 1.0}}"
        pictures = [("--endpoint", "/v1/chat/completions"), ("--random-mm-bucket-config", sizes)]
        pictures.append(("--random-mm-base-items-per-request", shown.count))
    flags = given(
        ("--backend", "openai-chat" if shown else "openai"),
        ("--base-url", ROUTER),
        ("--model", target.name_of_model),
        ("--tokenizer", target.weights_path(target.roles[0])),
        ("--dataset-name", "random-mm" if shown else "random"),
        ("--random-input-len", round(load.text_tokens)),
        ("--random-output-len", round(load.traffic.output_tokens)),
        ("--random-prefix-len", load.prefix_tokens, load.prefix_tokens),
        *pictures,
        # Lengths are drawn evenly from (1 - ratio) to (1 + ratio) of the mean.
        ("--random-range-ratio", compact_json(spread), any(spread.values())),
        ("--trust-remote-code", None, target.site.trust_remote_code),
        ("--num-prompts", load.requests),
        *_rate(load),
        ("--max-concurrency", load.concurrency),
        ("--burstiness", f"{1 / (bursts or 1.0):.4g}", bursts),  # gamma gaps: shape 1 / squared variation
        ("--ignore-eos", None),
        ("--percentile-metrics", "ttft,tpot,itl,e2el"),
        ("--metric-percentiles", f"50,90,{levels.percentile:g}"),
        ("--save-result", None),
        ("--result-dir", OUT),
        ("--result-filename", RESULT),
    )
    found = [f"ttft:{levels.ttft_seconds / MILLI:g}"] if levels.ttft_seconds else []
    goodput = " ".join([*found, *([f"tpot:{levels.tpot_seconds / MILLI:g}"] if levels.tpot_seconds else [])])
    words = ["vllm", "bench", "serve"]
    return ([*words, "--goodput", goodput] if goodput else words), flags


def _sglang(target: Target, load: Load) -> Command:
    spread, shown = max(_spread(load.text_cv2), _spread(load.traffic.output_cv2)), load.traffic.pictures
    longest = 1 + spread  # lengths are drawn evenly from ratio x the longest to the longest
    name, pictures = target.name_of_model, list[Flag]()
    if shown:  # whose processor is loaded by the name in requests, which the server reads for adapters alone
        name = target.weights_path(target.roles[0])
        pictures = [("--image-count", shown.count), ("--image-resolution", f"{shown.height}x{shown.width}")]
    return ["python3", "-m", "sglang.bench_serving"], [
        ("--backend", "sglang-oai-chat" if shown else "sglang-oai"),
        ("--base-url", ROUTER),
        ("--model", name),
        ("--tokenizer", target.weights_path(target.roles[0])),
        ("--dataset-name", "image" if shown else "random-ids"),
        *pictures,
        ("--random-input-len", round(load.text_tokens * longest)),
        ("--random-output-len", round(load.traffic.output_tokens * longest)),
        ("--random-range-ratio", f"{(1 - spread) / longest:.3f}"),
        ("--num-prompts", load.requests),
        *_rate(load),
        ("--max-concurrency", load.concurrency),
        ("--output-file", Shell(f'"$OUT/{RESULT}"')),
    ]


def _aiperf(target: Target, load: Load) -> Command:
    shown, pictures = load.traffic.pictures, list[Flag]()
    prefix: list[Flag] = [("--num-prefix-prompts", 1), ("--prefix-prompt-length", load.prefix_tokens)]
    if shown and shown.frames == 1:
        pictures = [("--image-batch-size", shown.count), ("--image-format", "jpeg")]
        pictures += [("--image-width-mean", shown.width), ("--image-height-mean", shown.height)]
    elif shown:
        pictures = [("--video-batch-size", shown.count), ("--video-fps", 1), ("--video-duration", shown.frames)]
        pictures += [("--video-width", shown.width), ("--video-height", shown.height)]
    return ["aiperf", "profile"], [
        ("--model", target.name_of_model),
        ("--url", ROUTER),
        ("--endpoint-type", "chat" if shown else "completions"),
        *pictures,
        ("--streaming", None),
        ("--tokenizer", target.weights_path(target.roles[0])),
        *[("--tokenizer-trust-remote-code", None)] * target.site.trust_remote_code,
        ("--synthetic-input-tokens-mean", round(load.text_tokens)),
        ("--synthetic-input-tokens-stddev", round(load.text_tokens * math.sqrt(load.text_cv2))),
        *(prefix if load.prefix_tokens else []),
        ("--output-tokens-mean", round(load.traffic.output_tokens)),
        ("--output-tokens-stddev", round(load.traffic.output_tokens * math.sqrt(load.traffic.output_cv2))),
        ("--extra-inputs", "ignore_eos:true"),
        *_rate(load),
        ("--concurrency", load.concurrency),
        ("--request-count", load.requests),
        ("--output-artifact-dir", OUT),
    ]
