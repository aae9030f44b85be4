"""What has become of an attempt, by its run directory: the truth after a restart of the daemon."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.durable import read_json, write_json
from zerotoolsd.supervisor.plan import EXIT, LOCK, RUN
from zerotoolsd.supervisor.procfs import Process, boot_id, kill_process, open_process, processes


@dataclass(frozen=True)
class Over:
    """It ended, and its supervisor wrote down how."""

    record: Mapping[str, Any]


@dataclass(frozen=True)
class Alive:
    """Its supervisor runs; the holder of `pidfd` closes it."""

    pidfd: int


@dataclass(frozen=True)
class Starting:
    """Its supervisor holds the lock and has not said yet who it is."""


@dataclass(frozen=True)
class NeverStarted:
    """No supervisor came as far as `run.json`, and none is about to."""


@dataclass(frozen=True)
class Gone:
    """Its supervisor vanished without a word; `cause` says what is known."""

    cause: str


Finding = Over | Alive | Starting | NeverStarted | Gone


def look(run_dir: Path, token: str) -> Finding:
    """What has become of the attempt that was given `token`."""
    try:
        return _look(run_dir, token)
    except ValueError as error:
        return Gone(f"its record cannot be read ({error})")


def _look(run_dir: Path, token: str) -> Finding:
    if (over := _over(run_dir, token)) is not None:
        return over
    run = read_json(run_dir / RUN)
    if run is None:
        if _lock_is_held(run_dir / LOCK):
            return Starting()
        # It may have come and gone since the first look.
        run = read_json(run_dir / RUN)
        if run is None:
            return NeverStarted()
    if run.get("token") != token:
        return Gone("its run directory belongs to another attempt")
    if run.get("boot_id") != boot_id():
        return _over(run_dir, token) or Gone("the machine was restarted")
    pidfd = open_process(int(run["pid"]), int(run["start_ticks"]))
    if pidfd is not None:
        return Alive(pidfd)
    return _over(run_dir, token) or Gone("its supervisor was killed")


def _over(run_dir: Path, token: str) -> Over | None:
    record = read_json(run_dir / EXIT)
    return Over(record) if record is not None and record.get("token") == token else None


def _lock_is_held(path: Path) -> bool:
    """Looks by taking it for an instant; a supervisor tries for two seconds."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def fence(run_dir: Path, record: Mapping[str, Any]) -> bool:
    """End an attempt that never started, so that a supervisor still on its way will not start it.

    False: it has started meanwhile. Raises OSError.
    """
    if not run_dir.exists():
        return True
    fd = os.open(run_dir / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (run_dir / RUN).exists():
            return False
        write_json(run_dir / EXIT, record)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def kill_strays(token: str) -> list[Process]:
    """SIGKILL every process whose environment has `token`: those of a vanished supervisor."""
    needle = f"ZEROTOOLS_TOKEN={token}".encode()
    strays = [p for p in processes().values() if needle in _environment(p.pid)]
    return [process for process in strays if kill_process(process)]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
