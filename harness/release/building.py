"""Builds a wheel and a source distribution of a commit. The same commit always gives the same
bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from zerotools.core.errors import BadRequest

SOURCES = ("daemon", "docs", "systemd", "zerotools")
"""Folders that a source distribution contains completely."""


def run(
    command: Sequence[str | Path],
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run `command`, and return its output.

    Raises:
        BadRequest: the command fails. The message has the last lines of its output.
    """
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise BadRequest(f"{' '.join(map(str, command))} ended with {done.returncode}: {said}")
    return done.stdout


def git(root: Path, *arguments: str) -> str:
    """Run git in the repository `root`, and return its output."""
    return run(["git", "-C", root, *arguments]).strip()


def build_twice(root: Path, commit: str, out: Path, scratch: Path) -> tuple[Path, Path]:
    """Build the wheel and the source distribution of `commit` in the directory `out`.

    The source distribution is built from `git archive`, with the time of the commit, so anyone can
    build it again. The wheel is built from the source distribution. Tests and benchmarks are left
    out.

    Raises:
        BadRequest: a second build has different bytes.
    """
    epoch = git(root, "show", "-s", "--format=%ct", commit)
    built = [_build(root, commit, epoch, scratch / name) for name in ("first", "second")]
    for one, other in zip(*built, strict=True):
        if one.name != other.name or one.read_bytes() != other.read_bytes():
            raise BadRequest(f"{one.name} is not reproducible: a second build has different bytes")
    wheel, source = (path.rename(out / path.name) for path in built[0])
    return wheel, source


def _build(root: Path, commit: str, epoch: str, place: Path) -> tuple[Path, Path]:
    tree, out = place / "tree", place / "out"
    command = ["git", "-C", str(root), "archive", "--format=tar", commit, ":(glob)*", *SOURCES]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as held:
        held.extractall(tree, filter="data")
    environment = {"SOURCE_DATE_EPOCH": epoch}
    _hatch(tree, "sdist", out, environment)
    [source] = out.glob("*.tar.gz")
    with tarfile.open(source) as held:
        held.extractall(place / "of-source", filter="data")
    [unpacked] = (place / "of-source").iterdir()
    _hatch(unpacked, "wheel", out, environment)
    [wheel] = out.glob("*.whl")
    return wheel, source


def _hatch(tree: Path, target: str, out: Path, environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-P", "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    run(command, directory=tree, environment=environment)
