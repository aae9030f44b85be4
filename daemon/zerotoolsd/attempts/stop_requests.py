"""Requests to attempts to save and stop, by a file in their run directories."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.ending.stop_request_file import write_request
from zerotoolsd.supervisor.plan import REQUEST, RUN
from zerotoolsd.users.open_as_user import opened

log = logging.getLogger(__name__)


class StopRequestFiles:
    """Requested stops, by the attempt's token; also those that no supervisor has received yet."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._unheard: dict[str, str] = {}
        self._unwritten: dict[str, tuple[AttemptRow, str, str]] = {}
        """Requests that could not be written: attempt, reason, and the error."""

    def write(self, attempt: AttemptRow, reason: str, grace_seconds: float | None = None) -> None:
        """Write the request to stop; if that fails, it is in `unwritten`."""
        self._since.setdefault(attempt.token, time.monotonic())
        before = self._unwritten.pop(attempt.token, None)
        try:
            with opened(Path(attempt.run_dir)) as base:
                write_request(base, reason, grace_seconds)
        except OSError as error:
            why = f"{Path(attempt.run_dir) / REQUEST}: {error.strerror}"
            if before is None or before[2] != why:
                log.error("job %d cannot get the request to stop yet: %s", attempt.job_id, why)
            self._unwritten[attempt.token] = (attempt, reason, why)
            self.keep(attempt, reason)

    def keep(self, attempt: AttemptRow, reason: str) -> None:
        """Keep a request until the attempt's supervisor is known."""
        self._unheard[attempt.token] = reason

    def take_unheard(self, attempt: AttemptRow) -> str | None:
        """Return the reason of a kept request, and forget the request; None without one."""
        return self._unheard.pop(attempt.token, None)

    @property
    def unwritten(self) -> list[tuple[AttemptRow, str]]:
        """Attempts with requests that could not be written, and the reasons."""
        return [(attempt, reason) for attempt, reason, _ in self._unwritten.values()]

    def drop_unwritten(self, attempt: AttemptRow) -> None:
        """Drop an unwritten request: the attempt is over, or is asked when it is found again."""
        self._unwritten.pop(attempt.token, None)

    def since(self, attempt: AttemptRow) -> float | None:
        """Return when the attempt was first asked to stop, by the monotonic clock; None: never."""
        return self._since.get(attempt.token)

    def over(self, attempt: AttemptRow) -> None:
        """Forget an ended attempt."""
        self._since.pop(attempt.token, None)


def has_begun(run_dir: Path) -> bool:
    """Return whether the attempt's supervisor handles SIGTERM as a request to stop.

    It does so once it has written `run.json`. Also return True if the run directory was removed
    since then.
    """
    try:
        with opened(run_dir) as base:
            return os.path.lexists(base / RUN) or not base.exists()
    except OSError:
        return False
