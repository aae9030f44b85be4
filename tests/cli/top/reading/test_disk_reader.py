from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.patience import patient
from zerotools.cli.top.reading import disk_reader
from zerotools.cli.top.reading.disk_reader import DiskReader, DiskSpace
from zerotools.io.files.mounts import MountPoint

HANGS = """
import json, signal, sys
from zerotools.cli.top.reading.disk_reader_process import answer
print("{}", flush=True)
for line in sys.stdin:
    question = json.loads(line)
    if "/hung" in str(question):
        signal.pause()
    print(json.dumps(answer(question)), flush=True)
"""
"""A process that looks, and that a file system holds up."""
TABLE = [MountPoint("/", "8:1", "ext4"), MountPoint("/hung", "0:50", "nfs4")]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looker(clock: Clock) -> Iterator[DiskReader]:
    made = DiskReader(
        command=(sys.executable, "-c", HANGS),
        deadline_seconds=0.05,
        clock=clock,
        mounted=lambda: TABLE,
    )
    yield made
    made.close()


def test_disks_and_checkpoints(tmp_path: Path) -> None:
    looker = DiskReader(deadline_seconds=patient(5))
    (tmp_path / "step-1").mkdir()
    disk = looker.disk(str(tmp_path / "out"))
    assert disk.why is None
    assert disk.total_bytes is not None
    assert disk.free_bytes is not None
    assert 0 < disk.free_bytes <= disk.total_bytes
    there, gone = looker.saved([str(tmp_path / "step-1"), str(tmp_path / "step-2")]) or ()
    assert there is not None
    assert there.time == (tmp_path / "step-1").stat().st_mtime
    assert gone is None
    assert looker.saved([]) == []
    looker.close()


def test_a_file_system_that_hangs_is_told_and_holds_up_no_other(
    looker: DiskReader, clock: Clock, tmp_path: Path
) -> None:
    assert looker.disk("/hung/runs") == DiskSpace("/hung", why="does not answer")
    # The same mount is not asked again, by whatever path; others are, by another process.
    assert looker.disk("/hung/elsewhere") == DiskSpace("/hung", why="does not answer")
    assert len(looker.hanging) == 1
    assert looker.saved(["/hung/step-1"]) is None
    assert looker.disk(str(tmp_path)).why is None
    clock.now = disk_reader.PAUSE_SECONDS
    before = looker.hanging
    assert looker.disk("/hung/runs").why == "does not answer"
    assert looker.hanging != before


def test_where_many_hang_nothing_more_is_looked_at(clock: Clock, tmp_path: Path) -> None:
    looker = DiskReader(
        command=(sys.executable, "-c", HANGS),
        deadline_seconds=0.01,
        clock=clock,
        mounted=list,
    )
    for number in range(disk_reader.MOST_HANGING):
        assert looker.disk(f"/hung/{number}").why
    assert looker.disk(str(tmp_path)).why == "not checked: too many paths do not answer"
    looker.close()


@pytest.mark.parametrize(
    "program",
    ["print('{}'); print('nonsense', flush=True); input(); input()", "print('{}')", "print(1)", ""],
)
def test_a_process_that_answers_nonsense_is_replaced(program: str, clock: Clock) -> None:
    looker = DiskReader(command=(sys.executable, "-c", program), clock=clock, mounted=list)
    for _ in range(2):
        assert str(looker.disk("/x").why).startswith("not checked")
    looker.close()


def test_a_process_that_does_not_start_is_told(clock: Clock) -> None:
    looker = DiskReader(command=("/nowhere/python",), clock=clock)
    assert "no checking process could be started" in str(looker.disk("/x").why)
    assert looker.saved(["/x"]) is None
    looker.close()
