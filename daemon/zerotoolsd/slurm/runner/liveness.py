"""Shows which processes of a job still run, from files on a file system that several machines
share.

Each process of an attempt rewrites a small file every few seconds. On the machine that wrote it,
the process itself is checked. On another machine, a file that does not change for SILENT_SECONDS
means that its process has ended, or cannot reach the shared directory and so cannot write a
checkpoint there. The clocks of machines may differ, so the age of a file is measured with the file
server's clock: a new file is made, and its time is compared with that of the process's file.

`AttemptTurns` uses this to run one attempt at a time, even if Slurm starts a job twice.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.jobs.slurm.job_directory import ATTEMPTS, JobDirectory, read_record, write_record
from zerotoolsd.supervisor.attempt_plan import EXIT, PROGRESS, RUN
from zerotoolsd.supervisor.procfs import boot_id, read_process

BEAT_SECONDS = 2.0
SILENT_SECONDS = 45.0
MASTER = "master"
"""Name of the file of the process in the batch script. The files of nodes are named by the
numbers of the nodes.
"""
_BEAT = "beat-"


class LivenessFile:
    """The file `name` in the directory of an attempt, which shows that this process is alive."""

    def __init__(self, attempt: Path, name: str) -> None:
        own = read_process(os.getpid())
        self._path = attempt / f"{_BEAT}{name}"
        self._count = 0
        self._who = {
            "host": socket.gethostname(),
            "boot_id": boot_id(),
            "pids": _pid_namespace(),
            "pid": os.getpid(),
            "start_ticks": None if own is None else own.start_ticks,
        }

    def refresh(self) -> None:
        """Write the file again. If the disk is full, only set its modification time."""
        self._count += 1
        try:
            write_record(self._path, {**self._who, "count": self._count})
        except OSError:
            with suppress(OSError):
                os.utime(self._path)


class LivenessReader:
    """Reads the files with which the processes of one attempt show that they are alive.

    To read the clock of the file server, it creates a file in the directory `probe`.
    """

    def __init__(self, attempt: Path, probe: Path) -> None:
        self._attempt = attempt
        self._probe = probe

    def alive(self) -> list[str]:
        """Return the hosts of the other processes of the attempt that may be alive, such as `n2`,
        and `node-1` for the supervisor of node 1.
        """
        now = self._server_time()
        found = []
        for path in sorted(self._attempt.glob(f"{_BEAT}*")):
            record = read_record(path) or {}
            if self._lives(path, record, now):
                found.append(str(record.get("host") or path.name))
        for path in sorted(self._attempt.glob(f"node-*/{RUN}")):
            if not (path.parent / EXIT).exists() and self._supervised(path, now):
                found.append(path.parent.name)
        return found

    def _supervised(self, path: Path, now: float) -> bool:
        """Return whether the supervisor of a node is alive. It may still run after its `NodeRunner`
        has ended, while ranks save.
        """
        record = read_record(path) or {}
        node = path.parent.name.removeprefix("node-")
        beside = read_record(self._attempt / f"{_BEAT}{node}") or {}
        pids = beside.get("pids", _pid_namespace())
        if (record.get("boot_id"), pids) != (boot_id(), _pid_namespace()):
            return self._is_fresh(path.with_name(PROGRESS), now)
        return any(map(_is_process, (record, record.get("keeper"))))

    def _lives(self, path: Path, record: dict[str, Any], now: float) -> bool:
        if (record.get("boot_id"), record.get("pids")) == (boot_id(), _pid_namespace()):
            return record.get("pid") != os.getpid() and _is_process(record)
        return self._is_fresh(path, now)

    def _is_fresh(self, path: Path, now: float) -> bool:
        try:
            return now - path.stat().st_mtime < SILENT_SECONDS
        except OSError:
            return False

    def _server_time(self) -> float:
        draft = self._probe / f".clock-{os.getpid()}"
        draft.unlink(missing_ok=True)
        draft.touch()
        try:
            return draft.stat().st_mtime
        finally:
            draft.unlink(missing_ok=True)


def _pid_namespace() -> str:
    """Return the PID namespace of this process. Slurm may give each job a separate namespace."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  # "pid:[4026531836]"
    except OSError:
        return ""


def _is_process(record: object) -> bool:
    """Return whether the process with the pid and the start time in `record` is alive."""
    if not isinstance(record, dict) or type(record.get("pid")) is not int:
        return False
    process = read_process(record["pid"])
    if process is None or process.is_over:
        return False
    return process.start_ticks == record.get("start_ticks")


LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class AttemptTurns:
    """Decides which of several batch processes of one job runs the next attempt. Slurm may start a
    batch script twice.

    `say` prints a message for users. `asked` returns whether this process was asked to end.
    """

    directory: JobDirectory
    submission: int
    say: Callable[[str], None]
    asked: Callable[[], bool]

    def next_attempt(self) -> int | None:
        """Return the number of the attempt that this process must run; None if it has nothing
        to do.

        Raises OSError if the directory of the job cannot be written.
        """
        told: object = None
        (self.directory.path / ATTEMPTS).mkdir(exist_ok=True)
        while True:
            if (why := self.why_none()) is not None:
                self.say(why)
                return None
            newest = max(self.directory.attempts(), default=0)
            alive = self._alive(newest)
            if not alive:
                if self._begin(newest + 1):
                    return newest + 1
                continue  # another copy was faster
            if told != (told := (newest, alive)):
                self.say(
                    f"attempt {newest} of this job still runs ({', '.join(alive)}): Slurm has "
                    "started the job twice; this process waits until that attempt has ended"
                )
            time.sleep(LOOK_SECONDS)

    def _begin(self, number: int) -> bool:
        """Try to create the directory of the attempt `number`; return whether this process created
        it.
        """
        path = self.directory.attempt_path(number)
        draft = path.with_name(f".{number}-{socket.gethostname()}-{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        LivenessFile(draft, MASTER).refresh()
        try:
            draft.rename(path)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return False
        return True

    def why_none(self) -> str | None:
        """Return the reason why this process has nothing to do; None if it has to run an
        attempt.
        """
        newest = max(self.directory.submissions(), default=0)
        if newest != self.submission:
            return f"the job was submitted again (submission {newest}); this process ends"
        if (end := self.directory.end(self.submission)) is not None:
            return f"the job is over ({end.get('state')}: {end.get('reason')}); this process ends"
        if self.asked():
            return "cancelled before it began"
        return None

    def others(self) -> list[str]:
        """Return the names of the other processes of the newest attempt that are alive."""
        return self._alive(max(self.directory.attempts(), default=0))

    def is_superseded(self, attempt: int) -> bool:
        return max(self.directory.attempts(), default=0) > attempt

    def _alive(self, attempt: int) -> list[str]:
        if not attempt:
            return []
        return LivenessReader(self.directory.attempt_path(attempt), self.directory.path).alive()
