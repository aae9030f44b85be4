"""Removes ended jobs, one after another, while the daemon continues with its other work."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from zerotools.jobs import states
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.doctor.kernel_and_clock import clock_is_synchronised
from zerotoolsd.attempts import crash_points
from zerotoolsd.config.config_tables import RetentionConfig
from zerotoolsd.dispatch import remove_job_files
from zerotoolsd.dispatch.remove_job_files import (
    EndedJob,
    NamedPath,
    NotRemovable,
    RemovableFiles,
)
from zerotoolsd.file_checks.file_checker_pool import Ask, SlowCheck
from zerotoolsd.interface.api_types import (
    Cleaned,
    CleanedJob,
    CleanRequest,
    Conflict,
    KeptJob,
    Unavailable,
)
from zerotoolsd.queue.clocks import SteadyCalendar
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.write_rows import Changed
from zerotoolsd.supervisor.transient_os_errors import error_text
from zerotoolsd.users.account import user_name
from zerotoolsd.users.served_users import OWN_ONLY, ServedUsers

LOOK_SECONDS = 60.0
"""Longest time, in seconds, to read the paths that jobs name."""
REMOVE_SECONDS = 24 * 3600.0
RETENTION_SECONDS = 3600.0
"""Seconds between two searches for jobs and events that are older than the retention settings
allow.
"""

AT_ONCE = 100
"""Number of jobs that are read before other tasks of the event loop run."""

log = logging.getLogger(__name__)


class Cleaner:
    """Removes ended jobs, one at a time. It changes the queue itself; to read and remove files, it
    calls functions in a child process through `ask`.
    """

    def __init__(
        self,
        state_dir: Path,
        store: Store,
        announce: Callable[[], None],
        ask: Ask,
        users: ServedUsers = OWN_ONLY,
    ) -> None:
        self._ask = ask
        self._users = users
        self._calendar = SteadyCalendar(clock_is_synchronised)
        self._state_dir = state_dir
        self._store = store
        self._announce = announce
        self._turn = asyncio.Lock()
        self._unfinished = remove_job_files.unfinished_removals(state_dir)
        self._being_removed = set(self._unfinished)
        remove_job_files.reserve_intent(state_dir)

    @property
    def _jobs_dir(self) -> Path:
        return self._state_dir / "jobs"

    def refuse_being_removed(self, named: Sequence[NamedPath]) -> None:
        """Raise Conflict if a path in `named` lies in the directory of a job under removal."""
        for job_id in self._being_removed:
            places = remove_job_files.names_of(str(self._jobs_dir / str(job_id)))
            for mention in named:
                if any(map(mention.is_in, places)):
                    raise Conflict(
                        f"{mention.key} = {mention.text}: it belongs to job {job_id}, which "
                        "is being removed; name another path"
                    )

    async def clean(self, request: CleanRequest, who: str, owner: int | None = None) -> Cleaned:
        """Remove the jobs that `request` selects. `owner` is the uid of the user of these jobs;
        None: jobs of all users.

        Raises Unavailable if paths in job files are on a file system that does not respond.
        """
        async with self._turn:
            together = frozenset(request.jobs or ())
            named = NamedPaths(self._store, self._named_paths, owner, together)
            over = await self._ended_jobs(request, owner)
            meant = await asyncio.to_thread(
                remove_job_files.selected_jobs, over, request, self._calendar.now()
            )
            gone: list[CleanedJob] = []
            kept = await self._excluded_jobs(request, {job.id for job in meant}, owner)
            for each in meant:
                job = self._store.job(each.id)
                try:
                    gone += await self._clean_one(job, request, named, who, owner)
                except NotRemovable as why:
                    kept.append(KeptJob(id=job.id, name=_name_for(owner, job), why=str(why)))
            return Cleaned(jobs=tuple(gone), kept=tuple(kept))

    async def _ended_jobs(self, request: CleanRequest, owner: int | None) -> list[EndedJob]:
        """Return the ended jobs of the user `owner`. Jobs of other users that the request names
        are included, so that they can be refused.
        """
        named, found = frozenset(request.jobs or ()), list[EndedJob]()
        ids = [job_id for state in states.TERMINAL for job_id in self._store.ids(state)]
        for count, job_id in enumerate(sorted(ids), 1):
            job = self._store.job(job_id)  # no other code removes one
            if owner in (None, job.uid) or job_id in named:
                found.append(EndedJob(job_id, job.state, job.ended))
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    async def _excluded_jobs(
        self, request: CleanRequest, meant: set[int], owner: int | None
    ) -> list[KeptJob]:
        """Return the jobs that the request names by number but excludes by other options."""
        found = []
        for count, job_id in enumerate(request.jobs or ()):
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
            if job_id in meant:
                continue
            try:
                job = self._store.job(job_id)
            except (KeyError, OverflowError):
                why = f"job {job_id} does not exist"
                found.append(KeptJob(id=job_id, name="", why=why, gone=True))
                continue
            why = f"it {states.predicate(job.state)}; only a finished job can be removed"
            if job.state in states.TERMINAL:
                why = "it is excluded by the options for state, age or number of jobs to keep"
            found.append(KeptJob(id=job.id, name=_name_for(owner, job), why=why))
        return found

    async def _clean_one(
        self, job: JobRow, request: CleanRequest, named: NamedPaths, who: str, owner: int | None
    ) -> list[CleanedJob]:
        if owner is not None and job.uid != owner:
            raise NotRemovable(f"it belongs to {user_name(job.uid)}")
        attempts = self._store.attempts(job.id)
        files = await self._removable_files(job, attempts, request, named)
        outputs = files.outputs if request.outputs else ()
        if request.logs_only and not files.logs:
            return []
        view = CleanedJob(
            id=job.id,
            name=job.name,
            state=job.state,
            ended=job.ended,
            size_bytes=files.size_bytes - (0 if outputs else files.outputs_bytes),
            outputs=tuple(map(str, outputs)),
        )
        if not request.dry_run:
            await self._remove(job, request, files, who)
        return [view]

    async def _removable_files(
        self,
        job: JobRow,
        attempts: Sequence[AttemptRow],
        request: CleanRequest,
        named: NamedPaths,
    ) -> RemovableFiles:
        """Return the files of the job that are to be removed. Check again if another job was queued
        meanwhile. Raises NotRemovable.
        """
        while True:
            newest = self._newest()
            files = await self._files(job, attempts)
            if files.outputs and not (request.outputs or request.logs_only):
                raise NotRemovable(
                    f"its output is in the state directory ({files.outputs[0]}); to remove "
                    f"that too, type: zerotools clean --outputs {job.id}"
                )
            await self._refuse_used(job, files, request, named)
            if self._newest() == newest:
                return files

    def _newest(self) -> int:
        jobs = self._store.jobs(limit=1)
        return jobs[0].id if jobs else 0

    async def _files(self, job: JobRow, attempts: Sequence[AttemptRow]) -> RemovableFiles:
        held = [lease for lease in self._store.leases() if lease.job_id == job.id]
        if held:
            raise NotRemovable(f"{held[0].held_by or 'one of its processes'} still holds a GPU")
        try:
            return remove_job_files.files_in(
                await self._ask(
                    *(LOOK_SECONDS, remove_job_files.removable_files),
                    *(str(self._jobs_dir), job, tuple(attempts)),
                    user=self._users.for_files(job.uid),
                )
            )
        except SlowCheck:
            raise NotRemovable(f"listing its files took more than {LOOK_SECONDS:g} s") from None
        except TimeoutError:
            raise NotRemovable(f"{self._jobs_dir / str(job.id)} does not respond") from None
        except OSError as error:
            raise NotRemovable(error_text(error)) from None

    async def _refuse_used(
        self, job: JobRow, files: RemovableFiles, request: CleanRequest, named: NamedPaths
    ) -> None:
        used = await named.by_unfinished(files.places)
        if used is not None:
            other, mention = used
            where = f"{mention.key} = {mention.text}"
            raise NotRemovable(
                f"job {other.id}, which is {states.display_text(other.state)}, needs these files "
                f"({where if named.owner in (None, other.uid) else 'it belongs to another user'})"
            )
        if not (request.outputs and files.outputs):
            return
        writer = await named.by_others_output(files.output_places, job.id)
        if writer is not None:
            raise NotRemovable(
                f"job {writer} wrote into the same output directory; to remove both jobs, type: "
                f"zerotools clean --outputs {job.id} {writer}"
            )

    async def _named_paths(self, job: JobRow) -> list[NamedPath]:
        try:
            return remove_job_files.named_paths_in(
                await self._ask(
                    *(
                        LOOK_SECONDS,
                        remove_job_files.mentioned_paths,
                        job.spec_text,
                        job.output_dir,
                    ),
                    user=self._users.for_files(job.uid),
                )
            )
        except SlowCheck:
            raise Unavailable(
                f"nothing can be removed now: checking the paths of job {job.id} took more than "
                f"{LOOK_SECONDS:g} s; try again when the machine is less busy"
            ) from None
        except TimeoutError:
            raise Unavailable(
                f"nothing can be removed now: the paths of job {job.id} do not respond"
            ) from None

    async def _remove(
        self, job: JobRow, request: CleanRequest, files: RemovableFiles, who: str
    ) -> None:
        """Remove a job and its files. Raises NotRemovable; then no other job may use the job's
        paths until `finish` has succeeded.
        """
        self._being_removed.add(job.id)
        outputs = request.outputs
        again = "; the next zerotools clean, or start of the daemon, removes the job"
        again = "" if request.logs_only else again
        try:
            if not request.logs_only:
                remove_job_files.note_intent(self._state_dir, job.id, outputs=outputs)
                crash_points.crash_at(crash_points.CLEAN_NOTED)
            user = self._users.for_files(job.uid)
            await self._ask(
                REMOVE_SECONDS, remove_job_files.remove_files, files, outputs, user=user
            )
            if user is not None:
                remove_job_files.remove_empty(self._jobs_dir, files, outputs=outputs)
            crash_points.crash_at(crash_points.FILES_REMOVED)
            if not request.logs_only:
                await self._forget(job, who)
        except TimeoutError:
            raise NotRemovable(f"its files do not respond{again}") from None
        except OSError as error:
            raise NotRemovable(f"{error_text(error)}{again}") from None
        except (sqlite3.OperationalError, Changed) as error:
            raise NotRemovable(
                f"its files are removed, but its record could not be removed: {error}{again}"
            ) from None
        finally:
            if not remove_job_files.is_noted(self._state_dir, job.id):
                self._being_removed.discard(job.id)

    async def _forget(self, job: JobRow, who: str) -> None:
        async def remove() -> None:
            self._store.remove(job, time.time(), f"removed by {who}")

        await when_free(remove)
        crash_points.crash_at(crash_points.RECORD_REMOVED)
        remove_job_files.forget_intent(self._state_dir, job.id)
        log.info("job %d (%s): removed by %s", job.id, job.name, who)
        self._announce()

    async def finish(self) -> None:
        """Finish the removals that an earlier daemon has begun."""
        async with self._turn:
            for job_id, outputs in self._unfinished.items():
                try:
                    await self._finish_one(job_id, outputs)
                except (OSError, NotRemovable, sqlite3.OperationalError) as error:
                    log.error("job %d cannot be removed yet: %s", job_id, error)

    async def _finish_one(self, job_id: int, outputs: bool) -> None:
        try:
            job = self._store.job(job_id)
        except (KeyError, OverflowError):
            self._cancel_removal(job_id)
            return
        if job.state not in states.TERMINAL:
            log.error("job %d is %s and is not removed", job_id, job.state)
            self._cancel_removal(job_id)
            return
        files = await self._files(job, self._store.attempts(job_id))
        request = CleanRequest(jobs=(job_id,), outputs=outputs)
        await self._remove(job, request, files, "a clean that was interrupted")

    def _cancel_removal(self, job_id: int) -> None:
        remove_job_files.forget_intent(self._state_dir, job_id)
        self._being_removed.discard(job_id)

    async def run_forever(self, retention: RetentionConfig) -> None:
        """Finish interrupted removals. Then keep removing jobs and events that are too old."""
        try:
            await self.finish()
        except Exception:  # nothing else waits for this, and retention must continue
            log.exception("a defect in zerotoolsd: an interrupted clean cannot be finished")
        while True:
            await self._guarded(retention)
            await asyncio.sleep(RETENTION_SECONDS)

    async def _guarded(self, retention: RetentionConfig) -> None:
        try:
            await self.retain(retention)
        except (OSError, sqlite3.OperationalError, Unavailable) as error:
            log.error("jobs that [retention] should remove stay for now: %s", error)
        except Exception:  # nothing else waits for this, and the jobs must continue
            log.exception("a defect in zerotoolsd: [retention] cannot be applied now")

    async def retain(self, retention: RetentionConfig) -> None:
        """Remove the jobs and events that are older than the retention settings allow."""
        if retention.logs is not None:
            age = seconds_of(retention.logs)
            await self.clean(CleanRequest(older_than_seconds=age, logs_only=True), "retention.logs")
        if retention.records is not None:
            age = seconds_of(retention.records)
            await self.clean(CleanRequest(older_than_seconds=age), "retention.records")
        if retention.events is not None:
            count = self._store.remove_events(self._calendar.now() - seconds_of(retention.events))
            log.info("%d events were removed", count)


def _name_for(owner: int | None, job: JobRow) -> str:
    """Return the name of the job, or a placeholder if the user `owner` may not see the job."""
    return job.name if owner in (None, job.uid) else f"job-{job.id}"


UNFINISHED = tuple(state for state in states.STATES if state not in states.TERMINAL)

LookUp = Callable[[JobRow], Awaitable[list[NamedPath]]]


class NamedPaths:
    """Finds jobs that name a path in their job files, during one removal of files.

    Jobs that are queued during the removal are found, too: each has a higher number than all
    earlier jobs. `owner` is the uid of the user who requested the removal (None: all users).
    `together` are the jobs that are removed.
    """

    def __init__(
        self,
        store: Store,
        look_up: LookUp,
        owner: int | None = None,
        together: Collection[int] = (),
    ) -> None:
        self.owner = owner
        self._together = together
        self._store = store
        self._look_up = look_up
        self._texts: list[str] = []
        self._named: dict[int, list[NamedPath]] = {}
        self._newest = 0
        self._all_text = ""
        self._writers: dict[str, set[int]] | None = None

    async def by_unfinished(self, places: Sequence[str]) -> tuple[JobRow, NamedPath] | None:
        """Return an unfinished job that names one of the paths `places` or a path inside one of
        them. Also return the text in which the job names it.

        Return None if no job does.
        """
        await self._catch_up()
        if not any(place in self._all_text for place in places):
            return None
        for job_id, named_paths in self._named.items():
            found = next((m for m in named_paths if any(m.is_in(place) for place in places)), None)
            if found is not None and (job := self._unfinished(job_id)) is not None:
                return job, found
        return None

    def _unfinished(self, job_id: int) -> JobRow | None:
        try:
            job = self._store.job(job_id)
        except KeyError:
            return None
        return job if job.state in UNFINISHED else None

    async def _catch_up(self) -> None:
        ids = sorted(
            job_id for state in UNFINISHED for job_id in self._store.ids(state, above=self._newest)
        )
        for job_id in ids:
            self._newest = job_id
            if (job := self._unfinished(job_id)) is None:
                continue
            named_paths = self._named[job_id] = await self._look_up(job)
            self._texts += [text for each in named_paths for text in {each.text, each.real}]
        if ids:
            self._all_text = "\0".join(self._texts)

    async def by_others_output(self, paths: Sequence[str], own: int) -> int | None:
        """Return the number of an ended job that wrote its output into one of `paths` and is not
        being removed; None if there is no such job.

        The job with the number `own` does not count.
        """
        if self._writers is None:
            self._writers = {}
            for state in states.TERMINAL:
                for job_id in self._store.ids(state):
                    await self._note_output(job_id, self._writers)
        for path in paths:
            for job_id in sorted(self._writers.get(path, ())):
                if job_id == own or job_id in self._together:
                    continue
                with suppress(KeyError):
                    return self._store.job(job_id).id
        return None

    async def _note_output(self, job_id: int, writers: dict[str, set[int]]) -> None:
        try:
            job = self._store.job(job_id)
        except KeyError:
            return
        for mention in await self._look_up(job):
            if mention.key == "output_dir":
                for place in {*_upwards(mention.text), *_upwards(mention.real)}:
                    writers.setdefault(place, set()).add(job_id)


def _upwards(path: str) -> Iterator[str]:
    pure = PurePath(path)
    return map(str, (pure, *pure.parents))
