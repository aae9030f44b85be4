"""What a wheel must have in it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from harness.release.inspecting import _compare, in_wheel
from zerotools.core.errors import BadRequest


def test_files_of_the_repository_and_their_places_in_a_wheel() -> None:
    tracked = ["zerotools/a.py", "daemon/zerotoolsd/b.py", "docs/how-to/c.md", "docs/README.md"]
    tracked += ["systemd/user/d.service", "tests/e.py", "pyproject.toml"]
    assert in_wheel(tracked) == {
        "zerotools/a.py",
        "zerotoolsd/b.py",
        "zerotools/pages/how-to/c.md",
        "zerotoolsd/units/user/d.service",
    }


def test_files_that_differ_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(BadRequest, match=r"a\.whl lacks b \(1 files\)"):
        _compare(path, {"a"}, {"a", "b"})
    with pytest.raises(BadRequest, match=r"a\.whl should not have c"):
        _compare(path, {"a", "c"}, {"a"})
    _compare(path, {"a"}, {"a"})
