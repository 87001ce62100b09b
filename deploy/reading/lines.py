"""Finds engines' commands in shell text that others wrote, fills in variables, and spells flags out."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from deploy.reading.flags import TABLES, Flags, read_flags, table
from deploy.reading.shell import UnknownForm, arithmetic
from ground.errors import BadInput

COMMANDS = {
    "vllm serve": "vllm",
    "vllm.entrypoints.openai.api_server": "vllm",
    "sglang.launch_server": "sglang",
    "trtllm-serve": "trtllm",
    "dynamo.vllm": "vllm",
    "dynamo.sglang": "sglang",
    "dynamo.trtllm": "trtllm",
    "xllm": "xllm",
    "mindie_llm_server": "mindie",
    "mindieservice_daemon": "mindie",
}
MARK = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, COMMANDS))})(?=\s|$)")
IMAGE = re.compile(r"(?<!\S)\S*vllm-openai\S*(?=\s)")  # whose entry point is vllm serve
SHORT = {"-tp": "--tensor-parallel-size", "-dp": "--data-parallel-size", "-pp": "--pipeline-parallel-size"}
SHORT |= {"--tp": "--tp-size", "--dp": "--dp-size", "--ep": "--ep-size", "--pp": "--pp-size"}
SHORT |= {
    "--spec-tokens": "--speculative-config.num_speculative_tokens",
    "--spec-method": "--speculative-config.method",
}
SCALED, SCALES = re.compile(r"(\d+(?:\.\d+)?)([kKmM])"), {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}
"""Of vLLM's human_readable_int."""
BEFORE = re.compile(r"\s*(?:(?:export|env|exec)\s+)*")
ASSIGNED = re.compile(r"""([A-Za-z_]\w*)=((?:"[^"]*"|'[^']*'|[^\s"';])*)(?:\s*;\s*(?:export\s+)?|\s+|$)""")
"""A variable before others or a command; what a command's output would be, ``$(…)``, is known to its shell alone."""
ENDS = ("&", "|", "||", "&&", ";")
QUOTED = re.compile(r"""'[^']*(?:'|\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[^'"]+""", re.DOTALL)
NAME = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::-((?:[^${}]|\$\{[^${}]*\})*))?\}|([A-Za-z_]\w*)|\(([A-Za-z_]\w*)\))")
MOST_CHARACTERS, MOST_ENDS = 2**17, 256
"""Of a command, which Linux passes to a shell as one word, and lines where a quote in it may seem to end."""


def commands(
    text: str, given: Mapping[str, str], marks: re.Pattern[str] = MARK
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield every command of an engine, or of ``marks``, as words, with the variables set before it filled in."""
    joined = re.sub(r"\\\r?\n\s*", " ", text)
    joined = re.sub(r"(?<!\n)\n[ \t]*(?=--\w)", " ", joined)  # arguments listed one a line
    scope, own = dict(given), dict[str, str]()
    lines = iter(joined.splitlines())
    for line in lines:
        for name, value in _assigned(line):
            own[name] = filled(value.strip("\"'"), scope)
            scope[name] = given.get(name, own[name])
        found = marks.search(line) or IMAGE.search(line)
        if found is None or line.lstrip().startswith("#"):
            continue
        mark = "vllm serve" if found.re is IMAGE else found[0]
        words = _split(line[found.end() :], lines, scope)
        end = next((n for n, word in enumerate(words) if word in ENDS or word.startswith((">", "2>"))), len(words))
        yield [mark, *words[:end]], dict(own)


def _assigned(line: str) -> Iterator[tuple[str, str]]:
    """Yield the variables that a line begins with: alone, several behind ``export``, or before a command."""
    start = BEFORE.match(line)
    position = start.end() if start else 0
    while found := ASSIGNED.match(line, position):
        if re.search(r"`|\$\((?!\()", found[2]):
            return
        yield found[1], found[2]
        position = found.end()


def _split(line: str, further: Iterator[str], scope: Mapping[str, str]) -> list[str]:
    """Return the words of a line, and of those behind it where a quote is open at its end."""
    for _ in range(MOST_ENDS):
        if len(line) > MOST_CHARACTERS:
            break
        lexer = shlex.shlex(filled(line, scope), posix=True)
        lexer.whitespace_split = True
        try:
            return list(lexer)
        except ValueError:
            opened = getattr(lexer, "state", None) or ""  # the quote that has no end
            for after in further:
                line += "\n" + after
                if opened in after or len(line) > MOST_CHARACTERS:
                    break
            else:
                break
    raise BadInput(f"SOURCE: a command cannot be split into words: {line[:60]!r} opens a quote that is not closed")


def filled(text: str, scope: Mapping[str, str]) -> str:
    """Return text with ``$((…))``, ``${NAME:-…}``, ``$NAME`` and Kubernetes' ``$(NAME)`` filled in; others stay.

    What stands between double quotes keeps its own, as those of JSON.
    """
    size = 0

    def of(name: str) -> str:
        nonlocal size
        size += len(scope[name])
        if size > MOST_CHARACTERS:
            raise BadInput(f"SOURCE: variables of a command hold over {MOST_CHARACTERS} characters; leave some out")
        return scope[name]

    return QUOTED.sub(lambda part: _filled(part[0], scope, of, within=part[0].startswith('"')), text)


def _filled(text: str, scope: Mapping[str, str], of: Callable[[str], str], *, within: bool) -> str:
    def name(found: re.Match[str]) -> str:
        own, default = found[1] or found[3] or found[4], found[2]
        if own in scope:
            return re.sub(r'(["\\])', r"\\\1", of(own)) if within else of(own)
        return found[0] if default is None else NAME.sub(name, default)

    def computed(found: re.Match[str]) -> str:
        try:
            return str(arithmetic(found[1], scope))
        except (UnknownForm, ValueError, ZeroDivisionError):
            return found[0]

    return NAME.sub(name, re.sub(r"\$\(\(([^()\n]*)\)\)", computed, text))


def canonical(engine: str, words: Sequence[str]) -> Flags:
    """Return flags under their first names: dashes for underscores, aliases, short and dotted forms spelt out."""
    aliases, names = dict[str, str](), set[str]()
    for part in TABLES.get(engine, ()):
        for first, facts in table(part)["flags"].items():
            aliases |= {alias: first for alias in (first.replace("_", "-"), *facts.get("aliases", []))}
            names.add(first)
    aliases |= SHORT
    spelt = []
    for word in words:
        word = re.sub("^-(?=[a-z])", "--", word) if engine == "xllm" else word  # gflags takes one dash or two
        first, equals, rest = word.partition("=")
        if re.fullmatch(r"--?[a-z][a-z0-9_-]*", first):
            first = aliases.get(first, aliases.get(first.replace("_", "-"), first.replace("_", "-")))
            longer = [name for name in names if name.startswith(first)] if engine == "sglang" else []
            first = longer[0] if len(longer) == 1 else first  # argparse reads a beginning that only one flag has
        spelt.append(f"{first}{equals}{rest}")
    found = {name: _known(value) for name, value in read_flags(spelt).items()}
    for name in ("--max-model-len", "--max-num-batched-tokens", "--max-num-seqs") if engine.endswith("vllm") else ():
        if scaled := SCALED.fullmatch(found.get(name) or ""):
            found[name] = str(int(float(scaled[1]) * SCALES[scaled[2]]))
        elif found.get(name) in ("auto", "-1"):
            found.pop(name)
    for name in [name for name in found if "." in name]:  # --eplb-config.window_size 8 is a key of its JSON
        whole, _, key = name.partition(".")
        value = found.pop(name) or "true"
        read = json.loads(value) if re.fullmatch(r"-?\d+|true|false", value) else value
        found[whole] = json.dumps(json.loads(found.get(whole) or "{}") | {key: read})
    return found


def _known(value: str | None) -> str | None:
    """Return a value; one that still holds a variable is none, so that what needs it says so."""
    return None if value is not None and value.startswith("$") else value
