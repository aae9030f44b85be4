"""Reads the status of an attempt from its run directory. This does not depend on the daemon that
started the attempt.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotoolsd.queue.clocks import Moment, began_of
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow
from zerotoolsd.supervisor.attempt_plan import ATTEMPT, ENDED, EXIT, LEDGER, LOCK, RUN, STOP, Plan
from zerotoolsd.supervisor.durable_files import (
    LARGEST_RECORD,
    ReservedRecord,
    is_shallow,
    read_json,
)
from zerotoolsd.supervisor.exit_record.decide_outcome import FOLLOWING, inferred_record, stop_reason
from zerotoolsd.supervisor.exit_record.keeper_process import KILLED
from zerotoolsd.supervisor.exit_record.process_ledgers import RankLedger
from zerotoolsd.supervisor.procfs import boot_id
from zerotoolsd.supervisor.signal_process import open_process
from zerotoolsd.supervisor.transient_os_errors import error_text, is_transient
from zerotoolsd.users.open_as_user import opened_run_directory, owner_of

RESTARTED = "the machine was restarted"
_PLAIN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags for opening a file: do not follow a link, and do not wait."""


@dataclass(frozen=True)
class Over:
    """Status: the attempt has ended, and its supervisor has written the record of the end."""

    record: Mapping[str, Any]


@dataclass(frozen=True)
class Alive:
    """Status: the supervisor of the attempt is running, or its keeper is about to write the record
    of the end.

    `began` is the start time; None if unknown. The caller must close `pidfd`.
    """

    pidfd: int
    began: Moment | None = None


@dataclass(frozen=True)
class Starting:
    """Status: the supervisor of the attempt holds the lock, but has not written `run.json` yet."""


@dataclass(frozen=True)
class NeverStarted:
    """Status: no supervisor has written `run.json`, and none is running."""


@dataclass(frozen=True)
class Gone:
    """Status: the supervisor of the attempt has disappeared.

    Attributes:
        cause: the reason, as far as it is known.
        record: the record of the attempt's end. The supervisor wrote it before it disappeared, or
            it is inferred from the ledger of the ranks.
    """

    cause: str
    record: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Unreadable:
    """Status unknown: the run directory cannot be read now. `cause` gives the reason."""

    cause: str


AttemptStatus = Over | Alive | Starting | NeverStarted | Gone | Unreadable


def attempt_status(attempt: AttemptRow) -> AttemptStatus:
    """Return the status of an attempt that an earlier daemon started."""
    run_dir = Path(attempt.run_dir)
    found = run_dir_status(run_dir, attempt.token)
    if not isinstance(found, NeverStarted) or attempt.state == LAUNCHING:
        return found
    try:
        with opened_run_directory(run_dir) as base:
            prepared = os.path.lexists(base / ATTEMPT)
    except OSError as error:
        return Unreadable(error_text(error))
    # The file was written before the attempt was started: if it is gone, someone has removed it.
    return found if prepared else Gone("its run directory was removed")


def supervisor_lives(attempt: AttemptRow) -> bool:
    """Return whether the supervisor or the keeper of the attempt is known to be running."""
    found = attempt_status(attempt)
    if not isinstance(found, Alive):
        return False
    os.close(found.pidfd)
    return True


def run_dir_status(run_dir: Path, token: str) -> AttemptStatus:
    """Return the status of the attempt with this `token` in the run directory `run_dir`."""
    try:
        with opened_run_directory(run_dir) as base:
            return _status_in(base, token, owner_of(run_dir))
    except ValueError as error:
        return Gone(f"its record cannot be read ({error})")
    except OSError as error:
        why = f"{error.filename or run_dir}: {error.strerror}"
        # The user of the directory may make it inaccessible, or put anything there: never wait for
        # it.
        if owner_of(run_dir) is not None and not is_transient(error):
            return Gone(f"its record cannot be read ({why})")
        return Unreadable(why)


def _status_in(run_dir: Path, token: str, uid: int | None) -> AttemptStatus:
    """Return the status that the files in the run directory show.

    `uid` is the user of the attempt's processes; None for the user of the daemon.
    """
    if (over := _read_end(run_dir, token)) is not None:
        return over
    run = read_json(run_dir / RUN, LARGEST_RECORD)
    if run is None:
        if _lock_is_held(run_dir / LOCK):
            return Starting()
        # It may have started and ended since the first check.
        run = read_json(run_dir / RUN, LARGEST_RECORD)
        if run is None:
            return NeverStarted()
    if run.get("token") != token:
        return Gone("its run directory belongs to another attempt")
    if run.get("boot_id") != boot_id():
        return _final_status(run_dir, token, RESTARTED)
    pidfd = open_process(*_identity(run, RUN), uid)
    if pidfd is None and run.get("keeper") is not None:
        pidfd = open_process(*_identity(run["keeper"], RUN), uid)
    if pidfd is not None:
        return Alive(pidfd, began_of(run))
    found = _final_status(run_dir, token, KILLED)
    if isinstance(found, Gone) and found.record is None:
        return Gone(KILLED, _record_from_ledger(run_dir, run))
    return found


def _read_end(run_dir: Path, token: str, name: str = EXIT) -> Over | None:
    record = read_json(run_dir / name, LARGEST_RECORD)
    if record is None or record.get("token") != token:
        return None
    _check_record(record)
    return Over(record)


def _final_status(run_dir: Path, token: str, why: str) -> Over | Gone:
    """Return the final status of an attempt without a living supervisor.

    The outcome can still be "finished" if all ranks ended before the supervisor did. `why` is the
    known reason of the supervisor's end.
    """
    if (over := _read_end(run_dir, token)) is not None:
        return over
    ended = _read_end(run_dir, token, ENDED)
    if ended is None:
        return Gone(why, None)
    cut_off = {"why": f"{why} before the attempt had ended"}
    return Gone(why, {**ended.record, **{n: cut_off for n in FOLLOWING if n in ended.record}})


def _record_from_ledger(run_dir: Path, run: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the record of the attempt's end, inferred from the ledger of its ranks. Return None if
    the ledger cannot be read. `run` has the contents of `run.json`.

    Normally the keeper writes this record, but here the keeper is gone too.
    """
    try:
        plan = Plan.from_json(read_json(run_dir / ATTEMPT, LARGEST_RECORD) or {})
        ledger = RankLedger.read(run_dir / LEDGER, plan.processes)
    except (OSError, TypeError, ValueError):  # an older version has started it, or a job wrote here
        return None
    why = "its supervisor and its keeper were killed"
    return inferred_record(plan, ledger, (), run, stop_reason(run_dir / STOP), why)


def _check_record(record: Mapping[str, Any]) -> None:
    """Raise ValueError if the record of an end is invalid. Ranks can write into the run directory,
    so the record may contain anything.
    """
    checkpoint, stuck = record.get("checkpoint"), record.get("unkillable", [])
    if checkpoint is not None:
        step = checkpoint.get("step") if isinstance(checkpoint, dict) else None
        if type(step) is not int or not 0 <= step < 2**63:
            raise ValueError(
                f"{EXIT}: the step of its checkpoint is missing, or not a whole number"
            )
    if not is_shallow(record):
        raise ValueError(f"{EXIT} is nested deeper than any supervisor writes")
    if not isinstance(stuck, list):
        raise ValueError(f"{EXIT}: unkillable is not a list")
    for process in stuck:
        _identity(process, EXIT)


def _identity(process: object, source: str) -> tuple[int, int]:
    """Return (pid, start time in clock ticks) from the entry `process` of a record. Raises
    ValueError if it is invalid.
    """
    found = process if isinstance(process, dict) else {}
    pid, ticks = found.get("pid"), found.get("start_ticks")
    if type(pid) is not int or type(ticks) is not int or not 0 < pid < 2**31:
        raise ValueError(f"{source}: a process in it has no valid pid or no valid start_ticks")
    return pid, ticks


def _lock_is_held(path: Path) -> bool:
    """Return whether another process holds the lock `path`.

    The check holds the lock for an instant. This is harmless, because a starting supervisor tries
    for two seconds to take the lock.
    """
    try:
        fd = os.open(path, os.O_RDWR | _PLAIN)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def fence_unstarted_attempt(run_dir: Path, record: Mapping[str, Any]) -> bool:
    """Write the record of an end for an attempt that has not started, so that no supervisor can
    start it any more.

    Return False if the attempt has started meanwhile. Raises OSError.
    """
    if not run_dir.exists():
        return True
    with opened_run_directory(run_dir) as base:
        return _fence(base, record)


def _fence(run_dir: Path, record: Mapping[str, Any]) -> bool:
    fd = os.open(run_dir / LOCK, os.O_CREAT | os.O_RDWR | _PLAIN, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.lexists(run_dir / RUN):
            return False
        _write_record(run_dir / EXIT, record)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _write_record(path: Path, record: Mapping[str, Any]) -> None:
    room = ReservedRecord(path, 0)
    try:
        room.try_write(record)
    finally:
        room.close()
