"""The interpreters that a release is tried with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.release import interpreters
from zerotools.core.errors import BadRequest

ROOT = Path(__file__).resolve().parents[3]
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_the_versions_are_those_of_the_classifiers() -> None:
    assert interpreters.supported(ROOT) == ["3.11", "3.12", "3.13", "3.14"]


def test_this_interpreter_is_found_and_a_version_that_is_not_here_is_named() -> None:
    assert interpreters.find_all([OWN]) == {OWN: Path(sys.executable)}
    with pytest.raises(BadRequest, match=r"no Python 3\.99; run uv python install 3\.99, or"):
        interpreters.find_all([OWN, "3.99"])


def test_what_does_not_run_is_no_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "python3.98"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert interpreters.find("3.98") is None
