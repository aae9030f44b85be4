"""The Dockerfiles are well formed and take what the repository has."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(ROOT.glob("Dockerfile*"))
INSTRUCTIONS = (
    *("FROM", "RUN", "CMD", "ENV", "COPY", "ENTRYPOINT", "VOLUME", "USER", "WORKDIR"),
    *("ARG", "STOPSIGNAL", "LABEL", "EXPOSE", "HEALTHCHECK", "SHELL"),
)


def named(path: Path) -> str:
    return path.name


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions in order, with their arguments on one line."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())
    ]


def test_there_is_one_without_and_one_with_torch() -> None:
    assert [path.name for path in FILES] == ["Dockerfile", "Dockerfile.train"]


@pytest.mark.parametrize("path", FILES, ids=named)
def test_instructions_are_known_and_in_order(path: Path) -> None:
    words = [word for word, _ in instructions(path)]
    assert words[0] == "FROM"
    assert set(words) <= set(INSTRUCTIONS)
    for word, rest in instructions(path):
        if word in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(each, str) for each in json.loads(rest))
        if word == "RUN":
            assert shlex.split(rest)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_copied_files_exist_and_are_not_ignored(path: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    sources = [
        source
        for word, rest in instructions(path)
        if word == "COPY"
        for source in rest.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert not any(fnmatch.fnmatch(source, pattern) for pattern in ignored)
    # What the wheel is built of must reach the build.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for needed in project["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]:
        assert needed not in ignored


@pytest.mark.parametrize("path", FILES, ids=named)
def test_packages_are_pinned_and_extras_exist(path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installs = [rest for word, rest in instructions(path) if "pip install" in rest]
    assert len(installs) == 1
    assert "--constraint /tmp/constraints.txt" in installs[0]
    extras = re.findall(r"\.whl\)\[([a-z,]+)\]", installs[0])
    assert len(extras) == 1
    assert set(extras[0].split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("path", FILES, ids=named)
def test_programs_do_not_run_as_root(path: Path) -> None:
    users = [rest for word, rest in instructions(path) if word == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
