"""Adds to the queue, at every start, attempts that only their run directories record.

An attempt is committed to the queue before its run directory is made. So a run directory that the
queue does not know shows that the queue is too old: its write-ahead log was lost, a backup was
restored, or the queue is new. In this case the missing attempts are added from their run
directories, which have the records of their ends. Every unfinished job without a running attempt is
held, because the lost part of the queue may have said that the job was cancelled, or ended and was
removed. A job that ended is never run again.

Only the directories of two kinds of jobs are read: unfinished jobs, and jobs with a higher number
than any in the queue. An unknown job with a lower number was removed by `zerotools clean`.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.jobs import states
from zerotools.jobs.client.queue_backup import RESTORED
from zerotools.jobs.jobfile_tables.spec import MOST_RANKS
from zerotoolsd.attempts import attempt_status, last_report, prepare_run_directory
from zerotoolsd.attempts.prepare_run_directory import SPEC
from zerotoolsd.queue import clocks, lifecycle
from zerotoolsd.queue.insert_recovered_jobs import FoundJob, Rebuild
from zerotoolsd.queue.rows import ENDED, LAUNCHING, RUNNING, AttemptRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.preemption_table import PAUSE, PREEMPT, RELIEVE, RELIEVE_GPU, RESIZE
from zerotoolsd.queue.tables.usage_accounting import GpuTime
from zerotoolsd.supervisor.attempt_plan import ATTEMPT, EXIT, REQUEST, RUN
from zerotoolsd.supervisor.durable_files import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.transient_os_errors import is_transient
from zerotoolsd.users.open_as_user import opened_run_directory, owner_of

_ATTEMPT = re.compile(r"attempt-([1-9][0-9]{0,8})")
_CRASHES = frozenset({lifecycle.CRASHED, lifecycle.KILLED, lifecycle.LOST})
_ASKED = {
    "cancel": states.STOPPING,
    PAUSE: states.PAUSING,
    PREEMPT: states.YIELDING,
    RESIZE: states.YIELDING,
    RELIEVE: states.YIELDING,
    RELIEVE_GPU: states.YIELDING,
}
"""For each reason of a stop request: the state of the job after the request."""
_ADVICE = "check its state, then run zerotools release or zerotools cancel"
_MAY_BE_HELD = frozenset(
    {
        *(states.ON_HOLD, states.WAITING, states.QUEUED, states.WAITING_RETRY, states.PAUSED),
        *(states.LAUNCHING, states.RUNNING, *states.GIVING_WAY),
    }
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Found:
    row: AttemptRow
    is_alive: bool
    asked: str | None
    """The reason of the stop request to the attempt; None if it was not asked to stop."""


def add_missing_from_runs(state_dir: Path, store: Store, now: float) -> list[int]:
    """Add to `store` the data that only run directories contain. Return the jobs that got data."""
    restored = _restored(state_dir)
    jobs_dir = state_dir / "jobs"
    known = store.states()
    numbers = sorted(_numbers(jobs_dir))
    highest, live = store.highest_id, {n for n in known if known[n] not in states.TERMINAL}
    due = [number for number in numbers if number > highest or number in live]
    seen = {
        number: _read_job_directory(store, jobs_dir, number, known.get(number)) for number in due
    }
    found = [job for job in seen.values() if isinstance(job, FoundJob)]
    unreadable = {
        number: f"{why}; {_ADVICE}"
        for number, why in seen.items()
        if isinstance(why, str) and known.get(number) in _MAY_BE_HELD
    }
    hold, may_run = None, restored is not None and bool(restored.get("release"))
    if found:
        hold = _why_older(jobs_dir)
        numbers_found = ", ".join(str(job.id) for job in found)
        log.warning("the queue did not know the end of jobs %s: %s", numbers_found, hold)
    elif restored is not None and not may_run:
        hold = f"the queue was restored from {restored.get('backup')}; the job may have ended since"
    numbers_given = max([store.noted_id, *numbers, *_highest(restored)])
    if found or hold or unreadable or numbers_given > highest:
        store.rebuild(
            Rebuild(
                found=found,
                highest_id=numbers_given,
                hold=hold and f"{hold}; {_ADVICE}",
                hold_others=not may_run,
                unreadable=unreadable,
            ),
            now,
        )
    with suppress(FileNotFoundError):
        (state_dir / RESTORED).unlink()
    return [job.id for job in found]


def add_missing_attempts(jobs_dir: Path, store: Store, job_id: int, now: float) -> bool:
    """Add to the queue those attempts of a held job that only its directory records. Return whether
    any were added.

    An error of the machine may have prevented reading the directory when the job was held.
    """
    found = _read_job_directory(store, jobs_dir, job_id, store.job(job_id).state)
    if not isinstance(found, FoundJob):
        return False
    rebuild = Rebuild(
        found=[found],
        highest_id=store.highest_id,
        hold=f"{_why_older(jobs_dir)}; {_ADVICE}",
        hold_others=False,
        unreadable={},
    )
    store.rebuild(rebuild, now)
    log.warning("job %d: the queue did not know its end", job_id)
    return True


def _why_older(jobs_dir: Path) -> str:
    return f"the queue was older than the run directories in {jobs_dir}"


def _restored(state_dir: Path) -> Mapping[str, Any] | None:
    try:
        return read_json(state_dir / RESTORED, LARGEST_RECORD)
    except (OSError, ValueError) as error:
        log.error("%s: %s", state_dir / RESTORED, error)
        return {}


def _highest(restored: Mapping[str, Any] | None) -> Iterator[int]:
    """Yield the highest job number of the queue that was replaced by a restored backup; yield
    nothing if this number is unknown.
    """
    found = (restored or {}).get("highest_id")
    if type(found) is int and 0 < found < 2**53:
        yield found


def _numbers(jobs_dir: Path) -> Iterator[int]:
    with suppress(FileNotFoundError), os.scandir(jobs_dir) as entries:
        for entry in entries:
            if entry.name.isdecimal() and entry.name.isascii() and int(entry.name) < 2**53:
                yield int(entry.name)


def _read_job_directory(
    store: Store, jobs_dir: Path, job_id: int, state: str | None
) -> FoundJob | str | None:
    """Return the data in a job's directory that the queue lacks, or the reason as text if the
    directory cannot be read. Return None if there is no such data, or if a later try may read it.
    """
    own = jobs_dir / str(job_id)
    try:
        return _find_job(store, own, job_id, state)
    except sqlite3.Error:
        raise
    except OSError as error:
        if state in states.ACTIVE and is_transient(error):
            return None  # the code that reattaches its attempt waits until it can be read
        why = f"{error.strerror}: {error.filename or own}"
    except Exception as error:  # an error of one job must not affect other jobs
        log.exception("job %d: its directory %s is not added to the queue", job_id, own)
        why = f"{type(error).__name__}: {error}"
    log.error("job %d: its directory cannot be read: %s", job_id, why)
    return (
        f"its attempts cannot be read ({why}), so an attempt that has run could run a second time"
    )


def _find_job(store: Store, own: Path, job_id: int, state: str | None) -> FoundJob | None:
    have = [] if state is None else store.attempts(job_id)
    last = have[-1].number if have else 0
    lenient = last if state is not None else sys.maxsize  # no job to hold
    found = [each for each in _attempts(own, job_id, lenient) if each.row.number > last]
    if not found:
        return None
    spec = _spec(Path(found[-1].row.run_dir)) if state is None else None
    if state is None and spec is None:
        log.error("%s belongs to a job that the queue does not know, and cannot be read", own)
        return None
    newest = found[-1]
    after = states.HELD
    if newest.asked == "cancel" or newest.is_alive:
        after = _ASKED.get(newest.asked or "", states.RUNNING)
    open_ones = [row for row in have if row.state != ENDED]
    closed = {row.number: _ended_record(row) for row in open_ones}
    over = [*open_ones, *(each.row for each in found if not each.is_alive)]
    records = [row.result or {} for row in (*have, *(each.row for each in found[:-1]))]
    return FoundJob(
        id=job_id,
        uid=Path(newest.row.run_dir).lstat().st_uid,
        spec=spec,
        default_output=str(own / "output"),
        created=min(map(_made, (Path(each.row.run_dir) for each in found))),
        state=state,
        after=after,
        closed=closed,
        attempts=tuple(each.row for each in found),
        used={row.number: used for row in over if (used := _used(row)) is not None},
        restarts_used=sum(record.get("outcome") in _CRASHES for record in records),
    )


def _attempts(own: Path, job_id: int, last: int) -> list[_Found]:
    """Return the attempts in the directory `own` of a job.

    Raises OSError and ValueError if an attempt after `last` cannot be read. `last` is the
    number of the job's last attempt in the queue.
    """
    found: list[_Found | None] = []
    for path in own.iterdir():
        match = _ATTEMPT.fullmatch(path.name)
        if match is not None and not path.is_symlink():
            found.append(_attempt(path, job_id, int(match.group(1)), last))
    by_number = sorted(filter(None, found), key=lambda each: each.row.number)
    # A user's copy of a run directory has the token of the original.
    first = {each.row.token: each for each in reversed(by_number)}
    read = [each for each in by_number if first[each.row.token] is each]
    # All but the last are over, whatever their directories say.
    return [*(_as_ended(each) for each in read[:-1]), *read[-1:]]


def _attempt(run_dir: Path, job_id: int, number: int, last: int) -> _Found | None:
    try:
        plan = prepare_run_directory.read_attempt_note(run_dir)
        if plan is None:
            plan = read_json(run_dir / ATTEMPT)
    except (OSError, ValueError) as error:
        if number > last:
            raise
        log.error("%s: %s", run_dir, error)
        return None
    token = plan.get("token") if plan else None
    if plan is None or not isinstance(token, str) or plan.get("job_id") != job_id:
        return None
    gpus, size = plan.get("gpu_uuids"), plan.get("world_size")
    part = clocks.seconds_in(plan, "gpu_part")
    status = attempt_status.run_dir_status(run_dir, token)
    if isinstance(status, attempt_status.Alive):
        os.close(status.pidfd)
    run = _read(run_dir, RUN)
    began = clocks.began_of(run)
    row = AttemptRow(
        job_id=job_id,
        number=number,
        token=token,
        state=LAUNCHING if isinstance(status, attempt_status.NeverStarted) else RUNNING,
        run_dir=str(run_dir),
        gpu_uuids=tuple(u for u in gpus if isinstance(u, str)) if isinstance(gpus, list) else (),
        resumed_from=None,
        started=None if began is None else began.time,
        ended=None,
        result=None,
        started_clock=None if began is None else began.clock,
        boot_id=None if began is None else began.boot_id,
        host=os.uname().nodename,
        world_size=size if type(size) is int and 0 < size <= MOST_RANKS else None,
        gpu_part=part if part is not None and 0 < part <= 1 else 1.0,
    )
    is_alive = isinstance(status, (attempt_status.Alive, attempt_status.Starting))
    asked = _read(run_dir, REQUEST).get("reason")
    return _Found(row, is_alive, asked if isinstance(asked, str) else None)


def _as_ended(found: _Found) -> _Found:
    row = found.row
    record = _ended_record(row)
    ended = clocks.seconds_in(record, "ended") or _made(Path(row.run_dir))
    values = {name: getattr(row, name) for name in row.__dataclass_fields__}
    row = AttemptRow(**{**values, "state": ENDED, "result": record, "ended": ended})
    return _Found(row, is_alive=False, asked=None)


def _ended_record(row: AttemptRow) -> Mapping[str, Any]:
    record = _read(Path(row.run_dir), EXIT)
    if record.get("token") == row.token:
        return record
    return {"outcome": lifecycle.LOST, "cause": "lost: another attempt began after it"}


def _used(row: AttemptRow) -> GpuTime | None:
    """Return the time for which an ended attempt had its GPUs; None if unknown."""
    record = _read(Path(row.run_dir), EXIT)
    if record.get("token") != row.token or clocks.seconds_in(record, "ran_seconds") is None:
        record = last_report.last_seen(row)
    ended, ran = (clocks.seconds_in(record, name) for name in ("ended", "ran_seconds"))
    if ended is None or ran is None:
        return None
    if row.began is not None:
        ran = min(ran, clocks.read_clocks().seconds_since(row.began))
    return GpuTime(ended, ran)


def _spec(run_dir: Path) -> dict[str, Any] | None:
    try:
        known = prepare_run_directory.read_attempt_note(run_dir)
    except (OSError, ValueError) as error:
        log.error("%s: %s", run_dir, error)
        return None
    tree = _read(run_dir, SPEC) if known is None else known.get("spec")
    return tree if isinstance(tree, dict) and tree else None


def _read(run_dir: Path, name: str) -> dict[str, Any]:
    try:
        with opened_run_directory(run_dir) as base:
            return read_json(base / name, LARGEST_RECORD) or {}
    except (OSError, ValueError) as error:
        log.error("%s: %s", run_dir / name, error)
        return {}


def _made(run_dir: Path) -> float:
    if owner_of(run_dir) is not None:
        return prepare_run_directory.attempt_note_time(run_dir)
    return (run_dir / ATTEMPT).stat().st_mtime
