"""Threads of a traced child that its exit ends while they are stopped at a call."""

import threading
from pathlib import Path

import pytest

from harness.syscalls import IS_SUPPORTED, run_touching
from tests.matrices import FULL

pytestmark = pytest.mark.skipif(not IS_SUPPORTED, reason="the tracer reads x86-64 registers")


def ask_in_threads(file: Path) -> None:
    """Leave threads that ask for a file without end: the exit of the child ends them."""

    def ask() -> None:
        while True:
            file.stat()

    for _ in range(4):
        threading.Thread(target=ask, daemon=True).start()


def test_a_thread_that_the_exit_ends_is_not_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    ends = {
        run_touching(lambda: ask_in_threads(file), file).status for _ in range(30 if FULL else 10)
    }

    assert ends == {0}
