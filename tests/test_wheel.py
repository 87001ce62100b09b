"""The wheel, installed in a fresh environment and run from a folder with packages of the same names."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"ground", "hardware", "models", "planner", "runtime", "deploy", "podplan", "cli"}


def _run(*command: str | Path, cwd: Path) -> str:
    # The environment is passed on purpose: without it the child also gets what readline put in, such as COLUMNS.
    environment = dict(os.environ)
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built without a network."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("podplan-*.whl")
    return built


def test_the_wheel_carries_code_and_data_and_nothing_else(wheel: Path) -> None:
    """Every YAML and CSV of the packages is in it; tests and documents are not."""
    carried = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in carried} == PACKAGES
    for package in PACKAGES:
        for pattern in ("*.py", "*.yaml", "*.csv", "*.json"):
            assert {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob(pattern)} <= carried


def test_the_installed_command_runs_beside_a_models_folder(wheel: Path, tmp_path: Path) -> None:
    """A user's own `models/` and `planner/` must neither be imported nor break anything."""
    environment = tmp_path / "environment"
    _run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index"]
    _run(*pip, "--disable-pip-version-check", wheel, cwd=tmp_path)
    (installed,) = environment.glob("lib/python*/site-packages")
    # The dependencies are those of the environment that runs the tests; its .pth files are not followed.
    (installed / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")

    project = tmp_path / "project"
    for name in ("models", "planner"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n", encoding="utf-8")
    plan = environment / "bin" / "plan"
    assert "plan deepseek-r1 --hw cm384" in _run(plan, "--help", cwd=project)
    assert "deepseek-r1" in _run(plan, "models", cwd=project)
    assert '"name": "cm384"' in _run(plan, "hardware", "cm384", "--json", cwd=project)
    where = _run(python, "-I", "-c", "import models.loader; print(models.loader.__file__)", cwd=project)
    assert where.startswith(str(installed))
