"""Reads the traffic that a benchmark sends, in the forms of the tools that ``deploy.proof`` writes commands of."""

import json
import math
import re
from collections.abc import Iterator

from deploy.reading.flags import Flags, read_flags
from deploy.reading.lines import commands

EVEN = 0.99 / math.sqrt(3)  # of their mean, by which even lengths vary at most: from nearly nothing to twice the mean
TOOLS = {  # flags of the tokens of a prompt, of an answer, and of the prefix before every prompt
    "vllm bench serve": "--random-input-len --random-output-len --random-prefix-len",
    "sglang.bench_serving": "--random-input-len --random-output-len",
    "aiperf profile": "--synthetic-input-tokens-mean --output-tokens-mean --prefix-prompt-length",
}
NUMBER = r"(\d+(?:\.\d+)?(?:e-?\d+)?)"
SPREAD = re.compile(rf"^\s*# In the plan prompts vary by {NUMBER} of their mean, answers by {NUMBER}\.$", re.MULTILINE)
MARK = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, TOOLS))})(?=\s|$)")


def sent(text: str) -> dict[str, str]:
    """Return what the first benchmark of a text sends as flags of a question; nothing where none has lengths."""
    for (tool, *words), _ in commands(text, {}, MARK):
        flags = read_flags(words)
        prompt, answer, prefix = ([float(flags.get(name) or 0) for name in TOOLS[tool].split()] + [0.0])[:3]
        if prompt and answer:
            return dict(_sent(tool, flags, text, (prompt, answer, prefix))) | dict(_shown(flags))
    return {}


def spread_line(prompts: float, answers: float) -> str:
    """Return the comment of a script that says what the lengths of its plan vary by, of which a tool may send less."""
    return f"# In the plan prompts vary by {prompts:.4g} of their mean, answers by {answers:.4g}."


def _sent(tool: str, flags: Flags, text: str, tokens: tuple[float, float, float]) -> Iterator[tuple[str, str]]:
    """Yield mean lengths, their variations, and the share of prompts that is their common prefix."""
    prompt, answer, prefix = tokens
    if tool == "aiperf profile":
        names = ("--synthetic-input-tokens-stddev", "--output-tokens-stddev")
        spread = [float(flags.get(name) or 0) / mean for name, mean in zip(names, (prompt, answer), strict=True)]
    else:  # even lengths: vLLM's to both sides of the mean, SGLang's from a share of the longest up
        ratio = json.loads(flags.get("--random-range-ratio") or "0")
        halves = [ratio["input"], ratio["output"]] if isinstance(ratio, dict) else [ratio, ratio]
        if tool == "sglang.bench_serving":
            prompt, answer = prompt * (1 + ratio) / 2, answer * (1 + ratio) / 2
            halves = [(1 - ratio) / (1 + ratio)] * 2
        spread = [half / math.sqrt(3) for half in halves]
    whole = prompt + prefix
    spread[0] *= prompt / whole
    spread = _planned(tool, text, prompt / whole, spread) or spread
    yield "isl", f"{whole:.0f}"
    yield "osl", f"{answer:.0f}"
    yield from ((name, f"{cv:.3g}") for name, cv in zip(("isl_cv", "osl_cv"), spread, strict=True) if cv)
    if prefix:
        yield "prefix_reuse", f"{prefix / whole:.4g}"


def _planned(tool: str, text: str, own: float, spread: list[float]) -> list[float] | None:
    """Return what lengths vary by in the plan, if a script says so and its command sends as much of it as its tool can.

    Args: ``own``: share of a prompt that is not the common prefix; ``spread``: what the command sends.
    """
    told = SPREAD.search(text)
    if told is None:
        return None
    planned = [float(told[1]), float(told[2])]
    most = [max(planned)] * 2 if tool == "sglang.bench_serving" else planned  # which has one ratio for both
    able = min(most[0], EVEN * own), min(most[1], EVEN)
    alike = all(math.isclose(one, other, abs_tol=0.01) for one, other in zip(able, spread, strict=True))
    return planned if alike else None


def _shown(flags: Flags) -> Iterator[tuple[str, str]]:
    """Yield the pictures of a prompt, or the frames of its video."""
    height, width, frames = [int(n) for n in re.findall(r"\d+", flags.get("--random-mm-bucket-config") or "0 0 0")][:3]
    count = int(flags.get("--random-mm-base-items-per-request") or flags.get("--image-count") or 1)
    if "--image-resolution" in flags:
        height, width = map(int, (flags["--image-resolution"] or "").split("x"))
    for kind in ("image", "video"):
        if f"--{kind}-batch-size" in flags:
            count = int(flags[f"--{kind}-batch-size"] or 1)
            own = (flags.get(f"--{kind}-{name}") for name in ("height-mean", "width-mean", "height", "width"))
            height, width = (int(value) for value in own if value)
            frames = int(flags.get("--video-duration") or 1)
    if width:
        yield ("video", f"{frames}@{width}x{height}") if frames > 1 else ("images", f"{count}@{width}x{height}")
