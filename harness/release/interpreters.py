"""Finds an interpreter for each Python version that a release supports."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zerotools.core.errors import BadRequest

_SAY = "import sys; print('%d.%d' % sys.version_info[:2])"


def supported(root: Path) -> list[str]:
    """Return the Python versions that the classifiers in pyproject.toml name, such as 3.11."""
    tree = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    named = (re.fullmatch(r".*:: (3\.\d+)", each) for each in tree["project"]["classifiers"])
    return [found[1] for found in named if found]


def find_all(versions: Sequence[str]) -> Mapping[str, Path]:
    """Return the path of an interpreter for each of `versions`.

    Raises:
        BadRequest: a version has no interpreter on this machine.
    """
    found = {version: find(version) for version in versions}
    missing = [version for version, python in found.items() if python is None]
    if missing:
        raise BadRequest(
            f"this machine has no Python {', no '.join(missing)}; run uv python install "
            f"{' '.join(missing)}, or name other versions with --pythons"
        )
    return {version: python for version, python in found.items() if python is not None}


def find(version: str) -> Path | None:
    """Return an interpreter of this version: the running one, or one from PATH, uv or pyenv."""
    return next((path for path in _candidates(version) if _version_of(path) == version), None)


def _candidates(version: str) -> Iterator[Path]:
    yield Path(sys.executable)
    if (path := shutil.which(f"python{version}")) is not None:
        yield Path(path)
    if (uv := shutil.which("uv")) is not None:
        command = [uv, "python", "find", "--no-python-downloads", version]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            yield Path(done.stdout.strip())
    yield from sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))


def _version_of(python: Path) -> str | None:
    try:
        done = subprocess.run(
            [python, "-I", "-c", _SAY], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
