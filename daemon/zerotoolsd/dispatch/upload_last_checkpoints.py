"""Uploads the last checkpoint of a finished job if no supervisor has uploaded it.

Normally a supervisor uploads the last checkpoint when its ranks end. The supervisor skips this
upload if the attempt crashed, or if the job will start again soon, because the next attempt then
uploads the checkpoint. A supervisor that is killed does not finish its upload. If no attempt
follows, the daemon runs the same upload command, as the user of the job.

Example: job 7 saves step 40 for a preemption and is queued. `zerotools cancel 7` comes before the
job starts again. The job is cancelled at once, and step 40 is uploaded after that.

The result is in the record of the last attempt, as `uploading` and `uploaded`. If a restart of the
daemon interrupts an upload, no result is recorded, and the new daemon repeats the upload.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs import states
from zerotools.jobs.jobfile_tables.spec import SLURM, JobSpec
from zerotools.runs import find_job_checkpoints
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.job_environment import job_environment
from zerotoolsd.attempts.make_attempt_plan import known_as, mirroring_commands
from zerotoolsd.attempts.make_end_event import with_upload
from zerotoolsd.interface.event_loop_slice import TimeSlice
from zerotoolsd.monitoring.notifications.notify_command import end_session
from zerotoolsd.queue.rows import ENDED, AttemptRow, JobRow
from zerotoolsd.queue.sql_values import one_line
from zerotoolsd.queue.store import Store
from zerotoolsd.users.account import NameLookupTimeout
from zerotoolsd.users.served_users import OWN_ONLY, ServedUsers
from zerotoolsd.users.start_as_submitter import given_env

LOOK_SECONDS = 1.0
BEFORE_SECONDS = 7 * 86400.0
"""When the daemon starts, jobs that ended within this many seconds are checked for missing
uploads.
"""
JOBS_AT_ONCE = 50
"""Number of job files that are searched before other tasks of the event loop run."""
AT_ONCE = 2
TRIES, FIRST_WAIT, FACTOR = 6, 60.0, 4.0
"""For a store that does not respond: the number of tries, the first wait in seconds, and the
factor by which each next wait is longer.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Upload:
    """An upload that is still missing: the checkpoint at `step` of `attempt`, which is the last
    attempt of `job`.
    """

    job: JobRow
    spec: JobSpec
    attempt: AttemptRow
    step: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class UploadEnd:
    """The result of an upload. `why` is the error; None if the upload succeeded. `again` is True if
    another try may succeed later.
    """

    why: str | None
    seconds: float
    again: bool = False


class LastUploads:
    """Uploads the last checkpoints of finished jobs. Calls `announce` after each upload."""

    def __init__(
        self,
        store: Store,
        announce: Callable[[], None],
        users: ServedUsers = OWN_ONLY,
        first_wait: float = FIRST_WAIT,
    ) -> None:
        self._store, self._announce, self._users = store, announce, users
        self._first_wait = first_wait
        self._seen: int | None = None
        self._uploads: dict[int, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run_forever(self) -> None:
        """Search for finished jobs with a missing upload, and upload their checkpoints, until
        the daemon stops.
        """
        try:
            while True:
                try:
                    await self._check()
                except sqlite3.OperationalError as error:
                    log.error("cannot search for missing uploads now: %s", error)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in self._uploads.values():
                task.cancel()
            await asyncio.gather(*self._uploads.values(), return_exceptions=True)

    async def _check(self) -> None:
        self._uploads = {job: task for job, task in self._uploads.items() if not task.done()}
        newest = self._store.last_change
        if newest == self._seen:
            return
        changed = None if self._seen is None else self._store.changed_since(self._seen)
        self._seen, time_slice = newest, TimeSlice()
        for job_id in await self._recently_ended(time_slice) if changed is None else changed:
            await time_slice.pause_if_due()
            if job_id not in self._uploads and (upload := self._missing_upload(job_id)) is not None:
                self._uploads[job_id] = asyncio.create_task(self._upload(upload))

    async def _recently_ended(self, time_slice: TimeSlice) -> list[int]:
        """Return the numbers of the jobs that ended in the last days and may need an upload."""
        since, found = time.time() - BEFORE_SECONDS, list[int]()
        jobs = [job for state in states.TERMINAL for job in self._store.ids(state)]
        for first in range(0, len(jobs), JOBS_AT_ONCE):
            found += self._store.uploads.may_need(jobs[first : first + JOBS_AT_ONCE], since)
            await time_slice.pause_if_due()
        return sorted(found)

    def _missing_upload(self, job_id: int) -> Upload | None:
        if not (attempts := self._store.attempts(job_id)):
            return None
        try:
            job = self._store.job(job_id)
        except KeyError:  # it was removed
            return None
        return upload_of(job, attempts) if job.state in states.TERMINAL else None

    async def _upload(self, upload: Upload) -> None:
        job = upload.job
        try:
            async with self._slots:
                log.info("job %d: uploading its last checkpoint, step %d", job.id, upload.step)
                end = await self._run(upload)
                wait = self._first_wait
                for _ in range(TRIES - 1):
                    if not end.again:
                        break
                    await asyncio.sleep(wait)
                    wait *= FACTOR
                    end = await self._run(upload)
                self._note(upload, end)
        except sqlite3.OperationalError as error:  # the next daemon does it again
            log.error("job %d: cannot record its upload: %s", job.id, error)
        except Exception:  # of one job, which must not end the others'
            log.exception("job %d: cannot upload its last checkpoint", job.id)

    async def _run(self, upload: Upload) -> UploadEnd:
        began = time.monotonic()
        try:
            user = self._users.of(upload.job.uid)
        except NameLookupTimeout as error:
            return UploadEnd(one_line(str(error)), 0.0, again=True)
        except BadRequest as error:
            return UploadEnd(one_line(str(error)), 0.0)
        command, environment = upload.command, job_environment(upload.spec, user)
        if user is not None:
            command, environment = user.command(command, given=True), given_env(environment)
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return UploadEnd(f"it cannot be started: {error.strerror}", 0.0, again=True)
        try:
            said = (await child.communicate())[1].decode("utf-8", "replace")
        finally:
            await end_session(child)
        seconds = time.monotonic() - began
        if child.returncode == 0:
            return UploadEnd(None, seconds)
        lines = [line for line in said.splitlines() if line.strip()]
        why = one_line(lines[-1] if lines else f"it ended with status {child.returncode}")
        return UploadEnd(why, seconds, again=child.returncode == os.EX_TEMPFAIL)

    def _note(self, upload: Upload, end: UploadEnd) -> None:
        job, now = upload.job, time.time()
        place = f"{upload.spec.checkpoint.upload_to}".rstrip("/")
        name = find_job_checkpoints.directory_name(upload.step)
        result = {
            **(upload.attempt.result or {}),
            "uploading": {"why": end.why, "seconds": end.seconds},
            "uploaded": {"step": upload.step, "path": f"{place}/{name}", "time": now}
            if end.why is None
            else {**_uploaded(upload.attempt), "why": end.why},
        }
        came = f"was uploaded to {place}" if end.why is None else f"was not uploaded: {end.why}"
        why = f"its last checkpoint, step {upload.step}, {came}"
        old, new = job.standing.reason, None
        if old is not None and end.why is None:
            new = with_upload(old, upload.attempt.result or {})
        self._store.uploads.done(
            job.id, upload.attempt.number, result, why=why, reasons=(old, new), now=now
        )
        log.info("job %d: %s", job.id, why)
        self._announce()


def upload_of(job: JobRow, attempts: list[AttemptRow]) -> Upload | None:
    """Return the upload that is missing for a finished job.

    Return None if the newest checkpoint needs no upload, or if the supervisor has recorded
    the result of an upload.
    """
    spec = job.reading.spec
    if spec is None or spec.backend == SLURM or not attempts:
        return None
    last, command = attempts[-1], mirroring_commands(spec, job.output_dir, known_as(job))[1]
    saved = last_report.latest_checkpoint(job, attempts)
    if not command or saved is None or last.state != ENDED or _was_tried(last):
        return None
    sent = [_uploaded(attempt).get("step") for attempt in attempts]
    if any(isinstance(step, int) and step >= saved[0] for step in sent):
        return None
    return Upload(job, spec, last, saved[0], command)


def _was_tried(attempt: AttemptRow) -> bool:
    """Return whether the supervisor of the attempt has recorded the result of an upload.

    A result without a time does not count: the supervisor was killed during the upload.
    """
    found = (attempt.result or {}).get("uploading")
    return isinstance(found, Mapping) and "seconds" in found


def _uploaded(attempt: AttemptRow) -> Mapping[str, Any]:
    found = (attempt.result or {}).get("uploaded")
    return found if isinstance(found, Mapping) else {}
