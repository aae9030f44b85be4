"""Two copies of a job that begin in the same moment: one has the attempt, and the other sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.started import Started
from zerotools.jobs.slurm.job_directory import JobDirectory
from zerotoolsd.slurm.runner.liveness_files import LifeSign
from zerotoolsd.slurm.runner.single_runner import Turns
from zerotoolsd.supervisor.procfs import read_process


@pytest.fixture
def another() -> Iterator[Started]:
    process = Started([sys.executable, "-c", "input()"], stdin=-1)
    yield process
    process.end()


def turns(directory: JobDirectory, asked: Callable[[], bool] = lambda: False) -> Turns:
    return Turns(directory, 0, lambda _: None, asked)


def beat_of(process: Started, attempt: Path) -> None:
    """The sign of life of another process in the directory of an attempt."""
    attempt.mkdir(parents=True)
    own = LifeSign(attempt, "master")
    found = read_process(process.pid)
    assert found is not None
    own._who |= {"pid": process.pid, "start_ticks": found.start_ticks}
    own.again()


def test_an_attempt_has_a_sign_of_life_from_its_first_moment_on(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path)
    assert turns(directory).take() == 1
    assert [path.name for path in directory.attempt_path(1).iterdir()] == ["beat-master"]
    assert [path.name for path in directory.attempt_path(1).parent.iterdir()] == ["1"]
    assert turns(directory).take() == 2  # whoever made it is this process, which is at the next


def test_who_comes_second_sees_who_was_faster(tmp_path: Path, another: Started) -> None:
    directory, looked = JobDirectory(tmp_path), []

    class Slower(Turns):
        def _alive(self, attempt: int) -> list[str]:
            looked.append(attempt)
            if attempt == 0:  # now, after it was looked and before it is begun
                beat_of(another, directory.attempt_path(1))
            return super()._alive(attempt)

    slower = Slower(directory, 0, lambda _: None, lambda: 1 in looked)
    assert slower.take() is None
    assert looked == [0, 1]
    assert [path.name for path in directory.attempt_path(1).parent.iterdir()] == ["1"]
