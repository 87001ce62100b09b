"""Where compiled loops are kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.loops import compiled


def test_a_user_without_a_home_folder_has_a_temporary_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as any user: no HOME, and no entry of the user's number."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    folder = compiled._cache_folder()
    assert folder.name.startswith("podplan-compiled-")
    folder.rmdir()


def test_a_temporary_cache_goes_with_its_process(tmp_path: Path) -> None:
    """Each command of a user whose home folder cannot be written would leave one more."""
    told = "from planner.loops import compiled; import os; print(os.environ['NUMBA_CACHE_DIR'])"
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": "/proc", "TMPDIR": str(tmp_path)}
    line = [sys.executable, "-c", told]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).parent == tmp_path and not list(tmp_path.iterdir())
