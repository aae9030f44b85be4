"""The processes of an attempt while it runs, in a file that survives all of them.

The supervisor is a subreaper: every process that a rank starts stays a descendant, however it
detaches. That ends when supervisor and keeper are both killed: the remaining processes have no
known parent, and may have cleared their environment, changed their name or made a new session. So
about once a second the supervisor writes a file in the run directory:

    moment                  the time before the scan, in ticks since boot
    pid, start, session     of every descendant

A new daemon uses it to prove that a process belongs to the attempt (`Noted.proves`). A process
belongs if it is in the list with the same start time. It also belongs if its session is that of a
process in the list and it began before the moment, because a session keeps its family while any of
it lives. Descendants of these belong too. The file is useless after a reboot: run.json names the
boot.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zerotoolsd.supervisor.procfs import Process
from zerotoolsd.supervisor.rank_log import say

FAMILY = "family"
MOST = 1024
_HEAD = struct.Struct("=4sqi")
_ROW = struct.Struct("=iqi")
_MAGIC = b"zfam"


class FamilyNote:
    """The file of the family. It is overwritten in place, so its disk space is reserved at the
    start."""

    def __init__(self, path: Path) -> None:
        self._fd: int | None = None
        session = os.getsid(0)
        # A session that the supervisor shares with its parent proves nothing.
        self._shared = session if session not in (os.getpid(), os.getppid()) else None
        try:
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(path, flags, 0o600)
            os.posix_fallocate(self._fd, 0, _HEAD.size + MOST * _ROW.size)
        except OSError as error:
            say(f"{path}: {error}; processes of this attempt are not noted")

    def write(self, moment: int, processes: Iterable[Process]) -> None:
        """Note these processes, which were read after `moment`."""
        if self._fd is None:
            return
        rows = [
            _ROW.pack(p.pid, p.start_ticks, 0 if p.session == self._shared else p.session)
            for p in itertools.islice(processes, MOST)
        ]
        with suppress(OSError):
            os.pwrite(self._fd, _HEAD.pack(_MAGIC, moment, len(rows)) + b"".join(rows), 0)


def forget(directory: Path) -> None:
    """Remove the file, because all processes of the attempt in `directory` have ended."""
    with suppress(OSError):
        (directory / FAMILY).unlink()


@dataclass(frozen=True)
class Noted:
    """The last note."""

    moment: int = -1
    known: frozenset[tuple[int, int]] = frozenset()
    sessions: frozenset[int] = frozenset()

    def proves(self, process: Process) -> bool:
        """Return whether `process` belongs to the attempt."""
        if (process.pid, process.start_ticks) in self.known:
            return True
        return process.session in self.sessions and process.start_ticks < self.moment


def read_note(path: Path, not_sessions: Iterable[int] = ()) -> Noted:
    """Read the file; without a valid file the result is empty. `not_sessions` are sessions with
    processes of others, and prove nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return Noted()
    try:
        data = os.read(fd, _HEAD.size + MOST * _ROW.size)
    except OSError:
        return Noted()
    finally:
        os.close(fd)
    if len(data) < _HEAD.size:
        return Noted()
    magic, moment, count = _HEAD.unpack_from(data)
    end = _HEAD.size + count * _ROW.size
    if magic != _MAGIC or not 0 <= count <= MOST or len(data) < end:
        return Noted()
    rows = list(_ROW.iter_unpack(data[_HEAD.size : end]))
    sessions = frozenset(session for _, _, session in rows) - {0, *not_sessions}
    return Noted(moment, frozenset((pid, start) for pid, start, _ in rows), sessions)
