"""Delivers the outbox: several notices at a time, each with a time limit, and repeated later."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.binding.durations import seconds_of
from zerotoolsd.config.notify_config import NotifyConfig
from zerotoolsd.monitoring.notifications.webhooks import NotDelivered
from zerotoolsd.queue.retry_jitter import part_of_wait
from zerotoolsd.queue.tables.notice_outbox import Notice, Outbox

AT_A_TIME = 8
FIRST_SECONDS, MOST_SECONDS = 5.0, 3600.0
"""The wait after the first try, which doubles, and the longest."""

log = logging.getLogger(__name__)


class NoticeSender(Protocol):
    """A channel for notices."""

    async def send(self, notice: Notice) -> None:
        """Deliver it once, within a time limit. Raises NotDelivered."""


class Courier:
    """`senders` by channel; `now` is seconds since the epoch."""

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
        """Cancel the running deliveries; they stay in the outbox."""
        for task in self._tasks.values():
            task.cancel()

    def begin_due(self) -> None:
        """Begin the due deliveries, up to the limit of concurrent ones."""
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
        """Wait for the running deliveries."""
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
        """Return the seconds until the next try after a failed one."""
        wait = min(FIRST_SECONDS * 2.0 ** min(notice.tries, 30), MOST_SECONDS)
        return wait * part_of_wait(notice.job_id, notice.tries)
