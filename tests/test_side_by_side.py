"""Files that run side by side: their reports, and what becomes of a process that dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.started import run

ROOT = Path(__file__).parents[1]
CONFTEST = """
import os
import pytest
from tests.side_by_side import SideBySide

def pytest_configure(config):
    config.pluginmanager.register(SideBySide(2, ()))

@pytest.fixture(scope="session")
def made():
    with open("made", "a") as file:
        print(os.getpid(), file=file)
    yield os.getpid()
    with open("ended", "a") as file:
        print(os.getpid(), file=file)
"""
TWO = """
def test_first(made, tmp_path):
    print("said by the first")
    (tmp_path / "own").mkdir()

def test_second(made):
    assert made == __import__("os").getpid()
"""


def outcome(place: Path, files: Mapping[str, str], *options: str) -> tuple[int, str]:
    """Exit status and output of a run of `files`."""
    for name, text in {"conftest.py": CONFTEST, "pytest.ini": "[pytest]", **files}.items():
        (place / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT}/daemon",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take half of the time of such a run
    }
    done = run(command, timeout=60, cwd=place, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_all_tests_run_once_and_fixtures_of_the_session_are_ended(tmp_path: Path) -> None:
    files = {f"test_{name}.py": TWO for name in "abcdef"}
    status, said = outcome(tmp_path, files)
    assert (status, "12 passed" in said, "said by" in said) == (0, True, False)
    made = (tmp_path / "made").read_text().split()
    assert len(set(made)) == len(made) <= 2
    assert sorted(made) == sorted((tmp_path / "ended").read_text().split())
    assert str(os.getpid()) not in made


def test_failures_are_reported_with_what_they_printed(tmp_path: Path) -> None:
    failing = "def test_it():\n    print('said here')\n    assert 1 == 2\n"
    skipped = "import pytest\npytest.skip('for a reason', allow_module_level=True)\n"
    broken = "import no_such_module\n"
    files = {"test_a.py": TWO, "test_b.py": failing, "test_c.py": skipped, "test_d.py": broken}
    status, said = outcome(tmp_path, files, "-rs")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 2 passed, 1 skipped, 1 error" in said
    for text in ("said here", "assert 1 == 2", "for a reason", "No module named 'no_such_module'"):
        assert text in said


def test_a_process_that_dies_fails_its_test_and_is_replaced(tmp_path: Path) -> None:
    dying = "import os\n\ndef test_it():\n    os.kill(os.getpid(), 9)\n\ndef test_later(): pass\n"
    files = {f"test_{name}.py": TWO for name in "abcdef"} | {"test_z.py": dying}
    status, said = outcome(tmp_path, files)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "FAILED test_z.py::test_it" in said
    assert "the process that ran this test ended with status -9" in said
    assert "it had collected 1 more, which did not run, as test_z.py::test_later" in said
    assert "1 failed" in said


def test_after_as_many_failures_as_are_allowed_no_file_is_begun(tmp_path: Path) -> None:
    files = {f"test_{number}.py": "def test_it(): assert False" for number in range(9)}
    status, said = outcome(tmp_path, files, "--maxfail", "1")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "stopping after" in said
    assert 1 <= said.count("FAILED test_") < 9


def test_marks_and_names_choose_tests(tmp_path: Path) -> None:
    files = {"test_a.py": TWO, "test_b.py": TWO}
    assert "2 passed" in outcome(tmp_path, files, "-k", "second")[1]
    status, said = outcome(tmp_path, files, "-k", "third")
    assert (status, "no tests ran" in said) == (pytest.ExitCode.NO_TESTS_COLLECTED, True)


def test_a_process_that_ends_while_it_imports_a_file_fails_that_file(tmp_path: Path) -> None:
    files = {"test_a.py": TWO, "test_z.py": "import os\n\nos._exit(0)\n"}
    status, said = outcome(tmp_path, files)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "FAILED test_z.py" in said
