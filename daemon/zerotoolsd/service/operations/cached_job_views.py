"""Makes the views of jobs that clients get, without delaying other requests.

Masking the secrets in a command of 1 MB can take a second. So it runs in short steps, and the event
loop serves other requests between them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.states import ACTIVE, TERMINAL
from zerotools.jobs.text.mask_secrets import longest_first
from zerotoolsd.attempts.job_environment import long_values, secret_steps
from zerotoolsd.attempts.usual_start_duration import StartHistory
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.file_checks.file_checker_pool import Ask
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.interface.event_loop_slice import TimeSlice
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.make_job_view import (
    RelatedJobs,
    ShownSpec,
    bare_view,
    empty_job_file,
    job_view,
    public_view,
    set_key_steps,
    spec_steps,
)
from zerotoolsd.service.queue_evaluation_jobs import newest_evaluation
from zerotoolsd.service.read_checkpoints_and_predictions import thinned_sentence
from zerotoolsd.users.served_users import ServedUsers

ROWS_AT_ONCE = 20
"""At most this many jobs are read from the queue before other requests are served."""
READ_SECONDS = 0.005
"""Seconds after which one read of jobs from the queue ends early, because job files may be long."""

log = logging.getLogger(__name__)


class JobViews:
    """Makes views of jobs for clients. `ask` calls a function in the process that reads files."""

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
        after: int | None,
        *,
        name: str | None,
        array: int | None,
        uid: int | None,
        whole: Callable[[int], bool] | None,
        by_priority: bool,
    ) -> list[JobView]:
        """Return views of jobs, as `JobRequests.jobs` does."""
        time_slice, views = TimeSlice(), list[JobView]()
        while len(views) < limit:
            most = min(limit - len(views), ROWS_AT_ONCE)
            found = self._store.jobs(
                states,
                limit=most,
                after=after,
                name=name,
                array=array,
                uid=uid,
                by_priority=by_priority,
                seconds=READ_SECONDS,
            )
            for job in found:
                await time_slice.pause_if_due()
                if whole is None or whole(job.uid):
                    views.append(await self._made(job, time_slice, short=True))
                else:
                    views.append(public_view(job, self._store.attempts(job.id)))
            if not found:
                break
            after = found[-1].id
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
                related=RelatedJobs(
                    after=self._store.dependencies.of(job.id),
                    evaluated_by=None if short else newest_evaluation(self._store, job),
                ),
                shown=shown,
                usual=usual,
                since=None if job.state in TERMINAL else self._store.state_since(job),
            )
            return await self._thinned.with_thinned(view, job, waits=not short)
        except MemoryError:  # it is not the record that is odd
            raise
        except Exception as error:  # one odd record must not hide all other jobs of a listing
            log.exception("job %d cannot be shown in full", job.id)
            return bare_view(job, f"{type(error).__name__}: {error}")


MOST_CHARACTERS = 2 << 20
"""The largest total size of the cached job files, in characters.

Their short forms may need the same amount again.
"""
WHOLE_CHARACTERS = 16 << 10
"""A job file with more characters is shortened in a list."""
_LONGEST_TEXT, _SHORT_TEXT, _MOST_ENTRIES = 1000, 64, 50


class ShownSpecs:
    """Caches the masked job file of each job, keyed by job number."""

    def __init__(self, most: int = MOST_CHARACTERS) -> None:
        self._whole, self._short = _Kept(most), _Kept(most)

    async def of(self, job: JobRow, time_slice: TimeSlice, *, short: bool = False) -> ShownSpec:
        """Return the masked job file of `job`. With `short`, long texts and lists are left out."""
        short = short and len(job.spec_text) > WHOLE_CHARACTERS
        kept = self._short if short else self._whole
        if (known := kept.find(job)) is not None:
            return known
        spec = job.reading.spec
        if spec is None:
            return empty_job_file(job)
        await time_slice.pause_if_due()
        secrets = longest_first(await time_slice.run(secret_steps(spec)))
        await time_slice.pause_if_due()
        tree = job_to_dict(spec)
        if short:
            tree = shortened_job_file(tree)
        await time_slice.pause_if_due()
        shown = await time_slice.run(spec_steps(spec, tree, secrets))
        await time_slice.pause_if_due()
        unshown = longest_first((*secrets, *long_values(spec)))
        keys = await time_slice.run(set_key_steps(job, shortened=short))
        found = ShownSpec(secrets, shown, short, unshown, keys)
        kept.add(job, found, WHOLE_CHARACTERS if short else len(job.spec_text))
        return found


@dataclass(frozen=True)
class _Entry:
    texts: tuple[str, str | None]
    shown: ShownSpec
    size: int


class _Kept:
    """Caches the most recently used entries, up to `most` characters."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._size = 0

    def find(self, job: JobRow) -> ShownSpec | None:
        entry = self._entries.get(job.id)
        if entry is None or entry.texts != (job.spec_text, job.given_text):
            return None
        self._entries.move_to_end(job.id)
        return entry.shown

    def add(self, job: JobRow, shown: ShownSpec, size: int) -> None:
        if (before := self._entries.pop(job.id, None)) is not None:
            self._size -= before.size
        self._entries[job.id] = _Entry((job.spec_text, job.given_text), shown, size)
        self._size += size
        while self._size > self._most and len(self._entries) > 1:
            self._size -= self._entries.popitem(last=False)[1].size


def shortened_job_file(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job file without its longest values, of about `WHOLE_CHARACTERS` characters.

    A text is either kept completely or removed, because a part of a secret might not be recognised
    as a secret.
    """
    return _Shortening().table(tree)


class _Shortening:
    def __init__(self) -> None:
        self._remaining = WHOLE_CHARACTERS

    def table(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        short = {}
        for name, value in list(tree.items())[: _MOST_ENTRIES * 4]:
            self._remaining -= len(name)
            if len(name) <= _LONGEST_TEXT and self._remaining > -WHOLE_CHARACTERS:
                short[name] = self._value(value)
        return short

    def _value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self.table(value)
        if isinstance(value, (list, tuple)):
            return [self._value(each) for each in value[:_MOST_ENTRIES]]
        if isinstance(value, str):
            if len(value) > min(_LONGEST_TEXT, max(_SHORT_TEXT, self._remaining)):
                return f"({len(value)} characters)"
            self._remaining -= len(value)
        return value


FRESH_SECONDS = 30.0
LOOK_SECONDS, PATIENCE_SECONDS = 10.0, 0.5
MOST_KEPT, MOST_LOOKS = 4096, 8


class ThinnedCheckpoints:
    """Checks whether the newest checkpoints of jobs are thinned, without delaying lists of jobs.

    A list of jobs shows the result of the last check, and a new check begins meanwhile. So a file
    system that does not respond delays no list. `ask` reads the files as the user of the job.
    """

    def __init__(self, ask: Ask, users: ServedUsers) -> None:
        self._ask = ask
        self._users = users
        self._seen: OrderedDict[tuple[int, str], tuple[float, str | None]] = OrderedDict()
        self._checks: dict[tuple[int, str], asyncio.Task[None]] = {}

    async def with_thinned(self, view: JobView, job: JobRow, *, waits: bool) -> JobView:
        """Return `view` with `thinned` set for its newest checkpoint.

        If `waits` is True, wait at most `PATIENCE_SECONDS` for a new check.
        """
        newest = view.latest_checkpoint
        if newest is None:
            return view
        key = (job.uid, str(newest["path"]))
        look = self._start_check(key)
        if waits and look is not None:
            await asyncio.wait([look], timeout=PATIENCE_SECONDS)
        _, said = self._seen.get(key, (0.0, None))
        return replace(view, latest_checkpoint={**newest, "thinned": said})

    def _start_check(self, key: tuple[int, str]) -> asyncio.Task[None] | None:
        seen, _ = self._seen.get(key, (float("-inf"), None))
        if time.monotonic() - seen < FRESH_SECONDS:
            return None
        if key not in self._checks and len(self._checks) < MOST_LOOKS:
            task = self._checks[key] = asyncio.create_task(self._check(key))
            task.add_done_callback(lambda _: self._checks.pop(key, None))
        return self._checks.get(key)

    async def _check(self, key: tuple[int, str]) -> None:
        uid, path = key
        said = self._seen.get(key, (0.0, None))[1]
        try:
            user = self._users.for_files(uid)
            said = await self._ask(LOOK_SECONDS, thinned_sentence, path, user=user)
        except (TimeoutError, OSError):  # the last known state is shown
            pass
        self._seen[key] = (time.monotonic(), said)
        self._seen.move_to_end(key)
        while len(self._seen) > MOST_KEPT:
            self._seen.popitem(last=False)

    async def close(self) -> None:
        """Stop all checks."""
        for task in list(self._checks.values()):
            task.cancel()
        await asyncio.gather(*self._checks.values(), return_exceptions=True)
