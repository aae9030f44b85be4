"""What a killed process noted is there for the other one."""

from __future__ import annotations

import json
import os
import signal
import struct
from pathlib import Path

import pytest

from tests.daemon.made_attempts import make_attempt
from zerotoolsd.supervisor.attempt_plan import Plan
from zerotoolsd.supervisor.exit_record.decide_outcome import inferred_record
from zerotoolsd.supervisor.exit_record.process_ledgers import (
    ProcessTreeFile,
    RankLedger,
    RankLine,
    RecordedProcesses,
    read_process_tree,
    remove_process_tree,
)
from zerotoolsd.supervisor.procfs import Process


def test_what_a_killed_child_noted_is_known(tmp_path: object) -> None:
    ledger = RankLedger(3)
    assert not ledger.has_begun
    child = os.fork()
    if not child:
        ledger.begin()
        ledger.started(0, 100)
        ledger.started(2, 300)
        ledger.killed(2)
        ledger.ended(300, signal.SIGKILL)
        ledger.ended(999, 0)  # a child that is no rank
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert ledger.has_begun
    assert ledger.lines() == [
        RankLine(100, None, killed=False),
        RankLine(None, None, killed=False),
        RankLine(300, signal.SIGKILL, killed=True),
    ]


def test_what_one_notes_another_reads(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = RankLedger(2, path)
    assert not RankLedger.read(path, 2).has_begun
    ledger.begin()
    ledger.started(0, 11)
    ledger.started(1, 12)
    ledger.killed(1)
    ledger.ended(11, 3 << 8)
    ledger.ended(99, 0)
    found = RankLedger.read(path, 2)
    assert found.has_begun
    assert found.lines() == ledger.lines()
    assert found.lines() == [RankLine(11, 3 << 8, False), RankLine(12, None, True)]


def test_what_is_no_ledger_of_these_ranks_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    RankLedger(2, path)
    with pytest.raises(
        ValueError, match=r"ledger does not have the \d+ bytes of a ledger of 3 ranks"
    ):
        RankLedger.read(path, 3)
    with pytest.raises(FileNotFoundError):
        RankLedger.read(tmp_path / "none", 1)
    os.mkfifo(tmp_path / "pipe")  # in which a reader would wait for ever
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        RankLedger.read(tmp_path / "pipe", 1)


def test_a_program_that_reported_completion_has_finished_though_its_supervisor_is_gone(
    tmp_path: Path,
) -> None:
    ledger = RankLedger(1, tmp_path / "ledger")
    ledger.begin()
    ledger.started(0, 11)
    ledger.finished(is_so=True)
    ledger.ended(11, signal.SIGTERM)
    run = make_attempt(tmp_path / "run", "", own_program=True, world_size=1)
    plan = Plan.from_json(json.loads((run / "attempt.json").read_text()))

    def outcome() -> str:
        known = RankLedger.read(tmp_path / "ledger", 1)
        return str(inferred_record(plan, known, [0], {}, "pause", "it was killed")["outcome"])

    assert outcome() == "finished"
    ledger.finished(is_so=False)
    assert outcome() == "killed"


def process(pid: int, start: int, session: int = 1) -> Process:
    return Process(
        pid=pid, parent=1, state="S", start_ticks=start, rss_bytes=0, name="x", session=session
    )


def test_what_was_noted_is_read_again(tmp_path: Path) -> None:
    note = ProcessTreeFile(tmp_path / "family")
    note.write(90, [process(n, n, session=n) for n in range(1, 500)])
    note.write(100, [process(7, 50, session=7), process(8, 60, session=0)])
    found = read_process_tree(tmp_path / "family")
    assert found == RecordedProcesses(100, frozenset({(7, 50), (8, 60)}), frozenset({7}))
    remove_process_tree(tmp_path)
    assert read_process_tree(tmp_path / "family") == RecordedProcesses()


@pytest.mark.parametrize(
    ("stranger", "is_ours"),
    [
        (process(7, 50, session=3), True),
        (process(7, 51, session=3), False),  # the same pid again
        (process(9, 99, session=7), True),  # in the session while it was ours
        (process(9, 100, session=7), False),  # the session may be another by then
        (process(9, 99, session=3), False),
    ],
)
def test_a_pid_alone_proves_nothing(stranger: Process, is_ours: bool) -> None:
    noted = RecordedProcesses(100, frozenset({(7, 50)}), frozenset({7}))
    assert noted.proves(stranger) == is_ours


def test_a_session_that_others_share_proves_nothing(tmp_path: Path) -> None:
    own = os.getsid(0)
    ProcessTreeFile(tmp_path / "family").write(100, [process(7, 50, session=own)])
    ours = own in (os.getpid(), os.getppid())
    assert read_process_tree(tmp_path / "family").sessions == (
        frozenset({own}) if ours else frozenset()
    )
    assert read_process_tree(tmp_path / "family", not_sessions=(own,)).sessions == frozenset()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"zfam",
        struct.pack("=4sqi", b"zfam", 5, 2),
        struct.pack("=4sqi", b"zfam", 5, -1),
        b"x" * 90,
    ],
)
def test_what_is_no_note_proves_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "family").write_bytes(data)
    assert read_process_tree(tmp_path / "family") == RecordedProcesses()


def test_a_disk_without_room_costs_the_note_alone(tmp_path: Path) -> None:
    ProcessTreeFile(tmp_path / "missing" / "family").write(1, [process(1, 1)])
