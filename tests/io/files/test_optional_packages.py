"""The command that installs what is missing, in environments of pip, pipx and uv."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from zerotools.cli.output.messages import split
from zerotools.io.files.optional_packages import (
    EXTRAS,
    install_command,
    is_older,
    package_not_installed,
)

ROOT = Path(__file__).resolve().parents[3]
DEVELOPERS = {"peers", "fuzz", "browser", "docs", "test", "dev"}


def python_in(place: Path, marks: dict[str, str]) -> str:
    """An interpreter's name in an environment that has the files `marks`."""
    place.mkdir()
    for name, text in marks.items():
        (place / name).write_text(text, "utf-8")
    return str(place / "bin/python")


@pytest.mark.parametrize(
    ("marks", "command"),
    [
        ({"pyvenv.cfg": "home = /usr/bin\n"}, "{python} -m pip install 'PyYAML>=6.0' torch"),
        ({}, "{python} -m pip install 'PyYAML>=6.0' torch"),
        ({"pipx_metadata.json": "{}"}, "pipx inject tool 'PyYAML>=6.0' torch"),
        ({"uv-receipt.toml": ""}, "uv pip install --python {python} 'PyYAML>=6.0' torch"),
        (
            {"pyvenv.cfg": "home = /usr/bin\nuv = 0.9.0\n"},
            "uv pip install --python {python} 'PyYAML>=6.0' torch",
        ),
    ],
)
def test_the_command_is_that_of_who_made_the_environment(
    tmp_path: Path, marks: dict[str, str], command: str
) -> None:
    python = python_in(tmp_path / "tool", marks)
    found = install_command("PyYAML>=6.0", "torch", python=python)
    assert found == command.format(python=python)


@pytest.mark.parametrize(
    ("version", "requirement", "older"),
    [
        ("2.7.1+cu128", "torch>=2.8", True),
        ("2.8", "torch>=2.8.0", False),
        ("2.8.0a0+5228986c39.nv25.05", "torch>=2.8", False),
        ("2.10.0", "torch>=2.8", False),
        ("2.9.0.dev20250801+cu128", "torch>=2.8", False),
        ("2.8.0.dev20250601", "torch>=2.8.0", False),
        ("2.8.0.post1", "torch>=2.8", False),
        ("0.4.12", "lm_eval[hf]>=0.4.13", True),
        ("unknown", "torch>=2.8", False),
        (None, "torch>=2.8", False),
        ("2.1", "torch", False),
    ],
)
def test_versions_are_compared_by_their_numbers(
    version: str | None, requirement: str, older: bool
) -> None:
    assert is_older(version, requirement) is older


def test_an_environment_without_pip_is_filled_by_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [each for each in sys.path if "-packages" not in each])
    said = install_command("a")
    assert said == f"uv pip install --python {sys.executable} a"


def test_the_requirements_are_those_of_the_extras() -> None:
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = tree["project"]["optional-dependencies"]
    assert set(extras) == set(EXTRAS) | DEVELOPERS
    for name, modules in EXTRAS.items():
        own = [each for each in extras[name] if not each.startswith("zerotools[")]
        assert sorted(own) == sorted(modules.values()), name


def test_the_page_on_installing_says_what_each_extra_is_for() -> None:
    page = (ROOT / "docs/how-to/install.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page, re.M)
    assert sorted(rows) == sorted(EXTRAS)
    (named,) = re.findall(r"The extras (`[^.]*) are\s+for \[developers", page)
    assert set(re.findall(r"`(\w+)`", named)) == DEVELOPERS


def test_the_error_has_a_hint_and_one_exit_code() -> None:
    error = package_not_installed("a.yaml: reading YAML", "yaml", "save it as JSON")
    what, hint = split(str(error))
    assert what == "a.yaml: reading YAML needs PyYAML, which is not installed"
    assert hint.startswith("run ")
    assert hint.endswith("'PyYAML>=6.0', or save it as JSON")
    assert error.exit_code == 2
