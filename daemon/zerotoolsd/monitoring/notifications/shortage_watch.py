"""Watches the memory and the disk of the machine, to send notices when they run short."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from zerotoolsd.config.notify_config import DISK_SHORT, MEMORY_SHORT
from zerotoolsd.monitoring.notifications.make_notices import MACHINE_JOB, JobNotices
from zerotoolsd.queue.tables.notice_outbox import Outbox

Shortages = Callable[[], Mapping[str, str]]
"""A function that returns the current shortages: the kind of the notice to one sentence."""
CALM_SECONDS = 600.0
"""A shortage is reported again only after the machine had none for this long."""


class ShortageWatch:
    """Reports each shortage of the machine once, even if the daemon restarts meanwhile."""

    def __init__(
        self,
        outbox: Outbox,
        notices: JobNotices,
        shortages: Shortages,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outbox = outbox
        self._notices = notices
        self._shortages = shortages
        self._clock = clock
        self._calm_since: dict[str, float] = {}
        self._reported: set[str] = {MEMORY_SHORT, DISK_SHORT}
        """Shortages that this daemon, or one before, may have reported."""

    def check(self) -> None:
        """Check the machine, and put notices of new shortages into the outbox.

        Raises sqlite3.OperationalError if the outbox cannot be written now.
        """
        found = self._shortages()
        for notice in (MEMORY_SHORT, DISK_SHORT):
            if not self._notices.wants(None, notice):
                continue
            if (why := found.get(notice)) is not None:
                self._calm_since.pop(notice, None)
                notices = self._notices.of_machine(notice, why, time.time())
                self._outbox.put_once(MACHINE_JOB, notice, notices)
                self._reported.add(notice)
            elif notice in self._reported:
                since = self._calm_since.setdefault(notice, self._clock())
                if self._clock() - since >= CALM_SECONDS:
                    self._outbox.forget(MACHINE_JOB, notice)
                    self._reported.discard(notice)
