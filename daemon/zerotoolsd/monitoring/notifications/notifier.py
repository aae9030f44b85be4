"""All that tells of jobs, put together: for the dispatcher."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time

from zerotoolsd.attempts.attempt_watcher import Guard
from zerotoolsd.config.notify_config import NotifyConfig
from zerotoolsd.monitoring.notifications.delivery import Courier, NoticeSender
from zerotoolsd.monitoring.notifications.notice_text import JobTeller
from zerotoolsd.monitoring.notifications.notify_command import CommandRunner
from zerotoolsd.monitoring.notifications.stall_watch import StallWatch
from zerotoolsd.monitoring.notifications.webhooks import WebhookSender
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.notice_outbox import COMMAND, WEBHOOK, Notice
from zerotoolsd.users.served_users import OWN_ONLY, ServedUsers

OUTBOX_SECONDS = 1.0
"""Interval in seconds between reads of the outbox."""
STALL_SECONDS = 10.0
"""Interval in seconds between checks for stalled jobs."""

log = logging.getLogger(__name__)


class JobNotifier:
    """Makes notices of the changes in `store`, and delivers them while `keep_up` runs."""

    def __init__(
        self, store: Store, config: NotifyConfig, guard: Guard, users: ServedUsers = OWN_ONLY
    ) -> None:
        self._teller = JobTeller(config)
        self.stalls = StallWatch(store, self._teller, guard)
        runner = CommandRunner(config.timeout_seconds, users)
        senders: dict[str, NoticeSender] = {WEBHOOK: WebhookSender(config), COMMAND: runner}
        self.courier = Courier(store.outbox, config, senders)
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
        """Deliver until cancelled; the next daemon repeats deliveries that are running then."""
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
