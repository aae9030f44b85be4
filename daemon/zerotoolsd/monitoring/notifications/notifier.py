"""Sends the notices of jobs from the outbox in the queue, and makes notices of stalled jobs.

Several notices are delivered at a time, each with a time limit. A failed delivery is repeated.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs import states
from zerotools.jobs.binding.durations import seconds_of
from zerotoolsd.attempts.attempt_watcher import Guard
from zerotoolsd.attempts.progress_report import Clocks, time_since_step
from zerotoolsd.config.config_tables import NotifyConfig
from zerotoolsd.monitoring.notifications.notice_text import STALLED, JobNotices
from zerotoolsd.monitoring.notifications.notify_command import CommandRunner
from zerotoolsd.monitoring.notifications.webhooks import NotDelivered, WebhookSender
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.retry_rules import part_of_wait
from zerotoolsd.queue.rows import RUNNING, AttemptRow, JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.notice_outbox import COMMAND, WEBHOOK, Notice, Outbox
from zerotoolsd.users.open_as_user import opened
from zerotoolsd.users.served_users import OWN_ONLY, ServedUsers

OUTBOX_SECONDS = 1.0
"""Interval in seconds between reads of the outbox."""
STALL_SECONDS = 10.0
"""Interval in seconds between checks for stalled jobs."""

log = logging.getLogger(__name__)


class JobNotifier:
    """Makes notices of job changes in `store`, and delivers them while `keep_up` runs."""

    def __init__(
        self, store: Store, config: NotifyConfig, guard: Guard, users: ServedUsers = OWN_ONLY
    ) -> None:
        self._teller = JobNotices(config)
        self.stalls = StallWatch(store, self._teller, guard)
        runner = CommandRunner(config.timeout_seconds, users)
        senders: dict[str, NoticeSender] = {WEBHOOK: WebhookSender(config), COMMAND: runner}
        self.courier = NoticeDelivery(store.outbox, config, senders)
        store.tell = self._tell

    def _tell(
        self, job: JobRow, after: JobStatus, event: int, attempt: int | None, now: float
    ) -> list[Notice]:
        try:
            return list(self._teller.of_change(job, after, event, attempt, now))
        except Exception:  # of faulty data of a job: the change itself matters more
            log.exception("a change of job %d cannot be notified", job.id)
            return []

    async def keep_up(self) -> None:
        """Deliver notices until this task is cancelled; the next daemon repeats unfinished
        deliveries.
        """
        looked = time.monotonic()
        try:
            while True:
                await asyncio.sleep(OUTBOX_SECONDS)
                try:
                    if time.monotonic() - looked >= STALL_SECONDS:
                        looked = time.monotonic()
                        self.stalls.look()
                    self.courier.begin_due()
                except sqlite3.OperationalError as error:
                    log.error("the outbox cannot be used now: %s", error)
        finally:
            self.courier.cancel()


LOOKING = "checking its progress"


class StallWatch:
    """Finds running jobs that make no progress.

    `stalled` are their numbers at the last check.
    """

    def __init__(self, store: Store, teller: JobNotices, guard: Guard) -> None:
        self._store = store
        self._teller = teller
        self._guard = guard
        self._told: set[str] = set()
        """Tokens of the attempts that were already reported as stalled."""
        self.stalled: frozenset[int] = frozenset()

    def look(self) -> None:
        """Check the running jobs, and put notices of newly stalled ones into the outbox.

        Raises sqlite3.OperationalError if the outbox cannot be written now.
        """
        live, stalled = set[str](), set[int]()
        for job in self._store.jobs([states.RUNNING]):
            with self._guard(job.id, LOOKING) as reach:
                reach()
                attempt = self._store.attempts(job.id)[-1]
                if attempt.state != RUNNING or (seen := _standstill(attempt)) is None:
                    continue
                stalled.add(job.id)
                live.add(attempt.token)
                if self._teller.wants(job, STALLED):
                    self._tell(job, attempt, seen)
        self._told &= live
        self.stalled = frozenset(stalled)

    def _tell(self, job: JobRow, attempt: AttemptRow, seen: Mapping[str, Any]) -> None:
        if attempt.token in self._told:
            return
        now, waits, why = time.time(), seen["waits_for"], seen["stall"]
        if not why and waits is not None:
            why = f"the others wait for rank {waits['rank']}"
        self._store.outbox.put(self._teller.of_stall(job, attempt.number, why or None, now), now)
        self._told.add(attempt.token)


def _standstill(attempt: AttemptRow) -> Mapping[str, Any] | None:
    """Return the report on an attempt that makes no progress; None if it makes progress, or that is
    unknown.
    """
    try:
        with opened(Path(attempt.run_dir)) as run_dir:
            seen = time_since_step(run_dir, None, Clocks())
    except OSError:  # errors of its directory are reported at the attempt's end
        return None
    return seen if seen["stalled"] else None


AT_A_TIME = 8
FIRST_SECONDS, MOST_SECONDS = 5.0, 3600.0
"""Seconds to wait after the first failed delivery, and the longest wait.

Each wait is double the wait before.
"""


class NoticeSender(Protocol):
    """A channel for notices: a webhook, or a command."""

    async def send(self, notice: Notice) -> None:
        """Try once, within a time limit, to deliver the notice. Raises NotDelivered."""


class NoticeDelivery:
    """Delivers the notices in the outbox.

    `senders` maps the name of a channel to its sender; `now` returns seconds since the epoch.
    """

    def __init__(
        self,
        outbox: Outbox,
        config: NotifyConfig,
        senders: Mapping[str, NoticeSender],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._outbox = outbox
        self._senders = senders
        self._now = now
        self._keep_trying = seconds_of(config.keep_trying)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        outbox.most_per_user, outbox.most = config.most_per_user, config.most

    def cancel(self) -> None:
        """Cancel the running deliveries; their notices stay in the outbox."""
        for task in self._tasks.values():
            task.cancel()

    def begin_due(self) -> None:
        """Begin the deliveries that are due, up to the limit of concurrent ones."""
        room = AT_A_TIME - len(self._tasks)
        if room <= 0:
            return
        for notice in self._outbox.due(self._now(), AT_A_TIME + len(self._tasks)):
            if notice.id not in self._tasks and len(self._tasks) < AT_A_TIME:
                task = asyncio.create_task(self._deliver(notice))
                self._tasks[notice.id] = task
                task.add_done_callback(partial(self._forget, notice.id))

    def _forget(self, notice_id: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(notice_id, None)

    async def settle(self) -> None:
        """Wait until the running deliveries have ended."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _deliver(self, notice: Notice) -> None:
        try:
            await self._try(notice)
        except sqlite3.OperationalError as error:
            # It is in the outbox as before, and so delivered once more.
            log.error(
                "the delivery of a notification of job %d cannot be recorded: %s",
                notice.job_id,
                error,
            )

    async def _try(self, notice: Notice) -> None:
        trouble: str | None = None
        try:
            sender = self._senders.get(notice.channel)
            if sender is None:
                raise NotDelivered(f"nothing delivers by {notice.channel}")
            await sender.send(notice)
        except (NotDelivered, ZerotoolsError) as error:
            trouble = str(error)
        except Exception as error:  # a defect, or an odd row: it must not end the others
            log.exception("a notice of job %d", notice.job_id)
            trouble = f"{type(error).__name__}: {error}"
        if trouble is None:
            self._outbox.delivered(notice)
        elif self._now() >= notice.created + self._keep_trying:
            log.warning(
                "job %d: the notification to %s was not delivered: %s",
                notice.job_id,
                notice.notice,
                trouble,
            )
            self._outbox.expired(notice)
        else:
            self._outbox.failed(notice, self._now() + self.wait_after(notice), trouble)

    @staticmethod
    def wait_after(notice: Notice) -> float:
        """Return the seconds to wait before the next delivery of this notice, after a failed
        one.
        """
        wait = min(FIRST_SECONDS * 2.0 ** min(notice.tries, 30), MOST_SECONDS)
        return wait * part_of_wait(notice.job_id, notice.tries)
