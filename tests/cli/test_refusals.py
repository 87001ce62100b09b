"""What a user can mend is refused: exit code 2, nothing written, and one sentence that names the flag or the file."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from planner.manifest.document import dump_manifest
from tests.changes import tight
from tests.deploy.cases import plan
from tests.expert_loads import power_law
from tests.manifests import manifest
from tests.shell import refused

TABLE = Path(__file__).with_name("refusals.txt")


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


def _rows(*, files: bool) -> list[object]:
    """Return rows of commands, or of their ``files``: the beginning with that of the file, the rest, what is told."""
    rows: list[object] = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("plan"):
            command, mark, text = line.removeprefix("plan").partition("«")
        elif line.startswith(" ") and bool(mark) == files:
            more, told = (part.strip() for part in line.split("→"))
            start = command.strip(), text.removeprefix(" ").replace(r"\n", "\n")
            rows.append(pytest.param(start, more, told, id=f"{start[0]} {more}".strip()))
    return rows


@pytest.mark.parametrize(("start", "more", "told"), _rows(files=False))
def test_what_is_typed_wrong(start, more, told, folder, monkeypatch, capsys):
    """The flag, or the word that was meant; no file comes of it."""
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    refused(capsys, told, *shlex.split(f"{start[0]} {more}".replace("{LONG}", "n" * 5000)))
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("start", "more", "told"), _rows(files=True))
def test_what_a_file_has_wrong(start, more, told, folder, monkeypatch, capsys):
    """The key, the line or the file, and what would be right."""
    monkeypatch.chdir(folder)
    command, text = shlex.split(start[0]), start[1] + more.replace(r"\n", "\n")
    name = next(word for word in reversed(command) if Path(word).suffix and word != "manifest.yaml")
    Path(name).write_text(f"{text}\n", encoding="utf-8")
    refused(capsys, told, *command)
