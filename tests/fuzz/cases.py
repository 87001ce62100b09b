"""Cases: a command line, the files that it finds, its environment, and what happens to it."""

import signal
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any
from zlib import crc32

import typer
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from cli.main import app_of
from tests.fuzz.documents import ANYWHERE, files
from tests.fuzz.words import ODD, words, wrong

SMALL = ["qwen3-8b", "--hw", "h100", "--nodes", "1", "--isl", "512", "--osl", "64"]
PREDICTED = ["--hw", "h100", "--phase", "decode", "--strategy", "TP=1", "--batch", "4", "--kv-len", "512"]
SEES = "qwen2.5-vl-7b-instruct"
ASCEND = ("vllm-ascend", "xllm", "mindie")
START: dict[str, list[list[str]]] = {
    "search": [SMALL, [*SMALL, "--scenarios", "scenarios.yaml"], [SEES, *SMALL[1:], "--images", "1@448x448"]],
    "check": [[*SMALL, "--rate", "1/s", "--ttft", "5s"], ["QUESTION"]],
    "explain": [SMALL, ["QUESTION"]],
    "fleet": [["FLEET.yaml"]],
    "compare": [SMALL, ["QUESTION"]],
    "sweep": [[*SMALL, "--over", "osl=32,64"]],
    "predict": [
        *([model, *PREDICTED] for model in ("qwen3-8b", "qwen3-30b-a3b", "config.json")),
        [SEES, "--hw", "h100", "--phase", "prefill", "--strategy", "TP=1", "--tokens", "4096", "--isl", "512"],
    ],
    "deploy": [
        *(["GPUS", "--engine", engine, "--out", "out", "--values", "site.yaml"] for engine in ("vllm", "sglang")),
        *(["NPUS", "--engine", engine, "--out", "out", "--values", "site.yaml"] for engine in ASCEND),
        ["GPUS", "--engine", "vllm", "--platform", "kubernetes", "--out", "out", "--values", "site.yaml"],
        ["GPUS", "--engine", "vllm", "--diff", "."],
    ],
    "simulate": [
        ["MANIFEST", *more] for more in (["--rate", "5/s", "--requests=9"], ["--trace", "trace"], ["--trace=."])
    ]
    + [["RUNS", "--rate", "1/s", "--requests=9", "--migration", "migration.yaml"]],
    "migrate": [["RUNS", "MOVED", "--rate", "1/s", "--startup", "1s"], ["RUNS", "QUESTION"]],
    "watch": [[source, "--manifest", "GPUS", "--once"] for source in ("run.prom", "trace", "runs.csv")],
    "supernode": [["cm384", "--sizes", "192,384"], ["hardware.yaml"]],
    "import": [[name, "--hw", "h100"] for name in ("objects.yaml", "start.sh", "vllm serve Qwen/Qwen3-8B -tp 2", ".")],
    "verify": [["runs.csv"], ["runs.csv", "--calibrate", "out.yaml"], ["report.json", "--manifest", "GPUS"]],
    "calibrate": [["MEASUREMENTS.csv", "--hw", "h100", "--out", "out.yaml"]],
    "measure": [["--quick", "--out", "out.csv"]],
    "place": [[f"loads.{kind}", "--devices", "8"] for kind in ("csv", "json", "npy", "npz")],
    "execute": [["MANIFEST", "--iterations", "1"]],
    "accuracy": [[]],
    "models": [["config.json"], ["model.yaml"], ["qwen3-8b"]],
    "hardware": [["hardware.yaml"], ["hardware.yaml", "--check"], ["h100"]],
    "manifest": [["validate", "MANIFEST"], ["schema"]],
}
READERS = ("deploy", "simulate", "place", "models", "hardware", "manifest")
OTHERS = ("predict", "calibrate", "verify", "migrate", "watch", "supernode")
WEIGHTS = dict.fromkeys(START, 2) | dict.fromkeys(READERS, 8) | dict.fromkeys(OTHERS, 5) | {"import": 4}
"""Shares of the commands among cases: readers of files have most, searches take seconds."""
SKIPPED = {"--install-completion", "--show-completion", "--help", "--timeout"}
ENVIRONMENT = {
    "COLUMNS": ["0", "-1", "1", "²", "999999999", "80", ""],
    "LINES": ["0", "x"],
    "NO_COLOR": ["1"],
    "TERM": ["dumb", "", "nothing"],
    "LANG": ["C", "tr_TR.UTF-8", "nothing"],
    "LC_ALL": ["POSIX"],
    "PYTHONIOENCODING": ["ascii", "latin-1"],
    "HOME": ["/absent", "/dev/null", "/proc", ""],
    "XDG_CACHE_HOME": ["/proc", "/dev/full"],
    "TMPDIR": ["/absent"],
    "PYTHONUTF8": ["0"],
    "PYTHONWARNINGS": ["error"],
    "TZ": ["nothing", ":/absent"],
    "PODPLAN_DEBUG": ["0"],
    "OMP_NUM_THREADS": ["x", "0"],
}


INSTEAD = ("folder", "pipe", "loop", "/dev/zero", "/dev/full", "/proc/self/mem", "empty", "huge")
BLOCK = 100
"""Cases that a worker draws and runs at a time."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is run, with streams ``closed`` or a ``signal`` some time after."""

    command: str
    arguments: list[str]
    files: dict[str, bytes]
    environment: dict[str, str] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    """Streams that are closed; 3 is a reader of stdout that has left, 4 a full disk under stdout."""
    instead: dict[str, str] = field(default_factory=dict)
    """What stands in place of a file: a folder, a pipe, a loop, a device or a file that leads to itself."""
    signal: int = 0
    after_seconds: float = 0.0
    cold: bool = False
    beside: bool = False
    """Whether the same runs beside it, in the same folder."""

    @property
    def fresh(self) -> bool:
        """Whether it runs as a programme of its own, and not in a copy of a process that has begun."""
        return bool(self.environment or self.closed or self.cold)

    def told(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self) | {"files": {name: content.hex() for name, content in self.files.items()}}


def read_case(data: dict[str, Any]) -> Case:
    """Return a case that ``told`` wrote."""
    return Case(**data | {"files": {name: bytes.fromhex(content) for name, content in data["files"].items()}})


@cache
def flags(command: str) -> dict[str, str | None]:
    """Return the flags of a command and the field of each, None where it takes no value."""
    made = typer.main.get_command(app_of(command))
    inner = getattr(made, "commands", {"": made})
    options = [each for one in inner.values() for each in one.params if each.param_type_name == "option"]
    found = {name: None if each.is_flag else str(each.name) for each in options for name in each.opts}
    return {name: value for name, value in found.items() if name not in SKIPPED}


@st.composite
def arguments(draw: st.DrawFn, command: str, sound: bool) -> list[str]:
    """Draw a command line: a right one with flags added, and sometimes words replaced, dropped or doubled."""
    line = list(draw(st.sampled_from(START[command])))
    known = flags(command)
    bad = draw(st.sampled_from([-1] if sound else [-1, 0, 0, 1]))  # which flag has a wrong value
    chosen = [draw(st.sampled_from(sorted(known))) for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3])))]
    for number, name in enumerate(chosen if draw(st.sampled_from(range(9))) == 0 else dict.fromkeys(chosen)):
        field = known[name]
        if field is None:
            line.append(name)
            continue
        word = draw(words(command, field, number != bad))
        if name in line:
            line[line.index(name) + 1 : line.index(name) + 2] = [word]
        else:
            line += [name, word] if draw(st.booleans()) else [f"{name}={word}"]
    if line and not sound and draw(st.sampled_from(range(9))) == 0:
        place, how = draw(ANYWHERE) % len(line), draw(st.integers(0, 5))
        word = line[place]
        change = [[], [word] * 2, [draw(wrong())], [draw(st.sampled_from(ODD)), word], [word.upper()], [word[:-1]]]
        line[place : place + 1] = change[how]
    if not sound and draw(st.sampled_from(range(9))) == 0:
        place = draw(ANYWHERE) % (len(line) + 1)
        line = [*line[place:], *line[:place]]  # flags before what they stand behind
    return line


@st.composite
def cases(draw: st.DrawFn, command: str) -> Case:
    """Draw a case of a command."""
    sound = draw(st.booleans())
    line = draw(arguments(command, sound))
    known = files(sound=True)
    needed = [name for name in known if any(word.endswith(name) for word in line)]
    needed += [name for name in known if name.startswith("chunk") and {".", "--trace=."} & {*line}]
    needed += ["inventory.yaml"] * ("site.yaml" in needed)
    needed += [name for name in known if name.startswith("stage-")] * ("migration.yaml" in needed)
    needed += ["README.md", "site.env", "hosts.tsv", "mixed.sh"] * ("--diff" in line)
    needed += ["settings.yaml", "trtllm.sh"] * (line[:1] == ["."])
    victim = draw(st.sampled_from([*needed, ""])) if needed else ""
    ending = draw(st.sampled_from(range(40)))
    names = draw(st.lists(st.sampled_from(sorted(ENVIRONMENT)), max_size=2, unique=True)) if ending == 0 else []
    odd = victim if victim and ending in (3, 4) else ""
    return Case(
        command=command,
        arguments=[command, *line],
        files={name: draw(files(sound=name != victim)[name]) for name in needed},
        environment={name: draw(st.sampled_from(ENVIRONMENT[name])) for name in names},
        closed=draw(st.lists(st.sampled_from([0, 1, 2, 3, 4]), max_size=2, unique=True)) if ending == 1 else [],
        instead={odd: draw(st.sampled_from(INSTEAD))} if odd else {},
        signal=draw(st.sampled_from([signal.SIGTERM, signal.SIGHUP, signal.SIGINT])) if ending == 2 else 0,
        after_seconds=draw(st.floats(0, 0.5)) if ending == 2 else 0.0,
        cold=ending == 5,
        beside=ending == 6,
    )


def drawn(count: int, number: int | str, command: str) -> list[Case]:
    """Return about so many cases of a command; the same seed draws the same."""
    found: list[Case] = []

    @seed(number)
    @settings(
        max_examples=max(count, 1),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(command))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def blocks(count: int, number: int, commands: Collection[str] = ()) -> list[tuple[int, str, str]]:
    """Return so many cases as the numbers, seeds and commands of blocks, of each command its share, well mixed."""
    shares = {name: share for name, share in WEIGHTS.items() if name in (commands or WEIGHTS)}
    of_each = {name: max(round(count * share / sum(shares.values())), 1) for name, share in shares.items()}
    found = [
        (min(BLOCK, all - begin), f"{number}-{name}-{begin}", name)
        for name, all in of_each.items()
        for begin in range(0, all, BLOCK)
    ]
    return sorted(found, key=lambda block: crc32(block[1].encode()))
