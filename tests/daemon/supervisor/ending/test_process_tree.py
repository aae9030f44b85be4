"""What the note of an attempt's processes proves, and what it does not."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from zerotoolsd.supervisor.ending.process_tree import FamilyNote, Noted, forget, read_note
from zerotoolsd.supervisor.procfs import Process


def process(pid: int, start: int, session: int = 1) -> Process:
    return Process(
        pid=pid, parent=1, state="S", start_ticks=start, rss_bytes=0, name="x", session=session
    )


def test_what_was_noted_is_read_again(tmp_path: Path) -> None:
    note = FamilyNote(tmp_path / "family")
    note.write(90, [process(n, n, session=n) for n in range(1, 500)])
    note.write(100, [process(7, 50, session=7), process(8, 60, session=0)])
    found = read_note(tmp_path / "family")
    assert found == Noted(100, frozenset({(7, 50), (8, 60)}), frozenset({7}))
    forget(tmp_path)
    assert read_note(tmp_path / "family") == Noted()


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
    noted = Noted(100, frozenset({(7, 50)}), frozenset({7}))
    assert noted.proves(stranger) == is_ours


def test_a_session_that_others_share_proves_nothing(tmp_path: Path) -> None:
    own = os.getsid(0)
    FamilyNote(tmp_path / "family").write(100, [process(7, 50, session=own)])
    ours = own in (os.getpid(), os.getppid())
    assert read_note(tmp_path / "family").sessions == (frozenset({own}) if ours else frozenset())
    assert read_note(tmp_path / "family", not_sessions=(own,)).sessions == frozenset()


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
    assert read_note(tmp_path / "family") == Noted()


def test_a_disk_without_room_costs_the_note_alone(tmp_path: Path) -> None:
    FamilyNote(tmp_path / "missing" / "family").write(1, [process(1, 1)])
