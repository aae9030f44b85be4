from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.started import Started
from zerotools.jobs.slurm.job_directory import JobDirectory, write_record
from zerotoolsd.slurm.runner import liveness
from zerotoolsd.slurm.runner.liveness import AttemptTurns, LivenessFile, LivenessReader
from zerotoolsd.supervisor.procfs import boot_id, read_process


def test_a_process_of_this_machine_is_looked_at(tmp_path: Path) -> None:
    other = Started([sys.executable, "-c", "import time; time.sleep(60)"])
    found = read_process(other.pid)
    assert found is not None
    who = {
        "host": "n1",
        "boot_id": boot_id(),
        "pids": str(Path("/proc/self/ns/pid").readlink()),
        "pid": other.pid,
        "start_ticks": found.start_ticks,
    }
    write_record(tmp_path / "beat-0", who)
    assert LivenessReader(tmp_path, tmp_path).alive() == ["n1"]
    write_record(tmp_path / "beat-0", {**who, "start_ticks": found.start_ticks - 1})
    assert LivenessReader(tmp_path, tmp_path).alive() == []
    write_record(tmp_path / "beat-0", who)
    other.kill()
    other.wait(20)
    assert LivenessReader(tmp_path, tmp_path).alive() == []


def test_ones_own_beat_is_no_other(tmp_path: Path) -> None:
    LivenessFile(tmp_path, "0").refresh()
    assert LivenessReader(tmp_path, tmp_path).alive() == []


def test_of_another_machine_the_age_of_the_file_counts(tmp_path: Path) -> None:
    write_record(tmp_path / "beat-1", {"host": "n2", "boot_id": "another", "pid": os.getpid()})
    assert LivenessReader(tmp_path, tmp_path).alive() == ["n2"]
    old = time.time() - liveness.SILENT_SECONDS - 1
    os.utime(tmp_path / "beat-1", (old, old))
    assert LivenessReader(tmp_path, tmp_path).alive() == []
    assert [each.name for each in tmp_path.iterdir()] == ["beat-1"]


@pytest.mark.parametrize("text", ["", "[]", '{"boot_id": 1, "pid": "x"}'])
def test_a_damaged_beat_is_as_old_as_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "beat-1").write_text(text)
    assert LivenessReader(tmp_path, tmp_path).alive() == ["beat-1"]


def test_a_supervisor_that_still_saves_is_alive(tmp_path: Path) -> None:
    own = read_process(os.getpid())
    assert own is not None
    (tmp_path / "node-0").mkdir()
    who = {"boot_id": boot_id(), "pid": os.getpid(), "start_ticks": own.start_ticks}
    write_record(tmp_path / "node-0" / "run.json", who)
    assert LivenessReader(tmp_path, tmp_path).alive() == ["node-0"]
    write_record(tmp_path / "node-0" / "exit.json", {})
    assert LivenessReader(tmp_path, tmp_path).alive() == []


def test_numbers_of_processes_of_another_namespace_say_nothing(tmp_path: Path) -> None:
    who = {"host": "n2", "boot_id": boot_id(), "pids": "pid:[1]", "pid": 1, "start_ticks": 0}
    write_record(tmp_path / "beat-1", who)
    assert LivenessReader(tmp_path, tmp_path).alive() == ["n2"]
    (tmp_path / "node-1").mkdir()
    write_record(tmp_path / "node-1" / "run.json", {"boot_id": boot_id(), "pid": 1})
    (tmp_path / "node-1" / "progress.jsonl").touch()
    assert LivenessReader(tmp_path, tmp_path).alive() == ["n2", "node-1"]


@pytest.fixture
def another() -> Iterator[Started]:
    process = Started([sys.executable, "-c", "input()"], stdin=-1)
    yield process
    process.end()


def turns(directory: JobDirectory, asked: Callable[[], bool] = lambda: False) -> AttemptTurns:
    return AttemptTurns(directory, 0, lambda _: None, asked)


def beat_of(process: Started, attempt: Path) -> None:
    """The sign of life of another process in the directory of an attempt."""
    attempt.mkdir(parents=True)
    own = LivenessFile(attempt, "master")
    found = read_process(process.pid)
    assert found is not None
    own._who |= {"pid": process.pid, "start_ticks": found.start_ticks}
    own.refresh()


def test_an_attempt_has_a_sign_of_life_from_its_first_moment_on(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path)
    assert turns(directory).next_attempt() == 1
    assert [path.name for path in directory.attempt_path(1).iterdir()] == ["beat-master"]
    assert [path.name for path in directory.attempt_path(1).parent.iterdir()] == ["1"]
    # whoever made it is this process, which is at the next
    assert turns(directory).next_attempt() == 2


def test_who_comes_second_sees_who_was_faster(tmp_path: Path, another: Started) -> None:
    directory, looked = JobDirectory(tmp_path), []

    class Slower(AttemptTurns):
        def _alive(self, attempt: int) -> list[str]:
            looked.append(attempt)
            if attempt == 0:  # now, after it was looked and before it is begun
                beat_of(another, directory.attempt_path(1))
            return super()._alive(attempt)

    slower = Slower(directory, 0, lambda _: None, lambda: 1 in looked)
    assert slower.next_attempt() is None
    assert looked == [0, 1]
    assert [path.name for path in directory.attempt_path(1).parent.iterdir()] == ["1"]
