"""Tests start processes in one way, which lets none of them outlive its test."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
PROGRAMS = {
    "daemon/own_program.py",
    "daemon/supervisor/stop/test_kill_descendants.py",
    "harness/test_started.py",
}
"""They are run by a test, as its process."""


def test_processes_are_started_by_the_class_that_ends_them() -> None:
    plain = "subprocess" + ".Popen("
    found = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if plain in path.read_text("utf-8")
    }
    assert found - PROGRAMS == set(), "use harness.started.Started"
