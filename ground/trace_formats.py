"""Trace formats: which fields and which units, as data; code only where a format is more than fields.

Field names and units are those of the tools' own documentation: Mooncake FAST25-release, Dynamo, aiperf, genai-perf
(milliseconds), guidellm (seconds), Bailian (github.com/alibaba-edu/qwen-bailian-usagetraces-anon), BurstGPT
(github.com/HPMLL/BurstGPT), Azure (github.com/Azure/AzurePublicDataset), vidur and sarathi-serve, LLMServingSim,
Baseten (docs.nvidia.com/aiperf), Weka (kv-cache-tester), OpenTelemetry spans, ShareGPT and vLLM's custom sets.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Literal

from ground.errors import BadInput
from ground.trace_lines import (
    Fields,
    TraceRow,
    estimate_tokens,
    first_of,
    read_delay,
    read_hash_ids,
    read_number,
    read_session,
    read_stamp,
    read_time,
    read_tokens,
)
from ground.units import MILLI, NANO

TraceFormat = Literal[
    "azure",
    "mooncake",
    "dynamo",
    "aiperf",
    "genai-perf",
    "bailian",
    "burstgpt",
    "guidellm",
    "baseten",
    "vidur",
    "llmservingsim",
    "weka",
    "otel",
    "sharegpt",
    "vllm-custom",
    "servegen",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSpec:
    """A format of flat rows. ``time`` empty: the rows have no arrivals. ``rows`` overrides how a record is read."""

    time: tuple[str, ...] = ()
    unit_seconds: float = 1.0
    unit_name: str = "seconds"
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    blocks: str = ""
    block_tokens: int = 0
    session: str = ""
    delay: tuple[str, ...] = ()
    rows: Callable[[Fields, str], Iterator[TraceRow]] | None = None
    estimated: bool = False  # whether token counts are estimated from text

    def read(self, row: Fields, where: str) -> Iterator[TraceRow]:
        """Yield the requests of one record; BadInput naming the field."""
        if self.rows:
            yield from self.rows(row, where)
            return
        input_name, inputs = first_of(row, self.inputs, where)
        output_name, outputs = first_of(row, self.outputs, where)
        session = read_session(row, self.session, where) if self.session else None
        delay = read_delay(row, self.delay, MILLI, where) if self.delay else None
        yield TraceRow(
            self._seconds(row, delay, where),
            read_tokens(inputs, f"{where}: {input_name}"),
            read_tokens(outputs, f"{where}: {output_name}"),
            read_hash_ids(row[self.blocks], f"{where}: {self.blocks}") if row.get(self.blocks) is not None else None,
            session,
            delay,
        )

    def _seconds(self, row: Fields, delay: float | None, where: str) -> float | None:
        """Return the arrival; a turn with a delay needs none."""
        if not self.time or (delay is not None and not any(row.get(name) not in (None, "") for name in self.time)):
            return None
        name, value = first_of(row, self.time, where)
        return read_time(value, self.unit_seconds, self.unit_name, f"{where}: {name}")


def _azure_rows(row: Fields, where: str) -> Iterator[TraceRow]:
    """Stamps have seven digits of a second."""
    whole, fraction = read_stamp(row.get("TIMESTAMP"), f"{where}: TIMESTAMP")
    yield TraceRow(
        fraction,
        read_tokens(row.get("ContextTokens"), f"{where}: ContextTokens"),
        read_tokens(row.get("GeneratedTokens"), f"{where}: GeneratedTokens"),
        whole_seconds=int(whole.replace(tzinfo=UTC).timestamp()),
    )


def _burstgpt_rows(row: Fields, where: str) -> Iterator[TraceRow]:
    """Rows with 0 response tokens are failed requests of the measured service: left out."""
    if read_number(row.get("Response tokens"), f"{where}: Response tokens") == 0:
        return
    yield TraceRow(
        read_time(row.get("Timestamp"), 1.0, "seconds", f"{where}: Timestamp"),
        read_tokens(row.get("Request tokens"), f"{where}: Request tokens"),
        read_tokens(row.get("Response tokens"), f"{where}: Response tokens"),
    )


def _llmservingsim_rows(row: Fields, where: str) -> Iterator[TraceRow]:
    """Agentic rows hold sub-requests, each after the tool of the one before."""
    stamp = row.get("arrival_time_ns")
    seconds = None if stamp is None else read_time(stamp, NANO, "nanoseconds", f"{where}: arrival_time_ns")
    parts = row.get("sub_requests")
    if parts is None:
        yield _llmservingsim_part(row, where, seconds, None, None)
        return
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise BadInput(f"{where}: sub_requests: must be a list of objects")
    session = read_session(row, "session_id", where) or where
    delay: float | None = None
    for part in parts:
        yield _llmservingsim_part(part, where, seconds, session, delay)
        delay = read_delay(part, ("tool_duration_ns",), NANO, where) or 0.0
        seconds = None


def _llmservingsim_part(
    row: Fields, where: str, seconds: float | None, session: str | None, delay: float | None
) -> TraceRow:
    inputs, outputs = (
        read_tokens(first_of(row, (name,), where)[1], f"{where}: {name}") for name in ("input_toks", "output_toks")
    )
    return TraceRow(seconds, inputs, outputs, None, session, delay)


def _weka_rows(row: Fields, where: str) -> Iterator[TraceRow]:
    """A conversation: block identifiers and times are its own; entries of sub-agents hold further requests."""
    name, requests = read_session(row, "id", where) or where, row.get("requests", [row])
    if not isinstance(requests, list):
        raise BadInput(f"{where}: requests: must be a list")
    for request in requests:
        if not isinstance(request, dict):
            raise BadInput(f"{where}: requests: must be a list of objects")
        if request.get("type") == "subagent":
            yield from _weka_rows({"id": name, "requests": request.get("requests", [])}, where)
            continue
        ids = read_hash_ids(request.get("hash_ids") or [], f"{where}: hash_ids")
        value = 0
        for byte in name.encode(errors="surrogatepass"):
            value = (value * 257 + byte) % (2**43 - 57)
        yield TraceRow(
            read_time(request.get("t"), 1.0, "seconds", f"{where}: t"),
            read_tokens(request.get("in"), f"{where}: in"),
            read_tokens(request.get("out"), f"{where}: out"),
            # Identifiers of different conversations must not meet.
            ids ^ (value << 20),
            name,
        )


def _otel_rows(row: Fields, where: str) -> Iterator[TraceRow]:
    """Spans with token usage in OpenTelemetry's semantic conventions for generative AI."""
    spans = row.get("spans")
    if not isinstance(spans, list):
        raise BadInput(f"{where}: spans: must be a list")
    for span in spans:
        attributes = span.get("attributes") if isinstance(span, dict) else None
        if isinstance(attributes, list):
            values = {item.get("key"): item.get("value") for item in attributes if isinstance(item, dict)}
            inner = {key: [*value.values()] for key, value in values.items() if isinstance(value, dict)}
            attributes = values | {key: own[0] if own else None for key, own in inner.items()}
        if not isinstance(attributes, dict):
            raise BadInput(f"{where}: spans: each must have attributes")
        inputs = attributes.get("gen_ai.usage.input_tokens", attributes.get("gen_ai.usage.prompt_tokens"))
        outputs = attributes.get("gen_ai.usage.output_tokens", attributes.get("gen_ai.usage.completion_tokens"))
        if inputs is None or outputs is None:
            continue
        whole, fraction = _otel_time(span, where)
        yield TraceRow(
            fraction,
            read_tokens(inputs, f"{where}: gen_ai.usage.input_tokens"),
            read_tokens(outputs, f"{where}: gen_ai.usage.output_tokens"),
            whole_seconds=whole,
        )


def _otel_time(span: Fields, where: str) -> tuple[int, float]:
    """Return the whole second since 1970 and the fraction."""
    for name in ("startTimeUnixNano", "start_time_unix_nano"):
        if name in span:
            nanoseconds = round(read_number(span[name], f"{where}: {name}"))
            return nanoseconds // 10**9, nanoseconds % 10**9 * NANO
    whole, fraction = read_stamp(span.get("start_time"), f"{where}: start_time")
    return int(whole.replace(tzinfo=UTC).timestamp()), fraction


def _sharegpt_rows(row: Fields, where: str) -> Iterator[TraceRow]:
    """The first question and its answer, as serving benchmarks take them."""
    turns = row.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise BadInput(f"{where}: conversations: must be a list of objects")
    if len(turns) >= 2:
        question, answer = (estimate_tokens(turn.get("value"), f"{where}: value") for turn in turns[:2])
        yield TraceRow(None, question, answer)


def _custom_rows(row: Fields, where: str) -> Iterator[TraceRow]:
    prompt = estimate_tokens(row.get("prompt"), f"{where}: prompt")
    yield TraceRow(None, prompt, read_tokens(first_of(row, ("output_tokens",), where)[1], f"{where}: output_tokens"))


MOONCAKE = FormatSpec(
    time=("timestamp", "created_time"),
    unit_seconds=MILLI,
    unit_name="milliseconds",
    inputs=("input_length", "input_tokens"),
    outputs=("output_length", "output_tokens"),
    blocks="hash_ids",
    block_tokens=512,
    session="session_id",
    delay=("delay", "delay_ms"),
)
SINGLE = replace(MOONCAKE, unit_seconds=1.0, unit_name="seconds", session="", delay=())
FORMATS: dict[TraceFormat, FormatSpec] = {
    "azure": FormatSpec(time=("TIMESTAMP",), inputs=("ContextTokens",), outputs=("GeneratedTokens",), rows=_azure_rows),
    "mooncake": MOONCAKE,
    "dynamo": MOONCAKE,
    "aiperf": MOONCAKE,
    "genai-perf": MOONCAKE,
    "bailian": replace(SINGLE, block_tokens=16),
    "guidellm": SINGLE,
    "burstgpt": FormatSpec(
        time=("Timestamp",), inputs=("Request tokens",), outputs=("Response tokens",), rows=_burstgpt_rows
    ),
    "baseten": FormatSpec(
        time=("timestamp_start_unix_ms",),
        unit_seconds=MILLI,
        unit_name="milliseconds",
        inputs=("input_tokens",),
        outputs=("output_tokens",),
    ),
    "vidur": FormatSpec(time=("arrived_at",), inputs=("num_prefill_tokens",), outputs=("num_decode_tokens",)),
    "llmservingsim": FormatSpec(
        time=("arrival_time_ns",), inputs=("input_toks",), outputs=("output_toks",), rows=_llmservingsim_rows
    ),
    "weka": FormatSpec(time=("t",), inputs=("in",), outputs=("out",), block_tokens=64, rows=_weka_rows),
    "otel": FormatSpec(time=("start_time",), inputs=("spans",), outputs=("spans",), rows=_otel_rows),
    "sharegpt": FormatSpec(inputs=("conversations",), outputs=("conversations",), rows=_sharegpt_rows, estimated=True),
    "vllm-custom": FormatSpec(inputs=("prompt",), outputs=("prompt",), rows=_custom_rows, estimated=True),
}

# The first whose fields the first record has; those that share fields with another come later and are declared.
_SEEN_BY: tuple[tuple[TraceFormat, tuple[str, ...]], ...] = (
    ("azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
    ("burstgpt", ("Timestamp", "Request tokens", "Response tokens")),
    ("vidur", ("num_prefill_tokens", "num_decode_tokens")),
    ("baseten", ("timestamp_start_unix_ms", "input_tokens")),
    ("llmservingsim", ("input_toks",)),
    ("llmservingsim", ("sub_requests",)),
    ("bailian", ("chat_id", "parent_chat_id")),
    ("weka", ("id", "requests")),
    ("weka", ("t", "in", "out")),
    ("otel", ("spans",)),
    ("sharegpt", ("conversations",)),
    ("mooncake", ("input_length",)),
    ("mooncake", ("input_tokens",)),
    ("vllm-custom", ("prompt",)),
)


def see_format(row: Fields, is_csv: bool) -> TraceFormat | None:
    """Return the format whose fields ``row`` has, None where none fits.

    ``timestamp, input_length, output_length`` as a CSV is guidellm's (seconds), as JSON Mooncake's (milliseconds).
    """
    for name, fields in _SEEN_BY:
        if all(field in row for field in fields):
            return "guidellm" if is_csv and name == "mooncake" else name
    return None
