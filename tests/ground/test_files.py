"""Reading with one clear error, writing whole or not at all."""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from ground import files
from ground.archives import read_members
from ground.errors import BadInput
from ground.files import csv_cells, csv_rows, csv_table
from ground.trace_lines import records


def test_read_yaml_reads_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Some editors put one in front."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: caf\xc3\xa9\n")
    assert files.read_yaml(path) == {"name": "café"}


def test_what_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    """Absent, a directory, not UTF-8, too large, a broken link, a null byte: the sentence names the file."""
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    large = tmp_path / "large.yaml"
    large.touch()
    os.truncate(large, files.SIZE_LIMIT_BYTES + 1)
    (tmp_path / "loop").symlink_to("loop")
    cases = {
        tmp_path / "absent.yaml": "no such file",
        tmp_path: "this is a directory",
        latin: "line 2: this is not UTF-8",
        large: "larger than",
        tmp_path / "loop": "cannot be read",
        tmp_path / "a\0b": "cannot be read",
    }
    for path, told in cases.items():
        with pytest.raises(BadInput) as caught:
            files.read_yaml(path)
        assert str(path) in str(caught.value)
        assert told in str(caught.value)


def test_a_pipe_is_read_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody writes arrives, however late; without a writer there is one sentence in place of a hang."""
    monkeypatch.setattr(files, "WRITER_SECONDS", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match=r"nobody wrote to this pipe for 0\.05 s"):
        files.read_bytes(pipe)
    with subprocess.Popen(["sh", "-c", f"exec > '{pipe}'; sleep 0.2; echo late"]):
        monkeypatch.setattr(files, "WRITER_SECONDS", 10.0)
        assert files.read_text(pipe) == "late\n"
    for read in (
        records,
        lambda path: read_members(path, bool, 99, "is broken"),
        lambda path: files.first_bytes(path, 1),
    ):
        with pytest.raises(BadInput, match="is a pipe or a device, which cannot be read twice; give a file"):
            read(pipe)


def test_write_files_makes_folders_and_replaces_with_force(tmp_path: Path) -> None:
    """--out names a folder that need not exist; --force replaces what is there."""
    path = tmp_path / "out" / "plan.json"
    files.write_files({path: "one\n"}, force=False)
    files.write_files({path: "two\n"}, force=True)
    assert path.read_text(encoding="utf-8") == "two\n"
    assert [child.name for child in path.parent.iterdir()] == ["plan.json"]


def test_write_files_writes_nothing_if_one_exists(tmp_path: Path) -> None:
    """All targets are looked at before the first is written."""
    (tmp_path / "b").write_text("kept", encoding="utf-8")
    with pytest.raises(BadInput, match=r"/b exists already; give --force"):
        files.write_files({tmp_path / "a": "new", tmp_path / "b": "new"}, force=False)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["b"]
    assert (tmp_path / "b").read_text(encoding="utf-8") == "kept"


def test_write_files_leaves_nothing_behind_when_one_fails(tmp_path: Path) -> None:
    """A file where a folder should be: the first target is not written either."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BadInput, match="file: this is a file where a folder must be"):
        files.write_files({tmp_path / "a": "new", tmp_path / "file" / "b": "new"}, force=True)
    with pytest.raises(BadInput, match="/dev/null: this is a file where a folder must be"):  # no regular one
        files.write_files({Path("/dev/null/b"): "new"}, force=True)
    with pytest.raises(BadInput, match="is a folder; give the name of a file"):
        files.write_files({tmp_path: "new"}, force=True)
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


def test_special_files_and_links_are_respected(tmp_path: Path) -> None:
    """A pipe stays a pipe; a link is there whatever it leads to, and with force what it leads to is written."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="is a device, a pipe or a socket"):
        files.write_files({tmp_path / "pipe": "new"}, force=True)
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(BadInput, match="exists already"):
        files.write_files({tmp_path / "link": "new"}, force=False)
    with pytest.raises(BadInput, match="a link to nothing"):
        files.check_folder(tmp_path / "link", ["a"], force=True, flag="--out")
    files.write_files({tmp_path / "link": "new"}, force=True)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text(encoding="utf-8") == "new"


def test_long_names_are_written_and_too_long_ones_refused(tmp_path: Path) -> None:
    """255 bytes are what a file system takes."""
    files.write_files({tmp_path / ("a" * 255): "new"}, force=False)
    with pytest.raises(BadInput, match="cannot be written"):
        files.write_files({tmp_path / "folder" / ("a" * 256): "new"}, force=False)
    with pytest.raises(BadInput, match="cannot be written"):
        files.write_files({tmp_path / "folder" / ("a" * 256) / "file": "new"}, force=False)
    assert [child.name for child in tmp_path.iterdir()] == ["a" * 255]


@pytest.mark.parametrize("force", [False, True])
def test_what_came_meanwhile_stays_unless_forced(tmp_path: Path, force: bool) -> None:
    """The same command beside this one has written its file first."""
    told = nullcontext() if force else pytest.raises(BadInput, match="exists already")
    with told, files.staging(force=force) as beside:
        for name in ("a", "b"):
            beside(tmp_path / name).write_text("mine", encoding="utf-8")
        (tmp_path / "b").write_text("theirs", encoding="utf-8")
    kept = {child.name: child.read_text(encoding="utf-8") for child in tmp_path.iterdir()}
    assert kept == ({"a": "mine", "b": "mine"} if force else {"b": "theirs"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Ended from outside, a process removes what it began, and ends of that signal."""
    text = (
        "import time; from pathlib import Path; from ground.files import staging\n"
        "with staging(force=False) as beside:\n"
        "    beside(Path('new/a')).write_text('x'); print('begun', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", text], cwd=tmp_path, stdout=-1, stderr=-3, env=_here()) as process:
        assert process.stdout.readline() == b"begun\n"
        assert len(list((tmp_path / "new").iterdir())) == 1
        process.send_signal(number)
        assert process.wait(timeout=20) == -number
    assert list(tmp_path.iterdir()) == []


def _here() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system(end: str) -> None:
    """Old Macintosh files are read as well; blank lines do not count, but are counted."""
    rows = list(csv_rows(end.join(["a, b", "", '"1,5",2', ",", ""]), "f"))
    assert rows == [("f, line 1", ["a", "b"]), ("f, line 3", ["1,5", "2"])]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the first line must name the columns: a"),
        ("b\n1\n", "the first line must name the columns: a"),
        ("a,a\n1,2\n", "column 'a' stands twice"),
        ("a,b\n1\n", "line 2: has 1 fields, the header has 2"),
        ("a\n", "has no row"),
        ('a\n"1\n', "line 2: is not a line of a CSV file"),
        ("a\n" + "1" * 200_000, "line 2: is not a line of a CSV file"),
    ],
)
def test_what_is_no_table_is_one_sentence(text: str, told: str) -> None:
    """Whatever is wrong names the file, and the line where there is one."""
    with pytest.raises(BadInput, match=told):
        csv_table(text, "f", ("a",))


def test_a_table_has_so_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused with its line."""
    monkeypatch.setattr("ground.files.MOST_ROWS", 2)
    assert len(csv_table("a\n1\n2\n", "f")) == 2
    with pytest.raises(BadInput, match="line 4: a table has at most 2 rows"):
        csv_table("a\n1\n2\n3\n", "f")


def test_a_folder_is_none_where_a_file_stands(tmp_path: Path) -> None:
    """A link to nothing is none either, and files that are there need --force."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    for name in ("file", "link"):
        with pytest.raises(BadInput, match=r"--out: .* is a file, or a link to nothing; give a folder"):
            files.check_folder(tmp_path / name, (), force=True, flag="--out")
    files.check_folder(tmp_path, ("file",), force=True, flag="--out")
    with pytest.raises(BadInput, match=r"--out: .*file exists already"):
        files.check_folder(tmp_path, ("other", "file"), force=False, flag="--out")


def test_a_folder_gives_its_files_and_a_whole_disk_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, those of folders within too."""
    names = ["a", "b/c", "d"]
    files.write_files({tmp_path / name: "" for name in names}, force=False)
    assert files.files_below(tmp_path) == [tmp_path / name for name in names]
    monkeypatch.setattr(files, "MOST_FILES", 2)
    with pytest.raises(BadInput, match="holds over 2 files"):
        files.files_below(tmp_path)


@given(st.text(st.sampled_from('ab,"\r\n\0 1٣')))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes anything else than rows or bad input, whole or by the line."""
    for read in (lambda: list(csv_rows(text, "f")), lambda: csv_table(text, "f"), lambda: csv_cells(text, "f")):
        try:
            read()
        except BadInput as error:
            assert "f" in str(error)
