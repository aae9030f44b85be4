"""The dispatcher's `JobService`: who may do what, and what is checked before a job is taken."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import zerotools
from zerotools.core.errors import BadRequest
from zerotools.jobs import states
from zerotools.jobs.client.api_versions import API_VERSION
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.admission import checkpoint_listing, preflight
from zerotoolsd.admission.interpreter import Needs, check_interpreter, needs_of
from zerotoolsd.admission.rehearsal import reads_data, rehearse
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.launch import base_environment
from zerotoolsd.cleaning.removal import mentions
from zerotoolsd.dispatcher import Dispatcher
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.placement import request_of
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.scheduler import impossible
from zerotoolsd.service import (
    Cleaned,
    CleanRequest,
    Conflict,
    Event,
    Forbidden,
    JobView,
    NotFound,
    Unavailable,
)
from zerotoolsd.timeouts import run_with_timeout
from zerotoolsd.views import bare_view, job_view

log = logging.getLogger(__name__)

_LARGEST_ID = 2**63 - 1

LOOK_SECONDS = 10.0
"""How long a look at the files of a job may take at submit."""

_LAST_REHEARSED = 16
"""Jobs that their interpreter was asked about, and is not asked again when they are submitted."""

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")
InterpreterCheck = Callable[[str, Mapping[str, str], Needs], Awaitable[None]]
"""(interpreter, environment, what it must have); raises BadRequest."""
Rehearsal = Callable[[JobSpec, str, Mapping[str, str]], Awaitable[list[str]]]
"""(job, interpreter, environment) -> notes on its model and its data; raises BadRequest."""


class DispatcherService:
    """What the HTTP handlers call."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        check_python: InterpreterCheck = check_interpreter,
        rehearse: Rehearsal = rehearse,
    ) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._check_python = check_python
        self._rehearse = rehearse
        self._started = time.monotonic()
        self._places: dict[int, str] = {}
        self._rehearsed: list[str] = []

    async def submit(
        self, spec: JobSpec, *, uid: int, idempotency_key: str | None
    ) -> tuple[JobView, bool]:
        """See `JobService`."""
        return await self._submit(spec, uid, idempotency_key, rehearse=True)

    async def _submit(
        self, spec: JobSpec, uid: int, idempotency_key: str | None, *, rehearse: bool
    ) -> tuple[JobView, bool]:
        self._check_uid(uid)
        place, named = None, []
        text = json.dumps(job_to_dict(spec))
        if self._store.by_key(uid, idempotency_key) is None:
            await self._check(spec)
            if rehearse and text not in self._rehearsed and await self._is_asked(spec):
                await self._ask(spec)
            place = await self._place_of(spec)
            named = await self._look(spec, mentions, text, spec.output_dir or "")
        # Nothing is awaited from here on: two submits may come at once, also of one job.
        if self._store.by_key(uid, idempotency_key) is None:
            self._check_output_is_free(spec, place)
            self._dispatcher.cleaner.refuse_going(named)
        try:
            job, new = self._store.submit(
                uid=uid,
                name=spec.name,
                spec=spec,
                output_dir=spec.output_dir,
                default_output=self._dispatcher.jobs_dir,
                idempotency_key=idempotency_key,
                now=time.time(),
            )
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"the job cannot be queued: writing the queue failed: {error}"
            ) from None
        if new:
            self._places[job.id] = place or os.path.normpath(job.output_dir)
            self._dispatcher.announce()
        return self._view(job), new

    async def check(self, spec: JobSpec, *, uid: int, model: bool = False) -> list[str]:
        """See `JobService`."""
        self._check_uid(uid)
        await self._check(spec)
        self._check_output_is_free(spec, await self._place_of(spec))
        if spec.engine == "script" or not (model or await self._is_asked(spec)):
            return []
        notes = await self._ask(spec)
        self._rehearsed = [json.dumps(job_to_dict(spec)), *self._rehearsed[: _LAST_REHEARSED - 1]]
        return notes

    async def _is_asked(self, spec: JobSpec) -> bool:
        """Whether the job's interpreter is asked at each submit: about a foreign checkpoint, or
        about data that the daemon cannot look at itself."""
        asked = (preflight.has_begun_elsewhere, reads_data)
        return any([await self._look(spec, look, spec) for look in asked])

    async def _ask(self, spec: JobSpec) -> list[str]:
        return await self._rehearse(spec, spec.python or sys.executable, base_environment(spec))

    def _check_uid(self, uid: int) -> None:
        own = os.geteuid()
        if uid not in (own, 0):
            raise Forbidden(
                f"this daemon runs the jobs of uid {own}, and you are uid {uid}; "
                "start a zerotoolsd of your own"
            )

    async def _check(self, spec: JobSpec) -> None:
        gpus = spec.device == "cuda"
        snapshot = await self._dispatcher.machine.snapshot() if gpus else None
        why = impossible(request_of(0, spec), snapshot, self._dispatcher.config.limits)
        if why is not None:
            raise BadRequest(why)
        await self._look(spec, preflight.check_files, spec)
        await self._look(spec, preflight.check_output, spec)
        needs = await self._look(spec, needs_of, spec)
        if needs is not None:
            await self._check_python(spec.python or sys.executable, base_environment(spec), needs)

    async def _look(
        self,
        spec: JobSpec,
        look: Callable[Parameters, Value],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Value:
        try:
            return await run_with_timeout(LOOK_SECONDS, look, *args, **kwargs)
        except TimeoutError:
            raise Unavailable(
                f"the files of the job could not be read within {LOOK_SECONDS:g} s: check the file "
                f"systems of output_dir = {spec.output_dir}, of resume_from, and of its data"
            ) from None

    async def _place_of(self, spec: JobSpec) -> str | None:
        """Where the job writes, links followed. So for the jobs of an earlier daemon too."""
        if spec.output_dir is None:
            return None
        for job in self._unfinished():
            if job.id not in self._places:
                place = os.path.normpath(job.output_dir)
                # A path that an odd record holds is compared as it is.
                with suppress(TimeoutError, OSError, ValueError):
                    place = await run_with_timeout(1, os.path.realpath, job.output_dir)
                self._places[job.id] = place
        return await self._look(spec, os.path.realpath, spec.output_dir)

    def _unfinished(self) -> list[JobRow]:
        return self._store.jobs([state for state in states.STATES if state not in states.TERMINAL])

    def _check_output_is_free(self, spec: JobSpec, place: str | None) -> None:
        if place is None:
            return
        for job in self._unfinished():
            if self._places.get(job.id) == place:
                raise Conflict(
                    f"output_dir = {spec.output_dir}: job {job.id}, which is {job.state}, "
                    "writes there; name another directory"
                )

    async def jobs(
        self, *, state: str | None = None, limit: int = 100, after: int | None = None
    ) -> list[JobView]:
        """See `JobService`."""
        if state is not None and state not in states.STATES:
            raise BadRequest(f"state = {state}: must be one of {', '.join(states.STATES)}")
        wanted = None if state is None else [state]
        below = None if after is None else min(after, _LARGEST_ID)
        return [self._view(job) for job in self._store.jobs(wanted, limit=limit, after=below)]

    async def job(self, job_id: int) -> JobView:
        """See `JobService`."""
        return self._view(self._find(job_id))

    def _find(self, job_id: int) -> JobRow:
        try:
            return self._store.job(min(job_id, _LARGEST_ID))
        except KeyError:
            raise NotFound(f"there is no job {job_id}") from None

    def _view(self, job: JobRow) -> JobView:
        try:
            return job_view(
                job,
                self._store.attempts(job.id),
                self._dispatcher.why_it_waits(job),
                quiet_seconds=self._dispatcher.config.watch.no_progress_seconds,
            )
        except Exception as error:  # one odd record must not hide all other jobs of a listing
            log.exception("job %d cannot be shown in full", job.id)
            return bare_view(job, f"{type(error).__name__}: {error}")

    async def cancel(self, job_id: int, *, uid: int) -> JobView:
        """See `JobService`."""
        job = self._find(job_id)
        if uid not in (job.uid, os.geteuid(), 0):
            raise Forbidden(f"job {job_id} belongs to uid {job.uid}, and you are uid {uid}")
        try:
            self._dispatcher.cancel(job, f"uid {uid}")
        except NotAllowed:
            raise Conflict(f"job {job_id} is over: it {_how(job.state)}") from None
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"job {job_id} cannot be cancelled: writing the queue failed: {error}"
            ) from None
        return self._view(self._find(job_id))

    async def resume(self, job_id: int, *, uid: int) -> JobView:
        """See `JobService`."""
        job = self._find(job_id)
        if uid not in (job.uid, os.geteuid(), 0):
            raise Forbidden(f"job {job_id} belongs to uid {job.uid}, and you are uid {uid}")
        if job.state == states.HELD:
            return self._resume(job)
        if job.state not in states.TERMINAL:
            raise Conflict(
                f"job {job_id} is not over: it is {job.state.replace('_', ' ')}; wait for its end, "
                "or cancel it"
            )
        if (
            job.state == states.SUCCEEDED
            and job.spec.engine != "script"
            and not job.standing.reason
        ):
            raise Conflict(
                f"job {job_id} has succeeded: all its steps are done; to train longer, submit its "
                f'job file with more steps and resume_from = "{job.output_dir}"'
            )
        spec, begun = replace(job.spec, output_dir=job.output_dir), True
        if spec.engine == "script":
            found = last_report.latest_checkpoint(job, self._store.attempts(job.id))
            spec = replace(spec, resume_from=str(found[1])) if found else spec
        elif await self._look(spec, checkpoint_listing.newest, Path(job.output_dir)) is not None:
            spec = replace(spec, resume_from=job.output_dir)
        else:
            begun = False  # it begins as a new job does
        view, _ = await self._submit(spec, uid, None, rehearse=not begun)
        return view

    def _resume(self, job: JobRow) -> JobView:
        if not self._store.open_tokens(job.id):
            _ = job.spec  # it would be held again at once, for the same reason
        try:
            self._dispatcher.resume(job)
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"job {job.id} cannot be resumed: writing the queue failed: {error}"
            ) from None
        return self._view(self._find(job.id))

    async def clean(self, request: CleanRequest, *, uid: int) -> Cleaned:
        """See `JobService`."""
        owner = None if uid in (os.geteuid(), 0) else uid
        return await self._dispatcher.cleaner.clean(request, f"uid {uid}", owner)

    async def events(self, since: int, wait: float) -> list[Event]:
        """See `JobService`."""
        since = min(since, _LARGEST_ID)
        changed = self._dispatcher.changed
        found = self._store.events(since)
        deadline = time.monotonic() + wait
        while not found and (left := deadline - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(changed.wait(), left)
            except TimeoutError:
                break
            changed = self._dispatcher.changed
            found = self._store.events(since)
        return found

    def run_dir(self, job_id: int, attempt: int) -> Path:
        """See `JobService`."""
        attempts = self._store.attempts(self._find(job_id).id)
        if not 1 <= attempt <= len(attempts):
            raise NotFound(f"job {job_id} has no attempt {attempt}; it has had {len(attempts)}")
        return Path(attempts[attempt - 1].run_dir)

    async def machine(self) -> dict[str, Any]:
        """See `JobService`."""
        snapshot = await self._dispatcher.machine.snapshot()
        leases = [
            {"gpu_uuid": lease.gpu_uuid, "job_id": lease.job_id, "attempt": lease.attempt}
            for lease in self._store.leases()
        ]
        return {"snapshot": snapshot.to_json(), "leases": leases}

    def health(self) -> dict[str, Any]:
        """See `JobService`."""
        return {
            "version": zerotools.__version__,
            "pid": os.getpid(),
            "schema": self._store.schema,
            "uptime_seconds": time.monotonic() - self._started,
            "api_versions": [API_VERSION],
        }


def _how(state: str) -> str:
    return {"cancelled": "was cancelled already"}.get(state, state)
