"""Where compiled loops are kept."""

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
