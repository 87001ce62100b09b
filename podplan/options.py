"""The flags of every question, declared once: a field is a keyword of the Python API, a flag and a key of a file.

Values are texts as they would be typed, None where nothing was given. ``cli`` makes options of the fields.
"""

import dataclasses
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ground.errors import BadInput, suggest
from ground.units import parse_count, parse_duration, parse_rate

Text = str | None
Kind = TypeVar("Kind")
Default = TypeVar("Default")


def flag(metavar: str, told: str, *names: str, unit: str = "", needed: bool = False, default: Any = None) -> Any:
    """Return a field that is a flag with a value; ``--name`` is that of the field unless ``names`` say otherwise.

    ``unit`` stands behind a bare number that the Python API is given; ``needed`` makes a command ask for the flag.
    """
    stated = {"metavar": metavar, "help": told, "names": names, "unit": unit, "needed": needed}
    return dataclasses.field(default=default, metadata=stated)


def argument(metavar: str, told: str, *, default: Any = ...) -> Any:
    """Return a field that is the positional argument of a command; it must be given unless it has a default."""
    stated = {"metavar": metavar, "help": told, "positional": True, "needed": default is ...}
    return dataclasses.field(default=None if default is ... else default, metadata=stated)


def switch(told: str, *names: str) -> Any:
    """Return a field that is a flag without a value."""
    return dataclasses.field(default=False, metadata={"help": told, "names": names})


def flag_name(field: str) -> str:
    """Return the flag that fills ``field``."""
    return "--" + field.replace("_", "-")


class Flags:
    """Base of tables of flags: a flag's text as a number, or the default where it was not given; BadInput names it."""

    __slots__ = ()

    def count(self, field: str, default: Default, *, zero: bool = False) -> int | Default:
        """Return a whole number above zero, ``zero`` allowed or not."""
        text = getattr(self, field)
        return default if text is None else parse_count(text, flag_name(field), allow_zero=zero)

    def seconds(self, field: str, default: Default, *, zero: bool = False) -> float | Default:
        """Return a duration above zero, ``zero`` allowed or not."""
        text = getattr(self, field)
        return default if text is None else parse_duration(text, flag_name(field), allow_zero=zero)

    def per_second(self, field: str, default: Default) -> float | Default:
        """Return a rate."""
        text = getattr(self, field)
        return default if text is None else parse_rate(text, flag_name(field))

    def check_apart(self, fields: Iterable[str], told: str) -> None:
        """Raise BadInput where two of some flags are given, which both say something."""
        given = [flag_name(each) for each in fields if getattr(self, each) is not None]
        if len(given) > 1:
            raise BadInput(f"{given[0]} and {given[1]} both {told}; leave one of them out")


MODEL = "Catalogue name, config.json or model YAML."
DRAFTED = "Drafted tokens per iteration"
BALANCE = "perfect, measured, none or a factor [measured]."
SKEW = "mixed-domains, single-domain, log-normal=S, power-law=A, or a file of loads [mixed-domains]."
REDUNDANT = "Slots beyond one per expert, or auto [auto]."


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFlags(Flags):
    """A question: which model on which machines, under which load, within which limits."""

    model: Text = argument("MODEL", MODEL)
    hw: Text = flag("HW", "Catalogue name or YAML, or one per role: prefill=910b,decode=cm384.", needed=True)
    nodes: Text = flag("N", "Nodes, or prefill=N,decode=N [the catalogue entry].")
    chips: Text = flag("N", "Chips instead of nodes.")
    devices: Text = flag("N", "Devices instead of nodes.")
    price: Text = flag(
        "USD",
        "Price of a chip and hour, or bought over years, 25000/4y; of each machine or role: cm384=1.2,h200=2 [the "
        "catalogue's].",
    )
    power: Text = flag(
        "WATTS", "Power of a chip with its share of the machine, 1.4kW, or one per role [the catalogue's]."
    )
    electricity: Text = flag("USD", "Price of a kWh, which chips that are bought draw, or one per machine [0.08].")
    isl: Text = flag("TOKENS", "Mean prompt tokens [4096].")
    osl: Text = flag("TOKENS", "Mean output tokens [1024].")
    isl_cv: Text = flag("CV", "Standard deviation of prompt tokens over their mean [0].")
    osl_cv: Text = flag("CV", "Standard deviation of output tokens over their mean [0].")
    isl_distribution: Text = flag("NAME", "lognormal or gamma, of prompts with --isl-cv [lognormal].")
    isl_histogram: Text = flag("FILE", "CSV tokens,weight of prompts, in place of --isl and --isl-cv.")
    osl_histogram: Text = flag("FILE", "CSV tokens,weight of outputs, in place of --osl and --osl-cv.")
    prefix_reuse: Text = flag("SHARE", "Cached share of prompts [0].")
    cache: Text = flag(
        "PLANE=SIZE", "Pool of prefixes, ub=8TB or ub=8TB,ssd=100TB, which prefill reads [device memory, no limit]."
    )
    prefix_routing: Text = flag(
        "WORD",
        "round_robin, least_load or prefix_aware: prompts of a trace find prefixes in the KV memory of the instance "
        "that they are sent to [in a memory of all].",
    )
    sessions: Text = flag(
        "SHAPE", "turns=4,think=30s,branches=3,answers=dropped: --isl is what a turn has new [single requests]."
    )
    model_cache: Text = flag("PLANE", "Plane over which weights are loaded from pooled host memory [an object store].")
    beams: Text = flag("W", "Beams of a request, as in generative recommendation [1].")
    graphs: Text = flag("WORD", "on or off: decode replays captured graphs, or launches every kernel [on].")
    host_jitter: Text = flag("DURATION", "Mean delay of a host in a step, exponential; EP ranks await the slowest [0].")
    images: Text = flag("N@WxH", "Pictures of a prompt besides --isl, and their pixels: 2@1280x720 [none].")
    video: Text = flag("N@WxH", "Frames of a video of a prompt besides --isl, and their pixels: 32@640x360 [none].")
    encode: Text = flag(
        "WORD", "fused (pictures are encoded in steps with prompts), separate (by encode instances), or auto [fused]."
    )
    rate: Text = flag("RATE", "Requests to serve, such as 100/s.", unit="/s")
    rate_profile: Text = flag(
        "DAY", "Rates over the day, 0:00=40/s,8:00=120/s or a CSV time,rate: sized for the worst."
    )
    growth: Text = flag(
        "RATES", "Rates by the month, 25/s..100/s:12, with :log by equal factors: what to buy when, up to the largest."
    )
    job: Text = flag(
        "JOB",
        "Offline requests, 1M requests in 6h, without latency limits unless given: the fewest chips that end in time; "
        "1M requests: how long the devices take.",
    )
    offline: Text = flag(
        "R/s[,P+A]", "Offline requests beside --rate or --trace, of prompts of P and answers of A [as long], that wait."
    )
    trace: Text = flag("FILE", "Lengths, arrivals and rate of a trace, in any of its formats.")
    format: Text = flag("NAME", "azure or mooncake [as the file looks].")
    ttft: Text = flag("DURATION", "Limit of the time to the first token [2s].", unit="s")
    tpot: Text = flag("DURATION", "Limit of the time per further token [50ms].", unit="s")
    percentile: Text = flag("P", "Percentile of requests that keep each limit [99].")
    objective: Text = flag("WORD", "throughput, chips, cost or latency [throughput; with --rate chips, --growth cost].")
    queueing: Text = flag("MODEL", "bulk, or mixserve for the M/M/1 of that paper [bulk].")
    confidence: Text = flag(
        "C", "Probability that every limit holds, over the interval of predicted times: 0.9 [0.5, as predicted]."
    )
    headroom: Text = flag("SHARE", "Share by which the rate may rise while every limit holds: 10% [0].")
    max_utilisation: Text = flag(
        "SHARE", "Largest planned load of a pool, over its rate with all batch slots full [98%]."
    )
    survive: Text = flag("LOSS", "node or instance: the limits hold after the worst one is lost.")
    shape: Text = flag(
        "WORD", "aggregated (on either pool where each role has one), disaggregated, or auto, the better [auto]."
    )
    weights: Text = flag(
        "DTYPES",
        "bf16, fp8, int8, int4, mxfp4 or nvfp4, a list to choose from such as int8,bf16, or auto for all that run; "
        "each role takes its own, or has what prefill=fp8,decode=int4,fp8 gives it; what the model's answers lose "
        "by it is yours to judge [as shipped, if multiplied].",
    )
    kv_dtype: Text = flag("DTYPES", "bf16, fp8 or int8, a list to choose from, or auto [bf16].")
    mtp: Text = flag("K", f"{DRAFTED}, or a range to search such as 0..3 [0..1].")
    mtp_acceptance: Text = flag("A", "Acceptance of every draft, or of the first/the second/...: 0.9/0.4 [0.7].")
    microbatches: Text = flag("M", "1, 2 or auto [auto].")
    expert_balance: Text = flag("B", BALANCE)
    expert_skew: Text = flag("D", SKEW)
    redundant_experts: Text = flag("N", REDUNDANT)
    shared_experts: Text = flag("WHERE", "local, dedicated=N or auto [auto].")
    strategy: Text = flag(
        "S", 'Fix how instances are cut: prefill="SP=2 + DP=16, EP=32",decode="DP=320, EP=320", or mixed="TP=8" [best].'
    )
    instances: Text = flag("N", "Fix the number of instances: prefill=6,decode=1 [best].")
    max_instance_devices: Text = flag("N", "Most devices of an instance, which one fault takes with it [any].")
    batch: Text = flag("REQUESTS", "Fix the requests of a DP rank: decode=96, mixed=64 [best].")
    tokens: Text = flag("TOKENS", "Fix the tokens of a prefill pass per device, or of a mixed step per DP rank [best].")
    engine: Text = flag("E", "vllm, sglang, ...; any: the best that runs here; reference: every layout [any].")

    @property
    def size(self) -> tuple[str, str] | None:
        """The size flag that was given, with its text; BadInput where there are two."""
        self.check_apart(SIZES, "give the size")
        return next(((flag_name(name), text) for name in SIZES if (text := getattr(self, name)) is not None), None)

    @property
    def defaulted(self) -> frozenset[str]:
        """Fields that were not given or left open."""
        return frozenset(name for name in names_of(QuestionFlags) if left_open(getattr(self, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFlags(Flags):
    """What holds for all models of a fleet, whatever its file says."""

    objective: Text = flag("WORD", "chips, cost, throughput or latency [the file's, or chips].")
    survive: Text = flag(
        "LOSS", "node or instance: every model keeps its limits after its worst one is lost [the file's]."
    )
    confidence: Text = flag("C", "Probability that every limit holds, over predicted times [the file's, or 0.5].")
    headroom: Text = flag("SHARE", "Share by which every rate may rise, such as 10% [the file's, or 0].")


UNITS = {each.name: each.metadata["unit"] for each in dataclasses.fields(QuestionFlags) if each.metadata.get("unit")}
SIZES = ("nodes", "chips", "devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictFlags(Flags):
    """One configuration: a model on one kind of devices in one strategy, and what it holds."""

    model: Text = argument("MODEL", MODEL)
    hw: Text = flag("HW", "Catalogue name or hardware YAML.", needed=True)
    phase: Text = flag("PHASE", "decode, prefill or mixed.", needed=True)
    strategy: Text = flag("S", 'Such as "TP=4 + DP=8, EP=32".', needed=True)
    batch: Text = flag("REQUESTS", "decode: requests per DP rank.")
    kv_len: Text = flag("TOKENS", "decode: cached tokens per request [4096].")
    tokens: Text = flag("TOKENS", "prefill: prompt tokens per device and pass.")
    isl: Text = flag("TOKENS", "prefill, mixed: prompt tokens [4096].")
    prefix_reuse: Text = flag("SHARE", "prefill, mixed: cached share of prompts [0].")
    cache_plane: Text = flag("PLANE", "prefill: plane that brings reused prefixes [none].")
    osl: Text = flag("TOKENS", "mixed: output tokens [1024].")
    concurrency: Text = flag("REQUESTS", "mixed: requests in the instance.")
    max_batched_tokens: Text = flag("TOKENS", "mixed: tokens of one step per DP rank [the engine's; 8192].")
    length_spread: Text = flag("SHARE", "mixed: lengths vary evenly by this share [0].")
    requests: Text = flag("N", "decode, prefill: requests in the instance, spread over DP ranks.")
    beams: Text = flag("W", "decode: beams of a request [1].")
    graphs: Text = flag("WORD", "decode, mixed: on or off, captured graphs or a launch of every kernel [on].")
    host_jitter: Text = flag("DURATION", "Mean delay of a host in a step, exponential; EP ranks await the slowest [0].")
    images: Text = flag(
        "N@WxH", "prefill, mixed: pictures of a prompt besides --isl, and their pixels: 2@1280x720 [none]."
    )
    video: Text = flag(
        "N@WxH", "prefill, mixed: frames of a video of a prompt besides --isl, and their pixels: 32@640x360 [none]."
    )
    mtp: Text = flag("K", f"{DRAFTED} [0].")
    mtp_acceptance: Text = flag("A", "Acceptance of every draft, or of the first/the second/...: 0.9/0.4 [0.7].")
    microbatches: Text = flag("M", "1, 2 or auto [auto].")
    devices: Text = flag("N", "Devices of the instance; the strategy must take as many.")
    nodes: Text = flag("N", "Size of the cluster, which the strategy must not exceed.")
    weights: Text = flag("DTYPE", "bf16, fp8, int8, int4, mxfp4 or nvfp4 [as shipped, if multiplied].")
    kv_dtype: Text = flag("DTYPE", "bf16, fp8 or int8 [bf16].")
    expert_balance: Text = flag("B", BALANCE)
    expert_skew: Text = flag("D", SKEW)
    redundant_experts: Text = flag("N", REDUNDANT)
    shared_experts: Text = flag("WHERE", "local, dedicated=N or auto [auto].")
    engine: Text = flag("E", "Engine whose costs are taken [reference].")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateFlags(Flags):
    """What arrives at a manifest, what happens to it, and what is written while it runs."""

    manifest: Path = argument("MANIFEST", "The manifest, such as out/manifest.yaml.")
    trace: Text = flag("FILE", "Replay a trace of any serving tool, or a ServeGen set.")
    format: Text = flag("NAME", "Format of the trace [as it looks].", "--trace-format", "--format")
    skip_bad_rows: Text = flag("N", "Most wrong rows that are left out [0].")
    scale_rate: Text = flag("X", "Play the trace X times as fast [1].")
    window: Text = flag("A..B", "Only what arrives from A to B, such as 5min..10min.")
    repeat: Text = flag("N", "Play the trace N times, one after the other [1].")
    rate: Text = flag("RATE", "Requests that arrive, such as 100/s [as planned].", unit="/s")
    bursts: Text = flag("X,P,T", "Bursts of X times the calm rate, a share P of the time.")
    concurrency: Text = flag("C", "Requests always under way, instead of a rate.")
    requests: Text = flag("N", "Requests that are measured [enough for steady means].")
    warmup: Text = flag(
        "DURATION", "Measure what arrives from this time on; 0s measures all [once the stream is stationary].", unit="s"
    )
    cold: bool = switch("Start a stream empty, not with requests in decode.")
    policies: Text = flag("A,B,C", "Policies in place of the manifest's; several are compared on the same requests.")
    offline: Text = flag(
        "N[,P+A][@R/s]",
        "Offline requests behind the online ones, of prompts of P and answers of A, one by one at a rate.",
    )
    fail: list[str] | None = flag("FAULT", "Such as 'node 3 at 10s for 1min'; repeatable.")
    migration: Text = flag("FILE", "Play a migration.yaml of plan migrate, beside the same requests without it.")
    migrate_at: Text = flag(
        "DURATION", "When the first step of the migration begins [with the measured window].", unit="s"
    )
    autoscale: Text = flag("RULE", "keda, or least=1,begin=2,fill=0.9,startup=2min: instances follow the requests.")
    expert_loads: Text = flag(
        "FILE", "A file as plan place reads it, or lognormal:0.5, zipf:1; zipf:1@5min is drawn anew every 5 min."
    )
    rebalance: Text = flag(
        "EVERY", "Make a new map of experts from their loads after each such time, 1min for example."
    )
    each_iteration: bool = switch("Step through every iteration: slower, with the same result.")
    requests_csv: Path | None = flag("FILE", "Write a row per request.")
    timeseries: Path | None = flag("FILE", "Write the system's state over time as CSV.")
    timeseries_step: Text = flag("DURATION", "Time between rows of --timeseries [1s].", unit="s")
    timeline: Path | None = flag("FILE", "Write every step for Perfetto (Chrome trace).")
    force: bool = switch("Replace files that are there.")
    seed: Text = flag("N", "Seed of arrivals, lengths and accepted drafts [0].")


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields of a table of flags, in the order of the help."""
    return tuple(each.name for each in dataclasses.fields(kind))


def command_line(flags: QuestionFlags) -> str:
    """Return the command that asks the same question."""
    told = [word for name, text in given(flags).items() if name != "model" for word in (flag_name(name), text)]
    return shlex.join(["plan", flags.model or "", *told])


def given(flags: QuestionFlags) -> dict[str, str]:
    """Return the flags that were given, by their fields."""
    typed = {name: getattr(flags, name) for name in names_of(QuestionFlags)}
    return {name: text for name, text in typed.items() if text is not None}


def left_open(given: object) -> bool:
    """Whether a flag was not given, or leaves the choice to podplan."""
    return given is None or (isinstance(given, str) and given.strip().lower() == "auto")


def check_keywords(given: Iterable[str], known: Collection[str]) -> None:
    """Raise BadInput for a keyword that is not known."""
    for name in given:
        if name not in known:
            raise BadInput(f"{name[:40]!r} is no keyword here{suggest(name, known) or ': they are the long flags'}")


def flags_of(kind: type[Kind], given: Mapping[str, object]) -> Kind:
    """Return keywords as the flags that they stand for.

    Numbers are SI and take the unit of their flag, a mapping gives each role its own, a list a choice.

    Raises BadInput: a keyword that is no flag.
    """
    known: dict[str, Any] = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    check_keywords(given, known)
    for name, value in given.items():
        kept = value is None or isinstance(value, bool) or "str" not in str(known[name].type) or name == "fail"
        found[name] = value if kept else text_of(value, known[name].metadata.get("unit", ""))
    return kind(**found)


def text_of(value: object, unit: str = "") -> str:
    """Return a value as it would be typed behind a flag."""
    if isinstance(value, Mapping):
        return ",".join(f"{role}={text_of(own, unit)}" for role, own in value.items())
    if isinstance(value, list | tuple):
        return ",".join(text_of(own, unit) for own in value)
    if isinstance(value, float):
        return f"{value!r}{unit}"
    return f"{value}{unit}" if isinstance(value, int) else str(value)
