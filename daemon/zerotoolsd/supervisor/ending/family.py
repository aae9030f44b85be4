"""The processes of an attempt while it runs, and a note of them that outlives every process.

The supervisor is a subreaper: whatever a rank starts, however it detaches itself, stays a
descendant. That ends when supervisor and keeper are both killed: what they leave behind has no
parent that is known, may have emptied its environment, changed its name and made a session of its
own. So the supervisor notes, about once a second, in a file of the run directory:

    moment                  the time before it looked, in ticks since boot
    pid, start, session     of every descendant

A fresh daemon proves by it what belongs to the attempt (`Noted.proves`): a process that is in the
list with the same start; and any that is in the session of one in the list and began before the
moment, since a session has one family as long as anything of it lives. What descends from these is
theirs. The file is no use after a reboot: run.json says of which boot it is.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zerotoolsd.supervisor.logs import say
from zerotoolsd.supervisor.procfs import Process

FAMILY = "family"
MOST = 1024
_HEAD = struct.Struct("=4sqi")
_ROW = struct.Struct("=iqi")
_MAGIC = b"zfam"


class FamilyNote:
    """The file. It is overwritten in place, so its disk space is reserved at the start."""

    def __init__(self, path: Path) -> None:
        self._fd: int | None = None
        session = os.getsid(0)
        # One that the supervisor shares with whoever started it proves nothing.
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
