"""Bring what the documentation shows up to date, and make its reference pages from the code.

    python -m scripts.refresh_docs            rewrite outputs that differ
    python -m scripts.refresh_docs --others   also run every other command line of the pages, which takes long

A block ```console holds commands behind `$ ` and what they print; `| head -N` keeps the first lines. The commands of a
page run in one empty folder that has the repository's examples. tests/test_docs.py holds that nothing differs. The
reference pages are made when the site is built: mkdocs calls ``on_files``.
"""

import contextlib
import dataclasses
import inspect
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

import podplan
from cli.main import COMMANDS, LazyCommands, app, main
from podplan.options import QuestionFlags, flag_name
from podplan.question_files import CHECK_KEYS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WIDTH = "100"
FENCE = re.compile(r"(?m)^```console\n(.*?)^```$", re.DOTALL)
REFERENCE = "reference/"


def shown(text: str) -> Iterator[str]:
    """Yield the commands of a page whose output it shows."""
    for block in FENCE.findall(text):
        yield from (line[2:] for line in block.splitlines() if line.startswith("$ "))


def others(text: str) -> Iterator[str]:
    """Yield the other command lines of a page: those in indented or fenced blocks, without what explains them."""
    fenced = indented = False
    before = ""
    for line in FENCE.sub("", text).splitlines():
        fenced ^= line.startswith("```")
        indented = line.startswith("    ") and (indented or not before.strip())
        before = line
        if fenced or indented:
            for one in re.split(r" · | && ", line.strip()):
                told = re.split(r"\s{2,}| > ", one)[0]
                if re.match(r"plan [\w./-]", told) and not told.startswith("plan = "):
                    yield told


def parsed(command: str) -> None:
    """Read a command line as its parser does, without running it; raises what it raises."""
    name, *rest = shlex.split(command)[1:]
    if name not in COMMANDS:
        name, rest = "search", [name, *rest]
    group: Any = typer.main.get_command(app)
    group.get_command(None, name).make_context(name, rest)


def output(command: str) -> str:
    """Return what a command prints, of `| head -N` the first lines."""
    line, _, pipe = command.partition(" | head -")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(line)[1:])
    lines = [*out.getvalue().rstrip().splitlines(), *(err.getvalue().splitlines() if code else [])]
    return "".join(f"{each}\n" for each in (lines[: int(pipe)] if pipe else lines))


def refreshed(text: str) -> str:
    """Return a page with what its commands print now; they run in one new folder."""
    if not FENCE.search(text):
        return text
    before, columns = Path.cwd(), os.environ.get("COLUMNS")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        os.chdir(folder)
        os.environ["COLUMNS"] = WIDTH
        try:
            return FENCE.sub(lambda found: _block(found[1]), text)
        finally:
            os.chdir(before)
            os.environ.pop("COLUMNS")
            if columns is not None:
                os.environ["COLUMNS"] = columns


def _block(block: str) -> str:
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    parts = [f"$ {command}\n{output(command)}" for command in commands]
    return "```console\n" + "\n".join(parts) + "```"


@cache
def generated() -> dict[str, str]:
    """Return the pages that are made from the code, by their place in docs/."""
    return {
        f"{REFERENCE}commands.md": _commands(),
        f"{REFERENCE}question-files.md": _question_files(),
        f"{REFERENCE}python.md": _python(),
    }


def on_files(files: Any, config: Any) -> Any:
    """Add the reference pages to the site; mkdocs calls this."""
    from mkdocs.structure.files import File  # of podplan[docs]

    for place, text in generated().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page whose links to files outside docs/ are mere names; mkdocs calls this."""
    return re.sub(r"\[([^\]\n]+)\]\((?:\.\./)+(?:examples|README)[^)]*\)", r"\1", markdown)


def _commands() -> str:
    """Return the command reference, as the parser has it."""
    group: Any = typer.main.get_command(app)
    assert isinstance(group, LazyCommands)
    parts = ["# Commands\n\nMade from the parser. `plan MODEL …` is short for `plan search MODEL …`.\n"]
    for name, line in COMMANDS.items():
        command: Any = group.get_command(None, name)
        parts.append(f"## plan {name}\n\n{line}\n")
        parts.append(_help(command.help))
        rows = [_row(each) for each in command.params if each.name != "help"]
        parts.append("| argument or flag | |\n|---|---|\n" + "".join(rows))
    return "\n".join(parts)


def _help(text: str) -> str:
    """Return a command's help: its paragraphs, and its examples as a block."""
    _, *paragraphs = inspect.cleandoc(text).split("\n\n")
    told = []
    for each in paragraphs:
        lines = each.splitlines()
        if lines[0] == "\b":
            told.append("```sh\n" + "\n".join(line.strip() for line in lines[2:]) + "\n```\n")
        else:
            told.append(_cell(" ".join(lines)) + "\n")
    return "\n".join(told)


def _row(each: Any) -> str:
    names = each.opts if each.param_type_name == "option" else [each.metavar or each.name]
    metavar = f" {each.metavar}" if each.metavar and each.param_type_name == "option" else ""
    return f"| `{', '.join(names)}{metavar}` | {_cell(each.help or '')} |\n"


def _cell(text: str) -> str:
    return re.sub(r"([|<>*_\[\]])", r"\\\1", " ".join(text.split()))


def _question_files() -> str:
    own = "".join(f"| `{key}` | of `plan check`: see there |\n" for key in ("name", *CHECK_KEYS))
    rows = "".join(
        f"| `{flag_name(each.name)[2:]}` | {_cell(each.metadata['help'])} |\n"
        for each in dataclasses.fields(QuestionFlags)
    )
    return f"""# Question files

A question file is YAML. Its keys are the long flags without `--`; `_` may stand for `-`. `questions:` lists several
questions; what stands beside the list holds for each that does not give its own. Paths are read from the file's folder.
`plan check`, `plan explain` and `plan compare` read such files.

```yaml
model: qwen3-30b-a3b
hw: h800
nodes: 1
questions:
  - {{name: chat, rate: 2/s, ttft: 1s, tpot: 40ms}}
  - {{name: batch, rate: 1/s, isl: 8k, ttft: 10s}}
```

`plan check --schema` prints the JSON Schema, which editors complete and check with: write it to a file and begin a
question file with `# yaml-language-server: $schema=question-file.json`.

| key | |
|---|---|
{rows}{own}"""


def _python() -> str:
    parts = [
        "# Python\n\nMade from the docstrings of `podplan`. [Using podplan from Python](../python.md) shows them "
        "together.\n"
    ]
    for name in podplan.__all__:
        thing = getattr(podplan, name)
        told = inspect.cleandoc(thing.__doc__ or "")
        kind = "class" if inspect.isclass(thing) else "function"
        signature = "" if inspect.isclass(thing) else str(inspect.signature(thing)).replace("'", "")
        parts.append(f"## {name}\n\n```python\n{kind} {name}{signature}\n```\n\n```text\n{told}\n```\n")
    return "\n".join(parts)


def refresh() -> list[Path]:
    """Rewrite the pages whose commands print something else now, and return them."""
    new = {path: refreshed(path.read_text(encoding="utf-8")) for path in PAGES}
    differing = [path for path, text in new.items() if path.read_text(encoding="utf-8") != text]
    for path in differing:
        path.write_text(new[path], encoding="utf-8")
    return differing


if __name__ == "__main__":
    for changed in refresh():
        print(f"rewrote {changed.relative_to(ROOT)}")
    for page in PAGES if "--others" in sys.argv else ():
        for one in others(page.read_text(encoding="utf-8")):
            print(f"{page.relative_to(ROOT)}: {one}\n{output(one)[:400]}")
