"""Who lives, by files on a file system that several machines share.

Whoever works on an attempt writes a small file anew, every few seconds. On the machine that wrote
it, the process itself is looked at. From another one, a file that does not change for
SILENT_SECONDS is that of a process that is gone, or that cannot reach the shared directory any
more: then it cannot write a checkpoint there either. How old a file is, is asked of the file
server, whose clock alone counts: of a file that is made to ask, and of the beat.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerotools.jobs.slurm.job_directory import read_record, write_record
from zerotoolsd.supervisor.plan import EXIT, PROGRESS, RUN
from zerotoolsd.supervisor.procfs import boot_id, read_process

BEAT_SECONDS = 2.0
SILENT_SECONDS = 45.0
MASTER = "master"
"""The name by which the process in the batch script beats; nodes do by their numbers."""
_BEAT = "beat-"


class LifeSign:
    """The file of this process, as `name` of an attempt."""

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

    def again(self) -> None:
        """This process lives. Where the file cannot be written, it is silent."""
        self._count += 1
        with suppress(OSError):
            write_record(self._path, {**self._who, "count": self._count})


class Watched:
    """The beats of one attempt, looked at now and then. `probe` is a directory for a file by which
    the file server's clock is asked."""

    def __init__(self, attempt: Path, probe: Path) -> None:
        self._attempt = attempt
        self._probe = probe

    def alive(self) -> list[str]:
        """Who works on it beside this process, as far as is known: `n2` and so on."""
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
        """A supervisor outlives the process beside it for as long as its ranks take to save."""
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
    """That in which numbers of processes are ours: Slurm may give each job one of its own."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  # "pid:[4026531836]"
    except OSError:
        return ""


def _is_process(record: object) -> bool:
    """Whether a process of this boot lives that a record names."""
    if not isinstance(record, dict) or type(record.get("pid")) is not int:
        return False
    process = read_process(record["pid"])
    if process is None or process.is_over:
        return False
    return process.start_ticks == record.get("start_ticks")
