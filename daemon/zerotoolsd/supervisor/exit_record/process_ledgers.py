"""Files that list the ranks and all processes of an attempt. They survive a killed supervisor.

`RankLedger` has one line for each rank: its pid, its wait status after it has ended, and whether
the supervisor killed it. One more line records whether a rank may have started, and whether the
program has reported that the job is complete. The wait status is written before the kernel forgets
it (`kill_descendants.reap_children`). The ledger is memory that the supervisor shares with the
keeper. It is also the file `ledger` in the run directory, which the daemon reads if both were
killed. The file is not flushed, because it protects against kills, not against power losses.

`ProcessTreeFile` writes the descendants of the supervisor into a second file.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from zerotoolsd.supervisor.durable_files import open_regular
from zerotoolsd.supervisor.procfs import Process
from zerotoolsd.supervisor.rank_log import log_line

_LINE = struct.Struct("=iiBB")
_STARTED, _ENDED = 1, 2
_FINISHED = 3
MOST_RANKS = 1 << 16
"""Largest number of ranks in a ledger file. A file with more ranks is refused."""


class RankLine(NamedTuple):
    """The line of one rank in the ledger. `pid` is None before the rank starts, and `status`
    (its wait status) is None before it ends.
    """

    pid: int | None
    status: int | None
    killed: bool


class RankLedger:
    """The ledger of ranks, in memory that the keeper and the supervisor share."""

    def __init__(self, ranks: int, path: Path | None = None) -> None:
        """Create the ledger, before the fork. Raises OSError if the disk has no space for it."""
        self._ranks = ranks
        size = (ranks + 1) * _LINE.size
        self._memory: mmap.mmap | bytearray = mmap.mmap(-1, size)
        self._file = None if path is None else _opened(path, size)

    @classmethod
    def read(cls, path: Path, ranks: int) -> RankLedger:
        """Read the ledger file `path` that a dead supervisor left.

        Raises OSError. Raises ValueError if the file is not a ledger of `ranks` ranks.
        """
        if type(ranks) is not int or not 0 < ranks <= MOST_RANKS:
            raise ValueError(f"{ranks} ranks")  # a job can write its plan anew, too
        size = (ranks + 1) * _LINE.size
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(size + 1)
        if len(data) != size:
            raise ValueError(
                f"{path.name} does not have the {size} bytes of a ledger of {ranks} ranks"
            )
        found = cls(ranks)
        found._memory = bytearray(data)
        return found

    def begin(self) -> None:
        """Record that the first rank is about to start."""
        self._put(self._ranks, 0, 0, _STARTED, killed=False)

    @property
    def has_begun(self) -> bool:
        """Return whether a process of the job may have started."""
        return bool(self._get(self._ranks)[2])

    def finished(self, *, is_so: bool) -> None:
        """Record whether the job's program has reported that the job is complete (`is_so`)."""
        self._put(self._ranks, 0, 0, _FINISHED if is_so else _STARTED, killed=False)

    @property
    def has_finished(self) -> bool:
        """Return whether the job's program has reported that the job is complete."""
        return self._get(self._ranks)[2] == _FINISHED

    def started(self, rank: int, pid: int) -> None:
        """Record the pid of rank `rank`."""
        self._put(rank, pid, 0, _STARTED, killed=False)

    def ended(self, pid: int, status: int) -> None:
        """Record the wait status of the child process `pid`. Do nothing if it is not a rank."""
        for rank in range(self._ranks):
            found, _, state, killed = self._get(rank)
            if found == pid and state == _STARTED:
                self._put(rank, pid, status, _ENDED, killed=bool(killed))

    def killed(self, rank: int) -> None:
        """Record that the supervisor is about to kill rank `rank`."""
        pid, status, state, _ = self._get(rank)
        self._put(rank, pid, status, state, killed=True)

    def lines(self) -> list[RankLine]:
        """Return the lines of all ranks, in the order of their numbers."""
        found = map(self._get, range(self._ranks))
        return [
            RankLine(pid if state else None, status if state == _ENDED else None, bool(killed))
            for pid, status, state, killed in found
        ]

    def _get(self, rank: int) -> tuple[int, int, int, int]:
        pid, status, state, killed = _LINE.unpack_from(self._memory, rank * _LINE.size)
        return pid, status, state, killed

    def _put(self, rank: int, pid: int, status: int, state: int, *, killed: bool) -> None:
        _LINE.pack_into(self._memory, rank * _LINE.size, pid, status, state, killed)
        if self._file is not None:
            with suppress(OSError):  # the keeper has it in memory
                os.pwrite(self._file, _LINE.pack(pid, status, state, killed), rank * _LINE.size)


def _opened(path: Path, size: int) -> int:
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    except BaseException:  # undone, and raised again
        os.close(fd)
        raise
    return fd


FAMILY = "family"
MOST = 1024
_HEAD = struct.Struct("=4sqi")
_ROW = struct.Struct("=iqi")
_MAGIC = b"zfam"


class ProcessTreeFile:
    """The file with the descendants of the supervisor.

    The file is overwritten in place, so its disk space is reserved at the start.
    """

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
            log_line(f"{path}: {error}; processes of this attempt are not recorded")

    def write(self, moment: int, processes: Iterable[Process]) -> None:
        """Write `processes` into the file. `moment` is the time at which reading them from /proc
        began, in clock ticks since the boot.
        """
        if self._fd is None:
            return
        rows = [
            _ROW.pack(p.pid, p.start_ticks, 0 if p.session == self._shared else p.session)
            for p in itertools.islice(processes, MOST)
        ]
        with suppress(OSError):
            os.pwrite(self._fd, _HEAD.pack(_MAGIC, moment, len(rows)) + b"".join(rows), 0)


def remove_process_tree(directory: Path) -> None:
    """Remove the file of the attempt's processes from `directory`. Call this after all
    processes of the attempt have ended.
    """
    with suppress(OSError):
        (directory / FAMILY).unlink()


class RecordedProcesses(NamedTuple):
    """The processes and sessions of an attempt, as read from the process file."""

    moment: int = -1
    known: frozenset[tuple[int, int]] = frozenset()
    sessions: frozenset[int] = frozenset()

    def proves(self, process: Process) -> bool:
        """Return whether the process file proves that `process` belongs to the attempt."""
        if (process.pid, process.start_ticks) in self.known:
            return True
        return process.session in self.sessions and process.start_ticks < self.moment


def read_process_tree(path: Path, not_sessions: Iterable[int] = ()) -> RecordedProcesses:
    """Read the file of the attempt's processes. Return an empty result if the file is missing or
    invalid.

    `not_sessions` are ids of sessions that also contain processes of other programs. Membership in
    one of these sessions proves nothing.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return RecordedProcesses()
    try:
        data = os.read(fd, _HEAD.size + MOST * _ROW.size)
    except OSError:
        return RecordedProcesses()
    finally:
        os.close(fd)
    if len(data) < _HEAD.size:
        return RecordedProcesses()
    magic, moment, count = _HEAD.unpack_from(data)
    end = _HEAD.size + count * _ROW.size
    if magic != _MAGIC or not 0 <= count <= MOST or len(data) < end:
        return RecordedProcesses()
    rows = list(_ROW.iter_unpack(data[_HEAD.size : end]))
    sessions = frozenset(session for _, _, session in rows) - {0, *not_sessions}
    return RecordedProcesses(moment, frozenset((pid, start) for pid, start, _ in rows), sessions)
