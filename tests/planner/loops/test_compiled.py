"""Where compiled loops are kept."""

import tempfile
from pathlib import Path

import pytest

from planner.loops import compiled


def _homeless() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("home", ["", "/proc"])
def test_who_has_no_home_folder_has_one_temporary_cache(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs as any user, or is read-only: each command finds what the last one compiled.

    What another user has put in its place is not run.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    monkeypatch.setattr(Path, "home", _homeless)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = compiled._cache_folder()
    assert folder == compiled._cache_folder() and [*tmp_path.iterdir()] == [folder]
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr("os.getuid", lambda: 4711)
    other = compiled._cache_folder()
    assert other != folder and not other.name.startswith("podplan-compiled-4711")
