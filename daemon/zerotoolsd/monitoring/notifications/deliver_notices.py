"""Sends the notices of jobs and of the machine from the outbox in the queue.

Several notices are delivered at a time, each with a time limit. A failed delivery is repeated.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Protocol

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.binding.durations import seconds_of
from zerotoolsd.attempts.attempt_watcher import Guard
from zerotoolsd.config.notify_config import NotifyConfig
from zerotoolsd.monitoring.notifications.make_notices import JobNotices
from zerotoolsd.monitoring.notifications.message_formats import NotDelivered, with_age
from zerotoolsd.monitoring.notifications.notify_command import CommandRunner
from zerotoolsd.monitoring.notifications.send_to_destinations import (
    DestinationSender,
    try_destinations,
)
from zerotoolsd.monitoring.notifications.watch_for_notices import (
    ProgressWatch,
    Shortages,
    ShortageWatch,
)
from zerotoolsd.monitoring.notifications.webhooks import WebhookSender
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.retries_by_cause import wait_factor
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.notice_outbox import COMMAND, DESTINATION, WEBHOOK, Notice, Outbox
from zerotoolsd.users.served_users import OWN_ONLY, ServedUsers

OUTBOX_SECONDS = 1.0
"""Interval in seconds between reads of the outbox."""
WATCH_SECONDS = 10.0
"""Interval in seconds between checks of the running jobs and of the machine."""

log = logging.getLogger(__name__)


class JobNotifier:
    """Makes notices of job changes in `store`, and delivers them while `run_forever` runs."""

    def __init__(
        self,
        store: Store,
        config: NotifyConfig,
        guard: Guard,
        users: ServedUsers = OWN_ONLY,
        shortages: Shortages = dict,
    ) -> None:
        self._notices = JobNotices(config)
        self.progress = ProgressWatch(store, self._notices, guard)
        self.shortages = ShortageWatch(store.outbox, self._notices, shortages)
        self._config, self._web = config, WebhookSender(config)
        senders: dict[str, NoticeSender] = {
            WEBHOOK: self._web,
            COMMAND: CommandRunner(config.timeout_seconds, users),
            DESTINATION: DestinationSender(config, self._web),
        }
        self.courier = NoticeDelivery(store.outbox, config, senders)
        self._store = store
        store.tell = self._notices_of_change

    def _notices_of_change(
        self, job: JobRow, after: JobStatus, event: int, attempt: int | None, now: float
    ) -> list[Notice]:
        try:
            if attempt is not None:
                self.progress.check_at_end(job, attempt, now)
            return list(
                self._notices.of_change(
                    job, after, event=event, attempt=attempt, now=now, newest=self._newest
                )
            )
        except sqlite3.OperationalError:  # the change is undone, and made again later
            raise
        except Exception:  # of faulty data of a job: the change itself matters more
            log.exception("the notifications of a change of job %d cannot be made", job.id)
            return []

    def _newest(self, job: JobRow) -> AttemptRow | None:
        return next(reversed(self._store.attempts(job.id)), None)

    async def try_destinations(
        self, names: Collection[str], kinds: Collection[str]
    ) -> list[dict[str, Any]]:
        """Send examples of notices to destinations; see `send_to_destinations.try_destinations`."""
        return await try_destinations(self._config, self._web, self._notices, names, kinds)

    async def run_forever(self) -> None:
        """Deliver notices until this task is cancelled. Deliveries that are not finished then are
        repeated by the next daemon.
        """
        looked = time.monotonic()
        try:
            while True:
                await asyncio.sleep(OUTBOX_SECONDS)
                try:
                    if time.monotonic() - looked >= WATCH_SECONDS:
                        looked = time.monotonic()
                        self.progress.check()
                        self.shortages.check()
                    self.courier.begin_due()
                except sqlite3.OperationalError as error:
                    log.error("the outbox of notifications cannot be used now: %s", error)
                except Exception:  # out of memory, or a defect: later notices must still be sent
                    log.exception("notifications cannot be sent now")
        finally:
            self.courier.cancel()


AT_A_TIME = 16
"""The largest number of concurrent deliveries; at most a quarter of them for one user."""
FIRST_SECONDS, MOST_SECONDS = 5.0, 3600.0
"""Seconds to wait after the first failed delivery, and the longest wait.

Each wait is double the wait before.
"""


class NoticeSender(Protocol):
    """A channel for notices: a webhook, or a command."""

    async def send(self, notice: Notice) -> str:
        """Try once, within a time limit, to deliver the notice. Return the answer in a few words.

        Raises NotDelivered.
        """


class NoticeDelivery:
    """Delivers the notices in the outbox.

    `senders` is name of a channel -> its sender. `now` returns seconds since the epoch.
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
        self._asked_waits: dict[tuple[str, str], float] = {}
        """(channel, target) -> the time until which the service wants no request."""
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
            until = self._asked_waits.get((notice.channel, notice.target), 0.0)
            if 0.0 < until - self._now() <= MOST_SECONDS:  # else the clock was set back
                self._outbox.postpone(notice.channel, notice.target, until)
            elif notice.id not in self._tasks and len(self._tasks) < AT_A_TIME:
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
            # The notice is still in the outbox, so it is delivered once more.
            log.error(
                "the delivery of a notification of job %d cannot be recorded: %s",
                notice.job_id,
                error,
            )

    async def _try(self, notice: Notice) -> None:
        trouble: str | None = None
        wait = self.wait_after(notice)
        try:
            sender = self._senders.get(notice.channel)
            if sender is None:
                raise NotDelivered(f"this daemon has no channel {notice.channel} for notifications")
            await sender.send(with_age(notice, self._now()))
        except NotDelivered as error:
            trouble = str(error)
            if error.retry_after is not None:
                wait = min(max(wait, error.retry_after), MOST_SECONDS)
                now = self._now()
                ahead = {key: at for key, at in self._asked_waits.items() if at > now}
                self._asked_waits = {**ahead, (notice.channel, notice.target): now + wait}
                self._outbox.postpone(notice.channel, notice.target, self._now() + wait)
        except ZerotoolsError as error:
            trouble = str(error)
        except Exception as error:  # a defect, or an odd row: it must not end the others
            log.exception("a notice of job %d", notice.job_id)
            trouble = f"{type(error).__name__}: {error}"
        if trouble is None:
            self._outbox.delivered(notice, self._now())
        elif self._now() >= notice.created + self._keep_trying:
            log.warning(
                "job %d: the notification %s was not delivered: %s",
                notice.job_id,
                notice.notice,
                trouble,
            )
            self._outbox.expired(notice)
        else:
            self._outbox.failed(notice, self._now() + wait, trouble)

    @staticmethod
    def wait_after(notice: Notice) -> float:
        """Return the seconds to wait before the notice is sent again after a failure."""
        wait = min(FIRST_SECONDS * 2.0 ** min(notice.tries, 30), MOST_SECONDS)
        return wait * wait_factor(notice.job_id, notice.tries)
