"""Reading with one clear error, writing whole or not at all."""

from pathlib import Path

import pytest

from ground import files
from ground.errors import BadInput


def test_read_yaml_reads_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Some editors put one in front."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: caf\xc3\xa9\n")
    assert files.read_yaml(path) == {"name": "café"}


def test_what_cannot_be_read_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent, a directory, not UTF-8, too large, a broken link, a null byte: the sentence names the file."""
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * 101)
    (tmp_path / "loop").symlink_to("loop")
    cases = {
        tmp_path / "absent.yaml": "no such file",
        tmp_path: "this is a directory",
        latin: "line 2: this is not UTF-8",
        large: "larger than",
        tmp_path / "loop": "cannot be read",
        tmp_path / "a\0b": "cannot be read",
    }
    monkeypatch.setattr(files, "SIZE_LIMIT_BYTES", 100)
    for path, told in cases.items():
        with pytest.raises(BadInput) as caught:
            files.read_yaml(path)
        assert str(path) in str(caught.value)
        assert told in str(caught.value)


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
