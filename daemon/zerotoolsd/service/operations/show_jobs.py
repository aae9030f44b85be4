"""Makes the views of jobs that clients get, without holding up other requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from zerotools.jobs.states import ACTIVE, TERMINAL
from zerotoolsd.attempts.progress_report.start_history import StartHistory
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.file_checks.checkers import Ask
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.interface.time_slice import TimeSlice
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.operations.shown_specs import ShownSpecs
from zerotoolsd.service.operations.thinned_checkpoints import ThinnedCheckpoints
from zerotoolsd.service.results.evaluations import newest_evaluation
from zerotoolsd.service.views import bare_view, glance, job_view

ROWS_AT_ONCE = 20
"""Jobs that are read from the queue before other requests get the event loop, at most."""
READ_SECONDS = 0.005
"""Seconds after which no further job is read first: job files may be long."""

log = logging.getLogger(__name__)


class JobViews:
    """Makes views of the jobs of a dispatcher. `ask` reads files."""

    def __init__(self, dispatcher: Dispatcher, ask: Ask) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._specs = ShownSpecs()
        self._history = StartHistory(dispatcher.store)
        self._thinned = ThinnedCheckpoints(ask, dispatcher.users)

    async def of(self, job: JobRow) -> JobView:
        """Return the complete view of one job."""
        return await self._made(job, TimeSlice(), short=False)

    async def of_all(self, jobs: Sequence[JobRow]) -> list[JobView]:
        """Return the views of several jobs for a list."""
        time_slice = TimeSlice()
        return [await self._made(job, time_slice, short=True) for job in jobs]

    async def listed(
        self,
        states: Sequence[str] | None,
        limit: int,
        below: int | None,
        *,
        name: str | None,
        array: int | None,
        uid: int | None,
        whole: Callable[[int], bool] | None,
    ) -> list[JobView]:
        """List jobs as `JobRequests.jobs` does. Jobs of users without `whole` are returned as a
        glance."""
        time_slice, views = TimeSlice(), list[JobView]()
        while len(views) < limit:
            most = min(limit - len(views), ROWS_AT_ONCE)
            found = self._store.jobs(
                states,
                limit=most,
                after=below,
                name=name,
                array=array,
                uid=uid,
                seconds=READ_SECONDS,
            )
            for job in found:
                await time_slice.pause_if_due()
                if whole is None or whole(job.uid):
                    views.append(await self._made(job, time_slice, short=True))
                else:
                    views.append(glance(job, self._store.attempts(job.id)))
            if not found:
                break
            below = found[-1].id
        return views

    async def _made(self, job: JobRow, time_slice: TimeSlice, *, short: bool) -> JobView:
        before = time_slice.pauses
        try:
            shown = await self._specs.of(job, time_slice, short=short)
            usual = None
            if job.state in ACTIVE or (not short and job.state not in TERMINAL):
                usual = await self._history.usual_seconds(job, time_slice)
            await time_slice.pause_if_due()
            if time_slice.pauses > before:  # it may have changed meanwhile
                with suppress(KeyError):
                    job = self._store.job(job.id).read_as(job)
            view = job_view(
                job,
                self._store.attempts(job.id),
                self._dispatcher.why_it_waits(job),
                quiet_seconds=self._dispatcher.config.watch.no_progress_seconds,
                after=self._store.dependencies.of(job.id),
                shown=shown,
                usual=usual,
                evaluated_by=None if short else newest_evaluation(self._store, job),
            )
            return await self._thinned.noted(view, job, waits=not short)
        except MemoryError:  # it is not the record that is odd
            raise
        except Exception as error:  # one odd record must not hide all other jobs of a listing
            log.exception("job %d cannot be shown in full", job.id)
            return bare_view(job, f"{type(error).__name__}: {error}")
